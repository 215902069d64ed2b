"""What becomes of a job when all its lanes have ended."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME
from tasuki.relay.decide import settle
from tasuki.relay.values import (
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
from tests.relay.runs import quick

AGAIN = HandOver(Cause.PREEMPTED, is_resumed=True)
PLANNED = HandOver(Cause.LIMIT, is_resumed=True)
SAVED = HandOver(Cause.PREEMPTED, is_resumed=False)
DONE, CANCELLED = Leave("done"), Leave("cancelled")
REQUEUED = Settlement(Verdict.REQUEUE, EXIT_RESUME_ME)
SUCCEEDED = Settlement(Verdict.SUCCESSOR, EXIT_RESUME_ME)
HELD = Hold("reason", "hint")
ACTIONS: list[Action] = [
    AGAIN,
    PLANNED,
    SAVED,
    HandOver(Cause.LIMIT, is_resumed=False),
    HandOver(Cause.INTERRUPTED, is_resumed=False),
    HELD,
    Fail("reason", "hint"),
    *(Leave(state) for state in ("complete", "done", "cancelled", "held", "failed", "superseded")),
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
        (3, 4, SUCCEEDED),
        (1, 7, SUCCEEDED),
    ],
)
def test_a_job_is_requeued_while_unfinished_lanes_hold_half_of_the_gpus_or_more(
    unfinished: int, finished: int, wanted: Settlement
) -> None:
    lanes = [lane(AGAIN, unfinished)] + ([lane(DONE, finished)] if finished else [])
    assert settle(lanes) == wanted


def test_lanes_are_weighed_by_their_gpus_not_by_their_number() -> None:
    assert settle([lane(AGAIN), lane(AGAIN), lane(AGAIN), lane(DONE, 4)]) == SUCCEEDED
    assert settle([lane(AGAIN, 4), lane(DONE), lane(DONE), lane(DONE)]) == REQUEUED


def test_a_planned_end_is_the_next_job_s_business_where_there_is_one() -> None:
    assert settle([lane(PLANNED, continued=True)]) == Settlement(Verdict.END, EXIT_RESUME_ME)
    assert settle([lane(PLANNED)]) == REQUEUED


def test_a_preempted_job_comes_back_even_if_a_later_one_continues_it() -> None:
    assert settle([lane(AGAIN, continued=True)]) == REQUEUED


def test_continued_lanes_do_not_weigh_on_the_side_of_the_unfinished_ones() -> None:
    assert settle([lane(PLANNED, 3, continued=True), lane(PLANNED, 1)]) == SUCCEEDED
    assert settle([lane(PLANNED, 1, continued=True), lane(PLANNED, 1)]) == REQUEUED


def test_a_lane_that_may_not_be_resumed_does_not_bring_the_job_back() -> None:
    assert settle([lane(SAVED)]) == Settlement(Verdict.END, EXIT_RESUME_ME)
    assert settle([lane(SAVED, 3), lane(AGAIN, 1)]) == SUCCEEDED


def test_a_held_lane_does_not_keep_the_others_from_coming_back() -> None:
    assert settle([lane(HELD), lane(AGAIN)]) == REQUEUED


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        ([], EXIT_DONE),
        ([DONE], EXIT_DONE),
        ([Leave("complete")], EXIT_DONE),
        ([Leave("superseded")], EXIT_RESUME_ME),
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
def test_a_job_that_comes_back_says_resume_me(lanes: list[LaneEnd]) -> None:
    settlement = settle(lanes)
    if settlement.verdict is not Verdict.END:
        assert settlement.exit_code == EXIT_RESUME_ME


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
    assert (settle(lanes).verdict is not Verdict.END) is bool(returning)


@quick
@given(LANES, st.randoms(use_true_random=False))
def test_the_order_of_lanes_does_not_matter(lanes: list[LaneEnd], random: Random) -> None:
    shuffled = list(lanes)
    random.shuffle(shuffled)
    assert settle(shuffled) == settle(lanes)


@pytest.mark.parametrize("stop", [CANCELLED, HandOver(Cause.INTERRUPTED, is_resumed=False)])
def test_a_cancelled_or_interrupted_job_is_never_requeued(stop: Action) -> None:
    for num_lanes in (1, 2, 8):
        assert settle([lane(stop)] * num_lanes).verdict is Verdict.END
