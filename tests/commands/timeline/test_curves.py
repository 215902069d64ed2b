"""Curves: every number of a run once, thinned without losing a peak, whatever lines hold."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasuki.commands.curves import CurveReader, read_curves
from tasuki.runs.events import EventLog
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


def test_what_an_attempt_wrote_beyond_the_step_where_the_next_went_on_is_void(
    run: RunFolder, clock: FakeClock
) -> None:
    rows(MetricLog(run, claim=1, clock=clock), range(1, 11), loss=1.0)
    second = MetricLog(run, claim=2, clock=clock)
    second.resume(stage="one", step=6)
    rows(second, range(7, 9), loss=2.0)
    found = only(read_curves(run))
    assert found["steps"] == list(range(1, 9))
    assert found["values"] == [1.0] * 6 + [2.0] * 2


def test_a_run_that_went_back_to_another_way_shows_the_rows_of_that_way_alone(
    run: RunFolder, clock: FakeClock
) -> None:
    first = MetricLog(run, claim=1, clock=clock)
    rows(first, range(6), loss=1.0)
    rows(first, range(3), stage="two", loss=1.0)
    reader = CurveReader(run)
    reader.look()
    second = MetricLog(run, claim=2, clock=clock)
    second.resume(stage="one", step=-1)
    rows(second, range(0, 9, 2), loss=2.0)
    reader.look()
    for found in (only(read_curves(run)), only(reader.read())):
        assert found["steps"] == [row["step"] for row in read_metrics(run)] == [0, 2, 4, 6, 8]
        assert found["values"] == [2.0] * 5
    assert reader.voided == 1, "a page that looks begins anew"


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


def test_thinning_keeps_the_highest_and_the_lowest_value(run: RunFolder, clock: FakeClock) -> None:
    log = MetricLog(run, claim=1, clock=clock)
    for step in range(1, 5001):
        value = {3333: 99.0, 1234: -99.0}.get(step, 1.0)
        log.add({"stage": "one", "step": step, "split": "train", "loss": value})
    found = only(read_curves(run, points=100))
    assert len(found["steps"]) <= 100
    assert (found["steps"][0], found["steps"][-1]) == (1, 5000)
    assert (max(found["values"]), min(found["values"])) == (99.0, -99.0)
    assert found["steps"][found["values"].index(99.0)] == 3333


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


def test_a_run_of_which_only_the_folder_is_left_has_no_curves(tmp_path: Path) -> None:
    curves = read_curves(RunFolder(tmp_path))
    assert curves["series"] == curves["marks"] == curves["machine"] == []


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


def test_reading_a_hundred_thousand_lines_takes_seconds_and_a_look_after_it_nothing(
    run: RunFolder,
) -> None:
    run.metrics.mkdir()
    line = '{"t": 1.5, "attempt": 1, "stage": "one", "step": %d, "split": "train", "loss": 0.5}\n'
    with (run.metrics / "1.jsonl").open("w") as file:
        file.writelines(line % step for step in range(100_000))
    reader = CurveReader(run)
    began = time.process_time()
    reader.look()
    assert time.process_time() - began < 5
    began = time.process_time()
    for _ in range(100):
        reader.look()
    assert time.process_time() - began < 0.5


def test_who_reads_stories_curves_and_timelines_imports_neither_torch_nor_numpy() -> None:
    told = "print({'torch', 'numpy'} & {*sys.modules})"
    code = f"import sys; from tasuki.commands import why, curves, timeline; {told}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
