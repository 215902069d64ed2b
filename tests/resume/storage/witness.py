"""The calls of each phase as two observers see them."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.harness.strace import calls_on
from tests.harness.syscalls import fork_watched
from tests.resume.storage.driver import PHASES, make_run

from tasuki.runs.runs import RunFolder


def compare() -> dict[str, list[dict[str, int]]]:
    """Phase → counts by kind: held here, seen by strace."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for phase, how in PHASES.items():
            counts = []
            for observe in (_hold, _trace):
                shutil.rmtree(folder / "now", ignore_errors=True)
                run = make_run(folder / "now" / "exp", how.kind)
                if how.prepare is not None:
                    how.prepare(run)
                counts.append(dict(Counter(observe(phase, run, folder))))
            found[phase] = counts
    return found


def _hold(phase: str, run: RunFolder, folder: Path) -> list[str]:
    child = fork_watched(lambda _: PHASES[phase].act(run, 0) and None, run.path)
    kinds = []
    while (call := child.next()) is not None:
        kinds.append(call.kind)
        call.go_on()
    assert child.status == 0
    return kinds


def _trace(phase: str, run: RunFolder, folder: Path) -> list[str]:
    return calls_on(run.path, lambda: PHASES[phase].act(run, 0), folder / "strace")
