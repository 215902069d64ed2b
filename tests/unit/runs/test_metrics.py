"""Every number of a run once: after a rollback the last attempt's number wins."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.runs.metrics import MetricLog, read_metrics, write_metrics_history
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock

CLOCK = FakeClock()


def attempt(run: RunFolder, claim: int) -> MetricLog:
    return MetricLog(run, claim=claim, clock=CLOCK)


def row(stage: str, step: int, split: str = "train", **numbers: float) -> dict[str, object]:
    return {"stage": stage, "step": step, "split": split, **numbers}


def told(run: RunFolder) -> list[tuple[int, str, int]]:
    return [(line["attempt"], line["stage"], line["step"]) for line in read_metrics(run)]


def test_a_rollback_drops_what_was_written_beyond_its_step(run: RunFolder) -> None:
    first, second = attempt(run, 1), attempt(run, 2)
    for step in (10, 20, 30, 40):
        first.add(row("one", step))
    second.resume(stage="one", step=20)
    second.add(row("one", 30))
    assert told(run) == [(1, "one", 10), (1, "one", 20), (2, "one", 30)]


def test_rows_beyond_the_rollback_are_void_even_if_the_last_attempt_wrote_nothing(
    run: RunFolder,
) -> None:
    attempt(run, 1).add(row("one", 30))
    attempt(run, 2).resume(stage="one", step=20)
    assert told(run) == []


def test_the_last_attempt_wins_where_a_number_was_written_twice(run: RunFolder) -> None:
    attempt(run, 1).add(row("one", 20, loss=1.0))
    attempt(run, 2).add(row("one", 20, loss=2.0))
    assert [line["loss"] for line in read_metrics(run)] == [2.0]


def test_attempts_are_ordered_by_number_not_by_name(run: RunFolder) -> None:
    for claim in (10, 9):
        attempt(run, claim).add(row("one", 20))
    assert told(run) == [(10, "one", 20)]


def test_a_zombie_that_still_writes_changes_nothing(run: RunFolder) -> None:
    zombie, successor = attempt(run, 1), attempt(run, 2)
    zombie.add(row("one", 10))
    successor.resume(stage="one", step=10)
    successor.add(row("one", 20))
    zombie.add(row("one", 20))
    zombie.add(row("one", 30))
    assert told(run) == [(1, "one", 10), (2, "one", 20)]


def test_a_rollback_into_an_earlier_stage_drops_the_later_ones(run: RunFolder) -> None:
    first, second = attempt(run, 1), attempt(run, 2)
    for stage in ("one", "two", "three"):
        first.resume(stage=stage, step=0)
        first.add(row(stage, 10))
        first.add(row(stage, 20))
    second.resume(stage="two", step=10)
    assert told(run) == [(1, "one", 10), (1, "one", 20), (1, "two", 10)]


def test_a_new_stage_keeps_all_of_the_earlier_ones(run: RunFolder) -> None:
    attempt(run, 1).add(row("one", 20))
    second = attempt(run, 2)
    second.resume(stage="two", step=0)
    second.add(row("two", 10))
    assert told(run) == [(1, "one", 20), (2, "two", 10)]


def test_splits_of_one_step_stand_side_by_side(run: RunFolder) -> None:
    first = attempt(run, 1)
    first.add(row("one", 10, loss=1.0))
    first.add(row("one", 10, "val", loss=2.0))
    assert [line["split"] for line in read_metrics(run)] == ["train", "val"]


def test_the_validation_before_the_first_step_is_replaced_not_doubled(run: RunFolder) -> None:
    first, second = attempt(run, 1), attempt(run, 2)
    first.resume(stage="one", step=0)
    first.add(row("one", 0, "val", loss=1.0))
    first.add(row("one", 10))
    second.resume(stage="one", step=0)
    second.add(row("one", 0, "val", loss=2.0))
    second.add(row("one", 10))
    assert told(run) == [(2, "one", 0), (2, "one", 10)]
    assert read_metrics(run)[0]["loss"] == 2.0


def test_a_torn_last_row_and_foreign_files_are_left_out(run: RunFolder) -> None:
    attempt(run, 1).add(row("one", 10))
    with (run.metrics / "1.jsonl").open("ab") as file:
        file.write(b'{"stage": "one", "st')
    (run.metrics / "notes.jsonl").write_text('{"stage": "x"}\n')
    assert told(run) == [(1, "one", 10)]


def test_a_row_that_is_not_a_number_survives_as_text_also_in_the_merged_file(
    run: RunFolder,
) -> None:
    attempt(run, 1).add(row("one", 10, loss=float("nan")))
    write_metrics_history(run)
    write_metrics_history(run)
    (line,) = run.metrics_history.read_text().splitlines()
    assert json.loads(line) == read_metrics(run)[0]
    assert json.loads(line)["loss"] == "nan"


KILLS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6)


@settings(max_examples=40)
@given(KILLS)
def test_interrupted_runs_tell_each_step_once_and_in_order(
    tmp_path_factory: object, kills: list[tuple[int, int]]
) -> None:
    """Each attempt goes on from a step that was reached, and is killed some steps later."""
    run = RunFolder(tmp_path_factory.mktemp("run"))  # type: ignore[attr-defined]
    reached = 0
    for claim, (back, steps) in enumerate([*kills, (0, 20)], 1):
        start = max(0, reached - back)
        log = attempt(run, claim)
        log.resume(stage="one", step=start)
        reached = min(20, start + steps) if claim <= len(kills) else 20
        for step in range(start + 1, reached + 1):
            log.add(row("one", step, attempt_of_loss=claim))
        log.close()
    assert [line["step"] for line in read_metrics(run)] == list(range(1, 21))
    attempts = [line["attempt"] for line in read_metrics(run)]
    assert attempts == sorted(attempts)
