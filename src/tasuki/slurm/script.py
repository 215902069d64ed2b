"""The script of a job, and the command that submits it. Pure.

No value of the user's ever stands in the script: a newline in one would end an `#SBATCH` line, and
what follows it would run. Values are arguments of `sbatch`, and of the script behind them. The
command is kept beside the script, quoted for a shell, so that a person may read both and submit by
hand: `bash submit.sh`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasuki.errors import UsageError
from tasuki.slurm.succession import COMMENT
from tasuki.spec.resolved import ResolvedCluster
from tasuki.spec.site import Site, SiteGpu

SCRIPT = "job.sh"
SUBMIT = "submit.sh"
SETUP = "setup.sh"
_OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_OURS = {
    "time": "cluster.time_limit", "nodes": "cluster.nodes", "gres": "cluster.gpus",
    "gpus": "cluster.gpus", "gpus-per-node": "cluster.gpus", "cpus-per-task": "cluster.cpus",
    "mem": "cluster.memory", "partition": "cluster.partition", "account": "cluster.account",
    "qos": "cluster.qos", "constraint": "cluster.constraint", "requeue": "cluster.requeue",
    "no-requeue": "cluster.requeue", "mail-user": "cluster.mail",
}  # fmt: skip
"""Options of sbatch that the spec has keys for."""
_FIXED = {"ntasks", "ntasks-per-node", "output", "error", "open-mode", "comment", "dependency",
          "parsable", "array", "wrap", "job-name", "wait", "test-only", "chdir"}  # fmt: skip
"""Options that tasuki's own work hangs on."""
_BODY = """\
#!/bin/bash
# A job of tasuki. `bash submit.sh`, beside this file, submits it by hand.
# Arguments: the job's folder, then the command that supervises it on each node.
set -u
job="$1"
shift
if [ ! -d "$job" ]; then
  echo "error: the job's folder $job is not visible on $(hostname)" >&2
  echo "hint: the spec's 'runs' must lie on a file system that all nodes share" >&2
  exit 1
fi
supervise=("$@")
# However this shell ends, what the supervisor wrote counts: it ends the job, or has it come back.
# (srun's own status says little: it may be 0 for a step that was killed.)
after() {
  trap '' TERM INT HUP USR1 USR2
  trap - EXIT
  # It has seen that Slurm brings this life of the job back by itself: there is nothing to ask.
  [ -e "$job/comes-back.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" ] && exit 0
  exec "${supervise[@]}" --after
}
# What comes to this shell is for the supervisor too, and as an srun step it hears it, in every mode
# of preemption: the shell only waits.
trap : TERM INT USR1 USR2
trap after EXIT
if [ -f "$job/setup.sh" ]; then
  set +u
  set --
  source "$job/setup.sh"
  set +eu +o pipefail
  trap : TERM INT USR1 USR2
  trap after EXIT
fi
unset SLURM_EXPORT_ENV # what setup exports is for the step
# srun does not inherit --cpus-per-task.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 \\
  ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "${supervise[@]}" &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
after
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What sbatch must know of a job."""

    name: str
    folder: Path
    """Named after plan and job, like no other; it is the job's comment, by which it is found."""
    command: tuple[str, ...]
    """Supervises the job on a node."""
    limit_s: float | None = None
    nodes: int = 1
    gres: str | None = None
    """Of each node, such as `gpu:a100:4`."""
    cpus: int | None = None
    memory_bytes: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    is_requeued: bool = True
    mail: str | None = None
    """To whom Slurm writes of a failure; of an end too, where no job of the plan comes after."""
    is_last: bool = True
    after: tuple[str, ...] = ()
    """Names of the jobs of its plan that must have ended, however they ended."""
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def comment(self) -> str:
        return f"{COMMENT}{self.folder.name}"

    def __post_init__(self) -> None:
        for key in self.extra:
            _refuse_option(key)


def job_for_cluster(
    cluster: ResolvedCluster, site: Site, *, name: str, folder: Path, gpus: int
) -> SlurmJob:
    """Request all that the `cluster` section of a spec says, for a job with this many GPUs."""
    gpu = site.gpus.get(cluster.gpu or "", SiteGpu())
    return SlurmJob(
        name=name,
        folder=folder,
        command=(),
        limit_s=cluster.time_limit_s,
        nodes=cluster.nodes,
        gres=f"{gpu.gres or 'gpu'}:{gpus}" if gpus else None,
        cpus=cluster.cpus,
        memory_bytes=cluster.memory_bytes,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        constraint=cluster.constraint or gpu.constraint,
        is_requeued=cluster.requeue is not False,
        extra=cluster.extra,
    )


def render_script() -> str:
    """The same for every job."""
    return _BODY


def sbatch_options(job: SlurmJob) -> list[str]:
    """All that sbatch is told, as arguments."""
    wanted: dict[str, object] = {
        "job-name": job.name,
        "comment": job.comment,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "time": None if job.limit_s is None else minutes_for(job.limit_s),
        "gres": job.gres,
        "cpus-per-task": job.cpus,
        "mem": None if job.memory_bytes is None else f"{math.ceil(job.memory_bytes / 2**20)}M",
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "constraint": job.constraint,
        "mail-user": job.mail,
        "mail-type": None if job.mail is None else ("END,FAIL" if job.is_last else "FAIL"),
        "output": f"{_escape(job.folder)}/slurm-%j.log",
        "open-mode": "append",
        "requeue" if job.is_requeued else "no-requeue": True,
        **job.extra,
    }
    return [_option(key, value) for key, value in wanted.items() if value not in (None, False)]


def dependency(numbers: Sequence[str]) -> list[str]:
    return [f"--dependency=afterany:{':'.join(numbers)}"] if numbers else []


def submit_arguments(job: SlurmJob) -> list[str]:
    """What follows the options: the script and its arguments."""
    return [str(job.folder / SCRIPT), str(job.folder), *job.command]


def render_submit(job: SlurmJob, after: Sequence[str] = ()) -> str:
    """The command as a file, for people. `after`: numbers of the jobs before it."""
    words = ["sbatch", *sbatch_options(job), *dependency(after), *submit_arguments(job)]
    return "#!/bin/bash\nexec " + " \\\n  ".join(shlex.quote(word) for word in words) + "\n"


def _option(key: str, value: object) -> str:
    return f"--{key}" if value is True else f"--{key}={value}"


def minutes_for(seconds: float) -> int:
    """Slurm counts whole minutes; a job of less gets one."""
    return max(1, math.ceil(seconds / 60))


def _escape(folder: Path) -> str:
    """In a name of an output file `%` begins a placeholder, and a backslash ends all of them."""
    return str(folder).replace("%", "%%")


def _refuse_option(key: str) -> None:
    if not _OPTION.fullmatch(key):
        raise UsageError(
            f"`cluster.extra` has {key!r}, which is no option of sbatch",
            hint="write long options without dashes: `extra: {reservation: class}`",
        )
    if key in _OURS:
        raise UsageError(
            f"`cluster.extra` has `{key}`, for which the spec has a key of its own",
            hint=f"write `{_OURS[key]}`, which the plan counts on",
        )
    if key in _FIXED:
        raise UsageError(
            f"`cluster.extra` has `{key}`, which tasuki sets itself", hint="leave it out"
        )
