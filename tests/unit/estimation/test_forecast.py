"""After its first epoch a stage says when it will be done, beside what the plan had said."""

from __future__ import annotations

import pytest

from tasuki.estimation.forecast import Ahead, look_ahead, planned_s
from tasuki.estimation.intervals import SaveCost, num_saves, num_validations
from tasuki.spec.values import Every


def ahead(**more) -> Ahead:
    facts = {"done": 100, "left": 300, "elapsed_s": 50.0, "steps_per_epoch": 100}
    return look_ahead(**{**facts, "first_steps": (), **more})


def test_what_is_left_takes_as_long_as_what_was_done():
    assert ahead().left_s == 150.0
    assert ahead().left_s_p90 == pytest.approx(172.5)


def test_more_epochs_make_it_surer():
    later = ahead(done=400, elapsed_s=200.0)
    assert later.left_s == 150.0 and later.left_s_p90 < ahead().left_s_p90


def test_a_slow_first_step_happens_once():
    steps = [20.0, 0.3, *[0.3] * 98]
    assert ahead(first_steps=steps, elapsed_s=50.0).left_s == pytest.approx(3 * 30.3)


@pytest.mark.parametrize(("elapsed_s", "is_news"), [(200.0, False), (215.0, False), (260.0, True)])
def test_only_a_change_of_more_than_a_tenth_is_news(elapsed_s, is_news):
    later = ahead(done=400, left=0, elapsed_s=elapsed_s)
    assert later.is_news(ahead()) is is_news
    assert later.is_news(None)


@pytest.mark.parametrize(("whole_s", "is_said"), [(160.0, False), (255.0, False), (300.0, True)])
def test_the_log_has_a_forecast_again_only_where_it_moves_by_a_quarter_and_a_minute(
    whole_s, is_said
):
    said = ahead()  # of 200 s
    later = ahead(done=400, left=0, elapsed_s=whole_s)
    assert later.is_worth_a_line(said) is is_said and later.is_worth_a_line(None)
    assert not ahead(elapsed_s=20.0).is_worth_a_line(ahead(elapsed_s=10.0)), "seconds only"


def piece(from_step, to_step, expected_s, **more):
    facts = {"experiment": "e", "stage": "s", "kind": "train", "expected_s": expected_s}
    return {**facts, "from_step": from_step, "to_step": to_step, **more}


def plan(*pieces):
    return {"jobs": [{"lanes": [{"stages": list(pieces)}]}]}


def test_the_plan_is_asked_for_the_steps_that_are_left():
    planned = plan(piece(0, 60, 70.0), piece(60, 100, 30.0), piece(0, 9, 1.0, stage="other"))
    assert planned_s(planned, experiment="e", stage="s", left=50) == 50.0


@pytest.mark.parametrize(
    "planned",
    [{}, plan(), plan(piece(0, None, 3.0)), plan(piece(0, 5, None)), plan(piece(4, 4, 3))],
)
def test_a_plan_that_does_not_know_says_nothing(planned):
    assert planned_s(planned, experiment="e", stage="s", left=50) is None


COST = SaveCost(blocked_s=0.1, total_s=1.0)


@pytest.mark.parametrize(
    ("every", "saves"),
    [
        (Every(unit="steps", count=30), 3),
        (Every(unit="steps", count=25), 3),
        (Every(unit="epochs", count=1), 9),
        (Every(unit="seconds", count=60), 16),
        (Every(unit="auto", count=0), 6),
    ],
)
def test_saves_are_counted_as_training_makes_them(every, saves):
    facts = {"steps": 100, "steps_per_epoch": 10, "train_s": 1000.0, "cost": COST}
    assert num_saves(every, **facts) == saves


def test_validations_are_counted_with_the_first_and_the_last():
    every = Every(unit="steps", count=30)
    assert num_validations(every, steps=100, steps_per_epoch=10) == 5
    assert num_validations(every, steps=90, steps_per_epoch=10) == 4
