"""Stages are cut into jobs that end before the limit; every step is planned once and in order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasuki.errors import PlanError
from tasuki.planning.cut import LEAD_S, JobDraft, cut_into_jobs
from tasuki.planning.values import Job, Piece, StageWork

HOUR = 3600.0


def work(stage: str = "one", wall_s: float | None = HOUR, **facts: Any) -> StageWork:
    values: dict[str, Any] = {
        "experiment": "exp",
        "from_step": 0,
        "total_steps": 1000,
        "start_s": 10.0,
        "save_s": 2.0,
        "evaluates": False,
        "evaluate_s": None,
        "source": "given",
    }
    return StageWork(stage=stage, wall_s=wall_s, **{**values, **facts})


def chain(*hours: float, **facts: Any) -> list[StageWork]:
    return [work(f"s{n}", h * HOUR, **facts) for n, h in enumerate(hours, 1)]


def names(jobs: list[JobDraft]) -> list[list[str]]:
    return [[piece.stage for piece in job.pieces] for job in jobs]


def kinds(jobs: list[JobDraft]) -> list[list[tuple[str, str]]]:
    return [[(piece.stage, piece.kind) for piece in job.pieces] for job in jobs]


# -- the case of the requirements ---------------------------------------------------------------


def test_short_stages_share_a_job_and_the_one_as_long_as_the_limit_spans_two() -> None:
    jobs = cut_into_jobs(chain(4, 3, 6, 6, 8, 6), limit_s=8 * HOUR, cut="stage")
    assert names(jobs) == [["s1", "s2"], ["s3"], ["s4"], ["s5"], ["s5", "s6"]]
    first, rest = jobs[3].pieces[0], jobs[4].pieces[0]
    assert (first.from_step, rest.to_step) == (0, 1000)
    assert first.to_step == rest.from_step
    assert first.to_step is not None and 980 <= first.to_step < 1000


def test_fill_uses_the_rest_of_each_job() -> None:
    jobs = cut_into_jobs(chain(4, 3, 6, 6, 8, 6), limit_s=8 * HOUR, cut="fill")
    assert names(jobs)[:2] == [["s1", "s2", "s3"], ["s3", "s4"]]
    assert len(jobs) == 5  # 33 h and a start or a save per piece in jobs of 8 h


def test_all_stages_share_one_job_where_there_is_no_limit() -> None:
    (job,) = cut_into_jobs(chain(400, 300), limit_s=None)
    assert names([job]) == [["s1", "s2"]]
    assert job.expected_s == pytest.approx(700 * HOUR + 24)


def test_a_stage_that_fits_exactly_needs_one_job() -> None:
    stage = work(wall_s=1000.0, start_s=0.0, save_s=0.0)
    assert len(cut_into_jobs([stage], limit_s=1000.0 + LEAD_S + 1.0)) == 1


# -- unknown times ------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["stage", "fill"])
def test_stages_of_unknown_length_go_into_one_job_that_comes_back(cut: str) -> None:
    stages = [work("a", None), work("b", None, evaluates=True, total_steps=None), work("c", None)]
    (job,) = cut_into_jobs(stages, limit_s=HOUR, cut=cut)
    assert kinds([job])[0] == [("a", "train"), ("b", "train"), ("b", "evaluate"), ("c", "train")]
    assert job.expected_s is None
    assert "unknown" in job.reason


def test_an_unknown_stage_makes_its_job_s_time_unknown_not_the_others() -> None:
    stages = [*chain(6, 6), work("x", None)]
    first, second = cut_into_jobs(stages, limit_s=8 * HOUR)
    assert first.expected_s is not None
    assert (second.expected_s, names([second])) == (None, [["s2", "x"]])


def test_a_stage_whose_steps_are_not_known_is_cut_by_time() -> None:
    jobs = cut_into_jobs([work(wall_s=20 * HOUR, total_steps=None)], limit_s=8 * HOUR)
    assert len(jobs) == 3
    assert sum(p.expected_s or 0 for j in jobs for p in j.pieces) == pytest.approx(20 * HOUR + 36)


# -- evaluation ---------------------------------------------------------------------------------


def test_a_stage_whose_evaluation_does_not_fit_the_rest_moves_as_a_whole_under_cut_stage() -> None:
    stages = [work("a", 4 * HOUR), work("b", 3 * HOUR, evaluates=True, evaluate_s=2 * HOUR)]
    jobs = cut_into_jobs(stages, limit_s=8 * HOUR, cut="stage")
    assert kinds(jobs) == [[("a", "train")], [("b", "train"), ("b", "evaluate")]]


def test_an_evaluation_that_does_not_fit_behind_its_training_gets_the_next_job() -> None:
    stages = [work("a", 7 * HOUR, evaluates=True, evaluate_s=2 * HOUR)]
    jobs = cut_into_jobs(stages, limit_s=8 * HOUR)
    assert kinds(jobs) == [[("a", "train")], [("a", "evaluate")]]


def test_a_trained_stage_is_only_evaluated() -> None:
    stages = [work("a", 0.0, trains=False, evaluates=True, evaluate_s=60.0)]
    (job,) = cut_into_jobs(stages, limit_s=HOUR)
    assert kinds([job]) == [[("a", "evaluate")]]
    assert job.expected_s == 70.0


def test_an_evaluation_longer_than_any_job_is_refused() -> None:
    with pytest.raises(PlanError):
        cut_into_jobs([work("a", evaluates=True, evaluate_s=10 * HOUR)], limit_s=8 * HOUR)


# -- what does not fit --------------------------------------------------------------------------


def test_a_job_too_short_for_its_last_save_is_refused() -> None:
    with pytest.raises(PlanError, match="last save") as caught:
        cut_into_jobs([work(save_s=100.0)], limit_s=120.0)
    assert "cluster.time_limit" in caught.value.hint


@pytest.mark.parametrize("before", [[], chain(1)])
def test_a_stage_that_cannot_do_one_step_per_job_is_refused(before: list[StageWork]) -> None:
    # A step of 1 h, a start of 10 min: a job of 2 h keeps 1 h 1 s free and has no room for them.
    stage = work("slow", 10 * HOUR, total_steps=10, start_s=600.0)
    with pytest.raises(PlanError, match="stage `slow` cannot progress") as caught:
        cut_into_jobs([*before, stage], limit_s=2 * HOUR)
    assert "start-up (10m), one step and one save do not fit" in caught.value.message
    assert "cluster.time_limit" in caught.value.hint


def test_a_stage_that_can_do_just_one_step_per_job_is_planned() -> None:
    stage = work("slow", 10 * HOUR, total_steps=10, start_s=600.0)
    jobs = cut_into_jobs([stage], limit_s=2 * HOUR + 610)
    assert [(p.from_step, p.to_step) for j in jobs for p in j.pieces] == list(pairwise(range(11)))


def test_the_step_of_a_stage_half_done_is_not_taken_for_shorter_than_it_is() -> None:
    half = work(wall_s=500.0, total_steps=100, from_step=50, save_s=4.0)
    (job,) = cut_into_jobs([half], limit_s=HOUR)
    assert job.reserve_s == pytest.approx(LEAD_S + 6.0 + 10.0)


def test_a_job_value_refuses_a_reserve_that_fills_it() -> None:
    facts: dict[str, Any] = {"name": "j", "after": (), "expected_s": 1.0, "gpus": 1, "cpus": 1}
    with pytest.raises(PlanError, match="1m cannot keep 1m free"):
        Job(**facts, limit_s=60.0, reserve_s=60.0, host_bytes=None, lanes=())
    Job(**facts, limit_s=None, reserve_s=60.0, host_bytes=None, lanes=())


# -- rules over all plans -----------------------------------------------------------------------


@st.composite
def stages(draw: st.DrawFn) -> list[StageWork]:
    found = []
    for number in range(draw(st.integers(1, 5))):
        total = draw(st.none() | st.integers(1, 5000))
        done = draw(st.integers(0, total - 1)) if total else 0
        found.append(
            work(
                f"s{number}",
                draw(st.floats(0.01, 40 * HOUR)),
                total_steps=total,
                from_step=done,
                start_s=draw(st.floats(0, 300)),
                save_s=draw(st.floats(0, 100)),
                evaluates=draw(st.booleans()),
                evaluate_s=draw(st.none() | st.floats(0, 0.5 * HOUR)),
            )
        )
    return found


def try_to_cut(found: list[StageWork], limit_s: float, cut: str) -> list[JobDraft]:
    try:
        return cut_into_jobs(found, limit_s=limit_s, cut=cut)
    except PlanError as error:
        assert error.hint
        assume(False)
        raise


def check_steps(stage: StageWork, pieces: list[Piece]) -> None:
    """From the first step to the last, each once."""
    assert pieces[0].from_step == stage.from_step
    assert pieces[-1].to_step == stage.total_steps
    assert all(before.to_step == after.from_step for before, after in pairwise(pieces))
    if stage.total_steps is not None:
        assert all((p.from_step or 0) <= (p.to_step or 0) for p in pieces)


@settings(max_examples=60)
@given(stages(), st.floats(HOUR, 24 * HOUR), st.sampled_from(["stage", "fill"]))
def test_every_step_is_planned_once_in_order_and_in_jobs_that_end_before_the_limit(
    found: list[StageWork], limit_s: float, cut: str
) -> None:
    jobs = try_to_cut(found, limit_s, cut)
    assert jobs == cut_into_jobs(found, limit_s=limit_s, cut=cut), "the same each time"
    for job in jobs:
        assert job.pieces and job.expected_s is not None
        assert job.expected_s + job.reserve_s <= limit_s + 1e-6
        assert job.expected_s == pytest.approx(sum(p.expected_s or 0 for p in job.pieces))
    pieces = [piece for job in jobs for piece in job.pieces]
    order = list(dict.fromkeys(piece.stage for piece in pieces))
    assert order == [stage.stage for stage in found]
    for stage in found:
        own = [piece for piece in pieces if piece.stage == stage.stage]
        trained = [piece for piece in own if piece.kind == "train"]
        check_steps(stage, trained)
        seconds = sum((p.expected_s or 0) - stage.start_s - stage.save_s for p in trained)
        assert seconds == pytest.approx(stage.wall_s, rel=1e-6, abs=1e-6)
        evaluations = [number for number, piece in enumerate(own) if piece.kind == "evaluate"]
        assert evaluations == ([len(own) - 1] if stage.evaluates else [])


def test_no_job_is_planned_for_no_steps() -> None:
    """A limit that holds a whole number of steps to the last bit."""
    step_s = 9.057988811466103
    stage = work(wall_s=16 * step_s, total_steps=16, start_s=0.0, save_s=0.0)
    jobs = cut_into_jobs([stage], limit_s=LEAD_S + step_s + step_s)
    spans = [(piece.from_step, piece.to_step) for job in jobs for piece in job.pieces]
    assert spans == list(pairwise(range(17)))
