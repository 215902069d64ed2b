"""What promises.py does to a tool, and what it finds afterwards.

`PeerSubject` asks a forking worker of _tools.py; `OwnSubject` starts tasuki's supervisor through the
tests' fork server. Both answer the same questions with the same figures.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol

from _ours import HANDED_OVER, Ours, Warm, wait_until
from _peers import Forked, Worker
from _powercut import Disk, TornCopy
from _tiny import compare_steps, read_notes, steps_of
from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.parts import read_part
from tasuki.errors import TasukiError
from tasuki.store.runs import RunFolder

KILLS = int(os.environ.get("BENCH_KILLS", "30"))
FLIPS = int(os.environ.get("BENCH_FLIPS", "40"))
CUTS = int(os.environ.get("BENCH_CUTS", "8"))
EPOCH, MIDDLE = 32, 48
"""Steps per epoch, and where the run of two epochs is resumed."""
BATCH = 4
SIGTERM_STEP = 30
LONG_EPOCH = 512
"""Steps; of 20 ms each in the run that is terminated."""
LARGE = {"samples": 4096, "width": 512, "depth": 4}
"""12 MB with its moments: a save takes some 20 ms."""
SMALL = {"samples": 4096, "width": 256, "depth": 2}
"""1.6 MB."""
_FOR_EVER = 1_000_000
_WITHIN_S = 90.0
Figures = dict[str, Any]


class Subject(Protocol):
    def resume_mid_epoch(self) -> Figures: ...
    def terminate(self, *, jit: bool = False) -> Figures: ...
    def flip_bits(self, count: int) -> Figures: ...
    def kill_while_saving(self, count: int) -> Figures: ...
    def cut_power(self, count: int) -> Figures: ...


def flip_bit(files: list[Path], chance: Random) -> Callable[[], None]:
    """One bit, each byte as likely as any other. Gives back what undoes it."""
    sizes = [path.stat().st_size for path in files]
    [path] = chance.choices(files, sizes)
    at, bit = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ bit]))

    flip()
    return flip


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def _after_sigterm(
    before: list[dict[str, Any]], rest: list[dict[str, Any]], *, saved_step: int, status: int
) -> Figures:
    """Both attempts together against one pass over all samples."""
    kept = [index for step in before[:saved_step] for index in step["samples"]]
    later = [index for step in rest for index in step["samples"]]
    every = range(LONG_EPOCH * BATCH)
    return {
        "status": status,
        "saved_step": saved_step,
        "repeated": len(set(kept) & set(later)),
        "skipped": len(set(every) - set(kept) - set(later)),
        "of": len(every),
    }


# -- the peers --------------------------------------------------------------------------------


class PeerSubject:
    def __init__(self, tool: str, python: Path, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._chance, self._count = folder, Random(tool), 0
        self._worker = Worker(python, "_tools.py", tool, log=folder / "worker.log")

    def close(self) -> None:
        self._worker.close()

    def _start(self, folder: Path, tiny: dict[str, Any], **order: Any) -> tuple[Path, Forked]:
        self._count += 1
        notes = self._folder / f"{self._count}.notes"
        asked = {
            "folder": str(folder),
            "batch": BATCH,
            "tiny": {**tiny, "notes": str(notes)},
            "log": str(self._folder / "log"),
            **order,
        }
        return notes, Forked(self._worker, asked)

    def _run(self, folder: Path, tiny: dict[str, Any], **order: Any) -> tuple[list[Any], int]:
        notes, process = self._start(folder, tiny, **order)
        return read_notes(notes), _wait(process) if False else _ended(notes, process)

    def _fresh(self, name: str) -> Path:
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def resume_mid_epoch(self) -> Figures:
        raise NotImplementedError
