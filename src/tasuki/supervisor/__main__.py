"""`python -m tasuki.supervisor JOB_DIR [--leash FD]`: run one start of a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tasuki.clock import SystemClock
from tasuki.errors import EXIT_USAGE, TasukiError
from tasuki.supervisor.job import read_job
from tasuki.supervisor.loop import Supervisor
from tasuki.supervisor.phase import Launcher, start_process


def main(arguments: list[str], launch: Launcher = start_process) -> int:
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m tasuki.supervisor JOB_DIR [--leash FD]\n")
        return EXIT_USAGE
    leash = int(arguments[2]) if arguments[1:2] == ["--leash"] else None
    try:
        job = read_job(Path(arguments[0]).absolute())
        supervisor = Supervisor(
            job, clock=SystemClock(), launch=launch, environment=dict(os.environ), leash=leash
        )
        return supervisor.run().exit_code
    except TasukiError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
