"""Stages of many experiments are packed into jobs; whatever is asked for, the rules hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasuki.errors import PlanError
from tasuki.planning.laid import Chains, LaidJob, Layout, Terms
from tasuki.planning.layout import lay_out
from tasuki.planning.values import Piece, StageWork

HOUR = 3600.0
TICK_S = 0.002
"""Packing counts in whole milliseconds, rounded up."""


def work(experiment: str, stage: str, hours: float | None, **facts: Any) -> StageWork:
    values: dict[str, Any] = {
        "from_step": 0,
        "total_steps": 1000,
        "start_s": 8.0,
        "save_s": 1.0,
        "evaluates": False,
        "evaluate_s": None,
        "source": "given",
        "facts": {"effective_batch": 16},
    }
    wall_s = None if hours is None else hours * HOUR
    return StageWork(experiment=experiment, stage=stage, wall_s=wall_s, **{**values, **facts})


def evaluated(experiment: str, stage: str, hours: float, **facts: Any) -> StageWork:
    return work(experiment, stage, hours, evaluates=True, evaluate_s=0.3 * HOUR, **facts)


def requirements_e() -> list[list[StageWork]]:
    """Eight stages of five experiments, one to two hours each, evaluated at the end."""
    return [
        [evaluated("exp1", "s", 2.0)],
        [evaluated("exp2", "s", 2.0)],
        [work("exp3", "s1", 0.7), work("exp3", "s2", 0.7), evaluated("exp3", "s3", 0.6)],
        [work("exp4", "s1", 1.0), evaluated("exp4", "s2", 1.0)],
        [evaluated("exp5", "s", 1.5)],
    ]


def pieces_of_job(job: LaidJob) -> list[Piece]:
    return [piece for lane in job.lanes for piece in lane.stages]


def pieces_of(layout: Layout) -> list[Piece]:
    """Of all jobs, in the order of jobs and starts."""
    return [
        piece
        for job in layout.jobs
        for piece in sorted(
            (p for lane in job.lanes for p in lane.stages),
            # An evaluation that takes no time comes before what begins at its end.
            key=lambda p: (p.start_s or 0.0, (p.start_s or 0.0) + (p.expected_s or 0.0)),
        )
    ]


# -- the case of the requirements -----------------------------------------------------------------


def test_five_experiments_make_one_job_of_four_lanes_that_is_proved_shortest() -> None:
    layout = lay_out(
        requirements_e(), Terms(gpus=4, cpus=32, limit_s=6 * HOUR, deadline_s=6 * HOUR)
    )
    (job,) = layout.jobs
    assert {gpu for lane in job.lanes for gpu in lane.gpus} == {0, 1, 2, 3}
    assert [len(lane.gpus) for lane in job.lanes] == [1, 1, 1, 1]
    assert layout.is_optimal is True and layout.gap == 0.0
    by_hand_s = (2.0 + 1.5 + 0.6) * HOUR + 4 * 8 + 2  # GPU 0: exp1 → exp5, each evaluated
    assert layout.makespan_s is not None and layout.makespan_s <= by_hand_s
    assert {piece.cpus for piece in pieces_of(layout)} == {8}


def test_stages_that_all_use_every_gpu_are_planned_as_a_chain_of_jobs_per_experiment() -> None:
    chains = [[work("a", "s1", 4, gpus=4), work("a", "s2", 3, gpus=4)], [work("b", "s", 6, gpus=4)]]
    layout = lay_out(chains, Terms(gpus=4, cpus=8, limit_s=8 * HOUR, at_once=1))
    assert not layout.is_packed
    assert [len(job.lanes) for job in layout.jobs] == [1, 1]
    first, second = layout.jobs
    assert second.after == () and second.held_by == (0,)
    assert first.start_s == 0.0 and second.start_s == first.expected_s
    assert layout.makespan_s == layout.lower_bound_s and layout.is_optimal is True


def test_chains_in_a_queue_run_at_the_same_time_and_the_longest_bounds_them() -> None:
    chains = [[work("a", "s", 4, gpus=4)], [work("b", "s", 6, gpus=4)]]
    layout = lay_out(chains, Terms(gpus=4, cpus=8, limit_s=8 * HOUR))
    assert [job.start_s for job in layout.jobs] == [0.0, 0.0]
    assert layout.makespan_s == layout.lower_bound_s == pytest.approx(6 * HOUR + 9)


def test_one_stage_with_fewer_gpus_makes_the_whole_plan_a_packed_one() -> None:
    chains = [[work("a", "s", 1, gpus=4)], [work("b", "s", 1, gpus=2)], [work("c", "s", 1, gpus=2)]]
    layout = lay_out(chains, Terms(gpus=4, cpus=8))
    (job,) = layout.jobs
    assert layout.is_packed and [len(lane.gpus) for lane in job.lanes] == [4, 2, 2]
    assert [piece.cpus for lane in job.lanes for piece in lane.stages] == [8, 4, 4]


# -- limits ---------------------------------------------------------------------------------------


def test_what_does_not_fit_one_job_goes_to_the_next_which_comes_after_it() -> None:
    chains = [[work(f"e{n}", "s", 1.5)] for n in range(6)]
    layout = lay_out(chains, Terms(gpus=2, cpus=4, limit_s=2 * HOUR))
    assert [job.after for job in layout.jobs] == [(), (0,), (1,)]
    ends = [(job.start_s or 0.0) + (job.expected_s or 0.0) for job in layout.jobs]
    assert [job.start_s for job in layout.jobs[1:]] == ends[:-1]


def test_cut_fill_begins_what_does_not_end_in_its_job_and_needs_fewer_jobs() -> None:
    chains = [[work(name, f"s{n}", 1.2) for n in range(5)] for name in "ab"]
    whole = lay_out(chains, Terms(gpus=2, cpus=2, limit_s=2 * HOUR))
    filled = lay_out(chains, Terms(gpus=2, cpus=2, limit_s=2 * HOUR, cut="fill"))
    assert all(p.to_step == 1000 for p in pieces_of(whole) if p.kind == "train")
    assert any(p.to_step != 1000 for p in pieces_of(filled) if p.kind == "train")
    assert len(filled.jobs) < len(whole.jobs) == 5


def test_a_plan_of_unknown_lengths_is_packed_by_a_guess_and_says_that_it_is_one() -> None:
    chains = [[work("a", "s", None)], [work("b", "s", 1)], [work("c", "s", 1)]]
    layout = lay_out(chains, Terms(gpus=2, cpus=2, limit_s=4 * HOUR))
    assert layout.makespan_s is layout.gap is layout.is_optimal is layout.lower_bound_s is None
    (job,) = layout.jobs
    (unknown,) = [piece for piece in pieces_of(layout) if piece.experiment == "a"]
    assert unknown.expected_s is None and job.expected_s is None and "unknown" in job.reason


# -- deadlines ------------------------------------------------------------------------------------


def test_a_deadline_that_one_job_misses_is_met_by_as_few_jobs_side_by_side_as_can_do() -> None:
    chains = [[work(f"e{n}", "s", 1)] for n in range(12)]
    terms = Terms(gpus=2, cpus=4, limit_s=8 * HOUR)
    assert len(lay_out(chains, terms).jobs) == 1
    layout = lay_out(chains, Terms(gpus=2, cpus=4, limit_s=8 * HOUR, deadline_s=2.1 * HOUR))
    assert len(layout.jobs) == 3  # 12 hours of work on 2 GPUs each, 2 hours long
    assert all(job.start_s == 0.0 and job.after == () for job in layout.jobs)
    assert layout.makespan_s is not None and layout.makespan_s <= 2.1 * HOUR


def test_experiments_that_start_from_each_other_stay_in_one_job_when_spread() -> None:
    chains = [[work("root", "s", 1)]]
    chains += [[work(f"leaf{n}", "s", 1, starts_from="root/s")] for n in range(2)]
    chains += [[work(f"other{n}", "s", 1)] for n in range(6)]
    terms = Terms(gpus=2, cpus=4, limit_s=8 * HOUR, deadline_s=2.1 * HOUR)
    layout = lay_out(chains, terms)
    own = [
        number
        for number, job in enumerate(layout.jobs)
        for lane in job.lanes
        for piece in lane.stages
        if piece.experiment in ("root", "leaf0", "leaf1")
    ]
    assert len(layout.jobs) > 1 and len(set(own)) == 1


# -- rules over all plans -------------------------------------------------------------------------


@st.composite
def many_chains(draw: st.DrawFn) -> list[list[StageWork]]:
    chains: list[list[StageWork]] = []
    for number in range(draw(st.integers(1, 5))):
        chain = []
        for place in range(draw(st.integers(1, 3))):
            total = draw(st.none() | st.integers(1, 2000))
            done = draw(st.integers(0, total - 1)) if total else 0
            source = None
            if place == 0 and chains and draw(st.booleans()):
                source = f"{chains[-1][0].experiment}/{chains[-1][0].stage}"
            chain.append(
                work(
                    f"e{number}",
                    f"s{place}",
                    draw(st.floats(0.01, 12)),
                    total_steps=total,
                    from_step=done,
                    start_s=draw(st.floats(0, 200)),
                    save_s=draw(st.floats(0, 60)),
                    evaluates=draw(st.booleans()),
                    evaluate_s=draw(st.floats(0, 0.5 * HOUR)),
                    gpus=draw(st.sampled_from([1, 1, 2, 4])),
                    starts_from=source,
                )
            )
        chains.append(chain)
    return chains


TERMS = st.builds(
    Terms,
    gpus=st.just(4),
    cpus=st.integers(1, 40),
    limit_s=st.none() | st.floats(HOUR, 12 * HOUR),
    cut=st.sampled_from(["stage", "fill"]),
    deadline_s=st.none() | st.floats(HOUR, 60 * HOUR),
    effort=st.just(500),
)
REFUSALS = ("cannot progress in a job", "free for its last save", "more than a job")
"""What may be said of a job that is too short; any other refusal is a mistake of ours."""


def try_to_lay_out(chains: Chains, terms: Terms) -> Layout:
    try:
        return lay_out(chains, terms)
    except PlanError as error:
        if "misses its deadline" in error.message:  # which one job after another does too
            makespan_s = lay_out(chains, replace(terms, deadline_s=None)).makespan_s
            assert makespan_s is not None and terms.deadline_s is not None
            assert makespan_s > terms.deadline_s
        elif not any(words in error.message for words in REFUSALS):
            raise
        assume(False)
        raise


@settings(max_examples=40)
@given(many_chains(), TERMS)
def test_whatever_is_asked_for_a_plan_keeps_its_promises(
    chains: list[list[StageWork]], terms: Terms
) -> None:
    layout = try_to_lay_out(chains, terms)
    check_limits(layout, terms)
    check_steps(layout, chains)
    check_order(layout, chains)
    if layout.is_packed:
        check_gpus(layout, terms)
    assert lay_out(chains, terms) == layout, "the same work makes the same plan"


def check_limits(layout: Layout, terms: Terms) -> None:
    """No job is planned over its limit, and no plan over its deadline."""
    for job in layout.jobs:
        assert job.expected_s is not None
        assert terms.limit_s is None or job.expected_s + job.reserve_s <= terms.limit_s + 1e-6
    assert layout.makespan_s is not None and layout.lower_bound_s is not None
    assert layout.lower_bound_s <= layout.makespan_s + TICK_S * len(layout.jobs)
    assert terms.deadline_s is None or layout.makespan_s <= terms.deadline_s


def check_steps(layout: Layout, chains: list[list[StageWork]]) -> None:
    """Each is planned once, no job has two ranges of one stage, the effective batch stays."""
    pieces = pieces_of(layout)
    assert {piece.effective_batch for piece in pieces} == {16}
    for job in layout.jobs:
        names = [(p.experiment, p.stage) for p in pieces_of_job(job) if p.kind == "train"]
        assert len(names) == len(set(names))
    for stage in [stage for chain in chains for stage in chain]:
        key = (stage.experiment, stage.stage)
        own = [piece for piece in pieces if (piece.experiment, piece.stage) == key]
        trained = [piece for piece in own if piece.kind == "train"]
        assert trained[0].from_step == stage.from_step
        assert trained[-1].to_step == stage.total_steps
        assert all(a.to_step == b.from_step for a, b in pairwise(trained))
        seconds = sum((p.expected_s or 0) - stage.start_s - stage.save_s for p in trained)
        assert seconds == pytest.approx(stage.wall_s, rel=1e-6, abs=1e-6)
        assert [p.kind for p in own].count("evaluate") == int(stage.evaluates)


def check_order(layout: Layout, chains: list[list[StageWork]]) -> None:
    """Nothing starts before what it depends on has ended."""
    pieces = pieces_of(layout)
    ends: dict[str, float] = {}
    for piece in pieces:
        name = f"{piece.experiment}/{piece.stage}"
        ends[name] = max(ends.get(name, 0.0), (piece.start_s or 0.0) + (piece.expected_s or 0.0))
    for chain in chains:
        run = [piece for piece in pieces if piece.experiment == chain[0].experiment]
        order = [stage.stage for stage in chain]
        assert [order.index(p.stage) for p in run] == sorted(order.index(p.stage) for p in run)
        for before, after in pairwise(run):
            assert before.start_s is not None and after.start_s is not None
            assert after.start_s >= before.start_s + (before.expected_s or 0.0) - TICK_S
        source = chain[0].starts_from
        if source is not None and any(w.gpus < 4 for c in chains for w in c):
            assert run[0].start_s is not None and run[0].start_s >= ends[source] - TICK_S


def check_gpus(layout: Layout, terms: Terms) -> None:
    """No GPU is used twice and no CPU is oversubscribed."""
    for job in layout.jobs:
        spans = [
            (p.start_s or 0.0, (p.start_s or 0.0) + (p.expected_s or 0.0), set(lane.gpus), p.cpus)
            for lane in job.lanes
            for p in lane.stages
        ]
        for start_s, end_s, _, _ in spans:
            if end_s - start_s <= 2 * TICK_S:
                continue
            now = start_s + TICK_S
            at_once = [span for span in spans if span[0] <= now < span[1]]
            assert sum(len(gpus) for _, _, gpus, _ in at_once) == len(
                set().union(*(gpus for _, _, gpus, _ in at_once))
            )
            assert sum(cpus or 0 for *_, cpus in at_once) <= terms.cpus


def test_hundreds_of_experiments_fill_their_jobs() -> None:
    chains = [[work(f"e{n}", "s", 0.5 + n % 7 / 10)] for n in range(500)]
    layout = lay_out(chains, Terms(gpus=4, cpus=32, limit_s=8 * HOUR))
    assert len(pieces_of(layout)) == 500
    assert layout.gap is not None and layout.gap < 0.05
