"""`python -m tasuki.jobs JOB_DIR [--leash FD]`: run one start of a job, on this node.
With `--after` instead: a start is over; write down how, and have the job come back if it is to."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME, EXIT_USAGE, TasukiError
from tasuki.jobs.job import JobOrder, read_job
from tasuki.jobs.place import Place, read_place
from tasuki.runs.attempts import read_holder
from tasuki.runs.claims import highest_claim, sweep_temps
from tasuki.runs.jobs import begin_start, write_outcome
from tasuki.signals import NOTICES

if TYPE_CHECKING:
    from tasuki.clock import Clock
    from tasuki.jobs.phase import Launcher


def main(arguments: list[str], launch: Launcher | None = None, clock: Clock | None = None) -> int:
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m tasuki.jobs JOB_DIR [--leash FD | --after]\n")
        return EXIT_USAGE
    # Held back until the loop can take them: a notice during the imports must not kill us.
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    leash = int(arguments[2]) if arguments[1:2] == ["--leash"] else None
    try:
        job = read_job(Path(arguments[0]).absolute())
        place = read_place(os.environ, is_slurm=job.is_slurm)
        if job.folder.withdrawn.exists():
            sys.stderr.write("tasuki: this job was withdrawn: another one works on its runs\n")
            return EXIT_DONE
        if arguments[1:2] == ["--after"]:
            return _settle(job, place)
        if _is_finished(job):
            return EXIT_DONE if place.node else _end_at_once(job, place)
        if job.is_slurm and not place.node and _is_unwanted(job, place):
            return _end_unwanted(job, place)
        return _supervise(job, place, launch, leash, clock)
    except TasukiError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code


def _is_finished(job: JobOrder) -> bool:
    return all(item.run.is_complete() for lane in job.lanes for item in lane.items)


def _end_at_once(job: JobOrder, place: Place) -> int:
    """A start of a finished job, as after a requeue that came too late: no need for anything."""
    for lane in job.lanes:
        for item in lane.items:
            # Of the attempt that was killed as it finished, too; not of one that still writes.
            newest = highest_claim(item.run)
            holder = read_holder(item.run, newest)
            if holder is None or not holder.is_alive():
                sweep_temps(item.run, claim=newest + 1)
    lanes = [{"action": "leave", "state": "complete"} for _ in job.lanes]
    value = {"verdict": "end", "exit_code": EXIT_DONE, "lanes": lanes}
    write_outcome(job.folder, begin_start(job.folder, place.origin), value)
    _tell_all(job)  # if the attempt that was killed could not
    return EXIT_DONE


def _tell_all(job: JobOrder) -> None:
    from tasuki.clock import SystemClock
    from tasuki.jobs.alerts import tell_all

    tell_all(job, clock=SystemClock(), environment=os.environ)


def _is_unwanted(job: JobOrder, place: Place) -> bool:
    from tasuki.clock import SystemClock
    from tasuki.jobs.turn import is_unwanted

    return is_unwanted(job, place, clock=SystemClock(), environment=os.environ)


def _end_unwanted(job: JobOrder, place: Place) -> int:
    sys.stderr.write("tasuki: the run was stopped: nothing to do here\n")
    lanes = [{"action": "leave", "state": "stopped", "stops_successors": True} for _ in job.lanes]
    value = {"verdict": "end", "exit_code": EXIT_RESUME_ME, "lanes": lanes}
    write_outcome(job.folder, begin_start(job.folder, place.origin), value)
    _tell_all(job)
    return EXIT_DONE


def _settle(job: JobOrder, place: Place) -> int:
    from tasuki.clock import SystemClock
    from tasuki.jobs.after import settle_job

    return settle_job(job, place, clock=SystemClock(), environment=os.environ)


def _supervise(
    job: JobOrder,
    place: Place,
    launch: Launcher | None,
    leash: int | None,
    clock: Clock | None,
) -> int:
    from tasuki.clock import SystemClock
    from tasuki.jobs.phase import start_process

    if place.node:
        from tasuki.jobs.follower import Follower

        follower = Follower(
            job,
            place,
            clock=clock or SystemClock(),
            launch=launch or start_process,
            environment=dict(os.environ),
        )
        return follower.run()
    from tasuki.jobs.loop import Supervisor

    supervisor = Supervisor(
        job,
        clock=clock or SystemClock(),
        launch=launch or start_process,
        environment=dict(os.environ),
        leash=leash,
        place=place,
    )
    code = supervisor.run().exit_code
    # Under Slurm the script says how the job ends; srun would call any other status an error.
    return EXIT_DONE if job.is_slurm else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
