"""Attempts that the system killed for their memory, from what a run's folder says of them.

A rank that gets SIGKILL and says nothing was killed by the kernel, or by the guard of Slurm's
cgroup: nobody else does that to one (the supervisor names those that it kills itself). What its job
had asked for stands in the plan that made the job.
"""

from __future__ import annotations

from typing import Any

from tasuki.errors import StoreError
from tasuki.jobs.phase import SILENTLY_KILLED
from tasuki.runs.atomic import read_json_or_none
from tasuki.runs.attempts import read_attempt_ends, read_holder
from tasuki.runs.jobs import plan_path
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Ending

_KILLED = SILENTLY_KILLED.format("SIGKILL")


def killed_for_memory(run: RunFolder) -> list[int | None]:
    """What the jobs of such attempts had asked for; None: nothing, the site decided."""
    if not run.spec.exists():
        return []
    return [
        _asked_by(run, claim) for claim, end in read_attempt_ends(run).items() if _is_killed(end)
    ]


def _is_killed(end: dict[str, Any] | None) -> bool:
    return (
        end is not None
        and end.get("ending") == Ending.FAILED
        and _KILLED in str(end.get("message", ""))
    )


def _asked_by(run: RunFolder, claim: int) -> int | None:
    """A job that came back, or one that another plan wrote, is named by its first plan."""
    holder = read_holder(run, claim)
    if holder is None:
        return None
    try:
        plan = read_json_or_none(plan_path(run.path.parent, holder.job.rpartition("-")[0])) or {}
    except StoreError:
        return None  # a plan that cannot be read says nothing; the run itself goes on
    for job in plan.get("jobs", ()):
        if isinstance(job, dict) and job.get("name") == holder.job:
            asked = job.get("host_bytes")
            return asked if isinstance(asked, int) else None
    return None
