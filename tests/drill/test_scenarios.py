"""Where a drill strikes, for stages of every shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.commands.drill_scenarios import (
    NAMES,
    SAVE_EVERY,
    STEPS,
    Shape,
    plan_scenarios,
    planned_kills,
)
from tasuki.commands.drill_words import retell
from tasuki.commands.status import brief_run
from tasuki.errors import UsageError
from tasuki.testing import FakeClock
from tests.harness.written import WrittenRun

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


@pytest.mark.parametrize("message", ["the command {}", "rank 0 {}"])
def test_kills_by_the_drill_blame_nobody_s_memory_and_other_kills_do(
    tmp_path, monkeypatch, message
):
    monkeypatch.chdir(tmp_path)
    words = message.format("was killed by SIGKILL without a word (SIGKILL: often the memory)")
    told = {}
    for name in ("kill-in-save", "twice"):
        written = WrittenRun(tmp_path / "runs", FakeClock(), name)
        for _ in range(2):
            written.begin(job="j", is_alive=False)
            written.end(ending="failed", cause="none", message=words)
            now = written.clock.wall()
            written.begin(job="j")
            told[name, written.claim - 1] = retell(brief_run(written.run, now=now))["notable"]
    assert told["kill-in-save", 1] == ["attempt 1: killed by the drill, as planned"]
    assert told["twice", 1] == [f"attempt 1 failed: {words}"], "there it is a TERM"
    assert planned_kills("kill-in-save") == {1, 2} and planned_kills("twice") == {2}
    assert planned_kills("full-disk") == {1} and planned_kills("twin") == set()
