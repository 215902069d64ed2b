"""`tasuki check`: each planted fault is found in its column, and a healthy project passes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tasuki
from tasuki.commands import check as command
from tasuki.commands.check import CHECKS, CheckReport
from tasuki.slurm.text import ShownPartition
from tests.commands import check_recipes

EVALUATE = {"data": "d", "after": "each_stage"}


def one(recipe: str, name: str = "s", **more: Any) -> dict[str, Any]:
    stage = {"name": name, "recipe": f"check_recipes:{recipe}", "data": "d", "epochs": 4}
    return {**stage, "effective_batch": 8, **more}


FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # experiment: (stage, the check that fails, words of its message, words of its hint)
    "no_import": (
        {**one("Sound"), "recipe": "broken:Recipe"},
        "import",
        "no_such_package",
        "import path",
    ),
    "no_data": (one("NoFile", data="lost.h5"), "data", "`lost.h5` (split train)", "data:"),
    "no_size": (one("Sound", size=7), "data", "no sample has size 7", "these sizes"),
    "short_schedule": (one("ShortSchedule"), "schedule", "fails after step 12 of 12", "must allow"),
    "wrong_shape": (one("WrongShape"), "step", "cannot be multiplied", "`loss`"),
    "out_of_memory": (one("Hungrier"), "step", "ran out of memory", "gradient_checkpointing"),
    "nan": (one("NotANumber"), "step", "the loss is NaN", "data check"),
    "ignores_model": (one("IgnoresModel"), "step", "there is no gradient", "detach()"),
    "unstorable": (one("Unstorable"), "save", "cannot be stored", "functions"),
    "unloadable": (one("Unloadable"), "load", "momentum of another world", "load_state_dict"),
    "no_validate": (
        one("BadEvaluate", validate={"every": "1 epoch"}),
        "validate",
        "planted in evaluate (at check_recipes.py:",
        "`val`",
    ),
    "no_evaluate": (one("BadEvaluate", evaluate=EVALUATE), "evaluate", "planted in", "`test`"),
    "no_test": (one("NoTest", evaluate=EVALUATE), "evaluate", "(split test)", "data:"),
    "no_program": (
        one("Sound", evaluate={"command": ["no-such-program"]}),
        "evaluate",
        "begins with `no-such-program`",
        "PATH",
    ),
}


def write_project(folder: Path, experiments: dict[str, Any], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copy(check_recipes.__file__, folder)
    (folder / "broken.py").write_text("import no_such_package\n\nclass Recipe: ...\n")
    (folder / "sinks.py").write_text(
        "class Raising:\n    def begin(self, run, history):\n        raise ValueError('no key')\n"
        "    def log(self, row): ...\n    def close(self): ...\n"
    )
    spec = {"cluster": {"gpu": "cpu"}, "experiments": experiments, **more}
    (folder / "tasuki.yaml").write_text(json.dumps(spec))
    return folder / "tasuki.yaml"


def statuses(report: CheckReport, experiment: str, stage: str = "s") -> dict[str, str]:
    (row,) = [r for r in report.stages if (r.experiment, r.stage) == (experiment, stage)]
    return {name: row.results[name].status for name in CHECKS}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> CheckReport:
    """One check of a project with all faults."""
    experiments = {name: {"stages": [stage]} for name, (stage, *_) in FAULTS.items()}
    experiments["chain"] = {
        "stages": [
            one("Sound", "first"),
            one("Wide", "second"),
            one("Wide", "third", init_from="none"),
            one("Sound", "needs", init_from="second"),
        ]
    }
    experiments["gone"] = {"stages": [{"name": "s", "command": ["no-such-program", "1"]}]}
    spec = write_project(
        tmp_path_factory.mktemp("faults"),
        experiments,
        on={"complete": "no-such-mailer hi"},
        sinks=["sinks:Raising"],
        cluster={"gpu": "cpu", "time_limit": "1s"},
        defaults={"save": {"keep": 10**12}},
    )
    return tasuki.check(spec, time_budget="10m")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_a_stage_is_found_in_its_column_with_a_hint(found, fault):
    _, check, message, hint = FAULTS[fault]
    own = statuses(found, fault)
    assert [name for name in CHECKS if own[name] == "failed"] == [check], own
    (row,) = [row for row in found.stages if row.experiment == fault]
    assert message in row.results[check].message and hint in row.results[check].hint
    assert not found.ok


@pytest.mark.timeout(600)
def test_weights_of_another_architecture_are_found_and_keep_away_only_what_needs_them(found):
    assert set(statuses(found, "chain", "first").values()) == {"ok", "none"}
    assert statuses(found, "chain", "second")["load"] == "failed"
    assert set(statuses(found, "chain", "third").values()) == {"ok", "none"}
    assert set(statuses(found, "chain", "needs").values()) == {"skipped"}


@pytest.mark.timeout(600)
def test_a_script_that_is_not_there_is_found(found):
    assert statuses(found, "gone")["import"] == "failed"


@pytest.mark.timeout(600)
def test_faults_outside_of_the_stages_are_found_with_hints(found):
    problems = {problem.name: problem for problem in found.problems}
    assert set(problems) == {"logger", "notify", "disk", "time_limit"}
    assert "ValueError" in problems["logger"].message
    assert "`no-such-mailer`" in problems["notify"].message
    assert all(problem.hint for problem in found.problems)


def test_a_partition_that_does_not_exist_is_found(tmp_path, monkeypatch):
    shown = ShownPartition(
        name="gpu",
        is_default=True,
        is_up=True,
        longest_s=None,
        grace_s=0.0,
        preempt_mode="OFF",
        tier=1,
        nodes=1,
    )
    monkeypatch.setattr(command.Slurm, "partitions", lambda self: [shown])
    stages = {"s": {"stages": [{"name": "s", "command": ["true"]}]}}
    spec = write_project(tmp_path, stages, cluster={"gpu": "cpu", "partition": "gpuu"})
    (problem,) = tasuki.check(spec).problems
    assert problem.name == "partition" and "there is no partition `gpuu`" in problem.message
    assert "did you mean `gpu`?" in problem.hint


@pytest.mark.timeout(300)
def test_a_healthy_chain_passes_on_its_largest_samples_and_leaves_nothing(tmp_path, monkeypatch):
    watched = tmp_path / "watched"
    monkeypatch.setenv("WATCHED", str(watched))
    stages = [one("Watched", name, epochs=50, effective_batch=4) for name in "ab"]
    every = {"stages": stages, "evaluate": EVALUATE, "validate": {"every": "1 epoch"}}
    tail = {"stages": [one("Sound", "d", init_from="exp/b")]}
    spec = write_project(
        tmp_path / "p", {"exp": every, "tail": tail}, defaults={"buckets": "exact"}
    )
    before = {path for path in spec.parent.rglob("*") if "__pycache__" not in path.parts}
    report = tasuki.check(spec, time_budget="5m")
    assert report.ok, report
    after = {path for path in spec.parent.rglob("*") if "__pycache__" not in path.parts}
    assert after == before
    notes = [json.loads(line) for line in watched.read_text().splitlines()]
    # As the whole stage has them: 50 epochs of 6 steps, not two.
    assert {note["total_steps"] for note in notes if "total_steps" in note} == {300}
    assert {note["hub"] for note in notes if "hub" in note} == {"1"}
    assert [note["step"] for note in notes if "step" in note] == [[3.0] * 4] * 4
    evaluated = [note["evaluated"] for note in notes if "evaluated" in note]
    assert [split for split, *_ in evaluated] == ["val", "test"] * 2
    assert {count for _, *counts in evaluated for count in counts} == {8}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_without_the_specs_gpu_it_takes_the_cpu_and_says_what_differs(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    stages = [one("Sound", "half", precision="fp16", compile=True)]
    cluster = {"gpu": "a100-40gb", "gpus": 4}
    spec = write_project(tmp_path, {"exp": {"stages": stages}}, cluster=cluster)
    report = tasuki.check(spec, time_budget="5m")
    assert report.ok and report.device == "cpu", report
    assert "on the CPU: there is no GPU here (a100-40gb)" in report.stages[0].notes
    assert "on one rank, not 4" in report.stages[0].notes


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_the_time_budget_does_not_reach_is_told(tmp_path):
    stages = [one("Sleeper", "long"), one("Sound", "later", init_from="none")]
    spec = write_project(tmp_path, {"exp": {"stages": stages}})
    report = tasuki.check(spec, time_budget="15s")
    assert not report.ok and statuses(report, "exp", "long")["step"] == "not_reached"
