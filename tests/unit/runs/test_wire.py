"""What supervisor and rank tell each other arrives whole, and nonsense does no harm."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tasuki.runs.wire import MAX_LINE, Wire


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield Wire(ours), theirs
    ours.close()
    theirs.close()


def receive_all(wire: Wire) -> list[dict[str, object]]:
    """What has arrived so far, however many reads that takes."""
    found: list[dict[str, object]] = []
    while True:
        before = wire._pending
        messages = wire.receive()
        if messages is None or (not messages and wire._pending == before):
            return found
        found += messages


def test_a_message_arrives_as_it_was_sent(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    Wire(theirs).send("notice", cause="preempted", remaining_s=12.5, text="größe\n")
    assert wire.receive() == [
        {"kind": "notice", "cause": "preempted", "remaining_s": 12.5, "text": "größe\n"}
    ]


def test_end_of_file_is_none_after_the_last_messages(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    Wire(theirs).send("done")
    theirs.close()
    assert wire.receive() == [{"kind": "done"}]
    assert wire.receive() is None
    assert wire.is_closed
    assert wire.receive() is None


def test_a_message_cut_off_by_the_end_is_dropped(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    theirs.sendall(b'{"kind": "done"')
    theirs.close()
    assert wire.receive() == []
    assert wire.receive() is None


def test_sending_to_a_dead_peer_does_not_raise(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    theirs.close()
    wire.send("deadline", remaining_s=1.0)
    assert wire.is_closed


def test_a_message_split_at_any_byte_arrives_once_and_whole() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    ours.setblocking(False)
    whole = b'{"kind": "step", "text": "\xc3\xbc"}\n{"kind": "done"}\n'
    for cut in range(len(whole) + 1):
        found = []
        for part in (whole[:cut], whole[cut:]):
            theirs.sendall(part)
            found += wire.receive() or []
        assert [message["kind"] for message in found] == ["step", "done"]
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"hello", b"{", b"[]", b"7", b"null", b'{"a": 1}', b'{"kind": 7}', b"\xff\xfe", b"\0" * 9,
     b"1" * 5000, b"[" * 50_000],
)  # fmt: skip
def test_garbage_is_ignored_and_what_follows_is_heard(
    pair: tuple[Wire, socket.socket], garbage: bytes
) -> None:
    wire, theirs = pair
    theirs.sendall(garbage + b'\n{"kind": "done"}\n')
    assert wire.receive() == [{"kind": "done"}]


def feed(wire: Wire, theirs: socket.socket, data: bytes) -> int:
    """Send much data and read it on the way; the most that was kept meanwhile."""
    kept = 0
    for begin in range(0, len(data), 32768):
        theirs.sendall(data[begin : begin + 32768])
        wire.receive()
        kept = max(kept, len(wire._pending))
    return kept


def test_a_line_without_an_end_is_bounded_and_the_next_message_is_heard(
    pair: tuple[Wire, socket.socket],
) -> None:
    wire, theirs = pair
    assert feed(wire, theirs, b"x" * (3 * MAX_LINE)) <= MAX_LINE
    theirs.sendall(b'\n{"kind": "done"}\n')
    assert receive_all(wire) == [{"kind": "done"}]


def test_a_long_message_below_the_bound_arrives(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    data = json.dumps({"kind": "done", "message": "x" * (MAX_LINE - 100)}).encode()
    feed(wire, theirs, data)
    theirs.sendall(b"\n")
    (message,) = receive_all(wire)
    assert message["kind"] == "done"


def test_the_tail_of_a_line_that_was_too_long_is_no_message(
    pair: tuple[Wire, socket.socket],
) -> None:
    wire, theirs = pair
    feed(wire, theirs, b"x" * (MAX_LINE + 32768))
    theirs.sendall(b'{"kind": "done", "ending": "done"}\n')
    assert receive_all(wire) == []
