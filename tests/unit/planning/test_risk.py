"""How much of a run is left, and whether its deadline is in danger: pure, case by case."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.planning.risk import Left, left_of_run, look_at_deadline
from tasuki.runs.standing import Planned, StageStanding, Standing


def stage(name: str, *, trained: bool = False, lacks: bool = False) -> StageStanding:
    return StageStanding(name=name, is_trained=trained, lacks_evaluation=lacks)


def piece(name: str, seconds: float | None, **more) -> Planned:
    told = {"kind": "train", "start_s": None, "steps": None, **more}
    return Planned(stage=name, expected_s=seconds, **told)


IN_WORK = {"stage": "a", "step": 60, "total_steps": 100, "step_s": 1.0}
FORECAST = {"stage": "a", "step": 20, "total_steps": 100, "left_s": 160.0, "left_s_p90": 200.0}


def test_what_is_left_is_the_stage_s_own_forecast_and_the_plan_s_word_on_the_rest():
    run = Standing(
        stages=(stage("a"), stage("b", lacks=True), stage("c")),
        progress=IN_WORK,
        forecast=FORECAST,
        pieces=(
            piece("a", 9999.0),
            piece("b", 50.0),
            piece("b", 10.0, kind="evaluate"),
            piece("c", 30.0),
            piece("c", 10.0),
        ),
        spread=1.5,
        has_begun=True,
    )
    left = left_of_run(run, now=0.0)
    assert (left.s, left.s_p90, left.stage_s) == (80.0 + 100.0, 100.0 + 150.0, 80.0)


def test_stages_that_are_done_are_not_left_and_an_evaluation_that_is_missing_is():
    run = Standing(
        stages=(stage("a", trained=True), stage("b", trained=True, lacks=True)),
        progress={**IN_WORK, "stage": "b", "step": 100},
        pieces=(piece("a", 5.0), piece("b", 7.0), piece("b", 3.0, kind="evaluate")),
        has_begun=True,
    )
    assert left_of_run(run, now=0.0).s == 3.0


def test_where_a_later_stage_is_not_known_the_whole_is_not_and_the_stage_is():
    run = Standing(stages=(stage("a"), stage("b")), progress=IN_WORK, has_begun=True)
    assert left_of_run(run, now=0.0) == Left(stage_s=40.0)
    known = Standing(
        stages=run.stages, progress=IN_WORK, pieces=(piece("b", None),), has_begun=True
    )
    assert left_of_run(known, now=0.0).s is None


def test_a_stage_that_has_not_timed_a_step_is_left_as_planned_by_the_steps_it_has_done():
    run = Standing(
        stages=(stage("a"),),
        progress={"stage": "a", "step": 75, "total_steps": 100},
        pieces=(piece("a", 80.0, steps=100),),
        has_begun=True,
    )
    assert left_of_run(run, now=0.0).s == 20.0


def test_a_command_that_runs_has_done_what_it_has_had_time_for_but_never_all():
    run = Standing(
        stages=(stage("a"),),
        command=("a", 1000.0),
        pieces=(piece("a", 100.0),),
        has_begun=True,
    )
    assert left_of_run(run, now=1040.0).s == 60.0
    assert left_of_run(run, now=9999.0).s == pytest.approx(10.0)
    assert left_of_run(run, now=900.0).s == 100.0, "a clock that went backwards adds nothing"


def test_a_run_that_waits_in_a_lane_ends_no_sooner_than_its_plan_said():
    run = Standing(
        stages=(stage("a"),), pieces=(piece("a", 60.0, start_s=300.0),), planned_at=1000.0
    )
    assert left_of_run(run, now=1100.0).s == 260.0
    assert left_of_run(run, now=5000.0).s == 60.0, "its turn is overdue: the work is left"
    assert left_of_run(run, now=0.0).s == 360.0, "a clock that went backwards"


@pytest.mark.parametrize(
    ("left", "danger", "late"),
    [
        (Left(s=50.0, s_p90=90.0), False, -10.0),
        (Left(s=50.0, s_p90=110.0), True, 10.0),
        (Left(s=110.0), True, 10.0),
        (Left(s=90.0), False, -10.0),
        (Left(), None, None),
    ],
)
def test_danger_is_what_nine_of_ten_times_is_not_enough(left, danger, late):
    risk = look_at_deadline(1100.0, now=1000.0, left=left)
    assert (risk.is_danger, risk.late_s) == (danger, late)


def test_a_deadline_that_has_passed_is_missed_whatever_is_known():
    assert look_at_deadline(1000.0, now=1001.0, left=Left()).is_danger is True


def test_nothing_endangers_a_run_that_is_done_and_how_late_it_was_stays_known():
    for done_at, late in ((900.0, -100.0), (1300.0, 300.0)):
        risk = look_at_deadline(1000.0, now=9999.0, left=Left(s=5.0), done_at=done_at)
        assert (risk.is_danger, risk.late_s) == (False, late)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.floats(),
    st.integers(),
    st.lists(st.integers(), max_size=1),
)


@given(
    progress=st.dictionaries(
        st.sampled_from(["stage", "step", "total_steps", "step_s"]), ODD | st.just("a")
    ),
    forecast=st.dictionaries(
        st.sampled_from(["stage", "step", "total_steps", "left_s", "left_s_p90"]),
        ODD | st.just("a"),
    ),
    seconds=st.none() | st.floats(min_value=0, max_value=1e9),
    now=st.floats(min_value=-1e10, max_value=1e10),
)
def test_whatever_a_newer_or_broken_attempt_tells_nobody_falls_over_it(
    progress, forecast, seconds, now
):
    run = Standing(
        stages=(stage("a"), stage("b", lacks=True)),
        progress=progress,
        forecast=forecast,
        pieces=(piece("a", seconds), piece("b", 1.0), piece("b", 1.0, kind="evaluate")),
        has_begun=True,
    )
    left = left_of_run(run, now=now)
    assert all(s is None or not math.isnan(s) for s in (left.s, left.s_p90, left.stage_s))
    look_at_deadline(0.0, now=now, left=left)
