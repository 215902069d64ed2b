"""How long a step takes on a card that is not here: from its operations, bytes and a data sheet.

Pure. The time to compute plus the time to move bytes, or the time to launch everything where that
is longer; times a factor, since no step reaches a data sheet. The factor is assumed until a run on
such a card has told it, and so is the error bar; both are learnt from pairs of prediction and
measurement. A measured median of the same work is always better: times.py takes it first. Not seen:
waiting for data, exchange of gradients, torch.compile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasuki.estimation.gpus import Gpu
from tasuki.estimation.probes import Probe

LAUNCH_S = 8e-6
"""Of one operation, from Python to the card; the card works meanwhile."""
LAUNCH_CPU_S = 4e-6
"""The same on a CPU, which does nothing else meanwhile."""
START_FACTOR = 1.5
START_ERROR = 0.5
"""Together: between 0.75 and 2.25 times the data sheet's time."""
LEAST_ERROR = 0.1
"""One factor for all models of a card: 9 % off on average where it was tried, on CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How many times the data sheet's time a step takes on some kind of card."""

    factor: float = START_FACTOR
    error: float = START_ERROR
    """Relative half-width."""
    runs: int = 0
    """It was learnt from so many."""

    @property
    def source(self) -> str:
        if not self.runs:
            return f"× {self.factor:.2f}, assumed"
        return f"× {self.factor:.2f}, learnt from {self.runs} run{'s' if self.runs > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step, how sure, and from where."""

    seconds: float
    error: float
    """Relative half-width."""
    factor: float
    source: str


def step_time(
    *,
    flops: float,
    moved: float,
    ops: int,
    gpu: Gpu,
    precision: str,
    calibration: Calibration | None = None,
) -> StepTime | None:
    """None: the card's bandwidth or compute is not known."""
    rate = gpu.flops(precision)
    if rate is None or gpu.bandwidth is None:
        return None
    known = calibration or Calibration()
    per_second, units = rate
    work_s = flops / per_second + moved / gpu.bandwidth
    bare_s = work_s + ops * LAUNCH_CPU_S if gpu.is_cpu else max(work_s, ops * LAUNCH_S)
    in_units = precision if units == precision else f"{precision} in {units} units"
    return StepTime(
        seconds=bare_s * known.factor,
        error=known.error,
        factor=known.factor,
        source=f"roofline of {gpu.name} ({gpu.source}, {in_units}) {known.source}",
    )


def probed_step_time(
    probe: Probe,
    *,
    batch: float,
    size: int = 0,
    accumulation: int = 1,
    gpu: Gpu,
    precision: str,
    calibration: Calibration | None = None,
) -> StepTime | None:
    """Of a step of `accumulation` micro-batches of `batch` samples on average. The optimizer is
    counted as often as the traced step is repeated, which makes the step a little too long."""
    times = accumulation / probe.micro_batches
    return step_time(
        flops=times * max(0.0, probe.evaluate(probe.flops, batch=batch, size=size)),
        moved=times * max(0.0, probe.evaluate(probe.moved, batch=batch, size=size)),
        ops=round(times * probe.ops),
        gpu=gpu,
        precision=precision,
        calibration=calibration,
    )


def calibrate(pairs: Sequence[tuple[float, float]]) -> Calibration:
    """From (the data sheet's seconds, measured seconds) of past runs on one kind of card. Without
    any: what is assumed. The more runs, the narrower, but never narrower than they lie apart."""
    ratios = [measured / bare for bare, measured in pairs if bare > 0 and measured > 0]
    if not ratios:
        return Calibration()
    factor = median(ratios)
    apart = sorted(abs(ratio / factor - 1) for ratio in ratios)
    # Nine of ten: one run beside somebody else's job must not widen all that follows.
    spread = apart[math.ceil(0.9 * len(apart)) - 1]
    narrowed = LEAST_ERROR + (START_ERROR - LEAST_ERROR) / (1 + len(ratios))
    return Calibration(factor=factor, error=max(narrowed, spread), runs=len(ratios))
