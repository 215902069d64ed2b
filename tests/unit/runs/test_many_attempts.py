"""Runs over many attempts, simulated: no endless loop, and no end without a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.runs.decide import counts_as_failure, next_action, settle
from tasuki.runs.values import (
    Action,
    Cause,
    Ending,
    Finish,
    HandOver,
    Hold,
    LaneEnd,
    PhaseEnded,
    Retry,
    RunView,
    Started,
    Train,
    Verdict,
)
from tests.unit.runs.runs import ENDS, ended, quick, run, stage

CRASH = ended(Ending.FAILED, message="boom", has_stepped=True)
CRASH_FURTHER_ON = replace(CRASH, has_progressed=True)
PREEMPTED = ended(Ending.HANDED_OVER, Cause.PREEMPTED, has_progressed=True, has_stepped=True)
LIMIT = ended(Ending.HANDED_OVER, Cause.LIMIT, has_progressed=True, has_stepped=True)
TOO_EARLY = ended(Ending.FAILED, Cause.PREEMPTED)


@dataclass
class Simulation:
    """A run of one stage, and what its folder would say after each attempt."""

    requeue: bool | int = True
    failures: int = 0
    preemptions: int = 0
    num_attempts: int = 0
    actions: list[Action] = field(default_factory=list)

    @property
    def view(self) -> RunView:
        return run(requeue=self.requeue, failures=self.failures, preemptions=self.preemptions)

    def go(self, ends: Iterable[PhaseEnded]) -> Action:
        """Attempt after attempt, as long as the run comes back by itself."""
        for end in ends:
            assert next_action(self.view, Started()) == Train("one")
            self.num_attempts += 1
            self.actions.append(next_action(self.view, end))
            self.failures = self.failures + 1 if counts_as_failure(end) else 0
            self.preemptions += end.cause is Cause.PREEMPTED
            if not self._comes_back(self.actions[-1]):
                break
        return self.actions[-1]

    @staticmethod
    def _comes_back(action: Action) -> bool:
        if isinstance(action, HandOver):
            return settle([LaneEnd(gpus=1, action=action)]).verdict is Verdict.REQUEUE
        return isinstance(action, Retry)


def test_a_crash_loop_is_held_at_exactly_the_third_attempt() -> None:
    simulation = Simulation()
    assert isinstance(simulation.go([CRASH] * 10), Hold)
    assert simulation.num_attempts == 3
    print("R12: a crash loop stops at 3 of 3 attempts")


def test_ten_thousand_preemptions_with_progress_never_stop_a_run() -> None:
    simulation = Simulation()
    assert simulation.go([PREEMPTED] * 10_000) == HandOver(Cause.PREEMPTED, is_resumed=True)
    assert simulation.num_attempts == 10_000
    print("R12: 10,000 of 10,000 preemptions with progress come back")


def test_ten_thousand_preemptions_before_the_first_step_never_stop_a_run() -> None:
    simulation = Simulation()
    assert simulation.go([TOO_EARLY] * 10_000) == HandOver(Cause.PREEMPTED, is_resumed=True)
    assert simulation.num_attempts == 10_000


def test_ten_thousand_planned_handovers_pass_a_cap_of_one_preemption() -> None:
    simulation = Simulation(requeue=1)
    simulation.go([LIMIT] * 10_000)
    assert simulation.num_attempts == 10_000


def test_ten_thousand_crashes_that_each_got_further_are_each_tried_again() -> None:
    simulation = Simulation()
    assert simulation.go([CRASH_FURTHER_ON] * 10_000) == Retry("boom")


@pytest.mark.parametrize("cap", [0, 1, 5])
def test_a_cap_stops_at_the_preemption_after_the_last_one_allowed(cap: int) -> None:
    simulation = Simulation(requeue=cap)
    last = simulation.go([LIMIT, PREEMPTED] * 10)
    assert last == HandOver(Cause.PREEMPTED, is_resumed=False)
    assert simulation.preemptions == cap + 1


def test_progress_between_crashes_starts_the_count_again() -> None:
    simulation = Simulation()
    assert isinstance(simulation.go([CRASH, CRASH, CRASH_FURTHER_ON] * 5 + [CRASH] * 3), Hold)
    assert simulation.num_attempts == 18


def test_crashes_and_limits_without_progress_are_counted_together() -> None:
    simulation = Simulation()
    stale = replace(LIMIT, has_progressed=False)
    assert isinstance(simulation.go([CRASH, stale, CRASH]), Hold)
    assert simulation.num_attempts == 3


def test_an_untrained_stage_is_trained_handed_over_and_finished() -> None:
    simulation = Simulation()
    simulation.go([LIMIT, PREEMPTED, LIMIT])
    assert next_action(run(stage(trained=True)), ended(Ending.DONE)) == Finish()


@quick
@given(st.lists(ENDS, min_size=1, max_size=30))
def test_a_run_never_comes_back_after_three_failures_in_a_row(ends: list[PhaseEnded]) -> None:
    simulation = Simulation()
    simulation.go(ends)
    counted = [counts_as_failure(end) for end in ends[: simulation.num_attempts - 1]]
    assert [True] * 3 not in [counted[i : i + 3] for i in range(len(counted))]
