"""Events of many writers become one story; a kill costs the last line at most."""

from __future__ import annotations

import json
import resource
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.errors import StoreError
from tasuki.runs.events import EventLog, read_events, read_recent_events
from tasuki.runs.lines import LineWriter, parse_lines, read_last_lines, read_lines
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock


def log(run: RunFolder, claim: int, who: str, clock: FakeClock) -> EventLog:
    return EventLog(run, claim=claim, node=0, who=who, clock=clock)


def kinds(run: RunFolder) -> list[str]:
    return [event["kind"] for event in read_events(run)]


def test_an_event_says_when_who_in_which_attempt_and_what(run: RunFolder) -> None:
    log(run, 3, "rank0", FakeClock(wall=17.12345)).add("committed", step=5)
    assert read_events(run) == [
        {"t": 17.123, "claim": 3, "who": "rank0", "kind": "committed", "step": 5}
    ]


def test_events_of_several_writers_are_merged_by_time(run: RunFolder, clock: FakeClock) -> None:
    supervisor, rank = log(run, 1, "supervisor", clock), log(run, 1, "rank0", clock)
    for number, writer in enumerate([supervisor, rank, rank, supervisor, rank]):
        writer.add(f"event-{number}")
        clock.sleep(1)
    assert kinds(run) == [f"event-{number}" for number in range(5)]


def test_a_later_attempt_comes_later_whatever_the_clocks_say(run: RunFolder) -> None:
    log(run, 10, "supervisor", FakeClock(wall=1.0)).add("third")
    log(run, 9, "supervisor", FakeClock(wall=2.0)).add("second")
    log(run, 2, "supervisor", FakeClock(wall=3.0)).add("first")
    assert kinds(run) == ["first", "second", "third"]


def test_a_torn_last_line_is_left_out(run: RunFolder, clock: FakeClock) -> None:
    assert read_events(run) == []
    log(run, 1, "rank0", clock).add("whole")
    with (run.events / "1.0.rank0.jsonl").open("ab") as file:
        file.write(b'{"t": 5, "claim": 1, "kind": "to')
    log(run, 1, "supervisor", clock).add("other")
    assert sorted(kinds(run)) == ["other", "whole"]


def test_a_file_torn_at_any_byte_keeps_every_whole_line_before(tmp_path: Path) -> None:
    whole = b"".join(json.dumps({"n": n, "x": "ü\n"}).encode() + b"\n" for n in range(3))
    for cut in range(len(whole) + 1):
        found = [line["n"] for line in parse_lines(whole[:cut])]
        lines = whole[:cut].count(b"\n")
        # A line whose bytes are all there but for the newline is whole, too.
        assert found in (list(range(lines)), list(range(lines + 1)))


@given(st.binary(max_size=60))
def test_garbage_in_a_file_is_no_event(garbage: bytes) -> None:
    assert all(isinstance(value, dict) for value in parse_lines(garbage))


def test_recent_events_are_those_of_one_attempt(run: RunFolder, clock: FakeClock) -> None:
    for claim in (1, 11):
        log(run, claim, "rank0", clock).add(f"of-{claim}")
    assert [event["kind"] for event in read_recent_events(run, 1)] == ["of-1"]


def test_the_newest_lines_are_found_without_reading_a_long_file(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "a.jsonl")
    for number in range(3000):
        writer.append({"n": number, "pad": "x" * 50, "parts": {"step": 1}})
    newest = [line["n"] for line in read_last_lines(tmp_path / "a.jsonl")]
    assert newest == list(range(newest[0], 3000))
    assert 100 < len(newest) < 1500


def test_a_number_that_json_does_not_have_survives_as_text(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "a.jsonl")
    writer.append({"loss": float("nan"), "deep": [{"x": float("inf")}, (-float("inf"), 1.5)]})
    writer.close()
    assert "NaN" not in (tmp_path / "a.jsonl").read_text()
    (line,) = read_lines(tmp_path / "a.jsonl")
    assert line == {"loss": "nan", "deep": [{"x": "inf"}, ["-inf", 1.5]]}


def test_lines_are_private_and_a_writer_that_never_wrote_makes_no_file(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "a" / "a.jsonl")
    writer.sync()
    writer.close()
    assert not (tmp_path / "a").exists()
    writer.append({})
    writer.sync()
    assert stat.S_IMODE((tmp_path / "a" / "a.jsonl").stat().st_mode) == 0o600


def test_lines_that_a_full_disk_refuses_are_written_when_there_is_room_again(
    tmp_path: Path,
) -> None:
    writer = LineWriter(tmp_path / "a.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.append({"n": 0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        writer.append({"n": 1, "pad": "x" * 200_000})
        with pytest.raises(StoreError, match="EFBIG"):
            writer.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.append({"n": 2})
    assert [line["n"] for line in read_lines(tmp_path / "a.jsonl")] == [0, 1, 2]


def test_an_event_about_a_file_name_that_is_no_utf_8_is_written(
    run: RunFolder, clock: FakeClock
) -> None:
    log(run, 1, "supervisor", clock).add("worker-ended", message="cannot open d\udce4ten.h5")
    assert kinds(run) == ["worker-ended"]


def test_whatever_a_full_disk_cuts_off_every_line_is_there_once_when_there_is_room(tmp_path: Path):
    """At every byte of several lines that are written at once."""
    values = [{"n": number} for number in range(6)]
    size = sum(len(json.dumps(value)) + 1 for value in values)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in range(size + 1):
        writer = LineWriter(tmp_path / f"{room}.jsonl")
        writer.append({"n": -1})
        room_before = writer.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_before + room, hard))
        try:
            writer.append_all(values)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.sync()
        assert [line["n"] for line in read_lines(writer.path)] == list(range(-1, 6)), room
        writer.close()
