"""A run as `relay` sees it is what its folder says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasuki.runs.attempts import host_id, write_attempt_end, write_holder
from tasuki.runs.claims import claim_folder, take_claim
from tasuki.runs.control import Word, say
from tasuki.runs.decide import next_action
from tasuki.runs.events import EventLog
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Cause, Ending, Hold, RunView, StageView, Started
from tasuki.runs.view import SILENT_AFTER_S, live_holder, read_end, read_view
from tasuki.testing import FakeClock

CRASH = {"ending": "failed", "cause": "none", "has_progressed": False, "has_stepped": True}
PREEMPTED = {**CRASH, "ending": "handed-over", "cause": "preempted", "has_progressed": True}


@pytest.fixture
def planned(run: RunFolder) -> RunFolder:
    """A run of two stages, of which the second is evaluated."""
    run.path.mkdir()
    stages = [{"name": "one", "evaluates": False}, {"name": "two", "evaluates": True}]
    run.spec.write_text(json.dumps({"stages": stages}))
    return run


def attempts(run: RunFolder, *ends: dict[str, Any] | None) -> None:
    for end in ends:
        claim = take_claim(run)
        if end is not None:
            write_attempt_end(run, claim, end)


def view(run: RunFolder) -> RunView:
    return read_view(run, until=None, requeue=True)


def test_a_new_run_has_everything_before_it(planned: RunFolder) -> None:
    assert view(planned).stages == (
        StageView(name="one", is_trained=False, wants_evaluation=False, is_evaluated=False),
        StageView(name="two", is_trained=False, wants_evaluation=True, is_evaluated=False),
    )
    assert (view(planned).word, view(planned).failures, view(planned).preemptions) == (None, 0, 0)


def test_what_is_trained_and_evaluated_follows_from_files(planned: RunFolder) -> None:
    for name in ("one", "two"):
        planned.stage(name).path.mkdir(parents=True)
        planned.stage(name).metrics.touch()
    planned.stage("two").evaluation.touch()
    assert [(s.is_trained, s.is_evaluated) for s in view(planned).stages] == [
        (True, False),
        (True, True),
    ]


def test_a_complete_run_is_known_by_its_marker_alone(run: RunFolder) -> None:
    run.path.mkdir()
    run.marker.touch()
    assert view(run).is_complete


def test_the_last_word_is_seen(planned: RunFolder) -> None:
    say(planned, Word.LIFT, reason="", claim=0)
    say(planned, Word.CANCEL, reason="", claim=0)
    assert view(planned).word == "cancel"


def test_failures_in_a_row_are_counted_back_to_the_last_progress(planned: RunFolder) -> None:
    attempts(planned, CRASH, {**CRASH, "has_progressed": True}, CRASH, CRASH)
    assert view(planned).failures == 2


def test_an_attempt_without_a_word_neither_counts_nor_breaks_the_row(planned: RunFolder) -> None:
    attempts(planned, CRASH, None, CRASH, None)
    assert view(planned).failures == 2


def test_a_lift_forgives_the_failures_before_it(planned: RunFolder) -> None:
    attempts(planned, CRASH, CRASH, CRASH)
    say(planned, Word.HOLD, reason="", claim=3)
    assert view(planned).failures == 3
    say(planned, Word.LIFT, reason="", claim=3)
    assert view(planned).failures == 0
    attempts(planned, CRASH)
    assert view(planned).failures == 1


def test_preemptions_are_counted_over_all_attempts(planned: RunFolder) -> None:
    attempts(planned, PREEMPTED, CRASH, PREEMPTED, None, {**PREEMPTED, "cause": "limit"})
    assert view(planned).preemptions == 2


def test_an_end_is_read_as_the_value_it_was_written_from() -> None:
    end = read_end({**PREEMPTED, "message": "m", "hint": "h"})
    assert (end.ending, end.cause) == (Ending.HANDED_OVER, Cause.PREEMPTED)
    assert (end.message, end.hint, end.has_progressed, end.has_stepped) == ("m", "h", True, True)


def test_a_crash_loop_told_by_files_is_held_at_the_third_attempt(planned: RunFolder) -> None:
    for number in (1, 2, 3):
        assert next_action(view(planned), Started()).stage == "one"  # type: ignore[union-attr]
        claim = take_claim(planned)
        action = next_action(view(planned), read_end(CRASH))
        write_attempt_end(planned, claim, CRASH)
        assert isinstance(action, Hold) is (number == 3)


# -- who works on it now ------------------------------------------------------------------------


def take(run: RunFolder, clock: FakeClock) -> int:
    claim = take_claim(run)
    write_holder(run, claim, job="plan-01", start=claim, at=clock.wall())
    return claim


def move_elsewhere(run: RunFolder, claim: int) -> None:
    path = claim_folder(run, claim) / "holder.json"
    path.write_text(path.read_text().replace(json.dumps(host_id()), '"node17:0badcafe"'))


def test_the_live_holder_is_that_of_the_highest_claim(run: RunFolder, clock: FakeClock) -> None:
    assert live_holder(run, now=clock.wall()) is None
    take(run, clock)
    take(run, clock)
    found = live_holder(run, now=clock.wall())
    assert found is not None and found.claim == 2


def test_an_attempt_that_ended_has_no_live_holder(run: RunFolder, clock: FakeClock) -> None:
    write_attempt_end(run, take(run, clock), {"ending": "done"})
    assert live_holder(run, now=clock.wall()) is None


def test_a_claim_whose_taker_died_before_it_said_who_it_was_has_no_live_holder(
    run: RunFolder, clock: FakeClock
) -> None:
    take_claim(run)
    assert live_holder(run, now=clock.wall()) is None


def test_a_holder_elsewhere_is_alive_until_it_is_silent_for_too_long(
    run: RunFolder, clock: FakeClock
) -> None:
    claim = take(run, clock)
    move_elsewhere(run, claim)
    clock.sleep(SILENT_AFTER_S)
    assert live_holder(run, now=clock.wall()) is not None
    clock.sleep(1)
    assert live_holder(run, now=clock.wall()) is None
    EventLog(run, claim=claim, node=0, who="rank0", clock=clock).add("progress")
    assert live_holder(run, now=clock.wall()) is not None


def test_a_holder_here_is_alive_however_long_it_is_silent(run: RunFolder, clock: FakeClock) -> None:
    take(run, clock)
    clock.sleep(100 * SILENT_AFTER_S)
    assert live_holder(run, now=clock.wall()) is not None
