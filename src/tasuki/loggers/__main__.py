"""`python -m tasuki.loggers --run … --claim N --log …`: follow a run's metrics and feed its sinks.

Started by the supervisor beside an attempt, and ended by the end of file on stdin: then it reads
what is left, closes the sinks and goes. It dies of nothing else: a notice is not for it, since the
last rows are still to come.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tasuki.clock import Clock, SystemClock
from tasuki.errors import UsageError
from tasuki.loggers.feed import Feed, in_words
from tasuki.loggers.sink import Sink, SinkRun
from tasuki.loggers.truth import Truth
from tasuki.runs.atomic import read_json
from tasuki.runs.events import EventLog
from tasuki.runs.once import warn_once
from tasuki.runs.runs import RunFolder
from tasuki.spec.sinks import SinkOrder, parse_sinks

_LOOK_EVERY_S = 1.0
_CLOSE_WITHIN_S = 90.0
"""Whoever started this process may be less patient, and kills it."""
_METHODS = ("begin", "log", "close")


def main(arguments: list[str], clock: Clock | None = None) -> int:
    clock = clock or SystemClock()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.nice(5)  # training goes first
    run, claim, log = _parse(arguments)
    events = EventLog(run, claim=claim, node=0, who="sinks", clock=clock)
    warn = partial(warn_once, events, run, see=log)
    try:
        follow(run, claim=claim, clock=clock, warn=warn)
    except Exception as error:
        traceback.print_exc()
        warn(f"no sink is fed in this attempt: {in_words(error)}")
        return 1
    return 0


def follow(run: RunFolder, *, claim: int, clock: Clock, warn: Callable[[str], None]) -> None:
    """Until stdin ends."""
    frozen = read_json(run.spec)
    folder = Path(frozen["folder"])
    facts = SinkRun(
        name=run.name,
        project=str(frozen.get("project", "")),
        path=run.path,
        folder=folder,
        attempt=claim,
        created_at=str(frozen.get("created_at", "")),
    )
    sys.path[:0] = [str(run.code), str(folder)]
    feeds = [
        Feed(order.name, _maker(order), facts, clock=clock, warn=warn)
        for order in parse_sinks(frozen.get("sinks"))
    ]
    for feed in feeds:
        feed.start()
    truth, is_last = Truth(run, claim=claim), False
    while not is_last:
        is_last = bool(select.select([0], [], [], _LOOK_EVERY_S)[0]) and os.read(0, 4096) == b""
        news = truth.look(is_last=is_last)
        for feed in feeds:
            if news is not None:
                feed.give(news)
            feed.look()
    _close(feeds, clock)


def _close(feeds: list[Feed], clock: Clock) -> None:
    until = clock.monotonic() + _CLOSE_WITHIN_S
    for feed in feeds:
        feed.close()
    for feed in feeds:
        if not feed.is_left_alone:
            feed.join(max(0.0, until - clock.monotonic()))


def start_and_close(sinks: Any, project: str, folder: Path) -> list[str]:
    """Start the loggers of a spec in an empty folder and close them, for `tasuki check`."""
    names = []
    sys.path.insert(0, str(folder))
    for order in parse_sinks(sinks):
        with tempfile.TemporaryDirectory() as path:
            run = SinkRun(
                name="check",
                project=project,
                path=Path(path),
                folder=folder,
                attempt=1,
                created_at="",
            )
            try:
                sink = _maker(order)()
                sink.begin(run, ())
                sink.close()
                names.append(order.name)
            except Exception as error:
                hint = "look at `sinks` in the spec"
                raise UsageError(
                    f"the logger `{order.name}` fails at its start: {in_words(error)}", hint=hint
                ) from error
    return names


def _maker(order: SinkOrder) -> Callable[[], Sink]:
    """Made in its thread: an import may take its time, or fail."""
    return lambda: _check(order.name, _find(order.name)(**order.options))


def _find(name: str) -> Callable[..., Sink]:
    if name == "tensorboard":
        from tasuki.loggers.tensorboard import TensorBoard

        return TensorBoard
    module, _, attribute = name.partition(":")
    found: Callable[..., Sink] = getattr(importlib.import_module(module), attribute)
    return found


def _check(name: str, sink: Sink) -> Sink:
    missing = [method for method in _METHODS if not callable(getattr(sink, method, None))]
    if missing:
        raise UsageError(
            f"`{name}` has no method {' and no '.join(f'`{m}`' for m in missing)}",
            hint="see tasuki.Sink",
        )
    return sink


def _parse(arguments: list[str]) -> tuple[RunFolder, int, Path]:
    parser = argparse.ArgumentParser(prog="python -m tasuki.loggers")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--claim", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True, help="where its output goes")
    given = parser.parse_args(arguments)
    return RunFolder(given.run), given.claim, given.log


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread that hangs must not keep the process
