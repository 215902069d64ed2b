"""`lanes.json` as values: what this job is to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import read_json
from tasuki.runs.jobs import JobFolder, count_gpus
from tasuki.runs.runs import RunFolder


@dataclass(frozen=True, slots=True)
class LaneItem:
    """One run in a lane, up to and including a stage."""

    run: RunFolder
    until: str | None
    is_continued: bool
    number: int | None = None
    """Like no other's of its job; None: the job is not packed, and lanes are lists."""
    after: tuple[int, ...] = ()
    """Items that must have ended well before."""
    seconds: float | None = None
    """How long it is expected to take; None: nobody knows."""
    start_s: float | None = None
    """When it was planned to begin, from the job's beginning."""
    cpus: int | None = None
    """Its share of the job's CPUs, whatever else runs; None: as its GPUs are of the job's."""
    trains_only: bool = False
    """Another item of the job evaluates its last stage."""


@dataclass(frozen=True, slots=True)
class LaneOrder:
    gpus: tuple[int, ...]
    items: tuple[LaneItem, ...]


_LAST_WORD_S = 1.0
"""Of a notice, kept for the supervisor itself: to write the outcome before it is killed."""
_WAY_BACK_S = 5.0
"""And for srun's end, and to ask Slurm twice."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    folder: JobFolder
    python: str
    cwd: Path
    backend: str
    limit_s: float | None
    grace_s: float
    requeue: bool | int
    lanes: tuple[LaneOrder, ...]
    device: str = "cpu"
    """cpu or cuda."""
    after: tuple[str, ...] = ()
    """Names of the jobs of its plan that came before."""
    container: tuple[str, ...] = ()
    """The words that start a rank inside a container."""
    surplus_s: float = 0.0
    """What the scheduler gives beyond the limit, because it counts in minutes."""

    partition_grace_s: float = 0.0
    """What a preempted job has before Slurm begins to end it."""
    price_per_gpu_hour: float | None = None
    gpus: int = 1
    """Of one node. A packed job's lanes overlap, or leave some idle."""
    cpus: int | None = None
    reserve_s: float = 0.0
    """Kept free at the job's end."""

    nodes: int = 1

    @property
    def is_packed(self) -> bool:
        """Carried out item by item, on whatever GPUs are free. Else a lane has all of the job for
        one item, on one node or on several."""
        items = [item for lane in self.lanes for item in lane.items]
        is_whole = len(items) == 1 and len(self.lanes[0].gpus) >= self.gpus
        return self.nodes == 1 and not is_whole and all(i.number is not None for i in items)

    @property
    def is_slurm(self) -> bool:
        return self.backend == "slurm"

    @property
    def ranks_grace_s(self) -> float:
        """What the ranks have of the grace, whatever the cause."""
        return self.notice_s(is_preempted=False)

    def notice_s(self, *, is_preempted: bool) -> float:
        """What they have of a notice. Only a preempted job has its partition's grace too."""
        whole = self.grace_s + (self.partition_grace_s if is_preempted else 0.0)
        # Under Slurm a job that is to come back by its own hand needs some seconds more.
        most = _WAY_BACK_S if self.is_slurm else _LAST_WORD_S
        return max(0.5, whole - max(_LAST_WORD_S, min(most, whole / 6)))


def share_of_cpus(item: LaneItem, *, width: int, job: JobOrder) -> int | None:
    """Of an item of a packed job that uses `width` GPUs; None: nobody counts CPUs."""
    if job.cpus is None:
        return item.cpus
    whole = max(1, job.cpus)
    return min(whole, item.cpus or max(1, whole * width // job.gpus))


def read_job(path: Path) -> JobOrder:
    folder = JobFolder(path)
    value = read_json(folder.lanes)
    try:
        return JobOrder(
            folder=folder,
            python=str(value["python"]),
            cwd=Path(value["folder"]),
            backend=str(value["backend"]),
            limit_s=value["limit_s"],
            grace_s=float(value["grace_s"]),
            requeue=value["requeue"],
            lanes=tuple(_read_lane(lane, folder.runs) for lane in value["lanes"]),
            device=str(value.get("device", "cpu")),
            after=tuple(map(str, value.get("after", ()))),
            container=tuple(map(str, value.get("container", ()))),
            surplus_s=float(value.get("surplus_s", 0.0)),
            partition_grace_s=float(value.get("partition_grace_s", 0.0)),
            price_per_gpu_hour=value.get("price_per_gpu_hour"),
            gpus=count_gpus(value),
            cpus=None if value.get("cpus") is None else int(value["cpus"]),
            reserve_s=float(value.get("reserve_s", 0.0)),
            nodes=int(value.get("nodes", 1)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{folder.lanes} is damaged: {error!r}") from error


def _read_lane(value: dict[str, Any], runs: Path) -> LaneOrder:
    items = tuple(
        LaneItem(
            run=RunFolder(runs / item["run"]),
            until=item["until"],
            is_continued=bool(item["continued"]),
            number=None if item.get("id") is None else int(item["id"]),
            after=tuple(map(int, item.get("after", ()))),
            seconds=_number(item.get("seconds")),
            start_s=_number(item.get("start_s")),
            cpus=None if item.get("cpus") is None else int(item["cpus"]),
            trains_only=bool(item.get("trains_only", False)),
        )
        for item in value["items"]
    )
    return LaneOrder(gpus=tuple(value["gpus"]), items=items)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
