"""What is new, to one page that looks, as server-sent events.

Nothing is queued: each second the stream compares what is there with what this page was told, and
sends the difference. A page that does not read within `PATIENCE_S` is dropped, and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from tasuki.views.board.source import Source, Values, shown
from tasuki.views.board.summaries import Summaries
from tasuki.views.board.wire import encode
from tasuki.views.text import LogText

MOST_STREAMS = 16
MOST_LOOKED_AT = 8
_EVERY_S = 1.0
_BEAT_S = 15.0
PATIENCE_S = 10.0
_MOST_NEW_POINTS = 500
_MISSED_S = 60.0
_NOTABLE = ("attempts", "state", "stage", "last_checkpoint_step", "reason")


@dataclass(slots=True)
class Looked:
    """One run on the page: how far its curves are known there."""

    name: str
    step: float
    """The last one of any curve when the page began to look."""
    reached: dict[tuple[str, str], float] = field(default_factory=dict)
    """The last one of each curve (key, split) that was sent since. A validation comes after the
    training of the same step, and may take long."""
    stamp: tuple[Any, ...] = ()
    told_at: float | None = None
    """The time of the newest machine figure that was sent."""
    rows: dict[str, int] = field(default_factory=dict)
    """How many there were of each."""
    marks: list[Values] | None = None


@dataclass(slots=True)
class Follow:
    """A log that is open on the page: up to where it is known there."""

    name: str
    file: str
    end: int
    lines: LogText = field(default_factory=LogText)


@dataclass(slots=True, kw_only=True)
class Stream:
    """The state of one page."""

    source: Source
    summaries: Summaries
    number: int
    looked: Sequence[Looked]
    follow: Follow | None = None
    _words: list[bytes] = field(default_factory=list)

    def news(self) -> bytes:
        """All that is new since the last call; empty: nothing."""
        words = self._words
        words.clear()
        found = self.summaries.since(self.number)
        self.number = found.number
        if found.rows or found.gone:
            self._tell(
                "runs", {"number": found.number, "rows": found.rows, "gone": found.gone,
                         "is_whole": found.is_whole},
            )  # fmt: skip
        for looked in self.looked:
            # A run that is half deleted, or holds what nobody foresaw, says nothing new; the list
            # and the other runs do.
            with suppress(Exception):
                self._look(looked)
        if self.follow is not None:
            with suppress(Exception):
                self._read_on(self.follow)
        return b"".join(words)

    def _look(self, looked: Looked) -> None:
        row = self.source.summary(looked.name)
        # From that very step on, which another curve may have reached since. The page knows what it
        # has.
        found = self.source.curves(
            looked.name, points=_MOST_NEW_POINTS, first=looked.step, beyond=looked.reached
        )
        # Numbers that were taken back, because an attempt goes on from an earlier step, are told
        # like anything else that is not just one step more: the page asks for all of it again.
        stamp = (found.get("voided"), *(row.get(key) for key in _NOTABLE))
        if stamp != looked.stamp:
            before, looked.stamp = looked.stamp, stamp
            if before:
                is_anew = before[0] != stamp[0]
                self._tell("changed", {"name": looked.name, "is_anew": is_anew})
                if is_anew:
                    return
        new = [series for series in found["series"] if series["steps"]]
        looked.reached |= {(one["key"], one["split"]): one["steps"][-1] for one in new}
        machine = list(_new_figures(found["machine"], found.get("live", {}), looked))
        if new or machine or found["marks"] != looked.marks:
            looked.marks = found["marks"]
            told = {"series": new, "marks": found["marks"], "machine": machine}
            self._tell("curves", {"name": looked.name, **told})

    def _read_on(self, follow: Follow) -> None:
        piece = self.source.log(follow.name, file=follow.file, start=follow.end, end=None)
        if piece["text"]:
            follow.end = piece["end"]
            self._tell("log", shown(piece, follow.lines))

    def _tell(self, kind: str, value: Values) -> None:
        self._words.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(value)))


def _new_figures(
    machine: Sequence[Values], live: Mapping[str, Values], looked: Looked
) -> Iterator[Values]:
    """Those of the last minute at first, for the page may have missed them; then what is new. After
    a clock was set back that is older than what was sent, and comes as told, one each time."""
    before, after = dict(looked.rows), looked.told_at
    looked.rows = {key: one["rows"] for key, one in live.items()}
    newest = max((one["t"][-1] for one in machine if one["t"] and one["t"][-1]), default=None)
    if newest is None:
        return
    looked.told_at = newest
    if after is None:
        after = newest - _MISSED_S
    for one in machine:
        new = [at for at, t in enumerate(one["t"]) if t is not None and t > after]
        told, known = live.get(one["key"]), before.get(one["key"])
        if new:
            own = {key: [one[key][at] for at in new] for key in ("t", "values")}
            yield {"key": one["key"], "unit": one["unit"], **own}
        elif told is not None and known is not None and told["rows"] > known:
            own = {"t": [told["t"]], "values": [told["value"]]}
            yield {"key": one["key"], "unit": one["unit"], **own, "is_behind": True}


class StreamResponse:
    """Sends a stream's news until the page goes, or is too slow, or the board ends."""

    def __init__(
        self,
        stream: Stream,
        *,
        is_over: Callable[[], bool],
        on_end: Callable[[], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._stream = stream
        self._is_over = is_over
        self._on_end = on_end
        self._patience_s = patience_s

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(_wait_until_gone(receive))
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._tell(send, b"retry: 2000\n\n")  # at once, so that the page knows
            silent_s = 0.0
            while not self._is_over() and not leaving.done():
                words = await asyncio.to_thread(self._stream.news)
                silent_s = 0.0 if words else silent_s + _EVERY_S
                if words or silent_s >= _BEAT_S:
                    await self._tell(send, words or b": beat\n\n")
                    silent_s = 0.0
                await asyncio.wait([leaving], timeout=_EVERY_S)
            await self._tell(send, b"", is_last=True)
        except (TimeoutError, OSError):
            return
        finally:
            leaving.cancel()
            self._on_end()

    async def _tell(self, send: Send, words: bytes, *, is_last: bool = False) -> None:
        message: Message = {
            "type": "http.response.body",
            "body": words,
            "more_body": not is_last,
        }
        # Waits while the page does not read: nothing more is made for it meanwhile.
        await asyncio.wait_for(send(message), self._patience_s)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
