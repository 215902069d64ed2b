"""Plans made by hand, for what shows them; packed ones by the packer itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.planning.packing.lanes import lanes_of
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.values import Item, Placement, Pool
from tasuki.planning.values import Job, Lane, Piece, Plan

MINUTES: Mapping[str, Sequence[int]] = {
    "exp1": [75],
    "exp2": [120],
    "exp3": [40, 35, 40],
    "exp4": [50, 55],
    "exp5": [65],
}
EVALUATIONS = {"exp1": 18, "exp2": 22, "exp3": 20, "exp4": 17, "exp5": 16}


def piece(experiment: str = "e", stage: str = "s", kind: str = "train", **more: Any) -> Piece:
    trains = kind == "train"
    values = {
        "from_step": 0 if trains else None,
        "to_step": 1200 if trains else None,
        "micro_batch": 4,
        "accumulation": 4,
        "effective_batch": 16,
        "gradient_checkpointing": False,
        "expected_s": 600.0,
        "peak_bytes": 31_000_000_000,
        "source": "given",
    }
    return Piece(experiment=experiment, stage=stage, kind=kind, **{**values, **more})


def job(*lanes: tuple[Sequence[int], Sequence[Piece]], **more: Any) -> Job:
    values = {
        "name": "p-1a2b3c-01",
        "after": (),
        "limit_s": 21600.0,
        "expected_s": None,
        "reserve_s": 60.0,
        "gpus": 1 + max(gpu for gpus, _ in lanes for gpu in gpus),
        "cpus": 8,
        "host_bytes": None,
        "lanes": tuple(Lane(gpus=tuple(gpus), stages=tuple(pieces)) for gpus, pieces in lanes),
    }
    return Job(**{**values, **more})


def plan(*jobs: Job, **more: Any) -> dict[str, Any]:
    """As `plan --json` prints it."""
    unknown = dict.fromkeys(("makespan_s", "lower_bound_s", "gap", "optimal", "cost"))
    return Plan(**{"id": "p-1a2b3c", "jobs": jobs, **unknown, **more}).as_json()


def five_items() -> list[Item]:
    """1 to 2 hours of training each, in eight stages; evaluated in 93 minutes in all."""
    items: list[Item] = []
    for name, lengths in MINUTES.items():
        for number, length in enumerate(lengths, 1):
            after = (items[-1].id,) if number > 1 else ()
            items.append(
                Item(experiment=name, stage=f"stage{number}", seconds=60 * length, after=after)
            )
        last = items[-1]
        items.append(
            Item(
                experiment=name,
                stage=last.stage,
                kind="evaluate",
                seconds=60 * EVALUATIONS[name],
                after=(last.id,),
            )
        )
    return items


def packed(items: Sequence[Item], *, gpus: int, **more: Any) -> dict[str, Any]:
    """The packer's schedule as one job."""
    schedule = pack(items, Pool(gpus_per_node=gpus))
    used_s = sum(p.item.gpus * (p.end_s - p.start_s) for p in schedule.placements)
    lanes = [(lane.gpus, [_placed(e.placed) for e in lane.entries]) for lane in lanes_of(schedule)]
    one = job(
        *lanes,
        gpus=gpus,
        start_s=0.0,
        expected_s=schedule.makespan_s,
        useful=used_s / (gpus * schedule.makespan_s),
        limit_s=more.pop("limit_s", 21600.0),
    )
    figures = {
        "makespan_s": schedule.makespan_s,
        "lower_bound_s": schedule.lower_bound_s,
        "gap": schedule.gap,
        "optimal": schedule.is_optimal,
        "gpu_hours": schedule.makespan_s * gpus / 3600,
        "reasons": schedule.reasons,
    }
    return plan(one, **{**figures, **more})


def _placed(placed: Placement) -> Piece:
    item = placed.item
    return piece(
        item.experiment,
        item.stage,
        item.kind,
        expected_s=item.seconds,
        start_s=placed.start_s,
        cpus=item.cpus or None,
    )


def five(**more: Any) -> dict[str, Any]:
    """Five experiments on four GPUs inside six hours."""
    return packed(five_items(), gpus=4, **{"deadline_s": 21600.0, **more})


def many_lanes(num: int) -> dict[str, Any]:
    pieces = [piece(f"e{n}", expected_s=60.0 * (n % 7 + 1), start_s=0.0) for n in range(num)]
    return plan(job(*(((n,), [one]) for n, one in enumerate(pieces)), start_s=0.0))
