"""`on` from the spec to the message: real runs, real commands."""

from __future__ import annotations

import json
import sys

import pytest

from tests.commands.projects import make_project

TELL = """
import json, sys
with open("told.jsonl", "a") as file:
    file.write(sys.stdin.read())
"""
ON = dict.fromkeys(("complete", "held", "deadline-risk"), f"{sys.executable} tell.py")


@pytest.fixture
def telling(project):
    def make(name: str = "p", **more):
        made = project(name, **{"on": ON, **more})
        (made.folder / "tell.py").write_text(TELL)
        return made

    return make


def told(made) -> list[dict]:
    path = made.folder / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_tells_of_its_end_with_its_results_and_a_second_call_tells_nothing(telling, here):
    made = telling(stages=[{"name": "one", "data": "d", "steps": 3}])
    for _ in range(2):
        said = here(made.folder, "run")
        assert said.code == 0, said
    (one,) = told(made)
    assert (one["outcome"], one["step"]) == ("complete", one["total_steps"])
    assert one["metrics"]["one"]["loss"] > 0


def test_plan_doubts_commands_that_are_not_there_and_wishes_without_effect(here, tmp_path):
    on = {"complete": ["no-such-program"], "deadline-risk": ["true"]}
    made = make_project(tmp_path / "p", on=on, cluster__mail="me@example.org")
    said = here(made.folder, "plan", "--no-measure", "--json").json()["warnings"]
    words = "\n".join(said)
    assert "`on.complete` begins with `no-such-program`, which is no program" in words
    assert "`on.deadline-risk` has no effect: there is no `deadline`" in words
    assert "`cluster.mail` is Slurm's: nobody gets mail of jobs that run here" in words
    made.change(deadline="9h")
    said = here(made.folder, "plan", "--no-measure", "--json").json()["warnings"]
    assert "deadline-risk" not in "\n".join(said)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [("verify", "resume"), ("check",)], ids=" ".join)
def test_neither_verify_resume_nor_check_sends_alerts(telling, words):
    made = telling()
    said = made.type(*words, within_s=300.0)
    assert said.code in (0, 1), said
    assert told(made) == []
