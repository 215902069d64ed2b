"""The test job of `tasuki doctor`: send one short job to a node, follow it, read what it found.

The job tries what a training job needs (`doctor_node.py`), requeues itself once, comes back and is
cancelled. The log of its srun step then shows which signals arrive, and how long before SIGKILL.
"""

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import msgspec

from tasuki.clock import SystemClock
from tasuki.runs.atomic import (
    make_folder,
    read_json_or_none,
    read_plain,
    remove_tree,
    translated,
    write_bytes,
    write_json,
)
from tasuki.slurm.client import Slurm, SlurmError, SlurmSilent
from tasuki.slurm.script import SlurmJob, sbatch_options
from tasuki.slurm.text import ShownPartition
from tasuki.units import format_seconds

TIME_LIMIT_S = 600.0
POLL_S = 2.0  # each round costs the controller one `scontrol show job`
MAX_LOG_BYTES = 1 << 20
ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"),
    *("DEADLINE", "PREEMPTED"),
)
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


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # Python, runs folder, tasuki, torch, GPU, recipe or requeue
    output: str = ""  # such as a version
    error: str = ""


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the test job found."""

    job: str
    partition: str | None
    node: str | None  # None: nothing ran on a node
    checks: list[NodeCheck]
    signals: list[str]  # those that the srun step received when the job was cancelled
    kill_wait_s: float | None  # measured from SIGTERM to SIGKILL; None: no SIGTERM came
    error: str  # why the job did not finish; empty: it did
    hint: str
    folder: str | None  # is kept when there is an error


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs need, as spec and site file say."""

    job: SlurmJob  # asks Slurm for the same as a job of `submit`
    python: str
    setup: Path | None
    recipe: str | None  # None: no spec, or only commands
    folder: Path  # of the spec
    runs_dir: Path


def run_test_job(
    work: Work,
    partition: ShownPartition | None,
    *,
    timeout_s: float,
    slurm: Slurm,
    progress: Callable[[str], None] | None,
) -> JobReport:
    """Submit the job, wait for its end and read its results. The job never outlives this call."""
    had_runs_dir = work.runs_dir.is_dir()
    folder = make_folder(work.runs_dir / ".doctor" / secrets.token_hex(4))
    job = replace(
        work.job,
        folder=folder,
        partition=partition.name if partition else None,
        limit_s=min(TIME_LIMIT_S, (partition and partition.longest_s) or TIME_LIMIT_S),
        nodes=1,
        cpus=1,
        memory_bytes=None,
        gres=f"{work.job.gres.rpartition(':')[0]}:1" if work.job.gres else None,
    )
    order = {"runs_dir": str(work.runs_dir), "folder": str(work.folder), "recipe": work.recipe}
    error = ""
    try:
        write_json(folder / "order.json", {**order, "has_gpu": job.gres is not None})
        write_bytes(folder / "job.sh", SCRIPT.encode())
        script = resources.files("tasuki.commands") / "doctor_node.py"
        write_bytes(folder / "node.py", script.read_bytes())
        if work.setup is not None:
            with translated(work.setup):
                write_bytes(folder / "setup.sh", work.setup.read_bytes())
        words = (str(folder / "job.sh"), str(folder), work.python)
        job_id = slurm.submit([*sbatch_options(job), *words])
        try:
            error, hint = _follow(job_id, folder, timeout_s, slurm, progress)
        finally:  # also after Ctrl-C
            with contextlib.suppress(SlurmError):  # it has ended
                slurm.cancel(job_id)
        return _read_report(job_id, job.partition, folder, error, hint)
    finally:
        if not error:
            remove_tree(folder)
        with contextlib.suppress(OSError):  # not empty
            folder.parent.rmdir()
            if not had_runs_dir:
                work.runs_dir.rmdir()


def _follow(
    job: str,
    folder: Path,
    timeout_s: float,
    slurm: Slurm,
    progress: Callable[[str], None] | None,
) -> tuple[str, str]:
    """Cancel the job when it is ready and wait for its end. Return an error and its hint."""
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    message, is_cancelled = "", False
    while True:
        if not is_cancelled and (folder / "ready").exists():
            slurm.cancel(job)
            is_cancelled = True
        with contextlib.suppress(SlurmSilent):  # a busy controller answers the next time
            shown = slurm.show(job)
            if shown is None or shown.state.startswith(ENDED):
                state = shown.state if shown else "unknown to Slurm"
                return ("", "") if is_cancelled else _explain_early_end(job, folder, state)
            reason = f" ({shown.reason})" if shown.reason else ""
            previous, message = message, f"job {job} is {shown.state.lower()}{reason}"
            if progress and message != previous:
                progress(message)
        if clock.monotonic() > deadline:
            what = f"the test job did not finish within {format_seconds(timeout_s)}"
            hint = "`--timeout 1h` waits longer, `--partition NAME` tries another partition"
            return f"{what}: {message}", hint
        clock.sleep(POLL_S)


def _explain_early_end(job: str, folder: Path, state: str) -> tuple[str, str]:
    log = folder / f"slurm-{job}.log"
    if not log.exists():
        message = f"job {job} ended ({state}) and left nothing in {folder}"
        hint = "set `runs:` to a folder that all nodes share, and in which you may write"
        return message, hint
    lines = read_plain(log, limit=MAX_LOG_BYTES).decode(errors="replace").strip().splitlines()
    end = "; ".join(lines[-3:]) or "its log is empty"
    hint = f"check `cluster.python` and `cluster.setup`; the files of the job are in {folder}"
    return f"job {job} ended too early ({state}): {end}", hint


def _read_report(job: str, partition: str | None, folder: Path, error: str, hint: str) -> JobReport:
    facts = read_json_or_none(folder / "facts.json") or {"node": None, "checks": []}
    signals_log = folder / "signals.log"
    signals, kill_wait_s = read_signals(signals_log.read_text() if signals_log.exists() else "")
    return JobReport(
        job=job,
        partition=partition,
        node=facts["node"],
        checks=msgspec.convert(facts["checks"], list[NodeCheck]),
        signals=signals,
        kill_wait_s=kill_wait_s,
        error=error,
        hint=hint,
        folder=str(folder) if error else None,
    )


def read_signals(log: str) -> tuple[list[str], float | None]:
    """Read lines such as `1700000000.123 SIGTERM`. The last line is the moment of SIGKILL."""
    lines = (line.split() for line in log.splitlines())
    events = [(float(words[0]), words[1]) for words in lines if len(words) == 2]
    signals = [name for _, name in events if name != "alive"]
    terminated_s = next((time_s for time_s, name in events if name == "SIGTERM"), None)
    return signals, None if terminated_s is None else round(events[-1][0] - terminated_s, 2)
