"""What pages draw: curves of every number of a run, and plan against reality."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasuki.commands.curves import CurveReader, read_curves
from tasuki.commands.timeline import read_timeline
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.events import EventLog
from tasuki.runs.jobs import job_folder, plan_path
from tasuki.runs.metrics import MetricLog, read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.runs.series import Series
from tasuki.testing import FakeClock


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "exp")


def make_run(path: Path, stages: tuple[str, ...] = ("one", "two")) -> RunFolder:
    path.mkdir(parents=True)
    value = {"format": 1, "experiment": path.name}
    value["stages"] = [{"name": name, "evaluates": False} for name in stages]
    (path / "spec.json").write_text(json.dumps(value))
    return RunFolder(path)


def rows(log: MetricLog, steps: Iterator[int] | range, stage: str = "one", **more: Any) -> None:
    for step in steps:
        values = {"loss": float(step), **more}
        log.add(
            {"stage": stage, "epoch": 0, "step": step, "samples": 1, "split": "train", **values}
        )


def only(curves: dict[str, Any], key: str = "loss", split: str = "train") -> dict[str, Any]:
    (found,) = [s for s in curves["series"] if (s["key"], s["split"]) == (key, split)]
    return found


def test_steps_of_later_stages_follow_those_of_earlier_ones(
    run: RunFolder, clock: FakeClock
) -> None:
    log = MetricLog(run, claim=1, clock=clock)
    rows(log, range(1, 5))
    rows(log, range(1, 4), stage="two")
    events = EventLog(run, claim=1, node=0, who="rank0", clock=clock)
    assert only(read_curves(run))["steps"] == [1, 2, 3, 4, 5, 6, 7]  # as far as anybody knows
    events.add("committed", stage="two", step=0, checkpoint="step-000000010.c1.s2")
    assert only(read_curves(run))["steps"] == [1, 2, 3, 4, 11, 12, 13]


def test_what_is_no_finite_number_is_a_gap_and_counted(run: RunFolder, clock: FakeClock) -> None:
    log = MetricLog(run, claim=1, clock=clock)
    for step, value in enumerate([1.0, math.nan, math.inf, "words", None, [1], {}, True, 2.0]):
        log.add({"stage": "one", "step": step, "split": "train", "loss": value})
    curves = read_curves(run)
    assert only(curves)["values"] == [1.0, *[None] * 7, 2.0]
    assert curves["dropped"] == 7
    json.dumps(curves, allow_nan=False)


def test_a_gap_stays_visible_when_values_are_thinned(run: RunFolder, clock: FakeClock) -> None:
    log = MetricLog(run, claim=1, clock=clock)
    for step in range(3000):
        value = math.nan if step == 1500 else 1.0
        log.add({"stage": "one", "step": step, "split": "train", "loss": value})
    found = only(read_curves(run, points=50))
    assert len(found["steps"]) <= 50 and found["values"].count(None) == 1


def test_lines_that_hold_nonsense_break_nothing(run: RunFolder, clock: FakeClock) -> None:
    rows(MetricLog(run, claim=1, clock=clock), range(1, 3))
    junk = [b"{torn", b"[1]", b"7", b'{"step": NaN}', b'{"step": "x", "loss": 1}', b"\xff\xfe"]
    junk += [b'{"resume": 3}', b'{"resume": {"stage": "one", "step": -4}}', b'{"step": 1e400}']
    junk += [b'{"stage": ["x"], "step": 9, "split": null, "t": "late", "loss": 4.0}']
    with (run.metrics / "1.jsonl").open("ab") as file:
        file.write(b"\n".join(junk) + b"\n")
    curves = read_curves(run)
    assert only(curves)["values"] == [1.0, 2.0] and curves["dropped"] >= 3
    json.dumps(curves, allow_nan=False)


def test_a_recipe_that_logs_under_ever_new_names_does_not_fill_the_memory(
    run: RunFolder, clock: FakeClock
) -> None:
    log = MetricLog(run, claim=1, clock=clock)
    for step in range(2000):
        log.add({"stage": "one", "step": step, "split": "train", f"name{step}": 1.0})
    curves = read_curves(run)
    assert len(curves["series"]) == 500 and curves["dropped"] == 1500


def test_a_second_look_reads_only_what_was_added(run: RunFolder, clock: FakeClock) -> None:
    log = MetricLog(run, claim=1, clock=clock)
    rows(log, range(1, 11))
    reader = CurveReader(run)
    assert reader.look() is True and reader.look() is False
    path = run.metrics / "1.jsonl"
    text = path.read_bytes()
    with path.open("r+b") as file:  # what was read is not read again: nobody notices
        file.write(b"x" * len(text))
    rows(log, range(11, 13))
    assert reader.look() is True
    assert only(reader.read())["steps"] == list(range(1, 13))
    assert only(reader.read(since=10))["steps"] == [11, 12]


def test_a_late_line_of_an_attempt_that_was_taken_for_dead_does_not_win(
    run: RunFolder, clock: FakeClock
) -> None:
    first, second = (MetricLog(run, claim=n, clock=clock) for n in (1, 2))
    rows(first, range(1, 11))
    second.resume(stage="one", step=5)
    rows(second, range(6, 9), loss=-1.0)
    reader = CurveReader(run)
    reader.look()
    rows(first, range(11, 13))
    reader.look()
    assert only(reader.read())["values"] == [1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -1.0, -1.0]


def test_who_draws_on_is_told_when_rows_were_taken_back(run: RunFolder, clock: FakeClock) -> None:
    rows(MetricLog(run, claim=1, clock=clock), range(1, 11))
    reader = CurveReader(run)
    reader.look()
    before = reader.read()["voided"]
    MetricLog(run, claim=2, clock=clock).resume(stage="one", step=10)
    reader.look()
    assert reader.read()["voided"] == before
    MetricLog(run, claim=3, clock=clock).resume(stage="one", step=9)
    reader.look()
    assert reader.read()["voided"] == before + 1


def test_machine_figures_have_units_and_a_gap_between_attempts(
    run: RunFolder, clock: FakeClock
) -> None:
    for claim in (1, 2):
        log = EventLog(run, claim=claim, node=0, who="machine", clock=clock)
        for _ in range(2):
            clock.sleep(30)
            gpus = [{"used_bytes": 10, "total_bytes": 20, "util": None}]
            log.add("machine", cpu_percent=50.0, rss_bytes=7, gpus=gpus, samples_per_sec=None)
    machine = {one["key"]: one for one in read_curves(run)["machine"]}
    assert set(machine) == {"cpu_percent", "rss_bytes", "gpu0_used_bytes"}
    assert machine["cpu_percent"]["unit"] == "%"
    assert machine["cpu_percent"]["values"] == [50.0, 50.0, None, 50.0, 50.0]


@st.composite
def attempts(draw: st.DrawFn) -> list[list[tuple[str, int, bool]]]:
    """As trainings write them: (stage, step, goes on from there), with roll-backs inside."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        stages = draw(st.sampled_from([["one"], ["one", "two"], ["two"]] if number else [["one"]]))
        lines = []
        for stage in stages:
            step = draw(st.integers(0, 6))
            lines.append((stage, step, True))
            for _ in range(draw(st.integers(0, 8))):
                if draw(st.integers(0, 9)) == 0:
                    step = draw(st.integers(0, step))
                    lines.append((stage, step, True))
                step += draw(st.integers(0, 2))
                lines.append((stage, step, False))
        found.append(lines)
    return found


LEFT_WITHOUT_ROWS = [
    [("one", 0, True), ("one", 1, False)],
    [("one", 0, True)],
    [("two", 0, True), ("two", 0, False)],
    [("one", 0, True)],
]
"""Going back to a stage of which no row is left takes back the later one all the same."""


@settings(max_examples=60, deadline=None)
@given(attempts(), st.integers(0, 2**31))
@example(LEFT_WITHOUT_ROWS, 0)
def test_curves_hold_what_the_merged_metrics_hold_however_often_one_looks(
    tmp_path_factory: pytest.TempPathFactory, written: list[Any], seed: int
) -> None:
    run = make_run(tmp_path_factory.mktemp("runs") / "exp")
    clock, looks = FakeClock(), random.Random(seed)
    reader = CurveReader(run)
    for claim, lines in enumerate(written, start=1):
        log = MetricLog(run, claim=claim, clock=clock)
        for number, (stage, step, is_resume) in enumerate(lines):
            if is_resume:
                log.resume(stage=stage, step=step)
            else:
                value = float(claim * 100 + number)
                log.add({"stage": stage, "step": step, "split": "train", "loss": value})
            if looks.random() < 0.2:
                reader.look()
        log.close()
    reader.look()
    expected = {(r["stage"], r["step"]): r["loss"] for r in read_metrics(run)}
    found = {
        (stage, own.steps[place]): own.values[place]
        for stage, splits in reader._stages.items()
        for series in splits.values()
        for own in series.values()
        for place in own.thin(10**9)
    }
    assert found == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-5, 5) | st.just(math.nan), max_size=700),
    st.integers(0, 60),
    st.integers(-1, 700),
)
def test_thinned_series_are_short_and_keep_their_extremes(
    values: list[float], points: int, since: int
) -> None:
    series = Series()
    for step, value in enumerate(values):
        series.add(step, 0.0, value)
    places = series.thin(points, since=since)
    assert len(places) <= max(points, 0) and places == sorted(set(places))
    known = [value for value in values[since + 1 :] if not math.isnan(value)]
    if points >= 5 and known:
        kept = [values[place] for place in places if not math.isnan(values[place])]
        assert (min(kept), max(kept)) == (min(known), max(known))


def piece(experiment: str, stage: str, **more: Any) -> dict[str, Any]:
    base = {"experiment": experiment, "stage": stage, "kind": "train"}
    return {**base, "start_s": None, "expected_s": None, **more}


@pytest.fixture
def planned_runs(tmp_path: Path, clock: FakeClock) -> Path:
    """Two runs in one packed job: `a` was preempted and came back, `b` is as planned."""
    planned_runs = tmp_path / "runs"
    lanes = [
        {
            "gpus": [0],
            "stages": [
                piece("a", "one", start_s=0.0, expected_s=60.0),
                piece("a", "one", kind="evaluate", expected_s=5.0),
                piece("other", "one"),
            ],
        },
        {"gpus": [1], "stages": [piece("b", "one", start_s=10.0)]},
    ]
    plan = {"format": 1, "jobs": [{"name": "p-01", "start_s": 0.0, "lanes": lanes}]}
    write(plan_path(planned_runs, "p"), {**plan, "deadline_s": 600.0})
    job = job_folder(planned_runs, "p-01")
    items = [{"gpus": [n], "items": [{"id": n, "run": name}]} for n, name in enumerate("ab")]
    write(job.lanes, {"format": 1, "lanes": items})
    for name in "ab":
        run = make_run(planned_runs / name, ("one",))
        EventLog(run, claim=0, node=0, who="run-p-01", clock=clock).add("submitted", job="p-01")
    work(
        RunFolder(planned_runs / "a"),
        clock,
        start=1,
        item=0,
        ending="handed-over",
        cause="preempted",
    )
    work(RunFolder(planned_runs / "a"), clock, start=2, item=0, ending="done", cause="none")
    work(RunFolder(planned_runs / "b"), clock, start=1, item=1, ending="done", cause="none")
    return planned_runs


def write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def work(
    run: RunFolder, clock: FakeClock, *, start: int, item: int, ending: str, cause: str
) -> None:
    claim = take_claim(run)
    write_holder(run, claim, job="p-01", start=start, at=clock.wall())
    job = job_folder(run.path.parent, "p-01")
    write(job.claim(start, item), {"format": 1, "run": run.name, "claim": claim})
    log = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    log.add("attempt-started", job="p-01", start=start)
    log.add("worker-started", phase="train", stage="one")
    clock.sleep(30)
    log.add("worker-ended", phase="train", stage="one", ending=ending, cause=cause)
    log.add("attempt-ended", ending=ending, cause=cause)
    write_attempt_end(run, claim, {"ending": ending, "cause": cause, "at": clock.wall()})


def read(planned_runs: Path, *names: str, now: float = 1_800_000_000.0) -> dict[str, Any]:
    return read_timeline(planned_runs, [RunFolder(planned_runs / name) for name in names], now=now)


def test_pieces_begin_where_the_plan_says_else_when_their_lane_is_free(planned_runs: Path) -> None:
    told = read(planned_runs, "a", "b")
    spans = [(p["experiment"], p["kind"], p["begins_s"], p["ends_s"]) for p in told["planned"]]
    assert spans == [
        ("a", "train", 0.0, 60.0),
        ("a", "evaluate", 60.0, 65.0),
        ("b", "train", 10.0, None),
    ]
    assert told["planned"][2]["gpus"] == [1] and told["planned"][2]["lane"] == 1
    assert told["planned_from"] == 1_700_000_000.0
    assert told["deadline_at"] == 1_700_000_600.0


def test_every_phase_of_every_attempt_is_told_with_its_lane_and_end(planned_runs: Path) -> None:
    told = read(planned_runs, "a", "b")["actual"]
    brief = [(a["experiment"], a["attempt"], a["lane"], a["ending"], a["cause"]) for a in told]
    assert brief == [
        ("a", 1, 0, "handed-over", "preempted"),
        ("a", 2, 0, "done", "none"),
        ("b", 1, 1, "done", "none"),
    ]
    assert all(one["ended_at"] - one["began_at"] == 30 for one in told)
    assert not any(one["is_running"] for one in told)


def test_a_phase_that_nobody_saw_the_end_of_runs_while_its_holder_lives(
    planned_runs: Path, clock: FakeClock
) -> None:
    run = RunFolder(planned_runs / "a")
    claim = take_claim(run)
    write_holder(run, claim, job="p-01", start=3, at=clock.wall())
    log = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    log.add("attempt-started")
    log.add("worker-started", phase="train", stage="one")
    clock.sleep(7)
    log.add("notice", cause="limit")
    last = read(planned_runs, "a", now=clock.wall())["actual"][-1]
    assert last["is_running"] and last["ended_at"] is None
    (run.claims / str(claim) / "holder.json").unlink()  # nobody is there any more
    last = read(planned_runs, "a", now=clock.wall())["actual"][-1]
    assert not last["is_running"] and last["ended_at"] - last["began_at"] == 7


@pytest.mark.parametrize("gone", [".plans", ".jobs", "a/events", "a/spec.json", "a/claims"])
def test_what_is_gone_hides_nothing_else(planned_runs: Path, gone: str) -> None:
    path = planned_runs / gone
    path.rename(planned_runs.parent / "away")
    told = read(planned_runs, "a", "b")
    assert [one["experiment"] for one in told["actual"]].count("b") == 1


def test_a_plan_that_holds_nonsense_plans_nothing_and_only_the_chosen_runs_are_told(
    planned_runs: Path,
) -> None:
    told = read(planned_runs, "b")
    assert {one["experiment"] for one in [*told["planned"], *told["actual"]]} == {"b"}
    for value in ({"format": 1, "jobs": 7}, {"format": 9}, {"jobs": [{"lanes": [{"stages": 1}]}]}):
        write(plan_path(planned_runs, "p"), value)
        assert read(planned_runs, "a")["planned"] == []
