"""Where a supervisor runs: alone on this machine, or on one of the nodes of a job of Slurm.

Read once, from the environment that srun gives to its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.errors import UsageError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node among those of a job."""

    node: int = 0
    nodes: int = 1
    number: str | None = None
    """Under which Slurm knows the job; None: under the local backend."""
    restarts: int = 0
    """How often Slurm has requeued it: a zombie of an earlier life must not act for this one."""
    host: str = LOOPBACK
    """Where the ranks of all nodes find the first one."""

    @property
    def origin(self) -> dict[str, Any] | None:
        """What a start of the job is found by."""
        return None if self.number is None else {"number": self.number, "restarts": self.restarts}


def read_place(environment: Mapping[str, str], *, is_slurm: bool) -> Place:
    """`is_slurm`: the job was made for Slurm. (One that runs here may well do so inside an
    allocation, whose variables then mean something else.)"""
    if not is_slurm:
        return Place()
    if "SLURM_JOB_ID" not in environment:
        raise UsageError(
            "this job was made for Slurm, and there is no SLURM_JOB_ID here",
            hint="`bash submit.sh` in the job's folder submits it; `tasuki resume RUN --here` "
            "goes on with its run on this machine",
        )
    nodes = int(environment.get("SLURM_NNODES", 1))
    return Place(
        node=int(environment.get("SLURM_NODEID", 0)),
        nodes=nodes,
        number=environment["SLURM_JOB_ID"],
        restarts=int(environment.get("SLURM_RESTART_COUNT", 0)),
        host=environment.get("SLURM_LAUNCH_NODE_IPADDR", LOOPBACK) if nodes > 1 else LOOPBACK,
    )
