"""What an attempt does next: every transition, then the rules that hold over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given

from tasuki.runs.decide import MAX_FAILURES, counts_as_failure, next_action
from tasuki.runs.values import (
    Action,
    Cause,
    Ending,
    Evaluate,
    Event,
    Fail,
    Finish,
    HandOver,
    Hold,
    Leave,
    PhaseEnded,
    Retry,
    RunView,
    Started,
    Train,
)
from tests.unit.runs.runs import CAUSES, EVENTS, RUNS, STOPPING, WORDS, ended, quick, run, stage

OWN = (Cause.LIMIT, Cause.LOST)
"""No excuse: an attempt that they end must have brought something."""
REQUEUES: list[bool | int] = [True, False, 0, 1, 5]

# -- every transition ---------------------------------------------------------------------------

TRAIN, EVALUATE = run(stage()), run(stage(trained=True, evaluates=True))
FINISH, UNTIL = run(stage(trained=True)), run(stage(trained=True), stage("two"), until="one")
WORK: list[tuple[RunView, Action]] = [
    (TRAIN, Train("one")),
    (EVALUATE, Evaluate("one")),
    (FINISH, Finish()),
    (UNTIL, Leave("done")),
]


def resumes_after_preemption(requeue: bool | int, preemptions: int) -> bool:
    return requeue if isinstance(requeue, bool) else preemptions < requeue


def expected_handover(view: RunView, cause: Cause) -> Action:
    return {
        Cause.CANCELLED: Leave("cancelled"),
        Cause.INTERRUPTED: HandOver(Cause.INTERRUPTED, is_resumed=False),
        Cause.PREEMPTED: HandOver(
            Cause.PREEMPTED, is_resumed=resumes_after_preemption(view.requeue, view.preemptions)
        ),
        Cause.LIMIT: HandOver(Cause.LIMIT, is_resumed=view.requeue is not False),
        Cause.LOST: HandOver(Cause.LOST, is_resumed=view.requeue is not False),
        Cause.NONE: HandOver(Cause.NONE, is_resumed=view.requeue is not False),
    }[cause]


Rule = tuple[Callable[[RunView, PhaseEnded], bool], Callable[[RunView, PhaseEnded], Action | type]]
FAILED_RULES: list[Rule] = [
    # Ended by the scheduler before it could do anything.
    (
        lambda _, e: e.cause not in (Cause.NONE, *OWN) and not e.has_stepped,
        lambda v, e: expected_handover(v, e.cause),
    ),
    (lambda v, e: not e.has_progressed and v.failures >= 2, lambda *_: Hold),
    (lambda _, e: e.cause is Cause.NONE, lambda *_: Retry("boom")),
    (lambda *_: True, lambda v, e: expected_handover(v, e.cause)),
]
HANDED_OVER_RULES: list[Rule] = [
    (
        lambda v, e: e.cause in (Cause.NONE, *OWN) and not e.has_progressed and v.failures >= 2,
        lambda *_: Hold,
    ),
    # A command that wants to be resumed although nobody told it to end.
    (lambda _, e: e.cause is Cause.NONE, lambda *_: Retry("boom")),
    (lambda *_: True, lambda v, e: expected_handover(v, e.cause)),
]


def expected_work(view: RunView, work: Action, cause: Cause) -> Action:
    if cause is Cause.NONE or isinstance(work, Finish | Leave):
        return work
    return expected_handover(view, cause)


def expected(view: RunView, work: Action, event: Event) -> Action | type:
    """The table of the design, as far as it depends on the event."""
    if isinstance(event, Started):
        return expected_work(view, work, event.cause)
    match event.ending:
        case Ending.DONE:
            return expected_work(view, work, event.cause)
        case Ending.SUPERSEDED:
            return Leave("superseded")
        case Ending.MISTAKE:
            return Fail("boom", "mend it")
        case Ending.STUCK:
            return Hold("boom", "mend it")
        case _:
            rules = FAILED_RULES if event.ending is Ending.FAILED else HANDED_OVER_RULES
            return next(answer(view, event) for applies, answer in rules if applies(view, event))


def all_events() -> list[Event]:
    ends = [
        ended(ending, cause, message="boom", hint="mend it", has_progressed=far, has_stepped=moved)
        for ending, cause, far, moved in product(Ending, Cause, [False, True], [False, True])
    ]
    return [*(Started(cause) for cause in Cause), *ends]


@pytest.mark.parametrize("word", [None, "lift"])
@pytest.mark.parametrize(("view", "work"), WORK, ids=["train", "evaluate", "finish", "until"])
def test_every_transition_of_a_run_that_may_go_on(view: RunView, work: Action, word: str) -> None:
    for failures, requeue, preemptions in product(range(4), REQUEUES, [0, 1, 5]):
        now = run(
            *view.stages,
            until=view.until,
            word=word,
            failures=failures,
            requeue=requeue,
            preemptions=preemptions,
        )
        for event in all_events():
            wanted, action = expected(now, work, event), next_action(now, event)
            assert action == wanted or type(action) is wanted, (now, event)


@pytest.mark.parametrize("word", STOPPING)
def test_every_transition_of_a_run_under_a_stopping_word_leaves(word: str) -> None:
    for (view, _), failures, requeue in product(WORK, range(4), REQUEUES):
        now = run(*view.stages, until=view.until, word=word, failures=failures, requeue=requeue)
        for event in all_events():
            assert next_action(now, event) == Leave(STOPPING[word])


@pytest.mark.parametrize("word", WORDS)
def test_a_complete_run_leaves_at_once_whatever_else_is_known(word: str) -> None:
    for stages, requeue in product([(), (stage(),)], REQUEUES):
        now = RunView(stages=stages, is_complete=True, word=word, failures=9, requeue=requeue)
        for event in all_events():
            assert next_action(now, event) == Leave("complete")


# -- what is done next --------------------------------------------------------------------------


def test_stages_are_trained_in_order_and_each_is_evaluated_before_the_next() -> None:
    one, two = stage("one", evaluates=True), stage("two", evaluates=True)
    assert next_action(run(one, two), Started()) == Train("one")
    one = stage("one", trained=True, evaluates=True)
    assert next_action(run(one, two), Started()) == Evaluate("one")
    one = stage("one", trained=True, evaluates=True, evaluated=True)
    assert next_action(run(one, two), Started()) == Train("two")
    two = stage("two", trained=True, evaluates=True)
    assert next_action(run(one, two), Started()) == Evaluate("two")
    two = stage("two", trained=True, evaluates=True, evaluated=True)
    assert next_action(run(one, two), Started()) == Finish()


def test_an_untrained_stage_is_not_evaluated_even_if_an_old_evaluation_lies_around() -> None:
    assert next_action(run(stage(evaluates=True, evaluated=True)), Started()) == Train("one")


def test_until_lets_a_job_do_its_stages_and_their_evaluation_and_no_more() -> None:
    two, three = stage("two", evaluates=True), stage("three")
    ready = stage("one", trained=True)
    assert next_action(run(ready, two, three, until="two"), Started()) == Train("two")
    two = stage("two", trained=True, evaluates=True)
    assert next_action(run(ready, two, three, until="two"), Started()) == Evaluate("two")
    two = stage("two", trained=True, evaluates=True, evaluated=True)
    assert next_action(run(ready, two, three, until="two"), Started()) == Leave("done")


def test_the_job_leaves_when_its_wanted_stage_was_done_by_another_one() -> None:
    view = run(stage("one", trained=True), stage("two", trained=True), stage("three"), until="one")
    assert next_action(view, Started()) == Leave("done")


def test_a_stage_that_starts_from_weights_that_are_not_coming_is_left_and_no_failure():
    cut_off = replace(stage("two"), is_cut_off=True)
    for cause in Cause:
        assert next_action(run(stage(trained=True), cut_off), Started(cause)) == Leave("blocked")
    assert next_action(run(stage(), cut_off), Started()) == Train("one")


def test_where_another_evaluates_the_last_wanted_stage_it_is_done_when_it_is_trained():
    two = (stage("one", trained=True, evaluates=True, evaluated=True), stage("two", evaluates=True))
    trained = (two[0], stage("two", trained=True, evaluates=True))
    assert next_action(run(*two, until="two", trains_only=True), Started()) == Train("two")
    assert next_action(run(*trained, until="two", trains_only=True), Started()) == Leave("done")
    assert next_action(run(*trained, until="two"), Started()) == Evaluate("two")


def test_only_a_lift_clears_a_word() -> None:
    for word in STOPPING:
        assert isinstance(next_action(run(word=word), Started()), Leave)
    assert next_action(run(word="lift"), Started()) == Train("one")


# -- the crash loop -----------------------------------------------------------------------------


def test_the_first_two_failures_are_tried_again_and_the_third_is_held() -> None:
    end = ended(Ending.FAILED, message="boom")
    actions = [next_action(run(failures=n), end) for n in range(3)]
    assert actions[:2] == [Retry("boom"), Retry("boom")]
    assert isinstance(actions[2], Hold)
    assert MAX_FAILURES == 3


def test_a_hold_says_how_often_and_with_which_words_it_failed() -> None:
    held = next_action(run(failures=2), ended(Ending.FAILED, message="CUDA error"))
    assert isinstance(held, Hold)
    assert "3 attempts in a row" in held.reason and "CUDA error" in held.reason
    assert "tasuki logs" in held.hint and "tasuki resume" in held.hint
    silent = next_action(run(failures=2), ended(Ending.FAILED, hint="mount the disk"))
    assert isinstance(silent, Hold)
    assert "no word" in silent.reason and silent.hint == "mount the disk"


def test_the_limit_reached_three_times_without_progress_is_held() -> None:
    end = ended(Ending.HANDED_OVER, Cause.LIMIT, has_stepped=True)
    actions = [next_action(run(failures=n), end) for n in range(3)]
    assert actions[:2] == [HandOver(Cause.LIMIT, is_resumed=True)] * 2
    assert isinstance(actions[2], Hold)
    assert "3 attempts" in actions[2].reason and "time limit" in actions[2].reason
    assert "cluster.time_limit" in actions[2].hint


def test_a_requeue_cap_of_five_lets_five_preemptions_pass_and_stops_at_the_sixth() -> None:
    end = ended(Ending.HANDED_OVER, Cause.PREEMPTED, has_progressed=True)
    resumed = [next_action(run(requeue=5, preemptions=n), end).is_resumed for n in range(8)]  # type: ignore[union-attr]
    assert resumed == [True] * 5 + [False] * 3


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.LIMIT])
def test_requeue_false_stops_saved(cause: Cause) -> None:
    end = ended(Ending.HANDED_OVER, cause, has_progressed=True)
    assert next_action(run(requeue=False), end) == HandOver(cause, is_resumed=False)


# -- rules over all of them ---------------------------------------------------------------------


@quick
@given(RUNS, EVENTS)
def test_exactly_the_third_end_that_counts_is_held_for_failing(view: RunView, event: Event) -> None:
    is_stopped = view.is_complete or view.word in STOPPING
    is_third = (
        isinstance(event, PhaseEnded)
        and counts_as_failure(event)
        and view.failures + 1 >= MAX_FAILURES
    )
    is_stuck = isinstance(event, PhaseEnded) and event.ending is Ending.STUCK
    is_held = isinstance(next_action(view, event), Hold)
    assert is_held == (not is_stopped and (is_third or is_stuck))


@quick
@given(RUNS, CAUSES)
def test_only_untrained_stages_are_trained_and_only_trained_ones_evaluated(
    view: RunView, cause: Cause
) -> None:
    action = next_action(view, Started(cause))
    named = {s.name: s for s in view.stages}
    if isinstance(action, Train):
        assert not named[action.stage].is_trained
    if isinstance(action, Evaluate):
        found = named[action.stage]
        assert found.is_trained and found.wants_evaluation and not found.is_evaluated


@quick
@given(RUNS)
def test_a_run_is_finished_only_when_nothing_is_left_to_do(view: RunView) -> None:
    if next_action(view, Started()) == Finish():
        assert all(s.is_trained for s in view.stages)
        assert all(s.is_evaluated for s in view.stages if s.wants_evaluation)


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        (ended(Ending.FAILED), True),
        (ended(Ending.FAILED, has_stepped=True), True),
        (ended(Ending.FAILED, has_progressed=True), False),
        (ended(Ending.FAILED, Cause.LIMIT, has_stepped=True), True),
        (ended(Ending.FAILED, Cause.LIMIT), True),
        (ended(Ending.HANDED_OVER, Cause.LIMIT), True),
        (ended(Ending.HANDED_OVER, Cause.LIMIT, has_progressed=True), False),
        (ended(Ending.HANDED_OVER, Cause.PREEMPTED), False),
        (ended(Ending.HANDED_OVER, Cause.INTERRUPTED), False),
        (ended(Ending.DONE), False),
        (ended(Ending.MISTAKE), False),
        (ended(Ending.STUCK), False),
        (ended(Ending.SUPERSEDED), False),
    ],
)
def test_which_ends_count_as_failures(end: PhaseEnded, counts: bool) -> None:
    assert counts_as_failure(end) is counts
