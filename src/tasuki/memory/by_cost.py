"""The memory of a step by what its micro-batch costs: traced with real samples of the stage's data.

Two probes, whose `batch` is a cost: of micro-batches filled with the dearest samples and with even
ones (data/worst.py). Each is a line through two of them, traced at the budget where one is given,
else at a rank's whole share of a step; two more traces, one far beyond, tell whether it holds. What
cannot be traced is measured with small ones, where the order allows it (measured.py). What a budget
then takes is estimation/by_cost.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasuki.data.fetch import Request
from tasuki.data.order import Order
from tasuki.data.worst import WorstBatches
from tasuki.loop.exact import apply_settings
from tasuki.memory.bounded import Untraceable
from tasuki.memory.child import MOST_BYTES, Traced, origin, plain_cause, real_steps
from tasuki.memory.fit import Fit, Point, fit_line
from tasuki.memory.measured import Unmeasured, Wanted, measured_instead
from tasuki.spec.resolved import ResolvedStage
from tasuki.subprocesses import ProgressCallback
from tasuki.train.data import StageData
from tasuki.train.footprint import count_bytes, tensors_in

_FAR, _NEAR = 8, 2
_DEAREST = 4
"""So many times the dearest sample is the most that a real micro-batch costs."""
Fill = Callable[[int], tuple[list[int], int]]
Batch = tuple[list[int], int]
"""Samples, and what they cost together."""


def worst_of(data: StageData) -> WorstBatches:
    """Of a stage with costs."""
    assert isinstance(data.order, Order) and data.split.costs is not None
    return WorstBatches(
        data.split.costs,
        data.order.plan,
        batch=data.batch.effective_batch,
        world=data.split.world,
    )


def probe_by_cost(
    recipe: Any,
    stage: ResolvedStage,
    data: StageData,
    order: dict[str, Any],
    progress: ProgressCallback,
) -> dict[str, Any]:
    """{"probe", "small": probe files | null, "untraced", "unmeasured"}; `order` as child.py has
    it."""
    apply_settings(threads=1, exact=stage.exact)
    known = {"probe": None, "small": None, "untraced": None, "unmeasured": None}
    try:
        return {**known, **_traced(recipe, stage, data, order, progress)}
    except Untraceable as error:
        known |= {"untraced": plain_cause(error)}  # type: ignore[dict-item]
        if not order.get("may_measure", False) or not worst_of(data).dearest:
            return known
        try:
            return {**known, **_measured(recipe, stage, data, error, order, progress)}
        except Unmeasured as trouble:
            return {**known, "unmeasured": trouble.message}


def _measured(
    recipe: Any,
    stage: ResolvedStage,
    data: StageData,
    error: Untraceable,
    order: dict[str, Any],
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Small micro-batches, as real ones take time: of the dearest samples and of even ones."""
    worst = worst_of(data)
    steps = real_steps(recipe, stage, order, progress)
    most = min(worst.whole, stage.buckets.given_budget or worst.whole)
    budget = max(min(most, _DEAREST * worst.dearest), worst.dearest)
    about, found = origin(recipe, stage, order), {}
    for name, fill, low in (
        ("probe", worst.of_large, 1),
        ("small", worst.of_small, max(1, budget // 2)),
    ):
        first, last, middle, _ = _points(fill, low=low, high=budget)
        points = [first, middle, last]
        watched = steps.watch([_later(data, one) for one in points])
        low_trace, *others, high_trace = watched.traces
        line = fit_line(low_trace, high_trace, held_back=others)
        plain = watched.plain(line, measured_instead(error))
        found[name] = {**plain, **about, "unit": "cost"}
    return found


def _later(data: StageData, batch: Batch) -> Wanted:
    return (batch[1], 0), lambda: _fetched(data, batch)[1]


def _traced(
    recipe: Any,
    stage: ResolvedStage,
    data: StageData,
    order: dict[str, Any],
    progress: ProgressCallback,
) -> dict[str, Any]:
    worst = worst_of(data)
    if not worst.dearest:
        raise Untraceable("cost", "no sample costs anything")
    budget = min(worst.whole, stage.buckets.given_budget or worst.whole)
    chosen = [
        *_points(worst.of_large, low=1, high=budget),
        *_points(worst.of_small, low=max(1, budget // 2), high=budget),
    ]
    wanted = [_fetched(data, one) for one in chosen]
    for place in (3, 7):
        samples, cost = chosen[place - 2]
        is_far = _FAR * count_bytes(tensors_in(wanted[place - 2][1])) <= MOST_BYTES
        times = _FAR if is_far else _NEAR
        wanted[place] = _fetched(data, (times * samples, times * cost))
    traced = Traced(recipe, stage, None, device=order["device"], ranks=int(order["ranks"]))
    large, small = _fits(traced, wanted, progress, times=1)
    if not (large.is_exact and small.is_exact):
        large, small = _fits(traced, wanted, progress, times=2)
    about = origin(recipe, stage, order)
    return {
        name: {**one.to_plain(), **about, "unit": "cost", "notes": _notes(one, traced)}
        for name, one in (("probe", large), ("small", small))
    }


def _points(fill: Fill, *, low: int, high: int) -> list[Batch]:
    """The two of a line, and between them and beyond; of one that cannot be filled up, many."""
    first, last = fill(low), fill(high)
    if first[1] >= last[1]:
        samples, cost = last if last[1] else fill(high + 1)
        first, middle, last = ((n * samples, n * cost) for n in (1, 2, 3))
    else:
        middle = fill((first[1] + last[1]) // 2)
    return [first, last, middle, last]


def _fetched(data: StageData, batch: Batch) -> tuple[Point, Any]:
    samples, cost = batch
    seeds = [0] * len(samples) if data.fetcher.is_seeded else None
    return (cost, 0), data.fetcher(Request(samples, seeds))


def _fits(
    traced: Traced, wanted: list[tuple[Point, Any]], progress: ProgressCallback, *, times: int
) -> tuple[Fit, Fit]:
    traces = traced.traces_of(wanted, progress, times=times)
    (low, high, *others), (less, more, *rest) = traces[:4], traces[4:]
    return fit_line(low, high, held_back=others), fit_line(less, more, held_back=rest)


def _notes(one: Fit, traced: Traced) -> list[str]:
    if one.is_exact:
        return traced.all_notes()
    why = f"memory does not go by cost alone ({one.reason}): "
    return [f"{why}the figures lie on a line above all traces", *traced.all_notes()]
