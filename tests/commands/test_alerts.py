"""`on` from the spec to the message: real runs, real commands."""

from __future__ import annotations

import json
import sys

import pytest

from tasuki.runs.events import read_events
from tests.commands.person import make_project, until

TELL = """
import json, sys
with open("told.jsonl", "a") as file:
    file.write(sys.stdin.read())
"""
ON = dict.fromkeys(("complete", "held", "deadline-risk"), f"{sys.executable} tell.py")
SLOW_AT_FIRST = '''

class SlowAtFirst(Learner):
    """Takes its time in the first attempt only."""

    def loss(self, model, batch):
        if os.environ.get("TASUKI_ATTEMPT", "1") == "1":
            time.sleep(1.5)
        return super().loss(model, batch)
'''


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


def test_a_run_tells_of_its_end_with_its_results_and_a_second_call_tells_nothing(telling):
    made = telling()
    for _ in range(2):
        said = made.type("run")
        assert said.code == 0, said
    (one,) = told(made)
    assert (one["outcome"], one["step"]) == ("complete", one["total_steps"])
    assert one["metrics"]["one"]["loss"] > 0


@pytest.mark.long
def test_a_preempted_run_that_cannot_keep_its_deadline_says_so_once_and_then_its_end(telling):
    """Expected to take 10 s with its start; by its first steps it will take over 20."""
    stages = [{"name": "one", "data": "d", "epochs": 3, "expect": {"wall": "1s"}}]
    made = telling(stages=stages, recipe="SlowAtFirst", params={"samples": 40})
    with (made.folder / "recipes.py").open("a") as file:
        file.write(SLOW_AT_FIRST)
    said = made.type("run", "--deadline", "14s", "--preempt-at", "7s")
    assert said.code == 0, said
    risk, end = told(made)
    assert (risk["outcome"], end["outcome"]) == ("deadline-risk", "complete")
    assert risk["state"] == "running" and risk["deadline"]["danger"] is True
    assert risk["deadline"]["late_s"] > 0 and ": run exp may miss" in risk["text"]
    assert (risk["attempt"], end["attempt"]) == (1, 2)


def test_a_mistake_in_a_recipe_reaches_whoever_wants_to_know_in_the_words_of_the_error(telling):
    made = telling(recipe="NoLoss")
    assert made.type("run").code == 1
    (one,) = told(made)
    assert (one["outcome"], one["state"]) == ("held", "failed")
    assert "loss" in one["reason"] and one["text"].endswith(one["reason"])


@pytest.mark.long
def test_a_hook_added_later_holds_from_the_next_start_on_and_is_no_other_run(telling, here):
    made = telling(params={"pause": 0.2, "samples": 64}, on={})
    process = made.start("run")
    until(lambda: made.step() > 1)
    process.send_signal(2)
    assert process.wait(60) == 75
    assert told(made) == []
    made.change(on=ON)
    said = made.type("run")
    assert said.code == 0, said
    assert [one["outcome"] for one in told(made)] == ["complete"]


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


def test_warnings_of_alerts_are_events_of_the_run(telling):
    made = telling()
    (made.folder / "tell.py").write_text("import sys; sys.exit('secret words')")
    assert made.type("run").code == 0
    (warning,) = [e["text"] for e in read_events(made.run()) if e["kind"] == "warning"]
    assert "the command of `on.complete` ended with 1; see " in warning
    assert "secret" not in warning
