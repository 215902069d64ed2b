"""The test job of `tasuki doctor`: send one short job to a node, follow it, read what it found.

The job tries what a training job needs (`doctor_node.py`) and is then cancelled. The log of its
srun step shows which signals arrive, and how long before SIGKILL.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import msgspec

from tasuki.clock import SystemClock
from tasuki.runs.atomic import make_folder, translated
from tasuki.slurm.client import Slurm, SlurmError, SlurmSilent
from tasuki.slurm.script import SlurmJob, sbatch_options
from tasuki.slurm.text import ShownPartition
from tasuki.units import format_seconds

TIME_LIMIT_S = 600.0
POLL_S = 2.0  # each round costs the controller one `scontrol show job`
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
TRY_TASUKI = "import tasuki; print(tasuki.__version__)"
TRY_TORCH = "import torch; print(torch.__version__)"
# A driver that does not fit, or a GPU in exclusive use, fails only when memory is touched.
TRY_GPU = "import torch; torch.ones(1, device='cuda').item(); print(torch.cuda.get_device_name())"
# No value of the user is in the script: they are its arguments. The shell ignores SIGTERM, since
# the job must live until Slurm kills its step.
SCRIPT = """\
#!/bin/bash
# The test job of `tasuki doctor`. Arguments: its folder, the Python of jobs.
folder="$1" python="$2"
set --
[ ! -f "$folder/setup.sh" ] || source "$folder/setup.sh"
trap '' TERM
srun --ntasks=1 "$python" "$folder/node.py" "$folder"
"""
Progress = Callable[[str], None] | None


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # Python, tasuki, torch, GPU or recipe
    output: str = ""  # such as a version
    error: str = ""


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    partition: str | None
    node: str
    checks: list[NodeCheck]
    signals: list[str]  # those that the srun step received when the job was cancelled
    kill_wait_s: float | None  # measured from SIGTERM to SIGKILL; None: no SIGTERM came


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs need, as spec and site file say."""

    job: SlurmJob  # asks Slurm for the same as a job of `submit`
    python: str
    setup: Path | None
    recipe: str | None  # None: no spec, or only commands
    folder: Path  # of the spec
    runs_dir: Path


def run_test_job(
    work: Work, partition: ShownPartition | None, timeout_s: float, slurm: Slurm, progress: Progress
) -> JobReport:
    """Submit the job, wait for its end and read its results. Neither job nor files stay."""
    job = replace(
        work.job,
        partition=partition.name if partition else None,
        limit_s=min(TIME_LIMIT_S, (partition and partition.longest_s) or TIME_LIMIT_S),
        nodes=1,
        cpus=1,
        memory_bytes=None,
        gres=f"{work.job.gres.rpartition(':')[0]}:1" if work.job.gres else None,
    )
    with (
        translated(work.runs_dir),
        tempfile.TemporaryDirectory(
            prefix=".doctor-", dir=make_folder(work.runs_dir), ignore_cleanup_errors=True
        ) as name,
    ):
        folder = Path(name)
        _write_files(folder, work)
        command = (str(folder / "job.sh"), str(folder), work.python)
        job_id = slurm.submit([*sbatch_options(replace(job, folder=folder)), *command])
        try:
            _follow(job_id, folder, timeout_s, slurm, progress)
        finally:  # also after Ctrl-C
            with contextlib.suppress(SlurmError):  # it has ended
                slurm.cancel(job_id)
        facts = json.loads((folder / "facts.json").read_text())
        signals, kill_wait_s = read_signals((folder / "signals.log").read_text())
    return JobReport(
        job=job_id,
        partition=job.partition,
        node=facts["node"],
        checks=msgspec.convert(facts["checks"], list[NodeCheck]),
        signals=signals,
        kill_wait_s=kill_wait_s,
    )


def _write_files(folder: Path, work: Work) -> None:
    checks = {"tasuki": TRY_TASUKI, "torch": TRY_TORCH}
    if work.job.gres:
        checks["GPU"] = TRY_GPU
    if work.recipe:  # `module:Class`, next to the spec
        module, _, name = work.recipe.partition(":")
        enter = f"import os; os.chdir({str(work.folder)!r})"
        checks["recipe"] = f"{enter}; from {module} import {name}"
    (folder / "checks.json").write_text(json.dumps(checks))
    (folder / "job.sh").write_text(SCRIPT)
    node = resources.files("tasuki.commands") / "doctor_node.py"
    (folder / "node.py").write_bytes(node.read_bytes())
    if work.setup is not None:
        (folder / "setup.sh").write_bytes(work.setup.read_bytes())


def _follow(job: str, folder: Path, timeout_s: float, slurm: Slurm, progress: Progress) -> None:
    """Cancel the job when it is ready, and wait for its end."""
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    message, is_cancelled = "", False
    while True:
        with contextlib.suppress(SlurmSilent):  # a busy controller answers the next time
            if not is_cancelled and (folder / "ready").exists():
                slurm.cancel(job)
                is_cancelled = True
            shown = slurm.show(job)
            if shown is None or shown.state.startswith(ENDED):
                if is_cancelled:
                    return
                raise _explain_early_end(job, folder, shown.state if shown else "unknown to Slurm")
            reason = f" ({shown.reason})" if shown.reason else ""
            previous, message = message, f"job {job} is {shown.state.lower()}{reason}"
            if progress and message != previous:
                progress(message)
        if clock.monotonic() > deadline:
            what = f"the test job did not finish within {format_seconds(timeout_s)}: {message}"
            hint = "`--timeout 1h` waits longer, `--set cluster.partition=NAME` tries another"
            raise SlurmError(what, hint=hint)
        clock.sleep(POLL_S)


def _explain_early_end(job: str, folder: Path, state: str) -> SlurmError:
    log = folder / f"slurm-{job}.log"
    if not log.exists():
        hint = "set `runs:` to a folder that all nodes share, and in which you may write"
        return SlurmError(f"job {job} ended ({state}) and left nothing in {folder}", hint=hint)
    lines = log.read_text(errors="replace").strip().splitlines()
    end = "; ".join(lines[-5:]) or "its log is empty"
    hint = "check `cluster.python` and `cluster.setup`"
    return SlurmError(f"job {job} ended too early ({state}): {end}", hint=hint)


def read_signals(log: str) -> tuple[list[str], float | None]:
    """Read lines such as `1700000000.123 SIGTERM`. The last line is the moment of SIGKILL."""
    lines = (line.split() for line in log.splitlines())
    events = [(float(words[0]), words[1]) for words in lines if len(words) == 2]
    signals = [name for _, name in events if name != "alive"]
    terminated_s = next((time_s for time_s, name in events if name == "SIGTERM"), None)
    return signals, None if terminated_s is None else round(events[-1][0] - terminated_s, 2)
