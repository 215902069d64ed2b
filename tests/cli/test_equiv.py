"""`tasuki equiv`: a proof or a culprit, and a comparison that is fair or says why not."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import tasuki
from tasuki.views.equiv import show_equiv, show_fairness
from tests.cli.person import Project, finish, person_environment, processes_about, until
from tests.cli.test_looks import screen, shown

RECIPE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Plain:
    def __init__(self, width=8):
        self.width = width

    def build_model(self):
        return nn.Sequential(nn.Linear(4, self.width), nn.Tanh(), nn.Linear(self.width, 1))

    def build_dataset(self, source, split):
        x = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Normed(Plain):
    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


class Broken(Plain):
    def loss(self, model, batch):
        raise ValueError("my mistake")
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "recipe.py").write_text(RECIPE)
    write(tmp_path, a={})
    return tmp_path


def write(folder: Path, **experiments: dict[str, Any]) -> None:
    defaults = {"data": "generated", "epochs": 2, "effective_batch": 8, "micro_batch": 3}
    spec = {"recipe": "recipe:Plain", "defaults": defaults, "experiments": experiments}
    (folder / "tasuki.yaml").write_text(json.dumps(spec))


def test_a_clean_recipe_is_proved_and_nothing_is_written(here, folder):
    before = sorted(path.name for path in folder.rglob("*"))
    said = here(folder, "equiv", "--set", "cluster.gpus=2", "--json", COLUMNS="200")
    assert said.code == 0, said
    told = said.json()
    assert (told["verdict"], told["equal"], told["culprits"]) == ("equal", True, [])
    assert told["trade"]["ranks"] == 2 and told["trade"]["ranks_are"] == "simulated"
    assert (told["experiment"], told["stage"]) == ("a", "train")
    assert {p["name"] for p in told["parameters"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_culprit_is_told_to_people_with_what_to_do_and_exit_code_1(here, folder):
    said = here(folder, "equiv", "--set", "recipe=recipe:Normed", COLUMNS="200")
    assert said.code == 1, said
    assert "unequal: " in said.out and "culprit: BatchNorm: `1` (BatchNorm1d)" in said.out
    assert "LayerNorm" in said.out and "not checked: " in said.out


@pytest.mark.long
def test_a_mistake_in_the_recipe_is_said_without_a_traceback(here, folder):
    said = here(folder, "equiv", "--set", "recipe=recipe:Broken")
    assert said.code == 1 and "my mistake (at recipe.py:" in said.err, said
    assert "Traceback" not in said.err


@pytest.mark.long
def test_whoever_interrupts_a_recipe_that_hangs_hears_where_it_stands(folder):
    project = Project(folder, person_environment())
    with (folder / "recipe.py").open("a") as file:
        file.write(
            "\n\nclass Hanging(Plain):\n    def loss(self, model, batch):\n"
            "        import pathlib, time\n\n        pathlib.Path('hangs').touch()\n"
            "        time.sleep(1000)\n"
        )
    process = project.start("equiv", "--set", "recipe=recipe:Hanging")
    until((folder / "hangs").exists)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 75, said
    assert "interrupted: `" in said.err and "in loss (recipe.py:" in said.err
    assert not processes_about(folder)


@pytest.mark.long
def test_experiments_of_each_are_fair_and_by_hand_they_list_what_is_not_meant(here, folder):
    write(folder, a={"each": {"lr": [0.1, 0.2]}})
    said = here(folder, "equiv", "--compare", "--json")
    assert said.code == 0 and said.json()["fair"] is True, said
    assert [row["key"] for row in said.json()["intended"]] == ["lr"]
    write(folder, a={"params": {"width": 4}}, b={"seed": 7, "epochs": 3})
    said = here(folder, "equiv", "--compare", COLUMNS="200")
    assert said.code == 1, said
    assert "unfair: 2 keys differ" in said.out and "--intended length,seed" in said.out
    assert "follows from `length`" in said.out and "samples_seen" in said.out
    meant = tasuki.equiv(folder / "tasuki.yaml", compare=True, intended=["epochs", "seed"])
    assert meant["fair"] and meant["sums"][1]["values"] == {"a": 8, "b": 12}


def test_a_key_that_nobody_has_cannot_be_intended_and_the_nearest_is_named(here, folder):
    write(folder, a={"params": {"width": 4}}, b={"seed": 7})
    for key, near in (("sede", "seed"), ("epoch", "epochs"), ("params.widht", "params.width")):
        said = here(folder, "equiv", "--compare", "--intended", f"lr,{key}")
        assert said.code == 2 and f"did you mean `{near}`?" in said.err, said
    said = here(folder, "equiv", "--compare", "--intended", "whatever")
    assert said.code == 2 and "--intended whatever: there is no such key" in said.err


@pytest.mark.parametrize("width", [40, 60, 80])
def test_in_a_narrow_window_no_word_of_a_comparison_is_broken(width):
    names = ["transformer_large", "transformer_small", "baseline"]
    rows = [
        {"key": key, "stage": 1, "values": dict.fromkeys(names, value) | {names[0]: 7}, "why": why}
        for key, value, why in (
            ("gradient_checkpointing", "transformer.blocks", "follows from `effective_batch`"),
            ("evaluate.data", "data/validation", ""),
        )
    ]
    found = {"experiments": names, "unintended": rows, "intended": [], "harmless": []}
    rest = {"sums": [], "unknown": [], "notes": [], "fair": False, "warnings": []}
    console = screen(width)
    show_fairness({**found, **rest}, console=console)
    lines = shown(console)
    assert all(len(line) <= width for line in lines if "--intended" not in line)
    words = " ".join(lines)
    for word in ("gradient_checkpointing", "transformer.blocks", *names, "`effective_batch`"):
        assert word in words


@pytest.mark.parametrize("width", [40, 200])
def test_in_a_narrow_window_no_word_of_a_proof_is_broken(width):
    step = {"kind": "full", "size": 512, "samples": 8, "micro_batches": [[4, 4]], "equal": True}
    where = {"difference": 1.2e-16, "parameter": "encoder.layer.0.weight", "error": None}
    trade = {"budget": None, "micro_batch": 4, "accumulation": 2, "ranks": 1}
    told = {"experiment": "exp", "stage": "fine", "verdict": "equal", "tolerance": 1e-9}
    lists = {"parameters": ["w"], "culprits": [], "notes": [], "not_checked": ["a GPU's kernels"]}
    found = {
        **(told | lists),
        "steps": [step | where],
        "trade": {**trade, "computes_anew": False, "effective_batch": 8},
        "other_stages": [],
        "warnings": [],
    }
    console = screen(width)
    show_equiv(found, console=console)
    assert all(len(line) <= width for line in shown(console))
    words = " ".join(shown(console))
    for word in ("encoder.layer.0.weight", "1.2e-16", "full of size 512", "4+4"):
        assert word in words


@pytest.mark.long
def test_finished_runs_are_compared_with_what_they_were_begun_with(finished, here):
    run = str(finished.run().path)
    said = here(finished.folder, "equiv", "--compare", run, run, "--json")
    assert said.code == 0 and said.json()["fair"] is True, said
    assert said.json()["unknown"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--samples", "1"], "a batch of one cannot be split"),
        (["--stage", "trian"], "there is no stage `trian`"),
        (["--compare"], "two experiments at least"),
        (["--compare", "--stage", "train"], "have no effect"),
        (["--intended", "lr"], "one stage of one experiment"),
        (["--compare", "--intended", "sede"], "two experiments at least"),
        (["--compare", "runs/x", "runs/y"], "there is no run `runs/x`"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(here, folder, words, told):
    said = here(folder, "equiv", *words)
    assert said.code == 2 and told in said.err, said


def test_a_stage_with_a_command_has_no_gradient_of_ours(here, folder):
    write(folder, a={"command": ["true"], "recipe": None})
    said = here(folder, "equiv")
    assert said.code == 2 and "runs a command of its own" in said.err, said
