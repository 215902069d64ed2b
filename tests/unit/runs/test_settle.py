"""What becomes of a job when all its lanes have ended."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME
from tasuki.runs.decide import settle, stops_successors, usable_gpus
from tasuki.runs.values import (
    Action,
    Cause,
    Fail,
    HandOver,
    Hold,
    LaneEnd,
    Leave,
    Settlement,
    Verdict,
)
from tests.unit.runs.runs import quick

AGAIN = HandOver(Cause.PREEMPTED, is_resumed=True)
PLANNED = HandOver(Cause.LIMIT, is_resumed=True)
SAVED = HandOver(Cause.PREEMPTED, is_resumed=False)
DONE, CANCELLED = Leave("done"), Leave("cancelled")
REQUEUED = Settlement(Verdict.REQUEUE, EXIT_RESUME_ME)


def succeeded(gpus: int) -> Settlement:
    return Settlement(Verdict.SUCCESSOR, EXIT_RESUME_ME, gpus=gpus)


HELD = Hold("reason", "hint")
ACTIONS: list[Action] = [
    AGAIN,
    PLANNED,
    SAVED,
    HandOver(Cause.LIMIT, is_resumed=False),
    HandOver(Cause.INTERRUPTED, is_resumed=False),
    HELD,
    Fail("reason", "hint"),
    *(
        Leave(state)
        for state in ("complete", "done", "cancelled", "held", "failed", "superseded", "blocked")
    ),
]
LANES = st.lists(
    st.builds(
        LaneEnd,
        gpus=st.integers(1, 8),
        action=st.sampled_from(ACTIONS),
        is_continued=st.booleans(),
    ),
    max_size=5,
)


def lane(action: Action, gpus: int = 1, *, continued: bool = False) -> LaneEnd:
    return LaneEnd(gpus=gpus, action=action, is_continued=continued)


@pytest.mark.parametrize(
    ("unfinished", "finished", "wanted"),
    [
        (1, 0, REQUEUED),
        (1, 1, REQUEUED),
        (4, 4, REQUEUED),
        (5, 4, REQUEUED),
        (3, 4, succeeded(3)),
        (1, 7, succeeded(1)),
    ],
)
def test_a_job_is_requeued_while_unfinished_lanes_hold_half_of_the_gpus_or_more(
    unfinished: int, finished: int, wanted: Settlement
) -> None:
    lanes = [lane(AGAIN, unfinished)] + ([lane(DONE, finished)] if finished else [])
    assert settle(lanes) == wanted


def test_lanes_are_weighed_by_their_gpus_not_by_their_number() -> None:
    assert settle([lane(AGAIN), lane(AGAIN), lane(AGAIN), lane(DONE, 4)]) == succeeded(3)
    assert settle([lane(AGAIN, 4), lane(DONE), lane(DONE), lane(DONE)]) == REQUEUED


def test_a_planned_end_is_the_next_job_s_business_where_there_is_one() -> None:
    assert settle([lane(PLANNED, continued=True)]) == Settlement(Verdict.END, EXIT_RESUME_ME)
    assert settle([lane(PLANNED)]) == REQUEUED


def test_a_preempted_job_comes_back_even_if_a_later_one_continues_it() -> None:
    assert settle([lane(AGAIN, continued=True)]) == REQUEUED


def test_continued_lanes_do_not_weigh_on_the_side_of_the_unfinished_ones() -> None:
    assert settle([lane(PLANNED, 3, continued=True), lane(PLANNED, 1)]) == succeeded(1)
    assert settle([lane(PLANNED, 1, continued=True), lane(PLANNED, 1)]) == REQUEUED


def test_a_lane_that_may_not_be_resumed_does_not_bring_the_job_back() -> None:
    assert settle([lane(SAVED)]) == Settlement(Verdict.END, EXIT_RESUME_ME)
    assert settle([lane(SAVED, 3), lane(AGAIN, 1)]) == succeeded(1)


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        ([], EXIT_DONE),
        ([DONE], EXIT_DONE),
        ([Leave("complete")], EXIT_DONE),
        ([Leave("superseded")], EXIT_RESUME_ME),
        ([DONE, Leave("blocked")], EXIT_RESUME_ME),
        ([HELD, Leave("blocked")], EXIT_FAILED),
        ([CANCELLED], EXIT_RESUME_ME),
        ([DONE, CANCELLED], EXIT_RESUME_ME),
        ([SAVED], EXIT_RESUME_ME),
        ([DONE, SAVED], EXIT_RESUME_ME),
        ([HandOver(Cause.INTERRUPTED, is_resumed=False)], EXIT_RESUME_ME),
        ([HELD], EXIT_FAILED),
        ([Fail("reason", "hint")], EXIT_FAILED),
        ([Leave("held")], EXIT_FAILED),
        ([Leave("failed")], EXIT_FAILED),
        ([DONE, HELD], EXIT_FAILED),
        ([CANCELLED, HELD], EXIT_FAILED),
        ([SAVED, Leave("failed")], EXIT_FAILED),
    ],
)
def test_the_exit_code_of_a_job_that_ends_is_that_of_its_gravest_lane(
    actions: list[Action], code: int
) -> None:
    assert settle([lane(action) for action in actions]) == Settlement(Verdict.END, code)


@quick
@given(LANES)
def test_a_job_comes_back_exactly_when_a_lane_is_resumed_and_not_left_to_a_later_job(
    lanes: list[LaneEnd],
) -> None:
    returning = [
        end
        for end in lanes
        if isinstance(end.action, HandOver)
        and end.action.is_resumed
        and (end.action.cause is Cause.PREEMPTED or not end.is_continued)
    ]
    settlement = settle(lanes)
    assert (settlement.verdict is not Verdict.END) is bool(returning)
    assert settlement.exit_code == EXIT_RESUME_ME or not returning


@quick
@given(LANES, st.randoms(use_true_random=False))
def test_the_order_of_lanes_does_not_matter(lanes: list[LaneEnd], random: Random) -> None:
    shuffled = list(lanes)
    random.shuffle(shuffled)
    assert settle(shuffled) == settle(lanes)


def item(number: int, action: Action, gpus: int = 1, *, after: tuple[int, ...] = ()) -> LaneEnd:
    return LaneEnd(gpus=gpus, action=action, number=number, after=after)


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        # Items of one run come one after another: together they can use one GPU, not three.
        ([item(0, AGAIN), item(1, AGAIN, after=(0,)), item(2, AGAIN, after=(1,))], succeeded(1)),
        ([item(0, AGAIN), item(1, AGAIN)], REQUEUED),
        ([item(0, AGAIN), item(1, AGAIN, 3, after=(0,))], REQUEUED),
        ([item(0, DONE, 4), item(1, AGAIN, after=(0,))], succeeded(1)),
        # What is done does not hold anything back any more.
        ([item(0, DONE), item(1, AGAIN, after=(0,)), item(2, AGAIN, after=(0,))], REQUEUED),
        ([item(0, DONE, 4), item(1, HELD), item(2, Leave("blocked"), 4, after=(1,))], None),
    ],
)
def test_what_is_left_of_a_packed_job_of_four_gpus_is_weighed_by_what_it_could_use_at_once(
    ends: list[LaneEnd], wanted: Settlement | None
) -> None:
    assert settle(ends, gpus=4) == (wanted or Settlement(Verdict.END, EXIT_FAILED))


def test_a_job_whose_runs_a_later_one_continues_keeps_its_number() -> None:
    """Later jobs wait for the end of this one: a successor would leave the runs to both."""
    assert settle([lane(AGAIN, 1, continued=True), lane(DONE, 7)]) == REQUEUED


@quick
@given(LANES)
def test_a_smaller_job_is_large_enough_for_its_widest_lane_and_less_than_half(
    lanes: list[LaneEnd],
) -> None:
    numbered = [replace(end, number=n, after=(n - 1,) if n else ()) for n, end in enumerate(lanes)]
    for ends in (lanes, numbered):
        settlement = settle(ends, gpus=8)
        if settlement.verdict is Verdict.SUCCESSOR:
            assert settlement.gpus is not None and 2 * settlement.gpus < 8
            # A planned end that a later job of the plan goes on from is that job's business.
            widths = [
                end.gpus
                for end in ends
                if end.action == AGAIN or (end.action == PLANNED and not end.is_continued)
            ]
            assert settlement.gpus >= max(width for width in widths if 2 * width < 8)
        else:
            assert settlement.gpus is None
    assert usable_gpus(numbered) == max((end.gpus for end in lanes), default=0)


def test_only_a_preemption_that_may_not_be_requeued_keeps_the_later_jobs_of_a_plan_away():
    assert stops_successors(SAVED)
    going_on = [AGAIN, PLANNED, HandOver(Cause.LIMIT, is_resumed=False), DONE, Leave("complete")]
    assert not any(stops_successors(action) for action in going_on)
