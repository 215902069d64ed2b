"""Runs on HDF5 files with every kind of buckets and order: exactly once, and bit for bit again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.torch import load_file
from tests.harness.faulty import armed, events, stopped_ranks, wait_until
from tests.harness.project import Project, differences, make_project

from tasuki.runs.atomic import read_json
from tasuki.runs.metrics import read_metrics

NUM = 58
CODE = '''
from tasuki import Hdf5Dataset, pad_collate


def shake(sample):
    """Every sample draws from all three random generators."""
    noise = random.random() + np.random.rand() + float(torch.rand(()))
    return {**sample, "nodes": sample["nodes"] + np.float32(0.01 * noise)}


class Graphs:
    """A mean over the nodes that are no padding; dropout draws too."""

    def __init__(self, noise=True):
        self.noise = noise
        self.collate = pad_collate

    def build_model(self):
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def build_dataset(self, source, split):
        return Hdf5Dataset(source, split, transform=shake if self.noise else None)

    def loss(self, model, batch):
        n, nodes = batch["n"], batch["nodes"]
        is_node = torch.arange(nodes.shape[1]) < n[:, None]
        mean = (model(nodes)[:, :, 0] * is_node).sum(1) / n
        return ((mean - batch["label"]) ** 2).sum(), float(len(n)), {"largest": nodes.shape[1]}


class Witness(Graphs):
    """Says which sizes it is evaluated on."""

    def loss(self, model, batch):
        if not model.training:
            for n in batch["n"].tolist():
                print("looked at", n, flush=True)
        return super().loss(model, batch)


class Tally(Graphs):
    """Counts how often sample i is used; w[i] loses 1/(samples of its step) each time."""

    def build_model(self):
        model = nn.Module()
        model.w = nn.Parameter(torch.zeros(58))
        model.register_buffer("used", torch.zeros(58))
        return model

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def loss(self, model, batch):
        model.used[batch["id"]] += 1
        cost = int(batch["n"].sum())
        return model.w[batch["id"]].sum(), float(len(batch["id"])), {"cost": cost}
'''
KINDS: dict[str, dict[str, Any]] = {
    "auto": {"buckets": "auto"},
    "bounds": {"buckets": [4, 9]},
    "score": {"buckets": {"auto": 2}, "order": "score"},
    "cost": {"buckets": {"cost": "n+nodes", "budget": 40}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs of two to nine nodes, in a folder with a file per split."""
    folder = tmp_path_factory.mktemp("graphs") / "graphs"
    folder.mkdir()
    chance = np.random.default_rng(1)
    sizes = chance.integers(2, 10, NUM)
    nodes = chance.random((sizes.sum(), 3), dtype=np.float32)
    for split in ("train", "val", "test"):
        with h5py.File(folder / f"{split}.h5", "w") as file:
            file["n"] = sizes
            file["id"] = np.arange(NUM)
            file["label"] = chance.random(NUM, dtype=np.float32)
            file["score"] = chance.permutation(NUM) / 7
            file.create_dataset("nodes", data=nodes, chunks=(32, 3), compression="gzip")
            file["nodes_offsets"] = np.cumsum([0, *sizes])
    return folder


def make(folder: Path, data: Path, **more: Any) -> Project:
    kind = more.pop("kind", {})
    return make_project(
        folder,
        recipe=more.pop("recipe", "Graphs"),
        code=CODE,
        params=more.pop("params", {}),
        stages=more.pop("stages", [{"name": "one", "data": str(data), "epochs": 3}]),
        defaults={"log_every": "1 step", "save": {"every": "4 steps"}, **kind}
        | more.pop("defaults", {}),
        **more,
    )


def finish(warm, project: Project) -> Project:
    assert warm.start(project.job.path).wait() == 0, project.logs()
    return project


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("score", 1),
        *(pytest.param(k, r, marks=pytest.mark.long) for k, r in (("auto", 1), ("cost", 2))),
    ],
)
def test_killed_in_the_middle_of_an_epoch_and_resumed_it_ends_bit_for_bit_the_same(
    warm, tmp_path, data, kind, ranks
):
    undisturbed = finish(warm, make(tmp_path / "a", data, kind=KINDS[kind], ranks=ranks))
    project = make(tmp_path / "b", data, kind=KINDS[kind], ranks=ranks)
    kill = {"at": "step.begin", "do": "kill", "count": 15, "claim": 1}
    assert warm.start(project.job.path, **armed(kill)).wait() == 0, project.logs()
    assert events(project, "restored")[-1]["step"] >= 8
    assert differences(undisturbed, project) == []


@pytest.mark.parametrize(
    "kind", ["cost", *(pytest.param(k, marks=pytest.mark.long) for k in KINDS if k != "cost")]
)
def test_every_sample_is_used_exactly_once_per_epoch_on_one_rank_and_on_two(
    warm, tmp_path, data, kind
):
    still = {"clip": 0, "schedule": "constant", "warmup": 0}
    options = {"recipe": "Tally", "params": {"noise": False}, "defaults": still}
    projects = [
        finish(warm, make(tmp_path / str(n), data, kind=KINDS[kind], ranks=n, **options))
        for n in (1, 2)
    ]
    one, two = (load_file(project.run.stage("one").weights) for project in projects)
    assert one["used"].tolist() == [3.0] * NUM
    assert two["w"].equal(one["w"])
    rows = read_metrics(projects[0].run)
    assert rows[-1]["samples"] == 3 * NUM
    if kind == "cost":
        assert max(row["cost"] for row in rows) <= 20  # `n+nodes` counts a graph's nodes twice


def test_stages_are_found_in_the_data_and_trained_from_small_to_large(warm, tmp_path, data):
    project = make(
        tmp_path / "p", data, stages="auto", defaults={"data": str(data), "size": "2..4"}
    )
    assert project.stages == ["graphs_2", "graphs_3", "graphs_4"]
    finish(warm, project)
    with h5py.File(data / "train.h5") as file:
        sizes = file["n"][()].tolist()
    rows = read_metrics(project.run)
    for size in (2, 3, 4):
        own = [row for row in rows if row["stage"] == f"graphs_{size}"]
        assert own[-1]["samples"] == sizes.count(size)
        assert {row["largest"] for row in own} == {size}
    assert read_json(project.run.final_results)["weights"] == "stages/graphs_4/weights.safetensors"


def test_data_that_do_not_fit_the_spec_end_the_run_at_once_with_a_message(warm, tmp_path, data):
    """Each message is tested in `unit/data`; one comes from the rank to its log."""
    project = make(tmp_path / "p", data, kind={"buckets": [4, 8]}, params={"noise": False})
    assert warm.start(project.job.path).wait() == 1
    assert "larger than the last bucket boundary 8" in project.logs()
    assert "Traceback" not in project.logs()
    assert len(events(project, "worker-started")) == 1


def test_a_file_that_changes_under_a_run_ends_it_with_a_message(warm, tmp_path, data):
    own = tmp_path / "own.h5"
    own.write_bytes((data / "train.h5").read_bytes())
    project = make(tmp_path / "p", own)
    stop = {"at": "step.begin", "do": "stop", "count": 5, "claim": 1}
    started = warm.start(project.job.path, **armed(stop))
    wait_until(lambda: stopped_ranks(started.pid), project)
    own.write_bytes((data / "val.h5").read_bytes())  # HDF5 itself would refuse: it is locked
    started.kill(signal.SIGCONT)
    assert started.wait() == 1
    assert f"`{own}` changed while it was read" in project.logs()


def test_validation_on_a_stage_s_own_data_keeps_to_its_sizes(warm, tmp_path, data):
    with h5py.File(data / "val.h5") as file:
        size = int(file["n"][0])
    stage = {"name": "one", "data": str(data), "size": size, "epochs": 1}
    own = {"validate": {"every": "1 epoch"}, "evaluate": {}}
    named = {"validate": {"every": "1 epoch", "data": str(data)}, "evaluate": {"data": str(data)}}
    seen = {}
    for name, keys in (("own", own), ("named", named)):
        project = make(
            tmp_path / name, data, recipe="Witness", stages=[stage], defaults=keys, params={}
        )
        finish(warm, project)
        told = [line for line in project.logs().splitlines() if line.startswith("looked at ")]
        seen[name] = {int(line.split()[2]) for line in told}
    assert seen["own"] == {size}
    assert len(seen["named"]) > 1
