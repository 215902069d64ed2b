"""What a lane uses, every half minute: one line in the attempt's log and one event.

Costs nothing until a line is due and never ends a job: what cannot be read is counted. GPUs are
asked in a thread of their own: the driver of a sick GPU may take minutes to answer, and a notice
must not wait for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasuki.jobs.phase import Phase
from tasuki.runs.events import EventLog

if TYPE_CHECKING:  # the start of a supervisor is measured: the readers come with the first reading
    from tasuki.runs.machine import GpuAnswer, ProcessReader, Reading

EVERY_S = 30.0
_SHORTEST_WINDOW_S = 1.0
"""A phase that has just begun has no rates yet."""
_ANSWER_WITHIN_S = 2.0
"""A GPU that takes longer is left out of the line."""


@dataclass(slots=True)
class _Window:
    """From the last line on, or from the phase's beginning."""

    phase: Phase
    began_at: float
    cpu_s: float = 0.0
    """Processes begin with 0: the first window needs no reading at its beginning."""
    told: tuple[float, int] | None = None
    """The rank's clock, and its samples then."""


class Figures:
    """Of one lane, over all its phases."""

    def __init__(
        self,
        gpus: Sequence[str],
        *,
        every_s: float = EVERY_S,
        ask: Callable[[], GpuAnswer] | None = None,
    ) -> None:
        self.failures = 0
        """Readings, or parts of one, that did not come about."""
        self._gpus = tuple(gpus)
        self._every_s = every_s
        self._ask = ask
        self._question: _Question | None = None
        self._processes: ProcessReader | None = None
        self._window: _Window | None = None
        self._due_at: float | None = None
        self._log: tuple[EventLog, EventLog] | None = None

    def look(self, now: float, *, phase: Phase | None, events: EventLog | None) -> None:
        """Write the line, if it is time."""
        if phase is None or events is None:
            return
        if self._window is None or self._window.phase is not phase:
            self._window = _Window(phase, now)
        window = self._window
        if self._due_at is None:
            self._due_at = now + self._every_s
        window.told = window.told or phase.ranks[0].told
        is_young = now - window.began_at < min(_SHORTEST_WINDOW_S, self._every_s)
        if now < self._due_at or is_young:
            return
        try:
            if not self._is_answered(now):
                return
            reading = self._read(window, now)
            self._tell(reading, phase, events)
        except Exception:  # a figure is never worth a job
            self.failures += 1
        due_at = self._due_at + self._every_s
        self._due_at = due_at if due_at > now else now + self._every_s

    def _is_answered(self, now: float) -> bool:
        """Have the GPUs told, or had time enough? Asks them, once per line."""
        if not self._gpus:
            return True
        question = self._question
        if question is None or (question.is_for != self._due_at and not question.is_alive()):
            question = self._question = _Question(self._asker(), now, is_for=self._due_at)
            question.start()
        return not question.is_alive() or now - question.asked_at >= _ANSWER_WITHIN_S

    def _asker(self) -> Callable[[], GpuAnswer]:
        if self._ask is None:
            from tasuki.runs.machine import GpuReader

            self._ask = GpuReader(self._gpus).read
        return self._ask

    def _read(self, window: _Window, now: float) -> Reading:
        from tasuki.runs.machine import GpuAnswer, ProcessReader, Reading, host_bytes

        answer = GpuAnswer()
        if self._question is not None:
            answer = self._question.answer or GpuAnswer(problem="no answer from the driver")
        self.failures += bool(answer.problem)
        ranks = window.phase.ranks
        self._processes = self._processes or ProcessReader()
        used = self._processes.read([rank.process.pid for rank in ranks if rank.status is None])
        told, window_s = ranks[0].told, max(1e-6, now - window.began_at)
        reading = Reading(
            has_gpus=bool(self._gpus),
            gpus=answer,
            samples_per_sec=_rate(window.told, told),
            # Where a rank has ended, its time is missing in the sum.
            cpu_percent=100 * max(0.0, used.cpu_s - window.cpu_s) / window_s,
            rss_bytes=used.rss_bytes,
            host_bytes=host_bytes(),
            num_processes=used.num,
            window_s=window_s,
        )
        self._window = _Window(window.phase, now, cpu_s=used.cpu_s, told=told)
        return reading

    def _tell(self, reading: Reading, phase: Phase, events: EventLog) -> None:
        problem = {"problem": reading.gpus.problem} if reading.gpus.problem else {}
        self._own_log(events).add(
            "machine",
            phase=phase.kind,
            stage=phase.stage,
            **reading.facts(),
            failures=self.failures,
            **problem,
        )
        log = phase.ranks[0].log
        if log is not None:
            fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(fd, f"{reading.line()}\n".encode())
            finally:
                os.close(fd)

    def _own_log(self, events: EventLog) -> EventLog:
        """A file of its own: of the supervisor's, readers look at the end for what it does."""
        if self._log is None or self._log[0] is not events:
            if self._log is not None:
                self._log[1].close()
            self._log = (events, events.beside("machine"))
        return self._log[1]


def _rate(before: tuple[float, int] | None, now: tuple[float, int] | None) -> float | None:
    """Samples per second between two words of a rank; None without two, or after a roll-back."""
    if before is None or now is None or now[0] <= before[0] or now[1] < before[1]:
        return None
    return (now[1] - before[1]) / (now[0] - before[0])


class _Question(threading.Thread):
    """One call of the driver, which may never come back."""

    def __init__(self, ask: Callable[[], GpuAnswer], now: float, *, is_for: float | None) -> None:
        super().__init__(name="tasuki-gpus", daemon=True)
        self.asked_at = now
        self.is_for = is_for
        """The line it was asked for: an answer that came late is not told as a new one."""
        self.answer: GpuAnswer | None = None
        self._ask = ask

    def run(self) -> None:
        self.answer = self._ask()


def lane_figures(environment: Mapping[str, str], *, device: str, gpus: Sequence[int]) -> Figures:
    """For a lane that has these of the GPUs that CUDA_VISIBLE_DEVICES names. A length of time that
    means nothing ends no job: the usual one counts."""
    try:
        every_s = float(environment.get("TASUKI_STATS_EVERY_S") or EVERY_S)
    except ValueError:
        every_s = EVERY_S
    own = own_gpus(environment, device=device, gpus=gpus)
    return Figures(own, every_s=every_s if every_s > 0 else EVERY_S)


def own_gpus(environment: Mapping[str, str], *, device: str, gpus: Sequence[int]) -> list[str]:
    """The lane's own entries, as its ranks get them; none on CPU ranks."""
    if device == "cpu":
        return []
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        return [str(gpu) for gpu in gpus]
    ids = [entry.strip() for entry in visible.split(",")]
    own = [ids[gpu] for gpu in gpus if gpu < len(ids)]
    return own if len(own) == len(gpus) else ids
