"""The process beside an attempt that feeds the run's sinks: started, told of the end, waited for.

Only where the spec names sinks. Whatever becomes of it means nothing to the job: it is never waited
for while ranks run, and at the end for some seconds at most.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasuki.clock import Clock
from tasuki.errors import StoreError
from tasuki.jobs.job import JobOrder
from tasuki.runs.atomic import FILE_MODE, make_folder, read_json
from tasuki.runs.events import EventLog
from tasuki.runs.once import warn_once
from tasuki.runs.runs import RunFolder
from tasuki.signals import deaf

AT_HANDOVER_S = 3.0
"""How long it may take to close its sinks when the next attempt gives them everything again."""
AT_END_S = 60.0
"""And when there will be no next one."""
_LOOK_EVERY_S = 0.02


@dataclass(slots=True)
class _Beside:
    run: RunFolder
    claim: int
    process: subprocess.Popen[bytes]
    is_let_go: bool = False
    """Only from then on may it end."""
    is_told: bool = False
    """That it did not end well."""


@dataclass(slots=True)
class SinkProcesses:
    """Of one lane; one for each of its attempts."""

    job: JobOrder
    environment: Mapping[str, str]
    clock: Clock
    _all: list[_Beside] = field(default_factory=list)

    def begin(self, run: RunFolder, claim: int) -> None:
        """Start it, if the run has sinks. Never raises: metrics elsewhere are not worth a job."""
        for one in self._all:
            if one.run == run:  # of the attempt before: this one gives the sinks all of it
                _kill(one.process)
                one.is_told = True
        try:
            if read_json(run.spec).get("sinks"):
                self._all.append(_Beside(run, claim, self._start(run, claim)))
        except (OSError, StoreError) as error:
            self._warn(run, claim, f"no sink is fed in this attempt: {error}")

    def _start(self, run: RunFolder, claim: int) -> subprocess.Popen[bytes]:
        make_folder(run.logs)
        log = self._log(run, claim)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        words = [*self.job.container, self.job.python, "-P", "-m", "tasuki.loggers"]
        # No GPU is its business, and one thread is enough.
        own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        try:
            with deaf():
                return subprocess.Popen(
                    [*words, "--run", str(run.path), "--claim", str(claim), "--log", str(log)],
                    cwd=self.job.cwd,
                    env={**self.environment, **own},
                    stdin=subprocess.PIPE,
                    stdout=fd,
                    stderr=fd,
                )
        finally:
            os.close(fd)

    def look(self) -> None:
        """Whoever has died is told of, once."""
        for one in self._all:
            status = one.process.poll()
            if status is None or one.is_told:
                continue
            if status or not one.is_let_go:
                one.is_told = True
                words = f"sinks are not fed any more: their process ended with {status}"
                self._warn(one.run, one.claim, words)

    def _log(self, run: RunFolder, claim: int) -> Path:
        return run.logs / f"{self.job.folder.name}.{claim}.sinks.txt"

    def _warn(self, run: RunFolder, claim: int, text: str) -> None:
        """In the file of the process, which is over."""
        events = EventLog(run, claim=claim, node=0, who="sinks", clock=self.clock)
        warn_once(events, run, text, see=self._log(run, claim))
        events.close()

    def let_go(self) -> None:
        """The attempt is over: they read what is left and close."""
        self.look()
        for one in self._all:
            one.is_let_go = True
            if one.process.stdin is not None:
                with contextlib.suppress(OSError):
                    one.process.stdin.close()

    def wait(self, within_s: float) -> None:
        """Until they have gone; who takes longer is killed."""
        self.let_go()
        until = self.clock.monotonic() + within_s
        while any(one.process.poll() is None for one in self._all):
            if self.clock.monotonic() >= until:
                break
            self.clock.sleep(_LOOK_EVERY_S)
        self.look()
        for one in self._all:
            if one.process.poll() is None:
                _kill(one.process)
                one.is_told = True
                words = (
                    f"sinks were not closed within {within_s:.0f} s, and their process is killed"
                )
                self._warn(one.run, one.claim, words)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
