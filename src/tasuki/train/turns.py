"""How often this process had to wait for a CPU: whether others use the machine.

The kernel counts for each thread how long it ran, and how long it could have run but had no CPU. So
a process that has nothing to do is told from one that is kept from it. Only reads; where the kernel
does not tell, nothing is known.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Seconds, over all threads of a process."""

    ran_s: float
    waited_s: float
    """Ready to run, and without a CPU."""

    def since(self, before: Turns) -> Turns:
        """Threads that ended meanwhile take their seconds along."""
        return Turns(
            ran_s=max(0.0, self.ran_s - before.ran_s),
            waited_s=max(0.0, self.waited_s - before.waited_s),
        )

    @property
    def share(self) -> float:
        """Of the CPU time that it could have used."""
        wanted = self.ran_s + self.waited_s
        return self.ran_s / wanted if wanted else 1.0


def read_turns(tasks: Path = _TASKS) -> Turns | None:
    """None: this kernel does not tell."""
    ran = waited = 0
    is_told = False
    with contextlib.suppress(OSError):
        for task in tasks.iterdir():
            with contextlib.suppress(OSError, ValueError):  # a thread that just ended
                words = (task / "schedstat").read_text().split()
                ran, waited, is_told = ran + int(words[0]), waited + int(words[1]), True
    return Turns(ran_s=ran / 1e9, waited_s=waited / 1e9) if is_told else None
