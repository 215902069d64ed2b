"""Following files that grow: each line once, only what is new, all anew when files are others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasuki.runs.events import EventLog, read_events
from tasuki.runs.follow import EventFollower
from tasuki.runs.lines import LineReader
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock


@pytest.fixture
def log(run: RunFolder, clock: FakeClock) -> EventLog:
    return EventLog(run, claim=1, node=0, who="rank0", clock=clock)


def test_a_look_takes_what_was_added_and_the_next_one_nothing(
    run: RunFolder, log: EventLog
) -> None:
    follower = EventFollower(run)
    assert follower.look() is False
    log.add("restored")
    assert follower.look() is True
    assert follower.look() is False
    log.add("committed")
    follower.look()
    assert [event["kind"] for event in follower.events] == ["restored", "committed"]


def test_a_line_that_is_not_whole_yet_waits_for_its_end(run: RunFolder, log: EventLog) -> None:
    follower = EventFollower(run)
    log.add("restored")
    path = run.events / "1.0.rank0.jsonl"
    with path.open("ab") as file:
        file.write(b'{"t": 9e9, "claim": 1, "ki')
        file.flush()
        follower.look()
        file.write(b'nd": "late"}\n')
    follower.look()
    assert [event["kind"] for event in follower.events] == ["restored", "late"]


def test_repeated_signs_of_life_are_kept_once_and_the_last_one_counts(
    run: RunFolder, log: EventLog
) -> None:
    follower = EventFollower(run)
    for step in range(100):
        log.add("progress", stage="one", step=step, from_step=0)
        if step % 7 == 0:
            follower.look()
    log.add("progress", stage="two", step=1, from_step=0)
    follower.look()
    assert [(e["stage"], e["step"]) for e in follower.events] == [("one", 99), ("two", 1)]


def test_a_folder_that_is_removed_or_replaced_is_read_anew(run: RunFolder, log: EventLog) -> None:
    follower = EventFollower(run)
    log.add("restored")
    follower.look()
    path = run.events / "1.0.rank0.jsonl"
    text = path.read_bytes()
    path.unlink()
    assert follower.look() is True
    assert follower.events == []
    path.write_bytes(text)
    follower.look()
    assert len(follower.events) == 1
    path.write_bytes(b"")
    follower.look()
    assert follower.events == []


def test_events_of_a_newer_format_are_left_out_and_counted(run: RunFolder, log: EventLog) -> None:
    log.add("restored")
    log.add("restored", format=2)
    log.add("restored", format="new")
    follower = EventFollower(run)
    follower.look()
    assert (len(follower.events), follower.newer) == (1, 2)
    assert len(read_events(run)) == 1


def test_an_event_without_a_time_that_can_be_compared_is_nobody_s(run: RunFolder) -> None:
    run.events.mkdir(parents=True)
    lines = ['{"t": NaN, "claim": 1, "kind": "x"}', '{"t": 1, "claim": 1, "kind": "y"}']
    (run.events / "1.0.rank0.jsonl").write_text("\n".join(lines) + "\n")
    assert [event["kind"] for event in read_events(run)] == ["y"]


def test_machine_figures_are_kept_apart(run: RunFolder, clock: FakeClock) -> None:
    EventLog(run, claim=1, node=0, who="machine", clock=clock).add("machine", cpu_percent=1.0)
    follower = EventFollower(run)
    follower.look()
    assert follower.events == [] and follower.machine[0]["cpu_percent"] == 1.0


def test_a_large_file_is_read_in_parts_that_are_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    path.write_bytes(line * 9000 + b'{"torn')
    reader = LineReader(path)
    parts = list(reader.read_parts())
    assert len(parts) > 1 and all(part.endswith(b"}\n") for part in parts)
    assert b"".join(parts) == line * 9000
    assert reader.read() == []


def test_one_line_that_is_longer_than_a_part_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps({"text": "x" * (9 << 20)}).encode() + b"\n" + b'{"a": 1}\n')
    assert [len(value) for value in LineReader(path).read()] == [1, 1]
