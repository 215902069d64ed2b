"""What a job may ask of this cluster, checked before anything is submitted. Pure.

Slurm's own refusals are terse, and some requests it takes and never runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from tasuki.errors import UsageError
from tasuki.slurm.text import ShownPartition, parse_seconds
from tasuki.spec.resolved import ResolvedCluster
from tasuki.units import format_seconds

_KILL_WAIT_S = 30.0
"""Slurm's default between TERM and KILL."""


def choose_partition(
    cluster: ResolvedCluster, partitions: Sequence[ShownPartition]
) -> ShownPartition | None:
    """The one that is asked for, or the cluster's default; None: it has no default."""
    names = [partition.name for partition in partitions]
    if cluster.partition is None:
        return next((p for p in partitions if p.is_default), None)
    wanted = cluster.partition.split(",")  # Slurm takes the one that starts first
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"there is no partition `{name}` on this cluster",
                hint=f"did you mean `{near[0]}`? (`cluster.partition`)"
                if near
                else f"there are: {', '.join(names)}",
            )
    return next(p for p in partitions if p.name == wanted[0])


def check_partition(cluster: ResolvedCluster, partition: ShownPartition) -> None:
    """Refuse what would wait for ever, or be refused."""
    limit, longest = cluster.time_limit_s, partition.longest_s
    if limit is not None and longest is not None and limit > longest:
        asked, most = format_seconds(limit), format_seconds(longest)
        raise UsageError(
            f"`cluster.time_limit` is {asked}, but a job on `{partition.name}` may last {most}",
            hint=f"write `time_limit: {most}`: a run goes on from job to job, nothing is lost",
        )
    if not partition.is_up:
        raise UsageError(
            f"partition `{partition.name}` is down: jobs on it would wait",
            hint="`sinfo -s` shows the others; write one into `cluster.partition`",
        )
    if partition.nodes and cluster.nodes > partition.nodes:
        raise UsageError(
            f"`cluster.nodes` is {cluster.nodes}, but `{partition.name}` has {partition.nodes}",
            hint="ask for fewer nodes, or write another `cluster.partition`",
        )


def kill_wait_s(cluster: ResolvedCluster, settings: Mapping[str, str]) -> float:
    """How long a job has between TERM and KILL; never more than the spec says."""
    told = parse_seconds(settings.get("KillWait", ""))
    return min(cluster.grace_s, _KILL_WAIT_S if told is None else told)


def grace_s(cluster: ResolvedCluster, partitions: Sequence[ShownPartition]) -> float:
    """What a preempted job has before that: of several partitions, the least."""
    wanted = (cluster.partition or "").split(",")
    graces = [
        p.grace_s for p in partitions if p.name in wanted or (p.is_default and wanted == [""])
    ]
    return min(cluster.grace_s, min(graces, default=0.0))
