"""A job's starts are numbered apart; what runs measured is appended and read back."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tasuki.errors import StoreError
from tasuki.runs.history import append_history, look_at_history, read_history
from tasuki.runs.jobs import (
    JobFolder,
    begin_start,
    last_start,
    read_outcome,
    write_outcome,
)
from tests.unit.runs.processes import NUM_RACERS, race

# -- jobs ---------------------------------------------------------------------------------------


def test_starts_of_a_job_are_numbered_from_one(job: JobFolder) -> None:
    assert last_start(job) == 0
    assert [begin_start(job) for _ in range(11)] == list(range(1, 12))
    assert last_start(job) == 11


def test_starts_that_happen_at_once_all_get_different_numbers(tmp_path: Path) -> None:
    act = """
from tasuki.runs.jobs import begin_start
result = [begin_start(job_folder(folder, "plan-01")) for _ in range(5)]"""
    starts = [start for begun in race(tmp_path, act.strip()) for start in begun]
    assert sorted(starts) == list(range(1, 5 * NUM_RACERS + 1))


def test_an_outcome_is_that_of_one_start(job: JobFolder) -> None:
    begin_start(job)
    write_outcome(job, 1, {"verdict": "requeue"})
    assert read_outcome(job, 2) is None
    assert read_outcome(job, 1) == {
        "format": 1,
        "job": "plan-01",
        "start": 1,
        "verdict": "requeue",
    }


def test_a_start_that_cannot_be_numbered_is_a_store_error(job: JobFolder) -> None:
    job.path.mkdir(parents=True)
    job.starts.touch()
    with pytest.raises(StoreError):
        begin_start(job)


# -- history ------------------------------------------------------------------------------------


def test_facts_of_several_writers_are_all_read(tmp_path: Path) -> None:
    append_history(tmp_path, "b.1", {"n": 3})
    append_history(tmp_path, "a.1", {"n": 1})
    append_history(tmp_path, "a.1", {"n": 2})
    assert [fact["n"] for fact in read_history(tmp_path)] == [1, 2, 3]


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    append_history(tmp_path, "a.1", {"n": 1})
    with (tmp_path / ".history" / "a.1.jsonl").open("ab") as file:
        file.write(b'{"n": 2, "key')
    append_history(tmp_path, "a.1", {"n": 3})
    assert [fact["n"] for fact in read_history(tmp_path)] == [1, 3]


def test_lines_that_are_no_facts_are_left_out_and_named(tmp_path: Path) -> None:
    append_history(tmp_path, "a.1", {"n": 1})
    with (tmp_path / ".history" / "a.1.jsonl").open("ab") as file:
        file.write(b'[]\n7\n\n"x"\n\xff\xff\n{"format": 9, "n": 5}\n{"format": "x"}\n')
    append_history(tmp_path, "a.1", {"n": 2})
    (tmp_path / ".history" / "b.1.jsonl").mkdir()
    found = look_at_history(tmp_path)
    assert [fact["n"] for fact in found.facts] == [1, 2]
    told = [left_out.in_words() for left_out in found.left_out]
    assert told[:-1] == [
        "a.1.jsonl: 1 line foreign: a format that is no number",
        "a.1.jsonl: 3 lines foreign: no JSON object",
        "a.1.jsonl: 1 line of format 9; this tasuki reads up to 1",
        "a.1.jsonl: 1 line torn or damaged",
    ]
    assert told[-1].startswith("b.1.jsonl: 1 line cannot be read: ")


def test_a_history_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / ".history").write_text("x")
    found = look_at_history(tmp_path)
    assert found.facts == () and "cannot be read" in found.left_out[0].in_words()


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_s": "3"},
        {"step_s": float("nan")},
        {"step_s": float("inf")},
        {"step_s": -1.0},
        {"step_s": 1e12},
        {"step_s": 5e-324},
        {"step_s": True},
        {"steps": 1.5},
        {"key": 7},
        {"at": [1]},
        {"buckets": {}},
        {"buckets": [3]},
        {"buckets": [{"samples": -3}]},
        {"parts": {"step": "long"}},
        {"memory": {"peak_bytes": 1e30}},
        {"effective_batch": 10**400},
    ],
)
def test_a_line_with_a_value_that_cannot_be_is_left_out_and_named(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    (tmp_path / ".history").mkdir()
    good = {"key": "k", "step_s": 1.0, "steps": 2, "newer": "word"}
    lines = [json.dumps({**good, **wrong}), json.dumps(good)]
    (tmp_path / ".history" / "a.1.jsonl").write_text("\n".join(lines))
    found = look_at_history(tmp_path)
    assert found.facts == (good,)
    (left_out,) = found.left_out
    assert (left_out.file, left_out.lines) == ("a.1.jsonl", 1) and "foreign: " in left_out.what


def test_history_is_private(tmp_path: Path, no_umask: None) -> None:
    append_history(tmp_path, "a.1", {"n": 1})
    assert stat.S_IMODE((tmp_path / ".history").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / ".history" / "a.1.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85"])
def test_a_fact_with_any_character_in_it_is_read_again(tmp_path: Path, char: str) -> None:
    append_history(tmp_path, "a.1", {"n": f"a{char}b"})
    assert list(read_history(tmp_path)) == [{"n": f"a{char}b"}]
