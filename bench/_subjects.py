"""The accidents of promises.py, and what is left after each.

`PeerSubject` trains in a forking worker of _tools.py; `TasukiSubject` starts tasuki's supervisor
through the tests' fork server. Both return the same figures.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from _measure import sized
from _ours import INTERRUPTED, Ours, Warm, wait_until
from _peers import Forked, Worker
from _powercut import Disk, TornCopy
from _tiny import compare_steps, read_notes, steps_of
from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.parts import read_part
from tasuki.errors import TasukiError
from tasuki.runs.runs import RunFolder

KILLS = sized(30, smoke=1, variable="BENCH_KILLS")
FLIPS = sized(40, smoke=1, variable="BENCH_FLIPS")
CUTS = sized(8, smoke=1, variable="BENCH_CUTS")
EPOCH, MIDDLE = 32, 48
"""Steps per epoch, and where the run of two epochs is resumed."""
BATCH = 4
SIGTERM_STEP = 30
LONG_EPOCH = 512
"""Steps, of 20 ms each in the run that is terminated."""
LARGE = {"samples": 4096, "width": 512, "depth": 4}
"""12 MB with its moments: a save takes some 20 ms."""
SMALL = {"samples": 4096, "width": 256, "depth": 2}
"""1.6 MB."""
_ENDLESS = 1_000_000
_WITHIN_S = 90.0
_CUT_WITHIN_S = sized(6.0, smoke=0.5)
"""ext4 writes its journal every five seconds."""
Figures = dict[str, Any]


class Subject(ABC):
    """One tool, and a power cut under it; the other accidents differ by tool."""

    def __init__(self, folder: Path, seed: str) -> None:
        folder.mkdir()
        self._folder, self._chance = folder, Random(seed)

    def cut_power(self, count: int) -> Figures:
        found = {"of": count, "unloadable": 0, "lost": 0}
        while count:
            disk = Disk(self._folder / f"cut-{count}-{self._chance.getrandbits(32)}")
            with disk.mounted() as mount:
                process, acknowledged_step = self._train_on(mount)
                wait_until(lambda step=acknowledged_step: step() >= 3)
                time.sleep(self._chance.uniform(0.0, _CUT_WITHIN_S))
                process.kill(signal.SIGSTOP)
                acknowledged = acknowledged_step()
                disk.cut()
                process.kill(signal.SIGKILL)
                _wait(process)
            try:
                with disk.after() as mount:
                    self._judge(found, mount, acknowledged)
                count -= 1
            except TornCopy:
                continue
        return found

    @abstractmethod
    def _train_on(self, mount: Path) -> tuple[Any, Callable[[], int]]:
        """A process that saves after each step, and what tells the last acknowledged step."""

    @abstractmethod
    def _judge(self, found: Figures, folder: Path, acknowledged: int) -> None:
        """Count what is left in a folder."""


def flip_bit(files: list[Path], chance: Random) -> Callable[[], None]:
    """One bit, each byte as likely as any other. Returns what undoes it."""
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


class PeerSubject(Subject):
    """One of the tools of _tools.py."""

    def __init__(self, tool: str, python: Path, folder: Path) -> None:
        super().__init__(folder, tool)
        self._count = 0
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
        status = _wait(process)
        return read_notes(notes), status

    def _fresh(self, name: str) -> Path:
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _kept(self, name: str, tiny: dict[str, Any], *, steps: int, at: int) -> tuple[Path, Any]:
        """A run of `steps` with its folder as it was after the save at step `at`."""
        folder = self._fresh(name)
        kept = Path(f"{folder}-kept")
        shutil.rmtree(kept, ignore_errors=True)
        notes, _ = self._run(folder, tiny, steps=steps, save_every=at, keep_at=at)
        return kept, notes

    def resume_mid_epoch(self) -> Figures:
        tiny = {"samples": EPOCH * BATCH}
        kept, whole = self._kept("epochs", tiny, steps=2 * EPOCH, at=MIDDLE)
        rest, _ = self._run(kept, tiny, steps=2 * EPOCH, resume=True)
        return compare_steps(steps_of(whole), steps_of(rest), at=MIDDLE, epoch=EPOCH)

    def terminate(self, *, jit: bool = False) -> Figures:
        folder = self._fresh("terminated")
        tiny = {"samples": LONG_EPOCH * BATCH}
        order = {"steps": LONG_EPOCH, "save_every": LONG_EPOCH * 2, "jit": jit}
        notes, process = self._start(folder, {**tiny, "pause_s": 0.02}, **order)
        wait_until(lambda: len(steps_of(read_notes(notes))) >= SIGTERM_STEP)
        process.kill(signal.SIGTERM)
        status = _wait(process)
        before = steps_of(read_notes(notes))
        rest, resumed_status = self._run(folder, tiny, resume=True, **order)
        steps = [note["step"] for note in rest if note["kind"] == "resumed"]
        if resumed_status or not steps:
            return {"status": status, "saved_step": None}
        return _after_sigterm(before, steps_of(rest), saved_step=steps[0], status=status)

    def flip_bits(self, count: int) -> Figures:
        good, _ = self._kept("flipped", SMALL, steps=8, at=6)
        noticed = 0
        for _ in range(count):
            undo = flip_bit(_files(good), self._chance)
            _, status = self._run(good, {**SMALL, "leave_at": 1}, steps=100, resume=True)
            noticed += status != 0
            undo()
        return {"of": count, "noticed": noticed}

    def kill_while_saving(self, count: int) -> Figures:
        found = {"of": count, "unloadable": 0, "lost": 0}
        for _ in range(count):
            folder = self._fresh("killed")
            notes, process = self._start(folder, LARGE, steps=_ENDLESS, save_every=1)
            wait_until(lambda notes=notes: _acknowledged(notes) >= 2)
            time.sleep(self._chance.uniform(0.0, 0.25))
            process.kill(signal.SIGKILL)
            _wait(process)
            self._judge(found, folder, _acknowledged(notes), LARGE)
        return found

    def _judge(
        self, found: Figures, folder: Path, acknowledged: int, tiny: dict[str, Any] = SMALL
    ) -> None:
        """Resume, and see from which step."""
        notes, status = self._run(folder, {**tiny, "leave_at": 1}, steps=_ENDLESS, resume=True)
        steps = [note["step"] for note in notes if note["kind"] == "resumed"]
        if status or not steps:
            found["unloadable"] += 1
        elif steps[0] < acknowledged:
            found["lost"] += 1

    def _train_on(self, mount: Path) -> tuple[Any, Callable[[], int]]:
        tiny = {**SMALL, "pause_s": 0.02}
        notes, process = self._start(mount, tiny, steps=_ENDLESS, save_every=1)
        return process, lambda: _acknowledged(notes)


def _acknowledged(notes: Path) -> int:
    """The last step that the tool reported as saved; 0: none."""
    return max((n["step"] for n in read_notes(notes) if n["kind"] == "saved"), default=0)


def _wait(process: Any) -> int:
    """The exit status. A process that hangs is killed."""
    timer = threading.Timer(_WITHIN_S, process.kill, [signal.SIGKILL])
    timer.start()
    try:
        status: int = process.wait()
    finally:
        timer.cancel()
    return status


# -- tasuki -----------------------------------------------------------------------------------


class TasukiSubject(Subject):
    """A save is acknowledged by the `committed` event, a resume by `restored`."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        super().__init__(folder, "tasuki")
        self._warm = warm

    def _make(self, name: str, tiny: dict[str, Any], **options: Any) -> Ours:
        folder = self._folder / name
        tiny = {**tiny, "notes": str(self._folder / f"{name}.notes")}
        return Ours.make(folder, tiny, batch=BATCH, **options)

    def resume_mid_epoch(self) -> Figures:
        tiny = {"samples": EPOCH * BATCH}
        whole = self._make("whole", tiny, steps=2 * EPOCH)
        whole.finish(self._warm)
        run = self._make("epochs", tiny, steps=2 * EPOCH)
        run.configure(leave_at=MIDDLE, leave_by="term")
        status = _wait(run.start_warm(self._warm))
        assert status == INTERRUPTED and run.committed_step() == MIDDLE, run.project.logs()
        run.configure()
        run.finish(self._warm)
        steps = steps_of(run.notes())[MIDDLE:]
        return compare_steps(steps_of(whole.notes()), steps, at=MIDDLE, epoch=EPOCH)

    def terminate(self, *, jit: bool = False) -> Figures:  # noqa: ARG002 (HF's)
        tiny = {"samples": LONG_EPOCH * BATCH, "pause_s": 0.02}
        run = self._make("terminated", tiny, steps=LONG_EPOCH, save_every=LONG_EPOCH * 2)
        started = run.start_warm(self._warm)
        wait_until(lambda: len(steps_of(run.notes())) >= SIGTERM_STEP)
        started.kill(signal.SIGTERM)
        status = _wait(started)
        before, saved_step = steps_of(run.notes()), run.committed_step()
        run.configure(pause_s=0.0)
        run.finish(self._warm)
        rest = steps_of(run.notes())[len(before) :]
        if saved_step <= 0:
            return {"status": status, "saved_step": None}
        return _after_sigterm(before, rest, saved_step=saved_step, status=status)

    def flip_bits(self, count: int) -> Figures:
        run = self._make("flipped", SMALL, steps=_ENDLESS)
        self._step_and_leave(run, 6)
        noticed = 0
        for _ in range(count):
            newest = run.checkpoints()[-1]
            flip_bit(_files(newest), self._chance)
            self._step_and_leave(run, 2)
            noticed += any(e["checkpoint"] == newest.name for e in run.events("fell-back"))
        return {"of": count, "noticed": noticed}

    def _step_and_leave(self, run: Ours, steps: int) -> None:
        """Two steps or more: after a fall-back the next checkpoint is a new step again."""
        run.configure(leave_at=steps, leave_by="term")
        status = _wait(run.start_warm(self._warm))
        assert status == INTERRUPTED, run.project.logs()[-4000:]

    def kill_while_saving(self, count: int) -> Figures:
        """Each start resumes from what the kill before it left."""
        found = {"of": count, "unloadable": 0, "lost": 0}
        run = self._make("killed", LARGE, steps=_ENDLESS, save_every=1)
        acknowledged = 0
        for number in range(count + 1):
            before = len(run.events("restored"))
            started = run.start_warm(self._warm)
            is_loaded = wait_until(lambda n=before: len(run.events("restored")) > n, seconds=20)
            if not is_loaded:
                found["unloadable"] += 1
            elif number and run.events("restored")[-1]["step"] < acknowledged:
                found["lost"] += 1
            floor = max(acknowledged, 1)
            wait_until(lambda floor=floor: run.committed_step() > floor)
            time.sleep(self._chance.uniform(0.0, 0.25))
            started.kill(signal.SIGKILL)
            _wait(started)
            acknowledged = run.committed_step()
        found["unloadable"] += len(run.events("fell-back"))
        return found

    def _train_on(self, mount: Path) -> tuple[Any, Callable[[], int]]:
        tiny = {**SMALL, "pause_s": 0.02, "notes": str(self._folder / "cut.notes")}
        run = Ours.make(mount / "p", tiny, steps=_ENDLESS, save_every=1, batch=BATCH)
        self._run_on_disk = run.run.path.relative_to(mount)
        return run.start_warm(self._warm), run.committed_step

    def _judge(self, found: Figures, folder: Path, acknowledged: int) -> None:
        """By what a start would find and load. A fall-back counts as a newest that does not."""
        damaged: list[str] = []
        try:
            latest = find_latest(
                RunFolder(folder / self._run_on_disk), lambda name, _: damaged.append(name)
            )
            assert latest is not None
            read_part(latest.path, 0, records=latest.manifest.files)
        except (TasukiError, AssertionError):
            found["unloadable"] += 1
            return
        if latest.manifest.position.stage_step < acknowledged:
            found["lost"] += 1
        elif damaged:
            found["unloadable"] += 1
