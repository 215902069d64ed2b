"""Who this process is: which rank of how many, and of which job of tasuki, if of any. Pure.

Told by the environment: torchrun (and our supervisor, `ranks: 4`) sets RANK and WORLD_SIZE, srun
SLURM_PROCID; a supervisor that runs a command sets TASUKI_RUN and where its files are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasuki.errors import RunError, UsageError
from tasuki.runs.runs import CommandFolder, RunFolder

_OF_JOB = ("TASUKI_RUN", "TASUKI_ATTEMPT", "TASUKI_NOTICE", "TASUKI_STAGE_FOLDER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A supervisor runs this process as the command of a stage."""

    run: RunFolder
    claim: int
    stage: str
    files: CommandFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    host: str = "127.0.0.1"
    """Where rank 0 can be reached."""
    agent: tuple[str, int] | None = None
    """A key-value store that torchrun holds for its ranks."""
    launch: str = ""
    """A name that only the ranks of this start share; empty: there is none."""
    slurm_job: str | None = None
    job: Job | None = None


def find_place(environ: Mapping[str, str]) -> Place:
    job = _find_job(environ)
    slurm_job = environ.get("SLURM_JOB_ID")
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Place(
            rank=_number(environ, "RANK"),
            world=_number(environ, "WORLD_SIZE"),
            local_rank=int(environ.get("LOCAL_RANK", environ["RANK"])),
            host=environ.get("MASTER_ADDR", "127.0.0.1"),
            agent=_agent(environ),
            launch="" if job is None else f"{job.claim}.{job.stage}",
            slurm_job=slurm_job,
            job=job,
        )
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1") or 1)
    if tasks > 1 and "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
        life = environ.get("SLURM_RESTART_COUNT", "0")
        is_one_node = environ.get("SLURM_STEP_NUM_NODES", "1") == "1"
        address = environ.get("MASTER_ADDR") or ("127.0.0.1" if is_one_node else "")
        return Place(
            rank=_number(environ, "SLURM_PROCID"),
            world=tasks,
            local_rank=int(environ.get("SLURM_LOCALID", "0")),
            host=address,
            launch=f"{slurm_job}.{environ['SLURM_STEP_ID']}.{life}",
            slurm_job=slurm_job,
            job=job,
        )
    return Place(slurm_job=slurm_job, job=job)


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise UsageError(
            f"{name} is `{environ[name]}`, which is no number",
            hint="it is set by who starts the ranks: torchrun, srun, or tasuki",
        ) from None


def _agent(environ: Mapping[str, str]) -> tuple[str, int] | None:
    if environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() != "true":
        return None
    return environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")


def _find_job(environ: Mapping[str, str]) -> Job | None:
    if "TASUKI_RUN" not in environ:
        return None
    if any(name not in environ for name in _OF_JOB):
        raise RunError(
            "open_run was called inside a stage that has a recipe",
            hint="a recipe's loop is tasuki's own; open_run is for scripts (`command:`)",
        )
    files = CommandFolder(Path(environ["TASUKI_NOTICE"]).parent)
    run = RunFolder(Path(environ["TASUKI_RUN"]))
    job = Job(
        run=run,
        claim=_number(environ, "TASUKI_ATTEMPT"),
        stage=Path(environ["TASUKI_STAGE_FOLDER"]).name,
        files=files,
    )
    if files.path != run.command(job.claim, job.stage, "train").path:
        raise RunError(
            "open_run was called in an evaluation: there is nothing to train",
            hint="load `weights.safetensors` of TASUKI_STAGE_FOLDER, and write TASUKI_METRICS",
        )
    return job
