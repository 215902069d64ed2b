"""TensorBoard: one event file per attempt that holds the whole run.

Each attempt writes all rows that count into a new file, under a name that TensorBoard does not look
at until it is whole, and then removes the older ones. So nothing is there twice and nothing is
missing, however the attempt before ended. The file begins with a START: a TensorBoard that runs
forgets what it has read of the run and shows the new file's.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasuki.errors import UsageError
from tasuki.loggers.sink import SinkRow, SinkRun

_OURS = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.tasuki-(\d+)-(\d+)")


class TensorBoard:
    """The sink `tensorboard`."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder`: below the spec's; each run gets one with its name in there. Else the run's own
        `tensorboard`."""
        self._folder = folder
        self._writer: Any = None
        self._turn = 0

    def begin(self, run: SinkRun, history: Sequence[SinkRow]) -> None:
        self.close()
        folder = run.path / "tensorboard"
        if self._folder is not None:
            folder = run.folder / self._folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        self._turn += 1
        older = dict(_files(folder))
        if any(claim > run.attempt for _, claim, _ in older.values()):
            raise RuntimeError("a later attempt writes here")
        temp = folder / f".tasuki-{run.attempt}-{self._turn}.tmp"
        self._open(temp)
        for row in history:
            self.log(row)
        self.flush()
        # Its name sorts last, whatever clock the node has: TensorBoard reads files in this order.
        seconds = max([int(time.time()), *(told + 1 for told, _, _ in older.values())])
        mark = f"tasuki-{run.attempt:06d}-{self._turn:03d}"
        temp.rename(folder / f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{mark}")
        for path in [*older, *folder.glob(".tasuki-*.tmp")]:
            path.unlink(missing_ok=True)

    def log(self, row: SinkRow) -> None:
        values = [{"tag": tag, "simple_value": value} for tag, value in row.tagged().items()]
        self._write(wall_time=row.time, step=row.step, summary={"value": values})

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.flush()
            self._writer.close()
            self._writer = None

    def _open(self, path: Path) -> None:
        with _without_torch():
            from tensorboardX.record_writer import RecordWriter
        make: Any = RecordWriter
        self._writer = make(str(path))
        self._write(wall_time=time.time(), file_version="brain.Event:2")
        self._write(wall_time=time.time(), step=0, session_log={"status": 1})  # START

    def _write(self, **fields: Any) -> None:
        from tensorboardX.proto import event_pb2

        event: Any = event_pb2  # made when it is imported: nobody knows its names before
        self._writer.write(event.Event(**fields).SerializeToString())


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int, int]]]:
    """Event files of ours: (seconds in the name, attempt, turn). Other people's are theirs."""
    for path in folder.iterdir():
        if match := _OURS.fullmatch(path.name):
            yield path, (int(match[1]), int(match[2]), int(match[3]))


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """tensorboardX imports torch where there is one: 2.4 s of CPU and 200 MB for nothing."""
    is_there = "torch" in sys.modules
    if not is_there:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"tensorboardX cannot be imported: {error}", hint='pip install "tasuki[tensorboard]"'
        ) from error
    finally:
        if not is_there:
            del sys.modules["torch"]
