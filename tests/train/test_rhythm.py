"""When saves are due: by steps the same on all ranks, by time rank 0 asks."""

from __future__ import annotations

import math

import pytest

from tasuki.spec.values import Every
from tasuki.train.rhythm import SaveRhythm, next_multiple, period_in_steps

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


def test_auto_saves_at_epoch_ends_but_never_more_often_than_a_save_is_worth():
    rhythm = SaveRhythm(AUTO, steps_per_epoch=10, now=0.0)
    assert not rhythm.is_due_by_time(10, 4.9)  # within five seconds of the last
    assert rhythm.is_due_by_time(10, 5.0)
    assert not rhythm.is_due_by_time(11, 5.0)  # not an epoch's end
    rhythm.saved(now=5.0, cost_s=2.0)
    assert not rhythm.is_due_by_time(20, 44.0)  # a save of 2 s is worth it every 40 s
    assert rhythm.is_due_by_time(20, 45.0)


def test_auto_saves_after_ten_minutes_wherever_the_epoch_is():
    rhythm = SaveRhythm(AUTO, steps_per_epoch=10, now=0.0)
    assert not rhythm.is_due_by_time(3, 599.0)
    assert rhythm.is_due_by_time(3, 600.0)


def test_a_period_in_time_is_kept_whatever_the_step():
    rhythm = SaveRhythm(Every(unit="seconds", count=30), steps_per_epoch=10, now=100.0)
    assert not rhythm.is_due_by_time(7, 129.0)
    assert rhythm.is_due_by_time(7, 130.0)
