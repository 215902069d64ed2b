"""An experiment's name means its newest run; an earlier one is meant by its folder. Aloud."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasuki.commands.runs import find_run, split_stage
from tasuki.runs.runs import RunFolder


@pytest.fixture
def two(tmp_path) -> Path:
    """`runs/train` and, made by `--new`, `runs/train-2`."""
    for name in ("train", "train-2"):
        run = RunFolder(tmp_path / "runs" / name)
        run.path.mkdir(parents=True)
        stages = [{"name": "one", "evaluates": False}]
        run.spec.write_text(json.dumps({"experiment": "train", "stages": stages}))
    return tmp_path


VERBS = [
    *("status", "watch --once", "logs", "why", "cancel --dry-run", "report -o -"),
    *("checkpoint show", "checkpoint verify", "checkpoint prune --dry-run"),
    *("resume --dry-run", "verify samples", "export", "evaluate"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_which_run_it_took_and_how_the_other_is_named(two, here, verb):
    meant = "`train` means `train-2`, its newest run; the one called so is `runs/train`"
    assert meant in here(two, *verb.split(), "train").err
    assert "newest run" not in here(two, *verb.split(), "runs/train").err
    assert "newest run" not in here(two, *verb.split(), "train-2").err


def test_a_folder_names_the_earlier_run_and_its_stage(two, monkeypatch):
    monkeypatch.chdir(two)
    assert find_run("train", two / "runs").name == "train-2"
    assert find_run("runs/train", two / "runs").name == "train"
    assert find_run("runs/train/one", two / "runs").name == "train"
    assert split_stage("runs/train/one") == ("runs/train", "one")
    assert split_stage("train/one") == ("train", "one")
