"""Where every second went: the parts always add up to the wall clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.runs.ledger import PARTS, Ledger, make_ledger
from tests.unit.runs.streams import Story, garbled_stories, orderly_stories, wild_stories

NOWS = st.none() | st.floats(0, 20_000)


def nonzero(ledger: Ledger) -> dict[str, float]:
    return {part: pytest.approx(s) for part, s in ledger.parts.items() if abs(s) > 1e-9}


def one_attempt() -> Story:
    """100 s: 10 start, 80 steps (0 to 100), 10 nobody accounts for."""
    story = Story().attempt(0).worker(0).progress(90, (0, 100), start=10, step=80)
    return story.worker_ended(100).ended(100)


# -- rules over all streams ---------------------------------------------------------------------


def check_sum(ledger: Ledger) -> None:
    assert tuple(ledger.parts) == PARTS
    assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert ledger.wall_s >= 0


@settings(max_examples=50)
@given(orderly_stories(), NOWS)
def test_the_parts_of_orderly_attempts_add_up_and_none_is_negative(
    events: list[dict[str, Any]], now: float | None
) -> None:
    if now is not None and events:
        now += events[-1]["t"]
    ledger = make_ledger(events, now=now)
    check_sum(ledger)
    assert all(seconds >= -1e-6 for seconds in ledger.parts.values())
    assert ledger.goodput is None or -1e-9 <= ledger.goodput <= 1 + 1e-9


@settings(max_examples=50)
@given(wild_stories(), NOWS)
def test_the_parts_add_up_whatever_overlaps_and_however_clocks_jump(
    events: list[dict[str, Any]], now: float | None
) -> None:
    ledger = make_ledger(events, now=now)
    check_sum(ledger)
    # What overlaps is nobody's wall clock: it is taken from `other`, the only part below zero.
    assert all(seconds >= -1e-6 for part, seconds in ledger.parts.items() if part != "other")


@settings(max_examples=50)
@given(garbled_stories(), NOWS)
def test_the_parts_add_up_whatever_a_garbled_line_holds(
    events: list[dict[str, Any]], now: float | None
) -> None:
    check_sum(make_ledger(events, now=now))


# -- parts --------------------------------------------------------------------------------------


def test_no_events_make_an_empty_ledger_without_a_goodput() -> None:
    ledger = make_ledger([])
    assert (nonzero(ledger), ledger.wall_s, ledger.goodput) == ({}, 0, None)


def test_a_worker_s_own_parts_are_taken_and_what_it_did_not_account_for_is_other() -> None:
    ledger = make_ledger(one_attempt().events)
    assert nonzero(ledger) == {"start": 10, "step": 80, "other": 10}
    assert ledger.goodput == pytest.approx(0.8)


def test_the_time_from_submission_to_the_first_start_is_queue() -> None:
    ledger = make_ledger(Story().submitted(0).attempt(60).ended(100).events)
    assert nonzero(ledger) == {"queue": 60, "other": 40}


def test_gaps_between_attempts_are_queue() -> None:
    ledger = make_ledger(Story().attempt(0).ended(10).attempt(25).ended(30).events)
    assert ledger.parts["queue"] == 15


def test_goodput_is_a_share_of_the_allocated_time_not_of_the_queue() -> None:
    story = Story().submitted(0).attempt(1000).worker(1000).progress(1100, (0, 9), step=50)
    ledger = make_ledger(story.worker_ended(1100).ended(1100).events)
    assert ledger.goodput == pytest.approx(0.5)


def test_now_closes_the_attempt_that_is_still_going_on() -> None:
    ledger = make_ledger(Story().attempt(0).worker(0).events, now=30)
    assert nonzero(ledger) == {"start": 30}


def test_an_attempt_that_died_without_a_word_ends_with_its_last_event() -> None:
    story = Story().attempt(0).worker(0).progress(40, (0, 10), step=40)
    ledger = make_ledger(story.attempt(100).ended(110).events)
    assert ledger.parts["queue"] == 60


def test_a_worker_that_never_spoke_was_starting_or_evaluating() -> None:
    story = Story().attempt(0).worker(0).worker_ended(10, "failed")
    story.worker(10, phase="evaluate").worker_ended(15, "done").ended(15)
    assert nonzero(make_ledger(story.events)) == {"start": 10, "evaluate": 5}


def test_an_evaluation_tells_its_own_parts() -> None:
    story = Story().attempt(0).worker(0, phase="evaluate")
    story.progress(20, kind="time", start=5, evaluate=15).worker_ended(20, "done").ended(20)
    assert nonzero(make_ledger(story.events)) == {"start": 5, "evaluate": 15}


def test_only_the_first_rank_s_words_count() -> None:
    story = Story().attempt(0).worker(0).progress(10, (0, 5), step=10)
    story.add(10, "progress", who="rank1", parts={"step": 3.0}, step=5)
    ledger = make_ledger(story.worker_ended(10).ended(10).events)
    assert nonzero(ledger) == {"step": 10}


def test_a_worker_that_claims_more_time_than_it_lived_is_cut_to_its_life() -> None:
    story = Story().attempt(0).worker(0).progress(10, (0, 5), start=30, step=10)
    ledger = make_ledger(story.worker_ended(20).ended(20).events)
    assert nonzero(ledger) == {"start": 15, "step": 5}


def test_parts_that_nobody_knows_are_not_lost_time() -> None:
    story = Story().attempt(0).worker(0).progress(10, (0, 5), step=4, coffee=6)
    ledger = make_ledger(story.worker_ended(10).ended(10).events)
    assert nonzero(ledger) == {"step": 4, "other": 6}


# -- work done twice ----------------------------------------------------------------------------


def test_steps_that_the_next_attempt_does_again_are_recomputed() -> None:
    story = one_attempt().attempt(100).worker(100).progress(200, (75, 175), step=100)
    ledger = make_ledger(story.worker_ended(200).ended(200).events)
    # 25 of the 100 steps that took 80 s were done twice.
    assert nonzero(ledger) == {"start": 10, "step": 160, "recomputed": 20, "other": 10}


def test_a_handover_at_the_last_step_recomputes_nothing() -> None:
    story = one_attempt().attempt(100).worker(100).progress(200, (100, 200), step=100)
    assert make_ledger(story.worker_ended(200).ended(200).events).parts["recomputed"] == 0


def test_a_start_from_before_the_last_attempt_s_own_start_recomputes_that_attempt_only_once() -> (
    None
):
    story = Story().attempt(0).worker(0).progress(50, (50, 100), step=50)
    story.worker_ended(50).ended(50).attempt(50).worker(50).progress(150, (0, 100), step=100)
    ledger = make_ledger(story.worker_ended(150).ended(150).events)
    assert nonzero(ledger) == {"step": 100, "recomputed": 50}


def test_the_next_stage_recomputes_nothing() -> None:
    story = one_attempt().attempt(100).worker(100, stage="two").progress(200, (0, 9), step=100)
    assert make_ledger(story.worker_ended(200).ended(200).events).parts["recomputed"] == 0


def test_what_a_killed_worker_did_after_its_last_word_is_recomputed() -> None:
    story = Story().attempt(0).worker(0).progress(60, (0, 10), start=10, step=50)
    ledger = make_ledger(story.worker_ended(75, "failed").ended(75).events)
    assert nonzero(ledger) == {"start": 10, "step": 50, "recomputed": 15}


def test_a_next_attempt_that_has_not_reported_yet_does_not_void_the_last_one() -> None:
    ledger = make_ledger(one_attempt().attempt(110).worker(110).events, now=120)
    assert ledger.parts["step"] == pytest.approx(80)


def test_a_fall_back_over_two_attempts_recomputes_steps_of_both() -> None:
    story = Story().attempt(0).worker(0).progress(100, (0, 100), step=100)
    story.worker_ended(100).ended(100).attempt(100).worker(100).progress(110, (90, 100), step=10)
    story.worker_ended(110, "failed").ended(110)
    story.attempt(110).worker(110).progress(160, (50, 100), step=50)
    ledger = make_ledger(story.worker_ended(160).ended(160).events)
    # Steps 50 to 100 of the first and 90 to 100 of the second were done again.
    assert nonzero(ledger) == {"step": 100, "recomputed": 60}


def test_what_a_killed_worker_left_open_before_its_last_word_is_other() -> None:
    story = Story().attempt(0).worker(0).progress(60, (0, 10), start=10, step=40)
    ledger = make_ledger(story.worker_ended(75, "failed").ended(75).events)
    assert nonzero(ledger) == {"start": 10, "step": 40, "other": 10, "recomputed": 15}


def test_the_time_since_the_last_word_of_a_running_worker_is_not_lost() -> None:
    story = Story().attempt(0).worker(0).progress(60, (0, 10), start=10, step=50)
    assert make_ledger(story.events, now=68).parts["recomputed"] == 0


# -- ends that are missing, clocks that jump ----------------------------------------------------


def test_a_complete_run_stops_its_wall_clock() -> None:
    story = one_attempt()
    story.events.insert(-1, {"t": 100, "claim": 1, "who": "supervisor", "kind": "complete"})
    assert make_ledger(story.events, now=10_000).wall_s == 100


def test_the_time_between_a_completion_and_going_back_is_nobody_s() -> None:
    story = one_attempt().add(100, "complete")
    story.claim = 2
    story.add(5000, "went-back", who="resume").submitted(5001)
    story.attempt(5003).worker(5003).progress(5043, (50, 100), step=40).worker_ended(5043)
    ledger = make_ledger(story.ended(5043).sorted())
    assert ledger.wall_s == pytest.approx(143) and ledger.parts["queue"] == pytest.approx(3)
    assert ledger.goodput == pytest.approx((40 + 40) / 140)
    check_sum(ledger)


def test_a_run_that_was_complete_and_goes_on_has_a_wall_clock_that_runs() -> None:
    story = one_attempt().add(100, "complete")
    story.claim = 2
    story.add(5000, "went-back", who="resume").attempt(5000).worker(5000)
    assert make_ledger(story.sorted(), now=5060).wall_s == pytest.approx(160)


def test_a_later_submission_does_not_stretch_an_attempt_that_died_without_a_word() -> None:
    story = Story().attempt(0).worker(0).progress(10, (0, 5), step=10)
    story.submitted(1000).attempt(1010).ended(1020)
    assert make_ledger(story.events).parts["queue"] == 1000


def test_the_overlap_of_a_fenced_zombie_is_taken_from_other() -> None:
    story = Story().attempt(0).worker(0).progress(100, (0, 10), step=100).worker_ended(100)
    story.ended(100).attempt(50).worker(50).progress(100, (10, 15), step=50).worker_ended(100)
    ledger = make_ledger(story.ended(100).sorted())
    assert (ledger.wall_s, ledger.parts["step"], ledger.parts["other"]) == (100, 150, -50)


def test_an_overlap_does_not_hide_a_gap() -> None:
    story = Story().attempt(0).ended(10).attempt(5).ended(15).attempt(30).ended(40)
    assert make_ledger(story.sorted()).parts["queue"] == 15


def test_a_clock_set_back_during_an_attempt_loses_its_report_and_the_parts_still_add_up() -> None:
    story = Story().attempt(5000).worker(5000)
    story.progress(1500, (0, 10), step=60).worker_ended(1510).ended(1510)
    ledger = make_ledger(story.sorted())
    check_sum(ledger)
    assert (ledger.wall_s, ledger.parts["step"]) == (0, 0)  # what was reported is lost
    assert ledger.parts["queue"] == ledger.parts["other"] == 0


def commanded(*, ending: str = "done", cause: str = "none", notice: float | None = None) -> list:
    """One attempt of ten seconds, eight of them a command's."""
    told = [
        {"t": 0.0, "claim": 0, "kind": "submitted"},
        {"t": 1.0, "claim": 1, "kind": "attempt-started", "gpus": 1},
        {"t": 2.0, "claim": 1, "kind": "worker-started", "phase": "train", "stage": "s"},
    ]
    told[-1]["is_command"] = True
    if notice is not None:
        told.append({"t": notice, "claim": 1, "kind": "notice", "cause": cause})
    end = {"phase": "train", "stage": "s", "ending": ending, "cause": cause}
    told.append({"t": 10.0, "claim": 1, "kind": "worker-ended", **end})
    told.append({"t": 11.0, "claim": 1, "kind": "attempt-ended", "ending": ending, "cause": cause})
    return told


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        ({}, {"step": 8.0}),
        (
            {"ending": "handed-over", "cause": "limit", "notice": 7.0},
            {"step": 5.0, "handover": 3.0},
        ),
        ({"ending": "failed", "cause": "preempted", "notice": 9.0}, {"step": 7.0, "handover": 1.0}),
        ({"ending": "failed"}, {"recomputed": 8.0}),
    ],
)
def test_the_time_of_a_command_is_step_up_to_its_notice_and_lost_where_it_failed_by_itself(
    facts, parts
):
    ledger = make_ledger(commanded(**facts))
    found = {name: seconds for name, seconds in ledger.parts.items() if seconds}
    assert found == {"queue": 1.0, "other": 2.0, **parts}
    assert sum(ledger.parts.values()) == ledger.wall_s == 11.0


def test_an_attempt_of_a_loop_that_ended_before_it_told_of_itself_was_all_start():
    story = Story()
    for begin in (0, 20):
        story.attempt(begin).worker(begin + 1)
        story.events[-1]["is_command"] = True
        if begin:
            story.add(24, "doing", who="rank0", what="restoring")
            story.progress(29, (0, 5), start=3, step=5)
        story.worker_ended(begin + 10).ended(begin + 10)
    found = nonzero(make_ledger(story.sorted()))
    assert found == {"start": 9 + 3, "step": 5, "queue": 10, "other": 2 + 1}
