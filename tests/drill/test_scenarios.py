"""Where a drill strikes, for stages of every shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.actions.drill_scenarios import NAMES, SAVE_EVERY, STEPS, Shape, plan_scenarios
from tasuki.errors import UsageError

SHAPES = st.builds(
    Shape,
    steps_per_epoch=st.integers(1, STEPS),
    has_border=st.booleans(),
    world=st.integers(1, 4),
)


def epoch_of(step: int, shape: Shape) -> int:
    return (step - 1) // shape.steps_per_epoch


@given(SHAPES)
def test_every_disturbance_strikes_inside_the_shortened_stage_and_in_its_own_attempt(shape):
    scenarios = plan_scenarios(shape)
    assert [scenario.name for scenario in scenarios] == list(NAMES)
    for scenario in scenarios:
        if scenario.not_here:
            assert not scenario.failpoints and not scenario.struck
            continue
        kills = [p for p in scenario.failpoints if p["do"] in ("kill", "term")]
        assert len(kills) == len(scenario.struck) == scenario.attempts - 1
        assert [p["claim"] for p in kills] == list(range(1, scenario.attempts))
        assert all(0 <= p["rank"] < shape.world for p in scenario.failpoints if "rank" in p)
        assert all(1 <= p.get("count", 1) < shape.steps for p in scenario.failpoints)


@given(SHAPES)
def test_both_interruptions_of_twice_fall_into_one_epoch(shape):
    (scenario,) = plan_scenarios(shape, ["twice"])
    if scenario.not_here:
        assert shape.steps_per_epoch == 1
        return
    first, _, second = scenario.failpoints
    handed_over, killed_before = first["count"], first["count"] + second["count"]
    assert scenario.resumes_at == handed_over
    assert epoch_of(handed_over, shape) == epoch_of(killed_before, shape)


@given(SHAPES)
def test_border_hands_over_exactly_between_two_epochs(shape):
    (scenario,) = plan_scenarios(shape, ["border"])
    if not scenario.not_here:
        assert scenario.failpoints[0]["count"] % shape.steps_per_epoch == 0
        assert scenario.resumes_at == scenario.failpoints[0]["count"] < shape.steps


@given(SHAPES)
def test_a_damaged_checkpoint_is_not_one_that_was_saved_anyway(shape):
    (scenario,) = plan_scenarios(shape, ["damaged"])
    assert scenario.failpoints[0]["count"] % SAVE_EVERY


def test_a_scenario_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(UsageError, match="there is no scenario `fire`") as error:
        plan_scenarios(Shape(), ["fire"])
    assert all(name in error.value.hint for name in NAMES)
