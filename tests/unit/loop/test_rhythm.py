"""When saves are due: by steps the same on all ranks, by time rank 0 asks."""

from __future__ import annotations

import math

import pytest

from tasuki.estimation.intervals import SaveCost, choose_interval, next_multiple, period_in_steps
from tasuki.loop.rhythm import SaveRhythm
from tasuki.runs.view import Losses
from tasuki.spec.values import Every

AUTO = Every(unit="auto", count=0.0)


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (Every(unit="steps", count=500), 500),
        (Every(unit="epochs", count=2), 24),
        (Every(unit="epochs", count=0.01), 1),
        (Every(unit="seconds", count=600), math.inf),
        (AUTO, math.inf),
    ],
)
def test_a_period_in_steps_or_epochs_is_counted_in_steps(every, steps):
    assert period_in_steps(every, 12) == steps


def test_what_is_due_every_seven_steps_is_due_at_multiples_of_seven():
    assert [next_multiple(step, 7) for step in (0, 6, 7, 8)] == [7, 7, 14, 14]
    assert next_multiple(3, math.inf) == math.inf


def test_a_period_in_time_is_kept_whatever_the_step():
    rhythm = SaveRhythm(Every(unit="seconds", count=30), steps_per_epoch=10, now=100.0)
    assert not rhythm.is_due_by_time(129.0)
    assert rhythm.is_due_by_time(130.0)
    rhythm.begun(130.0)
    assert not rhythm.is_due_by_time(159.0)


def test_auto_is_due_when_the_chosen_interval_is_over():
    rhythm = SaveRhythm(AUTO, steps_per_epoch=10, now=0.0)
    assert not rhythm.is_due_by_time(59.0)  # nothing was measured yet: after a minute
    assert rhythm.is_due_by_time(60.0)
    rhythm.interval_s = 40.0
    assert not rhythm.is_due_by_time(39.0)
    assert rhythm.is_due_by_time(40.0)


def cost(blocked_s: float, total_s: float) -> SaveCost:
    return SaveCost(blocked_s=blocked_s, total_s=total_s)


DAY = 86400.0


def test_the_interval_is_that_of_young_and_daly():
    """√(2 · cost · time between losses); before anything is observed, one loss a day."""
    chosen = choose_interval(cost(0.5, 2.0), Losses())
    assert chosen.seconds == pytest.approx(math.sqrt(2 * (0.5 + 0.1) * DAY))


def test_a_run_that_was_killed_often_saves_more_often():
    calm = choose_interval(cost(0.1, 0.5), Losses(lived_s=10 * DAY))
    wild = choose_interval(cost(0.1, 0.5), Losses(lived_s=10 * DAY, kills=99))
    assert calm.seconds / wild.seconds == pytest.approx(10.0)
    assert "99 so far" in wild.reason


@pytest.mark.parametrize("blocked", [0.0, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("kills", [0, 5, 10_000])
def test_saves_never_take_more_than_one_percent_of_the_time(blocked, kills):
    chosen = choose_interval(cost(blocked, 3 * blocked), Losses(lived_s=3600, kills=kills))
    assert blocked / chosen.seconds <= 0.01
    assert chosen.seconds >= 5.0


def test_a_save_has_ended_before_the_next_is_due():
    chosen = choose_interval(cost(0.01, 900.0), Losses(lived_s=3600, kills=100))
    assert chosen.seconds > 900.0


def test_half_an_hour_is_the_most_that_a_cheap_save_may_cost_at_a_kill():
    assert choose_interval(cost(1.0, 60.0), Losses(lived_s=1000 * DAY)).seconds == 1800.0


def test_preemptions_count_as_losses_only_where_step_and_save_do_not_fit_the_notice():
    losses = Losses(lived_s=DAY, preemptions=7)
    fits = choose_interval(cost(0.2, 1.0), losses, step_s=2.0, notice_s=60.0)
    short = choose_interval(cost(0.2, 1.0), losses, step_s=100.0, notice_s=60.0)
    assert fits.seconds == choose_interval(cost(0.2, 1.0), Losses(lived_s=DAY)).seconds
    assert short.seconds < fits.seconds
    assert "do not fit a notice of 1m" in short.reason
