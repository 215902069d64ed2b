"""Start the ranks of one phase on this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.jobs.job import JobOrder
from tasuki.jobs.phase import Launch, Launcher, Rank, make_wires
from tasuki.jobs.place import LOOPBACK
from tasuki.runs.atomic import FORMAT, read_json_or_none, shaped, write_json
from tasuki.runs.jobs import JobFolder
from tasuki.runs.runs import RunFolder

NEVER_PASSED = ("TASUKI_SET", "TASUKI_STAGE", "TASUKI_NAME")
"""Frozen in the run's spec at its first start: a later change of them must have no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOrder:
    """What the ranks of one phase are to do."""

    run: RunFolder
    claim: int
    kind: str
    """train or evaluate."""
    stage: str
    number: int
    """Of the phase in its attempt: its ranks meet under it."""
    world: int
    host: str = LOOPBACK
    """Where they meet."""
    cpus: int | None = None
    """Of each rank, where lanes share a node; None: a rank takes its share of the node's."""


def publish_order(job: JobFolder, start: int, number: int, order: PhaseOrder) -> None:
    """For the supervisors of the other nodes."""
    facts = {key: getattr(order, key) for key in ("claim", "kind", "stage", "number", "world")}
    value = {"format": FORMAT, "run": order.run.name, "host": order.host, **facts}
    write_json(job.phase(start, number), value)


def read_order(job: JobFolder, start: int, number: int) -> PhaseOrder | None:
    path = job.phase(start, number)
    value = read_json_or_none(path)
    if value is None:
        return None
    with shaped(path):
        return PhaseOrder(
            run=RunFolder(job.runs / str(value["run"])),
            claim=int(value["claim"]),
            kind=str(value["kind"]),
            stage=str(value["stage"]),
            number=int(value["number"]),
            world=int(value["world"]),
            host=str(value["host"]),
        )


def start_ranks(
    order: PhaseOrder,
    job: JobOrder,
    *,
    gpus: tuple[int, ...],
    node: int,
    launch: Launcher,
    environment: Mapping[str, str],
) -> list[Rank]:
    """Those of this node, one for each of its GPUs; an evaluation has one rank in all."""
    own = gpus if order.kind == "train" else gpus[:1]
    first = node * len(own)
    return [
        _start_rank(order, job, first + index, gpu, launch, environment)
        for index, gpu in enumerate(own)
    ]


def _start_rank(
    order: PhaseOrder,
    job: JobOrder,
    rank: int,
    gpu: int,
    launch: Launcher,
    environment: Mapping[str, str],
) -> Rank:
    wire, theirs = make_wires()
    name = f"{job.folder.name}.{order.claim}" + (f".{rank}" if rank else "")
    arguments = {
        "--job": str(job.folder.path),
        "--run": str(order.run.path),
        "--claim": str(order.claim),
        "--phase": order.kind,
        "--stage": order.stage,
        "--number": str(order.number),
        "--rank": str(rank),
        "--world": str(order.world),
        "--host": order.host,
        "--fd": str(theirs.fileno()),
        **({} if order.cpus is None else {"--cpus": str(order.cpus)}),
    }
    process = launch(
        Launch(
            arguments=[text for pair in arguments.items() for text in pair],
            python=job.python,
            container=job.container,
            cwd=job.cwd,
            environment=_environment(order, gpu, environment, device=job.device),
            log=order.run.logs / f"{name}.log",
            err=order.run.logs / f"{name}.err",
            fd=theirs.fileno(),
        )
    )
    theirs.close()
    return Rank(rank, process, wire, log=order.run.logs / f"{name}.log")


def _environment(
    order: PhaseOrder, gpu: int, environment: Mapping[str, str], *, device: str
) -> dict[str, str]:
    own: dict[str, Any] = {k: v for k, v in environment.items() if k not in NEVER_PASSED}
    visible = own.get("CUDA_VISIBLE_DEVICES", "")
    if device == "cuda" and "CUDA_VISIBLE_DEVICES" not in own:
        own["CUDA_VISIBLE_DEVICES"] = str(gpu)  # all are seen: lanes must not meet on the first
    elif visible:
        # Slurm may give UUIDs: hand on the lane's own entries, as they stand.
        ids = visible.split(",")
        own["CUDA_VISIBLE_DEVICES"] = ids[gpu] if gpu < len(ids) else visible
    # torch warns of each second in which a rank waits for a word of another.
    own.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return own | {
        # Frozen by promise 2: without them two starts may sum, or iterate sets, differently.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONHASHSEED": "0",
        "TASUKI_RUN": str(order.run.path),
        "TASUKI_ATTEMPT": str(order.claim),
    }
