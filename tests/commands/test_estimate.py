"""`tasuki estimate`: what stages need before they run; what is given wins, what is known stays."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import tasuki

GIB = 1 << 30
RECIPE = """
import torch
from torch import nn


class Rows:
    sizes = [16] * 40 + [32] * 24 + [64] * 8

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return {"x": torch.zeros(self.sizes[index], 8)}


class Wide:
    def __init__(self, width=256, dtype="float32"):
        self.width, self.dtype = width, dtype

    def build_model(self):
        blocks = [nn.Sequential(nn.Linear(8, self.width), nn.Linear(self.width, 8))]
        return nn.Sequential(*blocks, *(nn.Sequential(nn.Linear(8, 8)) for _ in range(2)))

    def build_dataset(self, source, split):
        open(source).close()
        return Rows()

    def loss(self, model, batch):
        return model(batch["x"]).square().mean()

    def example_batch(self, size, batch):
        return {"x": torch.zeros(batch, size, 8, dtype=getattr(torch, self.dtype))}


class Counting(Wide):
    def loss(self, model, batch):
        if type(batch["x"]) is torch.Tensor:
            open("stepped", "w").close()
        return super().loss(model, batch) * torch.histc(batch["x"]).cumsum(0).numpy().sum()


"""
SPEC = """
recipe: recipes:Wide
cluster: {gpu: a100-40gb}
defaults: {effective_batch: 8, epochs: 3, data: rows.txt}
experiments:
  exp:
    stages:
      - {name: small, size: 16}
      - {name: mixed, size: [32, 64]}
"""
TINY = """
gpus:
  tiny: {memory: 700MiB, bandwidth: 100GB/s, tflops: {fp32: 1.0}}
"""
CONTRACT = {
    *("experiment", "stage", "bucket", "gpu", "samples", "micro_batch", "max_micro_batch"),
    *("cost_budget", "tensor_peak_bytes", "peak_bytes", "headroom_bytes", "breakdown", "step_s"),
    *("wall_s", "wall_s_p90", "limit_s", "host_bytes", "source", "error", "submit_command"),
}


def write_project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPE)
    (folder / "tasuki.yaml").write_text(SPEC)
    (folder / "rows.txt").write_text("72 rows")
    (folder / "site.yaml").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> Path:
    """A project of which everything was found out once."""
    folder = write_project(tmp_path_factory.mktemp("estimate") / "p")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tasuki.estimate()
    return folder


@pytest.fixture
def deaf(asked, here, monkeypatch):
    """Types commands where no child can be started: all that counts is what is kept."""

    def type_there(*words, folder=asked, **environment):
        monkeypatch.setattr(sys, "executable", "/bin/false")
        return here(folder, *words, **environment)

    return type_there


def test_a_second_estimate_starts_no_process_and_has_the_keys_of_the_contract(deaf):
    said = deaf("estimate", "--json")
    assert said.code == 0, said
    rows = said.json()["stages"]
    assert all(set(row) >= CONTRACT for row in rows)
    assert [(r["stage"], r["bucket"], r["samples"]) for r in rows] == [
        ("small", 16, 40),
        ("mixed", 32, 24),
        ("mixed", 64, 8),
    ]
    for row in rows:
        assert sum(row["breakdown"]["device"].values()) == row["peak_bytes"]
        assert row["peak_bytes"] + row["headroom_bytes"] == row["capacity_bytes"]
        assert 0 < row["tensor_peak_bytes"] < row["peak_bytes"]
        assert row["micro_batch"] == 8 < row["max_micro_batch"]
        assert row["source"] == "predicted" and row["error"] == 0.5


def test_the_time_of_a_stage_is_that_of_all_its_steps_its_start_and_its_saves(deaf):
    first, *mixed = deaf("estimate", "--json").json()["stages"]
    assert first["train_s"] == pytest.approx(first["step_s"] * 3 * 5)
    assert first["wall_s"] > first["train_s"] + 5.0, "a process has to start"
    assert first["wall_s_p90"] > first["wall_s"]
    assert sum(r["wall_s"] for r in mixed) == pytest.approx(mixed[0]["stage_wall_s"])
    share = mixed[0]["wall_s"] / mixed[0]["stage_wall_s"]
    assert share == pytest.approx(mixed[0]["step_s"] * 3 * 3 / mixed[0]["train_s"])


def test_one_command_submits_all_stages_and_asks_for_the_largest(deaf):
    """A run that is in the queue is not submitted again: one command for each would lose stages."""
    said = deaf("estimate", "--set", "experiments.exp.stages.1.expect.wall=9h")
    assert said.out.count("tasuki submit") == 1, said.out
    rows = deaf("estimate", "--json", "--set", "experiments.exp.stages.1.expect.wall=9h").json()[
        "stages"
    ]
    small, *mixed = rows
    assert small["limit_s"] < mixed[0]["limit_s"]
    [one] = {row["submit_command"] for row in rows}
    hours = -(-mixed[0]["limit_s"] // 60) // 60
    assert "--stages" not in one and f"--time {hours:.0f}h" in one


def test_the_command_to_submit_can_be_pasted(deaf):
    import shlex

    from tasuki.cli.submit import command

    row = deaf("estimate", "--json", "--stages", "small").json()["stages"][0]
    assert row["submit_command"] == "tasuki submit --stages small --time 10m --memory 3G"
    words = shlex.split(row["submit_command"])
    parsed = command.make_context("submit", words[2:])
    assert parsed.params["limit"] == "10m" and parsed.params["stages"] == ("small",)
    # It asks for the card that was asked about, by the name that was given.
    other = ["--set", "cluster.gpu=null", "--gpu", "h100", "--stages", "small"]
    [row] = deaf("estimate", "--json", *other).json()["stages"]
    assert row["submit_command"].count("--set cluster.gpu=h100 --time ") == 1


def test_a_given_peak_beyond_the_card_does_not_fit_and_one_within_it_does(deaf, asked):
    said = deaf("estimate", "--gpu", "t4", "--set", "expect.peak=20G")
    assert said.code == 1 and "`expect.peak` is 21.5 GB: 5.84 GB more" in said.out
    assert "memory: 21.5 GB, given" in said.out and "as traced, needs" in said.out
    site = str(asked / "site.yaml")
    said = deaf("estimate", "--gpu", "tiny", "--set", "expect.peak=100M", TASUKI_SITE=site)
    assert said.code == 0, said


@pytest.mark.parametrize("name", ["recipes.py", "rows.txt"])
def test_other_code_and_other_data_are_looked_at_anew(deaf, asked, name):
    file = asked / name
    before, at = file.read_text(), file.stat()
    file.write_text(f"{before}\n# longer")
    said = deaf("estimate")
    file.write_text(before)
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert said.code != 0, "the child that is asked cannot answer here"
    assert deaf("estimate").code == 0


def test_what_is_given_wins_and_is_shown_as_given(asked, here):
    words = ["--set", "micro_batch=2", "--set", "expect.wall=4h", "--set", "expect.peak=2G"]
    more = ["--set", "cluster.memory=64G", "--set", "cluster.time_limit=8h"]
    said = here(asked, "estimate", "--json", *words, *more)
    row = said.json()["stages"][0]
    assert (row["micro_batch"], row["accumulation"]) == (2, 4)
    assert row["peak_bytes"] == 2 * GIB
    assert (row["stage_wall_s"], row["source"]) == (4 * 3600, "given")
    assert (row["limit_s"], row["host_bytes"]) == (8 * 3600, 64 * GIB)
    sources = row["sources"]
    given = ("micro_batch", "peak", "wall", "limit", "host")
    assert {sources[name] for name in given} == {"given"}
    assert "--time" not in row["submit_command"] and "--memory" not in row["submit_command"]
    little = here(asked, "estimate", "--json", "--set", "cluster.memory=100M").json()
    assert any("the host needs about" in note for note in little["stages"][0]["notes"])
    assert not any("the host needs about" in note for note in row["notes"])


def test_several_cards_are_compared_without_asking_again(deaf, asked):
    said = deaf("estimate", "--stages", "small", "--gpu", "t4", "h100-sxm", "--compare", "--json")
    assert said.code == 0, said
    small, large = said.json()["stages"]
    assert (small["gpu"], large["gpu"]) == ("t4", "h100-sxm")
    assert small["max_micro_batch"] < large["max_micro_batch"]
    assert small["tensor_peak_bytes"] == large["tensor_peak_bytes"]
    shown = deaf("estimate", "--compare", "--stages", "small")
    assert shown.code == 0 and all(name in shown.out for name in ("v100-16gb", "a100-40gb", "h200"))
    site = deaf("estimate", "--compare", "--json", TASUKI_SITE=str(asked / "site.yaml")).json()
    assert {"tiny", "t4"} < {row["gpu"] for row in site["stages"]}
    unknown = deaf("estimate", "--gpu", "a100-41gb")
    assert unknown.code == 2 and "a100-40gb" in unknown.err


@pytest.mark.long
def test_what_cannot_fit_says_by_how_much_and_what_would_help(asked, here):
    site = {"TASUKI_SITE": str(asked / "site.yaml")}
    words = ("--gpu", "tiny", "--set", "params.width=400000", "--stages", "small")
    said = here(asked, "estimate", *words, "--json", **site)
    assert said.code == 1, said
    (row,) = said.json()["stages"]
    missing = -row["headroom_bytes"]
    assert missing > 0 and row["max_micro_batch"] == 0
    told = "; ".join(row["remedies"])
    assert "more than a tiny has" in told and "gradient_checkpointing: true" in told
    assert "would hold it" in told
    words = ("--set", "cluster.gpu=tiny", *words[2:])
    said = here(asked, "plan", *words, "--json", **site)
    assert any("does not fit" in warning for warning in said.json()["warnings"]), said


@pytest.mark.long
def test_an_example_that_disagrees_with_the_data_is_refused(asked, here):
    said = here(asked, "estimate", "--set", "params.dtype=float64", "--stages", "small")
    assert said.code == 1, said
    assert "disagrees with the data: `x` is float64 2 × 16 × 8, in the data float32" in said.err


@pytest.mark.long
def test_without_data_memory_is_known_and_time_is_not(asked, here):
    said = here(asked, "estimate", "--set", "data=gone.txt", "--stages", "small", "--json")
    assert said.code == 0, said
    (row,) = said.json()["stages"]
    assert row["peak_bytes"] and row["step_s"]
    assert row["samples"] is row["wall_s"] is row["limit_s"] is None
    assert any("gone.txt" in note for note in row["notes"])


@pytest.mark.long
def test_what_cannot_be_traced_is_measured_by_estimate_alone_and_kept(asked, here, deaf):
    words = ("--set", "recipe=recipes:Counting", "--stages", "small", "--json")
    stepped = asked / "stepped"
    said = here(asked, "plan", *words)
    assert said.code == 0, said
    assert any("`tasuki estimate` measures it" in text for text in said.json()["warnings"])
    assert not stepped.exists(), "a plan takes no real steps, nor does what it kept forbid them"
    said = here(asked, "estimate", *words)
    assert said.code == 0, said
    (row,) = said.json()["stages"]
    assert stepped.exists()
    assert row["untraced"]["op"] and row["unmeasured"] is None
    assert row["sources"]["tensors"].startswith("measured by real steps on a CPU")
    assert any("as no GPU is here" in note for note in row["notes"])
    assert row["tensor_peak_bytes"] > 8 * 16 * 256 * 4, "what the widest layer gives"
    stepped.unlink()
    (again,) = deaf("estimate", *words).json()["stages"]
    assert again == row and not stepped.exists()
    piece = deaf("plan", "--no-measure", *words).json()["jobs"][0]["lanes"][0]["stages"][0]
    assert piece["peak_bytes"] == row["peak_bytes"], "as for `submit`: what is kept counts"


# -- plan, inspect, kills --------------------------------------------------------------------------
def test_a_plan_takes_the_time_that_nobody_can_measure_here_from_a_prediction(deaf):
    rows = deaf("estimate", "--json").json()["stages"]
    said = deaf("plan", "--json")
    assert said.code == 0, said
    pieces = said.json()["jobs"][0]["lanes"][0]["stages"]
    assert [(p["stage"], p["source"]) for p in pieces] == [
        ("small", "predicted"),
        ("mixed", "predicted"),
    ]
    assert pieces[0]["expected_s"] >= rows[0]["wall_s"]
    assert pieces[1]["peak_bytes"] == max(r["peak_bytes"] for r in rows[1:])
    assert any("± 50%" in warning for warning in said.json()["warnings"])


def test_inspect_tells_the_batch_of_each_size_once_a_probe_is_known(asked, here):
    said = here(asked, "inspect", "tasuki.yaml", "--json")
    assert said.code == 0, said
    buckets = said.json()["buckets"]
    assert [(b["size"], b["micro_batch"]) for b in buckets] == [(16, 8), (32, 8), (64, 8)]
    assert all(b["peak_bytes"] > 0 and b["gpu"] == "a100-40gb" for b in buckets)
