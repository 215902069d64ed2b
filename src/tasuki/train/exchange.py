"""How long a step waits for the gradients of the other ranks, measured before any state.

A pass alone and the same pass with the exchange, by turns, after DDP has settled: the difference is
what the exchange adds, less what hides behind the backward pass, with the wait for slower ranks.
What it does to model and random numbers is undone by the restore that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from tasuki.clock import Clock
from tasuki.train.engine import StepEngine

_ROUNDS = 3
_QUICK_S = 0.5
"""Passes that take longer are measured once."""


def measure_exchange(
    engine: StepEngine, batch: Any, *, device: torch.device, clock: Clock
) -> float:
    """Seconds of a step, the same number of passes on every rank."""

    def time(do: Callable[[Any], None]) -> float:
        dist.barrier()
        _finish(device)
        began = clock.monotonic()
        do(batch)
        _finish(device)
        return clock.monotonic() - began

    rounds = [(time(engine.try_alone), time(engine.try_together))]
    slowest = torch.tensor(sum(rounds[0]), dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if float(slowest) < _QUICK_S:
        rounds += [(time(engine.try_alone), time(engine.try_together)) for _ in range(_ROUNDS - 1)]
    engine.forget()
    return max(0.0, median(together - alone for alone, together in rounds))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
