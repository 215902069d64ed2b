"""How much room checkpoints take, looked at before every call of runs that are killed again and
again; and what is left of the killed when the next attempt has begun."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.harness.syscalls import Child, fork_watched
from tests.resume.storage.driver import begin_attempt, save
from tests.resume.storage.invariants import leftovers
from tests.resume.storage.pessimist import tell

from tasuki.checkpoint.commit import Checkpoint
from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.retention import prune
from tasuki.checkpoint.verify import verify
from tasuki.runs.runs import RunFolder

_SLACK = 64 * 1024
"""For manifests and claims."""


def _attempt(run: RunFolder, keep: int, num_saves: int, teller: int) -> None:
    claim, latest = begin_attempt(run, keep=keep)
    tell(teller, f"BEGUN {len(leftovers(run))}")
    for _ in range(num_saves):
        step = latest.manifest.position.step + 1 if latest else 1
        latest = _save(run, step, claim, latest)
        prune(run, claim=claim, keep=keep)
        tell(teller, "SAVED .")


def _save(run: RunFolder, step: int, claim: int, latest: Checkpoint | None) -> Checkpoint:
    parent = latest.name if latest else None
    return save(run, step, claim=claim, parent=parent, is_big=True)


def used_bytes(folder: Path) -> int:
    """Of each file once, whatever names it has."""
    sizes = {}
    for inner, _, files in os.walk(folder):
        for name in files:
            found = (Path(inner) / name).stat()
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def watch_room(*, keep: int, kills: int, seed: int) -> dict[str, Any]:
    """Attempts that are killed somewhere, one after another, and a last one that is not."""
    chance = random.Random(seed)
    problems: list[str] = []
    most = 0.0
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        run = RunFolder(Path(name) / "exp")
        run.path.mkdir()
        size = _one(Path(name) / "one")
        saved = 0
        for number in range(kills + 1):
            child = fork_watched(lambda teller: _attempt(run, keep, 4, teller), run.path)
            left = chance.randrange(40, 700) if number < kills else 10**9
            used = _follow(child, run, left)
            most = max(most, used / size)
            if used > (keep + 2) * size + _SLACK:
                problems.append(f"attempt {number}: {used / size:.2f} times a checkpoint")
            saved += child.lines.count("SAVED .")
            for line in child.lines:
                if line.startswith("BEGUN") and line != "BEGUN 0":
                    problems.append(f"attempt {number} began among {line[6:]} leftovers")
            problems += _too_few(run, saved)
    return {"most": most, "keep": keep, "problems": problems}


def _follow(child: Child, run: RunFolder, left: int) -> int:
    """The most bytes there were; the child is killed after so many calls."""
    used = 0
    while (call := child.next()) is not None:
        left -= 1
        if call.kind in ("mkdir", "rename", "write", "close", "unlink", "unlinkat", "fsync"):
            used = max(used, used_bytes(run.checkpoints))
        if left > 0:
            call.go_on()
        else:
            child.kill()
            break
    return used


def _too_few(run: RunFolder, saved: int) -> list[str]:
    good = 0
    for name in lineage(run):
        verify(run.checkpoints / name)
        good += 1
    return [f"only {good} good ones after {saved} saves"] if saved >= 2 > good else []


def _one(path: Path) -> int:
    run = RunFolder(path)
    path.mkdir()
    begin_attempt(run)
    save(run, 1, is_big=True)
    return used_bytes(run.checkpoints)
