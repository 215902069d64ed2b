"""The board's addresses: its page, and what the page asks for. Every answer is bounded.

Names of runs are those that the folder itself lists, files those of files.py; nothing from an
address ever becomes part of a path here. Values go out as JSON, log text inside of it: a page that
puts them in place as text is all that ever shows them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tasuki.errors import TasukiError
from tasuki.views.board.files import page_files
from tasuki.views.board.guard import Guard
from tasuki.views.board.source import Source, Values, shown
from tasuki.views.board.stream import (
    MOST_LOOKED_AT,
    MOST_STREAMS,
    PATIENCE_S,
    Follow,
    Looked,
    Stream,
    StreamResponse,
)
from tasuki.views.board.summaries import Summaries
from tasuki.views.board.wire import encode
from tasuki.views.told_spec import spec_lines

_POINTS = 2000
_MOST_POINTS = 5000
_MOST_EVENTS = 500
_MOST_AT_ONCE = 4
"""Reads of files at a time; more wait for their turn."""
_MOST_NAME = 300


@dataclass(slots=True)
class Board:
    """What the answers are made from."""

    source: Source
    title: str
    is_over: Callable[[], bool] = lambda: False
    patience_s: float = PATIENCE_S
    summaries: Summaries = field(init=False)
    num_streams: int = 0
    _turns: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.summaries = Summaries(self.source)
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def read(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """In a thread: files may be slow, and other pages wait for nobody."""
        async with self._turns:
            return await asyncio.to_thread(call, *args, **named)

    # -- answers ----------------------------------------------------------------------------------

    async def runs(self, _request: Request) -> Values:
        found = await self.read(self.summaries.since, -1)
        names = await self.read(self.source.names) if not found.is_whole else []
        known = {row["experiment"] for row in found.rows}
        waiting = [{"experiment": name, "is_unread": True} for name in names if name not in known]
        rows = sorted([*found.rows, *waiting], key=lambda row: row["experiment"])
        return {"title": self.title, "number": found.number, "rows": rows}

    async def run(self, request: Request) -> Values:
        found: Values = await self.read(self.source.detail, await self._name(request))
        return {**found, "spec": spec_lines(found["spec"]) if found["spec"] else None}

    async def curves(self, request: Request) -> Values:
        name = await self._name(request)
        points = int(_number(request, "points") or _POINTS)
        found: Values = await self.read(
            self.source.curves,
            name,
            points=max(2, min(points, _MOST_POINTS)),
            first=_number(request, "first"),
            last=_number(request, "last"),
        )
        return found

    async def events(self, request: Request) -> Values:
        name = await self._name(request)
        found: Values = await self.read(self.source.events, name, most=_MOST_EVENTS)
        return found

    async def log(self, request: Request) -> Values:
        name = await self._name(request)
        start, end = _number(request, "start"), _number(request, "end")
        found: Values = await self.read(
            self.source.log,
            name,
            file=_word(request, "file"),
            start=None if start is None else int(start),
            end=None if end is None else int(end),
        )
        return shown(found)

    async def stream(self, request: Request) -> StreamResponse:
        stream = await self._stream(request)
        if self.num_streams >= MOST_STREAMS:
            raise HTTPException(503, f"{MOST_STREAMS} pages look already: close one")
        self.num_streams += 1
        return StreamResponse(
            stream, is_over=self.is_over, on_end=self._end_stream, patience_s=self.patience_s
        )

    def _end_stream(self) -> None:
        self.num_streams -= 1

    async def _stream(self, request: Request) -> Stream:
        names, steps = request.query_params.getlist("look"), request.query_params.getlist("at")
        if len(names) > MOST_LOOKED_AT or len(names) != len(steps):
            raise HTTPException(400, f"at most {MOST_LOOKED_AT} runs, each with a step")
        looked = []
        for name, step in zip(names, steps, strict=True):
            looked.append(Looked(await self._known(name), _finite(step)))
        follow = None
        if (of := _word(request, "log")) is not None:
            file, end = _word(request, "file"), _number(request, "end")
            follow = Follow(await self._known(of), file or "", int(end or 0))
        number = _number(request, "number")
        return Stream(
            source=self.source,
            summaries=self.summaries,
            number=-1 if number is None else int(number),
            looked=looked,
            follow=follow,
        )

    async def _name(self, request: Request) -> str:
        return await self._known(request.path_params["name"])

    async def _known(self, name: str) -> str:
        if len(name) > _MOST_NAME or not await self.read(self.summaries.holds, name):
            raise HTTPException(404, "there is no such run")
        return name


def build_app(
    source: Source,
    *,
    title: str,
    token: str,
    cookie: str = "tasuki-board",
    is_over: Callable[[], bool] = lambda: False,
    patience_s: float = PATIENCE_S,
) -> ASGIApp:
    """The whole board, behind its guard."""
    board = Board(source, title, is_over, patience_s)
    files = page_files()

    async def page(_request: Request) -> Response:
        index = files["index.html"]
        return Response(index.data, media_type=index.kind)

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404, "there is no such file")
        return Response(found.data, media_type=found.kind)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        board.summaries.start()
        yield
        board.summaries.stop()

    routes = [
        Route("/", page),
        Route("/static/{path:path}", file),
        Route("/api/runs", _as_json(board.runs)),
        Route("/api/runs/{name}", _as_json(board.run)),
        Route("/api/runs/{name}/curves", _as_json(board.curves)),
        Route("/api/runs/{name}/events", _as_json(board.events)),
        Route("/api/runs/{name}/log", _as_json(board.log)),
        Route("/api/stream", board.stream),
    ]
    handlers = {HTTPException: _refused, TasukiError: _failed}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    return Guard(app, token=token, cookie=cookie)


def _as_json(answer: Callable[[Request], Awaitable[Values]]) -> Callable[..., Any]:
    async def respond(request: Request) -> Response:
        return Response(encode(await answer(request)), media_type="application/json")

    return respond


async def _refused(_request: Request, error: HTTPException) -> Response:
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


async def _failed(_request: Request, error: TasukiError) -> Response:
    """A run that cannot be read: the page says why."""
    data = encode({"error": str(error), "hint": error.hint})
    return Response(data, 409, media_type="application/json")


def _word(request: Request, name: str) -> str | None:
    found = request.query_params.getlist(name)
    if len(found) > 1 or any(len(word) > _MOST_NAME for word in found):
        raise HTTPException(400, f"`{name}` is said once, and shortly")
    return found[0] if found else None


def _number(request: Request, name: str) -> float | None:
    word = _word(request, name)
    return None if word is None else _finite(word)


def _finite(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise HTTPException(400, "a number is expected there") from None
    if not math.isfinite(value) or abs(value) > 1e15:
        raise HTTPException(400, "a number is expected there")
    return value
