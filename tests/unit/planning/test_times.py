"""How long a stage takes, from the best source there is: given, this run, history, measured."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tasuki.estimation.facts import stage_key
from tasuki.estimation.times import (
    DEFAULT_SAVE_S,
    DEFAULT_START_S,
    StageTimes,
    estimate_stage,
    needs_measuring,
)
from tasuki.spec.resolved import ResolvedStage
from tasuki.spec.values import Length

STAGE = ResolvedStage(name="one", recipe="r:R", length=Length(unit="epochs", count=3))
KEY = stage_key(STAGE, device="cpu", ranks=1)
OWN = {
    "kind": "progress",
    "stage": "one",
    "step_s": 2.0,
    "total_steps": 100,
    "parts": {"start": 4.0, "restore": 1.0, "step": 9.0},
}
PAST = {
    "key": KEY,
    "at": 10.0,
    "step_s": 3.0,
    "steps_per_epoch": 40,
    "effective_batch": 8,
    "start_s": 6.0,
    "save_s": 0.5,
}
MEASURED = {"step_s": 4.0, "total_steps": 50, "start_s": 7.0, "save_s": 0.7, "evaluate_s": 9.0}


def estimate(
    stage: ResolvedStage = STAGE,
    *,
    own: list[dict[str, Any]] | None = None,
    past: list[dict[str, Any]] | None = None,
    measured: dict[str, Any] | None = None,
    device: str = "cpu",
    ranks: int = 1,
) -> StageTimes:
    return estimate_stage(
        stage,
        device=device,
        ranks=ranks,
        own_events=own or [],
        history=past or [],
        measured=measured,
    )


GIVEN = replace(STAGE, expect_wall_s=500.0)


@pytest.mark.parametrize(
    ("stage", "own", "past", "measured", "source", "wall_s"),
    [
        (GIVEN, [OWN], [PAST], MEASURED, "given", 500.0),
        (GIVEN, [], [], None, "given", 500.0),
        (STAGE, [OWN], [PAST], MEASURED, "this run", 200.0),
        (STAGE, [OWN], [], None, "this run", 200.0),
        (STAGE, [], [PAST], MEASURED, "history", 360.0),
        (STAGE, [], [], MEASURED, "measured here", 200.0),
        (STAGE, [], [], None, "unknown", None),
    ],
)
def test_the_best_source_wins(
    stage: ResolvedStage, own: Any, past: Any, measured: Any, source: str, wall_s: float | None
) -> None:
    times = estimate(stage, own=own, past=past, measured=measured)
    assert (times.source, times.wall_s) == (source, wall_s)
    assert needs_measuring(times) is (source == "unknown")


def test_a_given_time_keeps_what_else_is_known() -> None:
    times = estimate(GIVEN, past=[PAST])
    assert (times.total_steps, times.step_s) == (120, pytest.approx(500 / 120))
    assert (times.start_s, times.save_s) == (6.0, 0.5)
    times = estimate(GIVEN, measured=MEASURED)
    assert (times.total_steps, times.evaluate_s) == (50, 9.0)


def test_a_given_time_alone_has_no_steps_and_default_start_and_save() -> None:
    times = estimate(GIVEN)
    assert (times.step_s, times.total_steps) == (None, None)
    assert (times.start_s, times.save_s) == (DEFAULT_START_S, DEFAULT_SAVE_S)


@pytest.mark.parametrize("change", [{"stage": "two"}, {"kind": "time"}, {"step_s": None}])
def test_words_of_the_run_about_something_else_do_not_count(change: dict[str, Any]) -> None:
    assert estimate(own=[{**OWN, **change}]).source == "unknown"


def test_the_newest_fact_of_the_same_work_counts() -> None:
    past = [{**PAST, "at": 20.0, "step_s": 5.0}, PAST, {**PAST, "at": 99.0, "key": "other"}]
    assert estimate(past=past).step_s == 5.0


@pytest.mark.parametrize("change", [{"device": "cuda"}, {"ranks": 2}])
def test_history_of_other_hardware_does_not_count(change: dict[str, Any]) -> None:
    assert estimate(past=[PAST], **change).source == "unknown"


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"name": "other"}, True),
        ({"seed": 5}, True),
        ({"lr": 0.5}, True),
        ({"length": Length(unit="epochs", count=9)}, True),
        ({"effective_batch": 16}, False),
        ({"data": "other.h5"}, False),
        ({"recipe": "r:S"}, False),
        ({"params": {"width": 9}}, False),
        ({"precision": "bf16"}, False),
        ({"exact": False}, False),
    ],
)
def test_history_counts_for_the_same_work_only(change: dict[str, Any], is_same: bool) -> None:
    changed = replace(STAGE, **change)
    assert (stage_key(changed, device="cpu", ranks=1) == KEY) is is_same


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (Length(unit="epochs", count=5), 200),
        (Length(unit="steps", count=77), 77),
        (Length(unit="samples", count=81), 11),
    ],
)
def test_history_of_another_length_is_converted(length: Length, steps: int) -> None:
    times = estimate(replace(STAGE, length=length), past=[PAST])
    assert (times.total_steps, times.wall_s) == (steps, 3.0 * steps)


def test_a_measurement_that_found_no_step_time_still_tells_the_number_of_steps() -> None:
    times = estimate(measured={"step_s": None, "total_steps": 50})
    assert (times.source, times.wall_s, times.total_steps) == ("unknown", None, 50)
