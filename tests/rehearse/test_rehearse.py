"""`tasuki rehearse` end to end: it passes where it should, and names each planted fault."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tasuki
from tests.cli.person import (
    Project,
    finish,
    kill_leftovers,
    make_project,
    processes_about,
    until,
)
from tests.rehearse import planted

COLUMNS = ("imports", "data", "steps", "save", "load", "evaluate")
EVALUATE = {"data": "d", "after": "each_stage"}


def one(recipe: str, name: str = "s", **more: Any) -> dict[str, Any]:
    return {"name": name, "recipe": recipe, "data": "d", "epochs": 4, **more}


FAULTS: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    # experiment: (stages, the column that fails, words of its message, words of its hint)
    "no_import": ([one("broken:Recipe")], "imports", "no_such_package", "import path"),
    "no_file": (
        [one("planted:NoFile", data="lost.h5")],
        "data",
        "`lost.h5` (split train) cannot be opened",
        "to make it use",
    ),
    "no_test": (
        [one("planted:NoTest", evaluate={"data": "d"})],
        "data",
        "(split test) cannot be opened",
        "to make it use",
    ),
    "no_size": ([one("planted:Sound", size=7)], "data", "no sample has size 7", "these sizes"),
    "no_store": ([one("planted:Unstorable")], "save", "function", ""),
    "no_restore": ([one("planted:Unloadable")], "load", "momentum of another world", ""),
    "no_evaluate": (
        [one("planted:BadEvaluate", evaluate=EVALUATE)],
        "evaluate",
        "planted in evaluate (at planted.py:",
        "",
    ),
    "no_validate": (
        [one("planted:BadEvaluate", validate={"every": "1 epoch"})],
        "evaluate",
        "planted in evaluate",
        "",
    ),
    "no_loss": ([one("planted:BadLoss")], "steps", "planted in loss (at planted.py:", ""),
    "no_schedule": (
        [one("planted:ShortSchedule")],
        "steps",
        "fails after step 12 of 12: ValueError: no value for step 12",
        "`total_steps` calls",
    ),
    "no_room": (
        [one("planted:Sound", save={"keep": 10**12})],
        "save",
        "checkpoints need",
        "keep fewer",
    ),
    "no_weights": ([one("planted:Downloader")], "steps", "weights.example.org", "--online"),
    "no_data": ([one("planted:DataDownloader")], "data", "data.example.org", "--online"),
}
FAULTS["no_program"] = (
    [one("planted:Sound", evaluate={"command": ["no-such-program"]})],
    "evaluate",
    "there is no command `no-such-program`",
    "PATH",
)
HEALTHY_WITHIN = {
    # a second stage that does not need the first, or needs only its weights
    "no_evaluate": one("planted:Sound", "after"),
    "no_loss": one("planted:Sound", "apart", init_from="none"),
}


@pytest.fixture(scope="module")
def found(warm_python, tmp_path_factory) -> Any:
    """One rehearsal of a project with every fault; by experiment and stage."""
    folder = tmp_path_factory.mktemp("faults")
    experiments = {name: {"stages": list(stages)} for name, (stages, *_) in FAULTS.items()}
    for name, stage in HEALTHY_WITHIN.items():
        experiments[name]["stages"].append(stage)
    experiments["no_loss"]["stages"].insert(1, one("planted:Sound", "needs"))
    experiments["other"] = {
        "stages": [
            one("planted:Sound", "first"),
            one("planted:Wide", "second"),
            one("planted:Wide", "third", init_from="none"),
        ]
    }
    experiments["hungry"] = {"stages": [one("planted:Hungry")]}
    project = make_project(folder / "p", python=warm_python, experiments=experiments)
    shutil.copy(planted.__file__, project.folder)
    (project.folder / "broken.py").write_text("import no_such_package\n\nclass Recipe: ...\n")
    before = project.tree()
    report = tasuki.rehearse(project.folder / "tasuki.yaml", budget="10m")
    assert project.tree() == before
    kill_leftovers(folder)
    return report


def cells(report: dict[str, Any], experiment: str, stage: str) -> dict[str, Any]:
    (row,) = [
        row for row in report["stages"] if (row["experiment"], row["stage"]) == (experiment, stage)
    ]
    return row["cells"]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found_in_its_column_with_words_and_a_hint(found, fault):
    _, column, message, hint = FAULTS[fault]
    own = cells(found, fault, "s")
    failed = [name for name in COLUMNS if own[name]["state"] == "failed"]
    assert failed == [column], own
    assert message in own[column]["message"] and hint in own[column]["hint"], own[column]
    assert found["ok"] is False


def test_weights_of_another_architecture_are_found_where_they_are_loaded(found):
    assert states(found, "other", "first") == "ok ok ok ok ok none"
    own = cells(found, "other", "second")
    assert own["load"]["state"] == "failed" and own["steps"]["state"] != "failed"
    assert "0.weight (8x6, the model has 9x6)" in own["load"]["message"]
    assert "strict: false" in own["load"]["hint"]
    assert states(found, "other", "third") == "ok ok ok ok ok none"


def test_one_stage_that_fails_keeps_only_those_away_that_need_its_weights(found):
    assert states(found, "no_evaluate", "after") == "ok ok ok ok ok none"
    assert states(found, "no_loss", "apart") == "ok ok ok ok ok none"
    assert states(found, "no_loss", "needs") == "ok ok skipped skipped skipped skipped"
    assert "weights of `s`" in cells(found, "no_loss", "needs")["steps"]["message"]


def states(report: dict[str, Any], experiment: str, stage: str) -> str:
    return " ".join(cells(report, experiment, stage)[column]["state"] for column in COLUMNS)


@pytest.fixture
def plant(project) -> Callable[..., Project]:
    def make(recipe: str = "planted:Sound", **more: Any) -> Project:
        made = project(recipe=recipe, **more)
        shutil.copy(planted.__file__, made.folder)
        return made

    return make


def test_a_healthy_project_of_three_stages_passes_and_leaves_nothing(plant, here, tmp_path):
    """Three stages in a chain and one of another experiment that starts from their weights."""
    chain = [one("planted:Watched", name, epochs=50, effective_batch=4) for name in "abc"]
    project = plant(
        experiments={
            "exp": {"stages": chain, "evaluate": EVALUATE, "validate": {"every": "1 epoch"}},
            "tail": {"stages": [one("planted:Sound", "d", init_from="exp/c")]},
        },
        defaults__buckets="exact",
    )
    run = project.runs / "exp"
    run.mkdir(parents=True)
    (run / "mine.txt").write_text("of the user")
    before = project.tree()
    watched = tmp_path / "watched"
    said = here(project.folder, "rehearse", "--budget", "5m", WATCHED=str(watched))
    assert said.code == 0, said
    assert said.out.startswith("Rehearsed 4 stages: all passed, in ")
    rows = [line.split()[:7] for line in said.out.splitlines() if line.startswith(("exp", "tail"))]
    assert rows == [
        *([f"exp/{name}", *["ok"] * 6] for name in "abc"),
        ["tail/d", *["ok"] * 5, "·"],
    ]
    assert "whether the loss falls" in " ".join(said.out.split())
    assert project.tree() == before
    notes = [json.loads(line) for line in watched.read_text().splitlines()]
    # As the whole stage has them: 50 epochs of 6 steps, not two.
    assert {note["total_steps"] for note in notes if "total_steps" in note} == {300}
    assert {note["hub"] for note in notes if "hub" in note} == {"1"}
    # Two steps a stage, each of the largest samples only.
    assert [note["step"] for note in notes if "step" in note] == [[3.0] * 4] * 6
    evaluated = [note["evaluated"] for note in notes if "evaluated" in note]
    assert [split for split, *_ in evaluated] == ["val", "val", "test"] * 3
    assert {count for _, *counts in evaluated for count in counts} == {8}


@pytest.mark.long
def test_a_stage_can_be_tried_alone_at_batch_1_and_tells_its_memory(plant, here):
    stages = [one("planted:Sound", "a", micro_batch=4), one("planted:Sound", "b", init_from="none")]
    project = plant(stages=stages)
    said = here(project.folder, "rehearse", "a", "--micro-batch", "1", "--budget", "5m", "--json")
    assert said.code == 0, said
    (row,) = said.json()["stages"]
    assert row["stage"] == "a" and row["peak_bytes"] > 0
    assert row["shortened"] == ["2 of 8 samples a step, 1 at once"]


def test_without_the_specs_gpu_it_takes_the_cpu_and_says_what_is_otherwise(plant, here):
    project = plant(
        stages=[
            one("planted:Sound", "half", precision="fp16", compile=True),
            one("planted:Hungrier", "large", init_from="none"),
        ],
        cluster__gpu="a100-40gb",
        cluster__gpus=4,
    )
    said = here(project.folder, "rehearse", "--budget", "5m", CUDA_VISIBLE_DEVICES="")
    assert said.code == 0, said
    told = " ".join(said.out.split())
    assert "the CPU: there is no GPU here (the spec asks for a100-40gb)" in told
    assert "half: bf16 instead of fp16" in told and "half: not compiled" in told
    assert "large: the smallest samples: the largest do not fit this machine" in told
    assert "4 of 8 samples a step, 2 at once" in told
    assert "4 ranks: 1 rank rehearsed (`--ranks N`)" in told


def test_a_batch_that_does_not_fit_is_halved_and_that_is_said(found):
    assert states(found, "hungry", "s") == "ok ok ok ok ok none"
    (row,) = [row for row in found["stages"] if row["experiment"] == "hungry"]
    assert row["shortened"] == ["2 samples at once: 4 did not fit"]


def test_commands_sinks_and_setup_are_looked_for(plant, here):
    project = plant(
        experiments={
            "there": {"stages": [{"name": "x", "command": ["sh", "-c", "true"]}]},
            "gone": {"stages": [{"name": "x", "command": ["no-such-program", "1"]}]},
        },
        cluster__setup="env.sh",
        sinks=["recipes:NoSink"],
    )
    said = here(project.folder, "rehearse", "--json")
    assert said.code == 1, said
    report = said.json()
    assert states(report, "there", "x") == "ok none none none none none"
    own = cells(report, "gone", "x")["imports"]
    assert own["message"] == "there is no command `no-such-program`" and "PATH" in own["hint"]
    whats = " ".join(found["what"] for found in report["findings"] if found["level"] == "problem")
    assert "there is no file" in whats and "env.sh" in whats and "`recipes:NoSink`" in whats


@pytest.mark.long
def test_what_the_budget_does_not_reach_is_said(plant, here):
    stages = [one("planted:Sleeper", "long"), one("planted:Sound", "later", init_from="none")]
    project = plant(stages=stages)
    before = project.tree()
    said = here(project.folder, "rehearse", "--budget", "9s")
    assert said.code == 1, said
    told = " ".join(said.out.split())
    assert "not reached exp/long, exp/later: 9s were over" in told
    assert "stood then exp/long: steps, in loss (planted.py:" in told
    assert "9s are over: what still runs is ended" in said.err and "Ctrl-C" not in said.err
    assert project.tree() == before
    assert not processes_about(project.folder)


@pytest.mark.long
def test_a_loader_worker_that_hangs_is_told_from_a_step_that_does(plant, here):
    project = plant("hanging:Recipe", cluster__cpus=2, defaults__loader={"workers": 1})
    (project.folder / "hanging.py").write_text(
        "import time\nfrom planted import Sound\nfrom torch.utils.data import get_worker_info\n\n"
        "class Hanging:\n    def __init__(self, whole):\n        self.whole = whole\n"
        "    def __len__(self):\n        return len(self.whole)\n"
        "    def __getitem__(self, index):\n"
        "        if get_worker_info() is not None:\n            time.sleep(1000)\n"
        "        return self.whole[index]\n\n"
        "class Recipe(Sound):\n    def build_dataset(self, source, split):\n"
        "        return Hanging(super().build_dataset(source, split))\n"
    )
    said = here(project.folder, "rehearse", "--budget", "20s")
    assert said.code == 1, said
    told = " ".join(said.out.split())
    assert "stood then exp/one: steps, waiting for a loader worker" in told, said
    assert not processes_about(project.folder)


@pytest.mark.parametrize("hangs", ["import", "data"])
@pytest.mark.long
def test_a_recipe_that_hangs_before_its_first_step_is_named_with_its_line(plant, here, hangs):
    project = plant("hanging:Recipe")
    wait = "import time; time.sleep(1000)"
    (project.folder / "hanging.py").write_text(
        "from planted import Sound\n"
        + (f"{wait}\n" if hangs == "import" else "")
        + f"class Recipe(Sound):\n    def build_dataset(self, source, split):\n        {wait}\n"
    )
    said = here(project.folder, "rehearse", "--budget", "20s")
    assert said.code == 1, said
    told = " ".join(said.out.split())
    places = {"import": "imports, in <module> (hanging.py:2)", "data": "data, in build_dataset"}
    assert f"stood then exp/one: {places[hangs]}" in told
    assert not processes_about(project.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
def test_an_interrupted_rehearsal_leaves_nothing_and_exits_with_75(plant, number):
    project = plant("planted:Sleeper")
    before = project.tree()
    process = project.start("rehearse", "--budget", "5m")
    until(lambda: list(project.runs.glob(".rehearse/*/1/.traces/*/*.jsonl")))
    process.send_signal(number)
    said = finish(process)
    assert said.code == 75, said
    assert "the rehearsal was interrupted" in said.err and "handing over" not in said.err
    assert project.tree() == before
    assert not processes_about(project.folder)


@pytest.mark.long
def test_what_a_killed_rehearsal_left_is_removed_by_the_next(plant):
    project = plant("planted:Sleeper")
    process = project.start("rehearse", "--budget", "5m")
    until(lambda: list(project.runs.glob(".rehearse/*/1/.traces/*/*.jsonl")))
    process.kill()
    process.wait()
    until(lambda: not processes_about(project.folder))
    assert list(project.runs.glob(".rehearse/*"))
    project.change(recipe="planted:Sound")
    said = project.type("rehearse", "--budget", "5m")
    assert said.code == 0, said
    assert not project.runs.exists() or not list(project.runs.glob(".rehearse/*"))


@pytest.mark.long
def test_a_recipe_whose_import_ends_the_process_does_not_keep_others_away(plant, here):
    stages = [one("leaving:Recipe", "gone"), one("planted:Sound", "there", init_from="none")]
    project = plant(stages=stages)
    (project.folder / "leaving.py").write_text("import os\n\nos._exit(7)\n")
    said = here(project.folder, "rehearse", "--budget", "5m", "--json")
    assert said.code == 1, said
    assert cells(said.json(), "exp", "gone")["imports"]["state"] == "failed"
    assert states(said.json(), "exp", "there") == "ok ok ok ok ok none"


@pytest.mark.long
def test_two_ranks_are_rehearsed_too(plant, here):
    said = here(plant().folder, "rehearse", "--ranks", "2", "--budget", "5m", "--json")
    assert said.code == 0, said
    assert said.json()["ranks"] == 2


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_is_full_is_found_at_the_first_save(plant, here, tmp_path):
    project = plant()
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        Path(disk, "ballast").write_bytes(bytes(60_000))
        said = here(project.folder, "rehearse", "--set", f"runs={disk}/runs", "--json")
        assert said.code == 1, said
        own = cells(said.json(), "exp", "one")["save"]
        assert own["state"] == "failed" and "room" in own["message"] and own["hint"], own
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
