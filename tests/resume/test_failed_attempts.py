"""What becomes of a run whose attempts fail by themselves, with real processes."""

from __future__ import annotations

from tests.harness.faulty import armed, finish
from tests.harness.project import differences, make_project

from tasuki.runs.atomic import read_json
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims
from tasuki.runs.control import Word, last_said, say


def test_a_run_that_always_fails_is_held_after_exactly_three_attempts(warm, tmp_path):
    project = make_project(
        tmp_path / "p", params={"fail_at": 7}, defaults={"save": {"every": "100 steps"}}
    )
    for _ in range(2):  # held means held: another start does nothing
        assert warm.start(project.job.path).wait() == 1
        assert list_claims(project.run) == [1, 2, 3]
    said = last_said(project.run)
    assert said is not None and said.word == "hold"
    assert "planted failure in call 8" in said.reason
    ends = read_attempt_ends(project.run)
    assert [end["ending"] for end in ends.values() if end] == ["failed"] * 3
    state = read_json(project.run.training_state)
    assert state["state"] == "held" and state["attempt"] == 3


def test_a_failure_that_goes_away_costs_nothing_but_time(warm, tmp_path, whole):
    project = make_project(tmp_path / "p")
    orders = [
        {"at": "step.forward", "do": "raise", "count": count, "claim": claim}
        for claim, count in ((1, 1), (2, 10))  # before there is any progress, and after
    ]
    finish(warm, project, starts=1, **armed(*orders))
    ends = read_attempt_ends(project.run)
    assert [end["ending"] for end in ends.values() if end] == ["failed", "failed", "done"]
    assert differences(whole(make_project), project) == []


def test_a_run_that_was_cancelled_before_its_attempt_begins_is_not_begun(warm, tmp_path):
    project = make_project(tmp_path / "p")
    say(project.run, Word.CANCEL, reason="a person", claim=0)
    assert warm.start(project.job.path).wait() == 75
    assert list_claims(project.run) == []
