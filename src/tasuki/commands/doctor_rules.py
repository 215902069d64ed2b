"""What tasuki will do on a partition, and what to change before a job is submitted. Pure.

From what Slurm says, the spec and the site to words. A *problem* would stop a job from working; an
*advice* makes it work better.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasuki.slurm.text import ShownPartition
from tasuki.spec.check import nearest
from tasuki.spec.resolved import ResolvedCluster
from tasuki.units import format_bytes, format_seconds

After = Literal["never", "slurm", "itself", "itself-or-successor", "suspended", "qos"]
"""Who brings a preempted job back."""
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo", "sacct")
_WANTED = ("sbatch", "squeue", "scontrol", "scancel", "srun")
_KILL_WAIT_S = 30.0
"""Slurm's own default."""
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs"})
"""File systems of one machine; nodes may still mount them through something else."""
_LITTLE_DISK = 10 << 30
_LITTLE_SHM = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to know before a job is submitted."""

    is_problem: bool
    what: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        level = "problem" if self.is_problem else "advice"
        return {"level": level, "what": self.what, "hint": self.hint}


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What becomes of a job on a partition."""

    after: After
    save_s: float
    """From the notice to the kill."""
    words: str


def kill_wait_of(settings: Mapping[str, str]) -> float:
    """`KillWait = 30 sec`."""
    match = re.match(r"\d+", settings.get("KillWait", ""), re.ASCII)
    return float(match[0]) if match else _KILL_WAIT_S


def treat(
    partition: ShownPartition,
    others: Iterable[ShownPartition],
    settings: Mapping[str, str],
    *,
    measured_s: float | None = None,
) -> Treatment:
    """`measured_s`: from a TERM to the KILL without a grace, as a probe met it."""
    wait_s = trusted_wait(settings, measured_s)
    after = _after(partition, others, settings)
    grace_s = partition.grace_s if after in ("itself", "itself-or-successor") else 0.0
    parts = [f"GraceTime {format_seconds(grace_s)}"] if grace_s else []
    parts.append(f"KillWait {format_seconds(wait_s)}")
    measured = f"; measured {format_seconds(measured_s)}" if measured_s is not None else ""
    given = f"{format_seconds(grace_s + wait_s)} to save ({' + '.join(parts)}{measured})"
    return Treatment(after=after, save_s=grace_s + wait_s, words=f"{_WORDS[after]}; {given}")


def trusted_wait(settings: Mapping[str, str], measured_s: float | None) -> float:
    """What a job may count on. Slurm often kills a little late: that is luck, not a promise."""
    promised_s = kill_wait_of(settings)
    return promised_s if measured_s is None else min(promised_s, measured_s)


_WORDS: Mapping[After, str] = {
    "never": "never preempted; at the time limit tasuki stops in time and requeues the job",
    "slurm": "preempted jobs are requeued by Slurm itself",
    "itself": "preempted jobs requeue themselves during the grace: Slurm would not",
    "itself-or-successor": "preemption cancels a job: it requeues itself, or leaves a successor "
    "job where that is refused",
    "suspended": "preempted jobs are suspended and go on later, without a notice",
    "qos": "preemption is up to the QOS of a job: `sacctmgr show qos format=name,preemptmode,"
    "gracetime`",
}


def _after(
    partition: ShownPartition, others: Iterable[ShownPartition], settings: Mapping[str, str]
) -> After:
    kind = settings.get("PreemptType", "")
    mode = partition.preempt_mode.upper()
    if kind.endswith("qos"):
        return "qos"
    is_outranked = any(other.tier > partition.tier for other in others)
    if kind.endswith("none") or mode == "OFF" or not is_outranked:
        return "never"
    if "SUSPEND" in mode:
        return "suspended"
    if "CANCEL" in mode:
        return "itself-or-successor"
    return "itself" if partition.grace_s else "slurm"


# -- findings -----------------------------------------------------------------------------------


def check_commands(commands: Mapping[str, str | None]) -> Iterator[Finding]:
    for name in _WANTED:
        if commands[name] is None:
            yield Finding(
                is_problem=True,
                what=f"Slurm is here, but not its `{name}`",
                hint="install Slurm's client commands on this machine, or use a login node",
            )


def check_cluster(
    cluster: ResolvedCluster,
    partitions: Sequence[ShownPartition],
    treatments: Mapping[str, Treatment],
    *,
    is_of_spec: bool,
) -> Iterator[Finding]:
    """The spec's `cluster`, or the site's, against what Slurm has."""
    chosen = choose_partition(cluster.partition, partitions)
    if chosen is None:
        yield _no_partition(cluster.partition, partitions)
        return
    if not chosen.is_up:
        yield Finding(
            is_problem=True,
            what=f"partition `{chosen.name}` is not up",
            hint="`sinfo -s` shows when it is; or choose another `cluster.partition`",
        )
    if is_of_spec or cluster.time_limit_s is not None:
        yield from _check_limit(cluster.time_limit_s, chosen, partitions)
    save_s = treatments[chosen.name].save_s
    if cluster.grace_s > save_s:
        yield Finding(
            is_problem=False,
            what=f"`cluster.grace` is {format_seconds(cluster.grace_s)}, but a job on "
            f"`{chosen.name}` is killed {format_seconds(save_s)} after its notice",
            hint=f"write `cluster: {{grace: {exact_seconds(save_s)}}}`, or let `tasuki doctor "
            "--write-site` note it for all specs",
        )


def choose_partition(
    name: str | None, partitions: Sequence[ShownPartition]
) -> ShownPartition | None:
    """The one that is named, or Slurm's default."""
    fits = (p for p in partitions if (p.is_default if name is None else p.name == name))
    return next(fits, None)


def _no_partition(name: str | None, partitions: Sequence[ShownPartition]) -> Finding:
    names = [partition.name for partition in partitions]
    if name is None:
        what, hint = "no partition is named, and Slurm has no default one", ""
    else:
        near = nearest(name, names)
        what, hint = f"there is no partition `{name}`", f"did you mean `{near}`?" if near else ""
    return Finding(
        is_problem=True,
        what=what,
        hint=hint or f"set `cluster.partition` to one of {listed(names)}",
    )


def _check_limit(
    limit_s: float | None, chosen: ShownPartition, partitions: Sequence[ShownPartition]
) -> Iterator[Finding]:
    longest_s = chosen.longest_s
    if limit_s is None and longest_s is not None:
        yield Finding(
            is_problem=False,
            what="without `cluster.time_limit` nothing is planned around Slurm's limits",
            hint=f"write `cluster: {{time_limit: {exact_seconds(longest_s)}}}` or less: that is "
            f"the most on `{chosen.name}`",
        )
    elif limit_s is not None and longest_s is not None and limit_s > longest_s:
        longer = [p.name for p in partitions if p.longest_s is None or p.longest_s >= limit_s]
        yield Finding(
            is_problem=True,
            what=f"`cluster.time_limit` is {format_seconds(limit_s)}, but a job on `{chosen.name}` "
            f"may last {format_seconds(longest_s)}",
            hint=f"write `time_limit: {exact_seconds(longest_s)}`"
            + (f", or choose {listed(longer, 'or')}" if longer else ""),
        )


def check_machine(
    runs: Mapping[str, Any], machine: Mapping[str, Any], *, has_slurm: bool, is_seen: bool
) -> Iterator[Finding]:
    """`is_seen`: a node has written to the runs folder."""
    folder = runs["folder"]
    if not runs["is_writable"]:
        yield Finding(
            is_problem=True,
            what=f"the runs folder {folder} cannot be written",
            hint="set `runs:` in the spec to a folder of yours",
        )
    elif runs["free_bytes"] < _LITTLE_DISK:
        yield Finding(
            is_problem=False,
            what=f"{format_bytes(runs['free_bytes'])} are free for {folder}",
            hint="checkpoints need several times the model; make room, or set `runs:` elsewhere",
        )
    if has_slurm and not is_seen and runs["file_system"] in _LOCAL:
        yield Finding(
            is_problem=False,
            what=f"the runs folder lies on {runs['file_system']}, as a rule of one machine only",
            hint="`tasuki doctor --live` finds out whether the nodes see it",
        )
    shm = machine["shm_bytes"]
    if shm is not None and shm < _LITTLE_SHM:
        yield Finding(
            is_problem=False,
            what=f"/dev/shm has {format_bytes(shm)}; loader workers hand batches over through it",
            hint="give it more (containers: `--shm-size`), or set `loader: {workers: 0}`",
        )


def check_paths(*, setup: str | None, python: str | None) -> Iterator[Finding]:
    """Those that are named and not here."""
    if setup is not None:
        yield Finding(
            is_problem=True,
            what=f"`cluster.setup`: there is no file {setup}",
            hint="correct it; in a spec it is relative to the spec, in a site file to that file",
        )
    if python is not None:
        yield Finding(
            is_problem=False,
            what=f"the Python of jobs, {python}, is not on this machine",
            hint="`tasuki doctor --live` finds out whether the nodes have it",
        )


def check_live(live: Mapping[str, Any]) -> Iterator[Finding]:
    """What the probe job found."""
    if live["problem"] is not None:
        yield Finding(is_problem=True, **live["problem"])
    where = f"on node {live['node']}"
    if (runs := live["runs"]) is not None and runs["words"]:
        yield Finding(
            is_problem=True,
            what=f"{where} the runs folder cannot be used: {runs['words']}",
            hint="set `runs:` to a folder that all nodes see and you may write to",
        )
    if (recipe := live["recipe"]) is not None and not recipe["ok"]:
        yield Finding(
            is_problem=True,
            what=f"{where} recipe `{recipe['name']}` cannot be imported: {recipe['words']}",
            hint=f"jobs use {live['python']}: set `cluster.python`, or prepare it in "
            "`cluster.setup`",
        )
    if (scontrol := live["scontrol"]) is not None and not scontrol["ok"]:
        yield Finding(
            is_problem=False,
            what=f"{where} scontrol does not work: {scontrol['words']}",
            hint="a job cannot ask why it is ended; successor jobs carry on",
        )
    elif live["requeue"]["is_allowed"] is False and live["requeue"]["is_wanted"]:
        yield Finding(
            is_problem=False,
            what=f"a job may not requeue itself: {live['requeue']['words']}",
            hint="nothing to do: successor jobs carry on",
        )
    if live["problem"] is None and live["kill_after_s"]["step"] is None:
        yield Finding(
            is_problem=False,
            what="a cancelled job was killed without any notice",
            hint="save often: `save: {every: 5m}`",
        )


def exact_seconds(seconds: float) -> str:
    """As people write it, if that says the same."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def listed(names: Sequence[str], word: str = "and") -> str:
    quoted = [f"`{name}`" for name in names]
    return f" {word} ".join([", ".join(quoted[:-1]), quoted[-1]]) if quoted[1:] else quoted[0]
