"""The files that make a private cluster: slurm.conf and gres.conf. Pure.

What differs from a cluster in a computer room, and why:
- Nodes pretend: several slurmd with ports of their own claim more CPUs than there are, and GPUs
  that are links to /dev/null (plain files would give no CUDA_VISIBLE_DEVICES).
- Waits are short: a requeued job comes back after 5 s instead of two minutes (`cred_expire`; less
  is refused, silently), the scheduler looks each second, and a kill follows a TERM after 2 s.
- Nothing needs root: no cgroups, no accounting, processes found in /proc.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SETTINGS = {
    "AuthType": "auth/munge",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "GresTypes": "gpu",
    "MpiDefault": "none",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=1,bf_resolution=1,sched_interval=1,sched_min_interval=0,"
    "batch_sched_delay=0",
    "SlurmdParameters": "config_overrides",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "JobRequeue": "1",
    "ReturnToService": "1",
    "KillWait": "2",
    "MinJobAge": "3600",
    "SlurmdTimeout": "10",
    "SlurmctldTimeout": "30",
    "MessageTimeout": "10",
}
_COMES_BACK_AFTER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """All nodes, under rules of its own."""

    name: str
    tier: int = 1
    """Jobs of a higher tier preempt those of a lower one."""
    preempt: str = "REQUEUE"
    """What becomes of its jobs then: REQUEUE, CANCEL, or OFF."""
    grace_s: int = 0
    longest_min: int = 24 * 60
    is_default: bool = False

    def line(self) -> str:
        default = " Default=YES" if self.is_default else ""
        return (
            f"PartitionName={self.name} Nodes=ALL State=UP PriorityTier={self.tier} "
            f"PreemptMode={self.preempt} GraceTime={self.grace_s} MaxTime={self.longest_min} "
            f"DefaultTime=10{default}"
        )


PARTITIONS = (
    Partition(name="low", is_default=True),
    Partition(name="grace", grace_s=20),
    Partition(name="cancel", preempt="CANCEL"),
    Partition(name="short", longest_min=2),
    Partition(name="high", tier=10, preempt="OFF"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a cluster has."""

    nodes: int = 4
    cpus: int = 4
    gpus: int = 4
    """Of each node."""
    memory_mb: int = 4000
    partitions: tuple[Partition, ...] = PARTITIONS
    settings: tuple[tuple[str, str], ...] = ()
    """Further lines of slurm.conf; they win."""

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where daemons listen, on loopback."""

    controller: int
    nodes: tuple[int, ...]


def slurm_conf(shape: Shape, folder: Path, *, ports: Ports, host: str, user: str) -> str:
    own = {
        "ClusterName": "tasuki",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": user,
        "SlurmdUser": user,
        "SlurmctldPort": str(ports.controller),
        "AuthInfo": f"socket={folder}/munge.sock,cred_expire={_COMES_BACK_AFTER_S}",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/log/jobs.txt",
    }
    settings = {**_SETTINGS, **own, **dict(shape.settings)}
    gpus = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={shape.cpus} "
        f"RealMemory={shape.memory_mb}{gpus} State=UNKNOWN"
        for name, port in zip(shape.node_names, ports.nodes, strict=True)
    ]
    lines += [partition.line() for partition in shape.partitions]
    return "\n".join(lines) + "\n"


def gres_conf(shape: Shape, folder: Path) -> str:
    if not shape.gpus:
        return "AutoDetect=off\n"
    nodes = f"node[1-{shape.nodes}]"
    return f"AutoDetect=off\nNodeName={nodes} Name=gpu File={folder}/nvidia[0-{shape.gpus - 1}]\n"
