"""Which stages are tried, in which order and from which weights; how they are shortened."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasuki.commands.rehearse_cells import Way, cells_of
from tasuki.commands.rehearse_checks import judge_room
from tasuki.commands.rehearse_rounds import (
    Books,
    Shape,
    blocked,
    next_round,
    shorten,
    source_of,
    what_is_needed,
)
from tasuki.spec.resolved import ResolvedEvaluate, ResolvedExperiment, ResolvedStage

CPU = Shape(ranks=1, is_stand_in=False)


def chain(name: str, *starts: str) -> ResolvedExperiment:
    """Stages s0, s1, …, each with this start."""
    stages = [ResolvedStage(name=f"s{n}", init_from=start) for n, start in enumerate(starts)]
    return ResolvedExperiment(name=name, stages=tuple(stages))


def test_a_later_round_starts_from_the_weights_that_are_there():
    experiments = [chain("a", "none", "previous", "previous"), chain("b", "a/s0")]
    books = Books(weights={("a", "s0"): Path("/w/a0")})
    first, second = next_round(experiments, books)
    assert [stage.init_from for stage in first.stages] == ["/w/a0", "s1"]
    assert [stage.init_from for stage in second.stages] == ["/w/a0"]


def test_only_named_stages_are_tried_and_those_whose_weights_nobody_has():
    experiments = [chain("a", "none", "previous", "previous"), chain("b", "a/s1")]
    assert what_is_needed(experiments, [("b", "s0")], {}) == [
        ("a", "s0"),
        ("a", "s1"),
        ("b", "s0"),
    ]
    trained = {("a", "s1"): Path("/mine/weights")}
    assert what_is_needed(experiments, [("b", "s0")], trained) == [("b", "s0")]


@st.composite
def projects(draw: st.DrawFn) -> list[ResolvedExperiment]:
    """Experiments whose stages start from nothing, from earlier ones, or from earlier ones of
    others."""
    found: list[ResolvedExperiment] = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        starts = ["none"]
        for number in range(1, draw(st.integers(1, 4))):
            others = [f"{e.name}/{s.name}" for e in found for s in e.stages]
            own = [f"s{earlier}" for earlier in range(number)]
            starts.append(draw(st.sampled_from(["none", "previous", *own, *others])))
        found.append(chain(name, *starts))
    return found


@given(projects(), st.data())
def test_every_stage_is_tried_once_unless_its_weights_cannot_be(experiments, data):
    """Whatever fails in whichever round: a stage is tried if, and only if, its start is there."""
    failing = {
        (e.name, s.name)
        for e in experiments
        for s in e.stages
        if data.draw(st.booleans(), label=f"{e.name}/{s.name} fails")
    }
    books, tried, lost = Books(), [], set()
    while True:
        while found := blocked(experiments, books):
            for key, source in found:
                assert books.weights[source] is None
                lost.add(key)
                books.weights[key] = None
        left = next_round(experiments, books)
        if not left:
            break
        for experiment in left:
            for number, stage in enumerate(experiment.stages):
                source = source_of(experiment, number)
                if source is not None and books.weights.get(source) is None:
                    break  # of another experiment, or of one that failed: not tried
                key = (experiment.name, stage.name)
                tried.append(key)
                books.weights[key] = None if key in failing else Path("/w") / "-".join(key)
                if key in failing:
                    break
    assert len(tried) == len(set(tried))
    everything = {(e.name, s.name) for e in experiments for s in e.stages}
    assert set(tried) | lost == everything and not set(tried) & lost


@given(
    effective=st.integers(1, 4096),
    micro=st.none() | st.integers(1, 512),
    asked=st.none() | st.integers(1, 8),
    is_stand_in=st.booleans(),
)
def test_a_rehearsed_step_is_never_larger_than_the_real_one(effective, micro, asked, is_stand_in):
    stage = ResolvedStage(
        name="s", recipe="r:R", effective_batch=effective, micro_batch=micro or "auto"
    )
    shape = Shape(ranks=1, is_stand_in=is_stand_in, micro_batch=asked)
    short = shorten(stage, shape, evaluates=False)
    assert short.effective_batch == effective
    assert 1 <= short.stage.effective_batch <= effective
    if isinstance(short.stage.micro_batch, int):
        assert short.stage.micro_batch <= short.stage.effective_batch
        assert short.stage.micro_batch <= (asked or micro or effective)
    else:
        assert asked is None and micro is None and not is_stand_in


def test_a_stage_that_is_not_evaluated_in_its_run_is_not_in_a_rehearsal():
    stage = ResolvedStage(name="s", recipe="r:R", evaluate=ResolvedEvaluate(after="end"))
    assert shorten(stage, CPU, evaluates=False).stage.evaluate is None
    last = shorten(stage, CPU, evaluates=True).stage.evaluate
    assert last is not None and last.after == "each_stage"


def test_a_process_that_is_killed_in_a_step_fails_there_and_nowhere_else():
    places = ("imports", "data", "build", "weights", "start", "restore", "steps")
    way = Way(places=places, failed="killed", kind="killed")
    cells = cells_of(way, Way(), validates=False, evaluates=True)
    assert [cell.state for cell in cells.values()] == [
        *("ok", "ok", "failed", "not reached", "not reached", "not reached")
    ]


def test_room_that_suffices_for_each_but_not_for_all_is_missed_by_all():
    assert judge_room({"a": 40, "b": 50}, free=90, where="/") == {}
    together = judge_room({"a": 40, "b": 60}, free=90, where="/")
    assert set(together) == {"a", "b"} and "2 experiments need 100 B" in together["a"].message
    assert set(judge_room({"a": 10, "b": 95}, free=90, where="/")) == {"b"}
