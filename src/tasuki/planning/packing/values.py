"""What is packed, where, and the result: items, a pool of GPUs, a schedule that checks itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tasuki.errors import PlanError

KINDS = ("train", "evaluate")
_MOST_SECONDS = 1e10
"""Three centuries."""


class ItemId(NamedTuple):
    experiment: str
    stage: str
    kind: str = "train"

    def __str__(self) -> str:
        return f"{self.experiment}/{self.stage}" + ("" if self.kind == "train" else f":{self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Work that runs in one piece, on GPUs of one node."""

    experiment: str
    stage: str
    kind: str = "train"
    gpus: int = 1
    seconds: float
    cpus: int = 0
    """0: it does not count CPUs."""
    after: tuple[ItemId, ...] = ()
    """What must have ended before: the stage before it, or the stage it starts from."""

    @property
    def id(self) -> ItemId:
        return ItemId(self.experiment, self.stage, self.kind)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError(f"{self.id}: kind `{self.kind}` is none of {', '.join(KINDS)}")
        if not _is_count(self.gpus) or self.gpus < 1:
            raise PlanError(
                f"{self.id} asks for {self.gpus!r} GPUs", hint="ask for a whole number from 1 on"
            )
        if not _is_count(self.cpus) or self.cpus < 0:
            raise PlanError(
                f"{self.id} asks for {self.cpus!r} CPUs", hint="ask for a whole number from 0 on"
            )
        if not 0 < self.seconds <= _MOST_SECONDS:  # nor NaN
            raise PlanError(
                f"{self.id} is said to take {self.seconds:g} seconds",
                hint="give a time above 0 and below 300 years (`expect: {wall: 2h}`), or leave out "
                "what is done",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that are alike, of one allocation or of several that run at the same time."""

    gpus_per_node: int
    num_nodes: int = 1
    cpus_per_node: int | None = None
    """None: CPUs are not counted."""

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    def __post_init__(self) -> None:
        for name in ("num_nodes", "gpus_per_node", "cpus_per_node"):
            number = getattr(self, name)
            if name == "cpus_per_node" and number is None:
                continue
            if not _is_count(number) or number < 1:
                raise PlanError(
                    f"nothing can be packed on a pool with {name} {number!r}",
                    hint="a pool has at least one node with at least one GPU; a job without GPUs "
                    "counts its slots instead",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """When and where an item runs."""

    item: Item
    start_s: float
    end_s: float
    node: int
    gpus: tuple[int, ...]
    """Indices on the node, ascending."""

    @property
    def id(self) -> ItemId:
        return self.item.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Every item once, in order of start."""

    pool: Pool
    placements: tuple[Placement, ...]
    lower_bound_s: float
    """No schedule of these items on this pool is shorter."""
    reasons: tuple[str, ...] = ()
    """How it was found, and what bounds it."""

    @property
    def makespan_s(self) -> float:
        return max((placed.end_s for placed in self.placements), default=0.0)

    @property
    def gap(self) -> float:
        """How far the makespan is above the lower bound, as a share of the bound."""
        return self.makespan_s / self.lower_bound_s - 1 if self.placements else 0.0

    @property
    def is_optimal(self) -> bool:
        """Proved: the lower bound is reached."""
        return self.makespan_s <= self.lower_bound_s

    def of(self, item: ItemId) -> Placement:
        return next(placed for placed in self.placements if placed.id == item)

    def __post_init__(self) -> None:
        order = [(placed.start_s, placed.id) for placed in self.placements]
        _demand(order == sorted(order), "placements are in order of start")
        if self.placements:
            _demand(0 < self.lower_bound_s <= self.makespan_s, "a lower bound is one")
        _check_dependencies(self.placements)
        for node in range(self.pool.num_nodes):
            _check_node(self.pool, [p for p in self.placements if p.node == node])
        _demand(
            all(0 <= placed.node < self.pool.num_nodes for placed in self.placements),
            "every item lies on a node of the pool",
        )


def _check_dependencies(placements: Sequence[Placement]) -> None:
    ends = {placed.id: placed.end_s for placed in placements}
    _demand(len(ends) == len(placements), "every item is placed once")
    for placed in placements:
        _demand(placed.start_s >= 0 and placed.end_s > placed.start_s, "times go forward")
        _demand(
            all(ends.get(before, math.inf) <= placed.start_s for before in placed.item.after),
            f"{placed.id} starts after what it depends on",
        )


def _check_node(pool: Pool, placements: Sequence[Placement]) -> None:
    """GPUs are used once at a time; CPUs are not oversubscribed."""
    free_at = [0.0] * pool.gpus_per_node
    changes: list[tuple[float, int]] = []
    for placed in placements:
        own = set(placed.gpus)
        _demand(
            len(own) == len(placed.gpus) == placed.item.gpus and own <= set(range(len(free_at))),
            f"{placed.id} has its GPUs",
        )
        _demand(all(free_at[gpu] <= placed.start_s for gpu in own), f"{placed.id} has them alone")
        for gpu in own:
            free_at[gpu] = placed.end_s
        changes += [(placed.start_s, placed.item.cpus), (placed.end_s, -placed.item.cpus)]
    if pool.cpus_per_node is not None:
        used = 0
        for _, change in sorted(changes):
            used += change
            _demand(used <= pool.cpus_per_node, "CPUs are not oversubscribed")


def _demand(holds: bool, what: str) -> None:
    """Schedules are made by this package alone: one that breaks its promises is a bug of ours."""
    if not holds:
        raise AssertionError(f"a schedule in which it does not hold that {what}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
