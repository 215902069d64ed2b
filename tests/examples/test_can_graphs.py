"""examples/can_graphs, used as a person would use a copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.commands.projects import Project, kill_leftovers, user_environment
from tests.commands.warm_python import write_warm_python
from tests.examples import copies
from tests.examples.copies import EXAMPLES, copy_example
from tests.harness.faulty import used
from tests.harness.warm import warm_server

from tasuki.runs.events import read_events
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import to_plain
from tasuki.train.data import prepare_data

NAME = "can_graphs"
EXAMPLE = EXAMPLES / NAME
SETS = {
    "hcrl_ch": 45_000,
    "hcrl_sa": 50_000,
    "set_01": 200_000,
    "set_02": 203_000,
    "set_03": 195_000,
    "set_04": 190_000,
}
EXPERIMENTS = [f"{kind}_{name}" for name in SETS for kind in ("vgae", "gat")]
CAP = {"TASUKI_MEMORY_CAP": "4M"}
"""Room for the largest graph of all, not for a whole step with large ones."""


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return copies.load(NAME, "recipe")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return copies.load(NAME, "generate")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A copy elsewhere, with the data of one set."""
    folder = copy_example(NAME, tmp_path_factory.mktemp("can_graphs") / "original").folder
    done = copies.generate(NAME, folder, "--sets", "hcrl_ch")
    assert done.code == 0, done
    return folder


@pytest.fixture
def example(original, tmp_path) -> Iterator[Project]:
    folder = tmp_path / "elsewhere"
    shutil.copytree(original, folder)
    yield Project(folder, user_environment())
    kill_leftovers(tmp_path)


@pytest.fixture(scope="module")
def warm_graphs(tmp_path_factory) -> Iterator[str]:
    """A Python that has torch_geometric imported: it takes longer than all the training here."""
    folder = tmp_path_factory.mktemp("warm")
    with warm_server(folder, "torch_geometric.nn") as server:
        yield write_warm_python(folder / "python", socket=server._path)


@pytest.fixture
def quickly(warm_graphs) -> tuple[str, ...]:
    """Nothing is imported or measured before the first step."""
    return ("--json", "--set", f"cluster.python={warm_graphs}", "--set", "expect.wall=30s")


# -- it learns ------------------------------------------------------------------------------------


def test_the_quick_spec_learns_what_follows_what_and_then_finds_attacks(example, quickly):
    said = example.type("run", "spec.py:quick", *quickly)
    assert said.code == 0, f"{said}\n{example.logs()}"
    assert said.run["state"] == "complete"
    found = validations(RunFolder(example.folder / "runs-quick" / "quick"))
    last = {row["stage"]: row for row in found}
    assert (last["vgae"]["step"], last["easy"]["step"]) == (120, 160)
    assert last["vgae"]["auc"] > 0.8 and last["vgae"]["by_frequency"] < 0.65
    metrics = last["easy"]
    assert metrics["auc"] > 0.8 and metrics["by_size"] < 0.65
    assert metrics["accuracy"] > metrics["guess"] + 0.1 and metrics["guess"] < 0.65
    assert metrics["caught_dos"] > 0.7 and metrics["false_alarms"] < 0.2


def validations(run: RunFolder) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run) if row["split"] == "val"]


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_gat_begins_with_the_encoder_of_its_vgae_and_both_reach_what_the_readme_says(
    example, quickly
):
    words = ("spec.py:make", "--experiment", "vgae_hcrl_ch", "gat_hcrl_ch")
    said = example.type("run", *words, *quickly, within_s=400)  # half a minute when idle
    assert said.code == 0, f"{said}\n{example.logs()}"
    runs = {run["experiment"]: run for run in said.json()["runs"]}
    assert runs["vgae_hcrl_ch"]["stages"][-1]["metrics"]["auc"] > 0.92
    metrics = runs["gat_hcrl_ch"]["stages"][-1]["metrics"]
    assert metrics["auc"] > 0.85 and metrics["accuracy"] > 0.85
    assert metrics["caught_dos"] > 0.9 and metrics["caught_spoofing"] > 0.8
    assert "from the weights of `vgae_hcrl_ch/train`" in example.logs()


# -- it survives ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["vgae", "easy"])
def test_interrupted_four_times_it_has_the_bits_of_an_uninterrupted_run(example, quickly, stage):
    words = ("verify", "resume", "spec.py:quick", "--stage", stage)
    said = example.type(*words, *quickly, within_s=500)
    assert said.code == 0, f"{said}\n{example.logs()}"
    report = said.json()
    assert report["status"] == "equal" and len(report["interruptions"]) == 4, report


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("budget", ["auto", "1000000"])
@pytest.mark.parametrize(("kind", "stage"), [("gat", "easy"), ("vgae", "train")])
def test_without_room_for_a_whole_step_the_same_is_learnt_from_the_same_samples(
    example, quickly, kind, stage, budget
):
    """An epoch, with the largest graph in it; there is neither dropout nor BatchNorm. A budget that
    is found fits at once; one that is given and far too large is halved until it does."""
    name = f"{kind}_hcrl_ch"
    words = ("run", "--experiment", name, "--stages", stage, "--set", "epochs=1")
    words = (*words, "--set", f"buckets.budget={budget}")
    free = example.type(*words, *quickly, "--set", "runs=free", within_s=120)
    capped = example.type(*words, *quickly, within_s=120, **CAP)
    assert free.code == capped.code == 0, f"{free}\n{capped}\n{example.logs()}"
    one, other = RunFolder(example.folder / "free" / name), example.run(name)
    assert told_to_split(one) == []
    assert told_to_split(other)[:1] == (["tuned"] if budget == "auto" else ["out of memory"])
    assert budget != "auto" or "out of memory" not in told_to_split(other)
    assert used(one) == used(other), "the same samples"
    checked = example.type("verify", "samples", f"{name}/{stage}", "--json")
    assert checked.code == 0 and checked.json()["exactly_once"], checked
    weights = load_file(one.stage(stage).weights)
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    found = load_file(other.stage(stage).weights)
    torch.testing.assert_close(found, weights, rtol=1e-3, atol=1e-5)


def told_to_split(run: RunFolder) -> list[str]:
    """Why micro-batches were made smaller or larger."""
    told = [event for event in read_events(run) if event["kind"] == "micro-batch"]
    assert all(event["unit"] == "cost" for event in told)
    return [event["reason"].partition(":")[0].partition(" (")[0] for event in told]


# -- specs ----------------------------------------------------------------------------------------


def plain_stages(spec: str, name: str, *settings: str) -> list[dict[str, Any]]:
    found = load_spec(str(EXAMPLE / spec), settings=settings, environ=user_environment())
    (experiment,) = [one for one in found.experiments if one.name == name]
    return [to_plain(stage) for stage in experiment.stages]


def test_python_and_yaml_say_the_same_but_for_the_start_that_only_python_can_say():
    environ = user_environment()
    python, yaml = (
        load_spec(str(EXAMPLE / name), environ=environ) for name in ("spec.py:make", "tasuki.yaml")
    )
    assert [experiment.name for experiment in python.experiments] == EXPERIMENTS
    by_name = {experiment.name: experiment for experiment in yaml.experiments}
    assert sorted(by_name) == sorted(EXPERIMENTS)
    for experiment in python.experiments:
        for stage, same in zip(experiment.stages, by_name[experiment.name].stages, strict=True):
            one, other = to_plain(stage), to_plain(same)
            if stage.name == "easy":
                data = experiment.name.removeprefix("gat_")
                assert one["init_from"] == f"vgae_{data}/train" and not one["strict"]
                one |= {"init_from": other["init_from"], "strict": other["strict"]}
            assert one == other


def test_what_is_set_on_the_command_line_wins_over_python_values():
    settings = ("lr=0.5", "params.width=64", "effective_batch=7", "safety_factor=0.7", "epochs=2")
    for stage in plain_stages("spec.py:make", "gat_set_02", *settings):
        assert stage["lr"] == 0.5 and stage["length"]["count"] == 2
        assert stage["params"] == {"width": 64, "heads": 4, "layers": 2, "dropout": 0.0}
        assert stage["effective_batch"] == 7 and stage["safety_factor"] == 0.7


def test_all_graphs_are_planned_without_gpu_and_data(here, tmp_path):
    project = copy_example(NAME, tmp_path / "laptop")
    before = project.tree()
    said = here(project.folder, "plan", "spec.py:full", "--json")
    assert said.code == 0, said
    jobs = said.json()["jobs"]
    assert all(job["expected_s"] <= job["limit_s"] == 8 * 3600 for job in jobs)
    pieces = [piece for job in jobs for lane in job["lanes"] for piece in lane["stages"]]
    assert {piece["source"] for piece in pieces} == {"given"}
    assert {piece["experiment"] for piece in pieces} == set(EXPERIMENTS)
    # Longer than a job: what was killed at its limit goes on in the next one.
    of_set_02 = [p for p in pieces if p["experiment"] == "vgae_set_02" and p["kind"] == "train"]
    assert len(of_set_02) == 2
    assert project.tree() == before


WORDS_OF_README = [
    ["inspect", "spec.py:make", "--experiment", "gat_hcrl_ch"],
    ["plan", "spec.py:make", "--experiment", "vgae_hcrl_ch", "gat_hcrl_ch", "--no-measure"],
    ["status"],
    ["estimate", "spec.py:make", "--experiment", "gat_hcrl_ch"],
    ["estimate", "spec.py:make", "--compare", "--experiment", "vgae_hcrl_ch", "gat_hcrl_ch"],
    ["history"],
    ["tune", "spec.py:make", "--batch-size", "--experiment", "vgae_hcrl_ch"],
]
"""Commands that look at the data and change nothing."""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("words", WORDS_OF_README, ids=" ".join)
def test_what_the_readme_types_works(example, warm_graphs, words):
    cap = CAP if words[0] == "tune" else {}
    said = example.type(*words, "--json", within_s=280, **cap)
    assert said.code == 0 and said.json(), said
    assert "no effect" not in said.out + said.err


# -- easy windows first ---------------------------------------------------------------------------


def test_the_first_stage_of_a_gat_goes_from_easy_windows_to_hard_ones(recipe, original):
    spec = load_spec(f"{original}/spec.py:make", environ=user_environment())
    (gat,) = [one for one in spec.experiments if one.name == "gat_hcrl_ch"]
    (stage,) = [one for one in gat.stages if one.name == "easy"]
    gat = recipe.GAT()
    stage = msgspec.structs.replace(stage, data=str(original / str(stage.data)))
    data = prepare_data(gat, stage, rank=0, world=1)
    counts = {name: data.dataset.counts(name) for name in ("attack", "messages", "injected")}
    hit, sizes = counts["attack"] > 0, gat.sample_sizes(data.dataset)
    steps = [data.order.step(0, n).indices for n in range(data.order.steps_per_epoch)]
    attackers = counts["injected"] / counts["messages"]
    shares = [attackers[step[hit[step]]].mean() for step in steps]
    quiet = [sizes[step[~hit[step]]].mean() for step in steps]
    half = len(steps) // 2
    assert np.mean(shares[:half]) > 2 * np.mean(shares[half:]), "the attacker does less and less"
    assert np.mean(quiet[:half]) < np.mean(quiet[half:]) / 2, "and hides in more and more"
    assert all(0.2 < hit[step].mean() < 0.6 for step in steps[:-1]), "both are in every step"
    assert data.order.step(1, 0).indices.tolist() == steps[0].tolist(), "in each epoch"


# -- graphs ---------------------------------------------------------------------------------------


def test_a_made_up_batch_looks_like_one_of_the_data(recipe, original):
    for kind in (recipe.VGAE(), recipe.GAT()):
        dataset = kind.build_dataset(str(original / "data" / "hcrl_ch"), "train")
        real = kind.collate([dataset[0], dataset[1]])
        for made in (kind.example_batch(None, 2), kind.example_batch(300, 2)):
            assert sorted(made.keys()) == sorted(real.keys())
            for key in real.keys():  # noqa: SIM118 - a batch is no mapping
                assert made[key].dtype == real[key].dtype and made[key].dim() == real[key].dim()
        assert made.num_nodes + made.num_edges == 600
        total, weight = kind.loss(kind.build_model(), real)
        assert weight == 2 and torch.isfinite(total)


def test_a_loss_does_not_hang_on_how_graphs_are_put_together(recipe, original):
    for kind in (recipe.VGAE(), recipe.GAT()):
        dataset = kind.build_dataset(str(original / "data" / "hcrl_ch"), "train")
        torch.manual_seed(1)
        model, graphs = kind.build_model(), [dataset[i] for i in range(12)]
        whole, _ = kind.loss(model, kind.collate(graphs))
        parts = [graphs[:1], graphs[1:9], graphs[9:]]
        pieces = [kind.loss(model, kind.collate(part))[0] for part in parts]
        torch.testing.assert_close(sum(pieces), whole)


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(recipe):
    found = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0, 5.0])
    labels = torch.tensor([1, 0, 1, 0, 0, 0])
    pairs = [(p, n) for p in found[labels == 1] for n in found[labels == 0]]
    wanted = np.mean([float(p > n) + 0.5 * float(p == n) for p, n in pairs])
    assert recipe.area(found, labels) == pytest.approx(wanted)


# -- data -----------------------------------------------------------------------------------------


def test_the_data_sets_have_their_true_counts_and_a_graph_hangs_on_nothing_else(generator):
    assert {name: one.graphs for name, one in generator.SETS.items()} == SETS
    for name, graphs in SETS.items():
        made = [generator.num_graphs(name, split, 1.0) for split in generator.SPLITS]
        assert sum(made) == graphs
    car = generator.make_car(1, "set_01")
    for length in (generator.SHORTEST, 40, generator.LONGEST):
        drives = [generator.drive(car, length, np.random.default_rng(n)) for n in range(50)]
        assert {len(messages.times) for messages in drives} == {length}
    one, same = (generator.make_window(car, np.random.default_rng([1, 2, 0, 5])) for _ in "ab")
    assert np.array_equal(one.nodes, same.nodes) and np.array_equal(one.edges, same.edges)
