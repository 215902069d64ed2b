"""`requeue: false` stops a plan of several jobs, saved; planned handovers go on."""

from __future__ import annotations

from tasuki.runs.decide import stops_successors
from tasuki.runs.values import Cause, HandOver, Leave


def test_a_preemption_that_may_not_be_requeued_keeps_later_jobs_away():
    assert stops_successors(HandOver(Cause.PREEMPTED, is_resumed=False))


def test_everything_else_lets_the_plan_go_on():
    going_on = [
        HandOver(Cause.PREEMPTED, is_resumed=True),
        HandOver(Cause.LIMIT, is_resumed=True),
        HandOver(Cause.LIMIT, is_resumed=False),
        Leave("done"),
        Leave("complete"),
    ]
    assert not any(stops_successors(action) for action in going_on)
