"""Start the processes of a command: which program, in which environment, as which rank."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasuki.jobs.figures import own_gpus
from tasuki.jobs.job import JobOrder
from tasuki.jobs.kin import MARK
from tasuki.jobs.place import LOOPBACK
from tasuki.jobs.ranks import NEVER_PASSED
from tasuki.runs.atomic import FILE_MODE, make_folder
from tasuki.runs.runs import CommandFolder
from tasuki.spec.hiding import hide

if TYPE_CHECKING:
    from tasuki.jobs.command import CommandOrder

PYTHON = "python"
"""As a command's first word: the interpreter that ranks would have."""
_NOT_ITS_OWN = (
    *NEVER_PASSED,
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"),
)
"""Said of the supervisor's own place in its srun step: a script would take itself for one of as
many ranks as there are nodes."""


@dataclass(frozen=True, slots=True)
class Started:
    """One process of a command."""

    process: subprocess.Popen[bytes]
    log: Path
    err: Path
    err_began: int
    """Where its own words begin in that file."""


def start_one(
    order: CommandOrder,
    job: JobOrder,
    words: tuple[str, ...],
    rank: int,
    environment: Mapping[str, str],
    before: Sequence[Started],
) -> Started:
    """All in one process group, which is the first one's."""
    phase = order.phase
    name = f"{job.folder.name}.{phase.claim}" + (f".{rank}" if rank else "")
    log, err = phase.run.logs / f"{name}.log", phase.run.logs / f"{name}.err"
    with _append(log) as out, _append(err) as errors:
        typed = shlex.join(hide(list(words)))
        out.write(f"Starting stage {phase.stage}, attempt {phase.claim}: {typed}\n")
        out.flush()
        process = subprocess.Popen(
            [*job.container, *words],
            cwd=job.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            process_group=before[0].process.pid if before else 0,
        )
        return Started(process, log, err, errors.tell())


def forget(folder: CommandFolder) -> None:
    """Nothing was begun: the spec may still be changed."""
    with contextlib.suppress(OSError):
        folder.path.rmdir()
        folder.path.parent.rmdir()


def of_ranks(
    ranks: int | None, environment: Mapping[str, str], *, cpus: int | None
) -> Iterator[dict[str, str]]:
    """The environment of each process, as torchrun would set it."""
    if ranks is None:
        yield dict(environment)
        return
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(_free_port()),
    }
    threads = {"OMP_NUM_THREADS": str(max(1, (cpus or ranks) // ranks))}
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        yield {**threads, **environment, **common, **own}


def _free_port() -> int:
    """Of this moment: nobody can keep one for another process."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def _append(path: Path) -> Any:
    make_folder(path.parent)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    os.lseek(fd, 0, os.SEEK_END)
    return os.fdopen(fd, "a", errors="replace")


def find_words(
    words: tuple[str, ...], job: JobOrder, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Inside a container its own PATH counts."""
    first = words[0]
    if first == PYTHON:
        return (job.python, *words[1:])
    if job.container:
        return words
    return (find_program(first, job.cwd, job.python, environment) or first, *words[1:])


def find_program(
    word: str, folder: Path, python: str, environment: Mapping[str, str]
) -> str | None:
    """In PATH, in the spec's folder, or beside the interpreter, as torchrun is; None: nowhere."""
    if "/" in word:
        return shutil.which(str(folder / Path(word).expanduser()))
    places = [environment.get("PATH", os.defpath), str(folder), str(Path(python).parent)]
    return next((found for path in places if (found := shutil.which(word, path=path))), None)


def environment_of(
    order: CommandOrder, job: JobOrder, environment: Mapping[str, str]
) -> dict[str, str]:
    own = {key: value for key, value in environment.items() if key not in _NOT_ITS_OWN}
    gpus = own_gpus(environment, device=job.device, gpus=order.gpus)
    if gpus:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if order.phase.cpus is not None:  # of each process that it may start, as torchrun does
        own.setdefault("OMP_NUM_THREADS", str(order.phase.cpus))
    own.setdefault("PYTHONUNBUFFERED", "1")  # what a killed script has said must be in its log
    folder = order.folder
    return own | {
        # A hash seed of its own would give each attempt another order of sets of texts.
        "PYTHONHASHSEED": "0",
        "TASUKI_RUN": str(order.phase.run.path),
        "TASUKI_ATTEMPT": str(order.phase.claim),
        "TASUKI_STAGE_FOLDER": str(order.phase.run.stage(order.phase.stage).path),
        "TASUKI_DEADLINE": str(folder.deadline),
        MARK: str(folder.notice),
        "TASUKI_DONE": str(folder.done),
        "TASUKI_METRICS": str(folder.metrics),
    }
