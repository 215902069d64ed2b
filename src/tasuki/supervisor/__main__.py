"""`python -m tasuki.supervisor JOB_DIR [--leash FD]`: run one start of a job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tasuki.errors import EXIT_DONE, EXIT_USAGE, TasukiError
from tasuki.signals import NOTICES
from tasuki.store.atomic import sweep
from tasuki.store.jobs import begin_start, write_outcome
from tasuki.supervisor.job import JobOrder, read_job

if TYPE_CHECKING:
    from tasuki.clock import Clock
    from tasuki.supervisor.phase import Launcher


def main(arguments: list[str], launch: Launcher | None = None, clock: Clock | None = None) -> int:
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m tasuki.supervisor JOB_DIR [--leash FD]\n")
        return EXIT_USAGE
    # Held back until the loop can take them: a notice during the imports must not kill us.
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    leash = int(arguments[2]) if arguments[1:2] == ["--leash"] else None
    try:
        job = read_job(Path(arguments[0]).absolute())
        if _is_finished(job):
            return _end_at_once(job)
        return _supervise(job, launch, leash, clock)
    except TasukiError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code


def _is_finished(job: JobOrder) -> bool:
    return all(item.run.is_complete() for lane in job.lanes for item in lane.items)


def _end_at_once(job: JobOrder) -> int:
    """A start of a finished job, as after a requeue that came too late: no need for anything."""
    for lane in job.lanes:
        for item in lane.items:
            sweep(item.run.path, ".*.tmp")  # of the attempt that was killed as it finished
    lanes = [{"action": "leave", "state": "complete"} for _ in job.lanes]
    value = {"verdict": "end", "exit_code": EXIT_DONE, "lanes": lanes}
    write_outcome(job.folder, begin_start(job.folder), value)
    return EXIT_DONE


def _supervise(
    job: JobOrder, launch: Launcher | None, leash: int | None, clock: Clock | None
) -> int:
    from tasuki.clock import SystemClock
    from tasuki.supervisor.loop import Supervisor
    from tasuki.supervisor.phase import start_process

    supervisor = Supervisor(
        job,
        clock=clock or SystemClock(),
        launch=launch or start_process,
        environment=dict(os.environ),
        leash=leash,
    )
    return supervisor.run().exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
