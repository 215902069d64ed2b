"""Where a step cannot be traced: real ones, of a few small batches, watched.

On a CPU the tracker looks at real tensors, so that a fit is as good as that of a trace. On a GPU
its allocator tells the most that tensors took, and nothing of what they were for: a curve through
peaks. Where a GPU is meant and none is here, steps are a CPU's, and a note says so. Takes the time
and the memory of real steps. Called by child.py, when it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tasuki.answers import Told
from tasuki.data.loader import MicroBatch
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.probe.batches import Points
from tasuki.train.probe.fit import Fit, Point, fit
from tasuki.train.probe.steps import Device, opened
from tasuki.train.probe.trace import Event, Trace
from tasuki.train.ranks import ALONE

DataAt = Callable[[int, int], Any]
_TOTAL_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Measured:
    fit: Fit
    notes: tuple[str, ...]


def measure(
    recipe: Any,
    stage: ResolvedStage,
    data_at: DataAt,
    points: Points,
    *,
    device: Device,
    accumulates: bool,
    told: Told,
) -> Measured:
    """Steps at all points but the far one: what is real takes memory."""
    wanted = [*points.used, points.near]
    accumulation = 2 if accumulates else 1
    if device == "cuda" and torch.cuda.is_available():
        peaks = _on_gpu(recipe, stage, data_at, wanted, accumulation=accumulation, told=told)
        note = "measured by real steps on this GPU: a curve through their peaks"
    else:
        peaks = _on_cpu(recipe, stage, data_at, wanted, accumulation=accumulation, told=told)
        there = ", as no GPU is here; one keeps other tensors" if device == "cuda" else ""
        note = f"measured by real steps on this CPU{there}"
    *used, held_back = peaks
    found = fit(used, held_back=held_back)
    differs = () if found.is_exact else (f"steps of different batches differ: {found.reason}",)
    return Measured(found, (note, *differs))


def _on_cpu(
    recipe: Any,
    stage: ResolvedStage,
    data_at: DataAt,
    points: Sequence[Point],
    *,
    accumulation: int,
    told: Told,
) -> list[Trace]:
    """Two steps at each point: the first makes what is kept from one step to the next."""
    found = []
    with opened(recipe, stage, device="cpu", is_fake=False) as traced:
        for number, (batch, size) in enumerate(points):
            told.progress("measured probe", number, len(points))
            data = data_at(batch, size)
            for _ in range(2):
                trace = traced.trace(data, batch=batch, size=size, accumulation=accumulation)
            del data
            found.append(trace)
    return found


def _on_gpu(
    recipe: Any,
    stage: ResolvedStage,
    data_at: DataAt,
    points: Sequence[Point],
    *,
    accumulation: int,
    told: Told,
) -> list[Trace]:
    """One storage stands for all that was there at the peak."""
    device = torch.device("cuda", torch.cuda.current_device())
    assembled = assemble(recipe, stage, device=device, total_steps=_TOTAL_STEPS, say=lambda _: None)
    engine = make_engine(
        recipe, stage, assembled, ranks=ALONE, device=device, num_shapes=None, say=lambda _: None
    )
    found = []
    for number, (batch, size) in enumerate(points):
        told.progress("measured probe", number, len(points))
        data = data_at(batch, size)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats(device)
            engine.window.entries.clear()
            engine.step(iter([MicroBatch(data, batch)] * accumulation), batch * accumulation)
        peak = torch.cuda.max_memory_allocated(device)
        found.append(_one_storage(batch, size, peak, number))
    return found


def _one_storage(batch: int, size: int, peak: int, number: int) -> Trace:
    """Of different numbers of events, so that nobody takes a peak for an allocation that grows
    evenly: peaks do not."""
    return Trace(
        batch=batch,
        size=size,
        begin=0,
        events=(Event(1, peak), *(Event(n, 0) for n in range(2, number + 3))),
        kinds=("activations", *["other"] * (number + 1)),  # type: ignore[arg-type]
    )
