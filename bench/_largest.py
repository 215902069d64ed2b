"""`largest`: the largest batch under a limit of memory, predicted and tried with real steps.

Random cases of a fixed seed: a model, its width, the keys of its stage, a limit. The batch is
predicted from fake steps; forward passes that compute numbers are counted. The truth comes from
real steps under `tasuki.testing.memory_cap`: at the predicted batch and at one more. Where either
is not as predicted, bisection finds it. `BENCH_CASES` sets the number of cases. Part of memory.py.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.memory import library_models as libraries
from tests.unit.memory import odd_models as odd
from tests.unit.memory.models import Convolutions, Frozen, Graphs, Mlp, fit_of, stage_of

from _measure import Figure, sized
from tasuki.data.loader import MicroBatch
from tasuki.estimation.memory import MOST_BATCH, largest_by
from tasuki.estimation.probes import read_probe
from tasuki.loop.ranks import ALONE
from tasuki.testing import memory_cap
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.footprint import tensors_in

SEED = 7
NUM_CASES = sized(200, smoke=2, variable="BENCH_CASES")
MAX_BATCH = 700
"""Samples: a real step must be quick."""
CPU = torch.device("cpu")
MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (Mlp, (16, 24, 48, 96)),
    "frozen": (Frozen, (24, 64)),
    "contrastive": (odd.Contrastive, (16, 48)),
    "tied": (odd.Tied, (24, 48)),
    "teacher": (odd.TwoModels, (16, 32)),
    "encoder": (odd.Encoder, (16, 24)),
    "convolutions": (Convolutions, (4, 6)),
    "u-net": (odd.UNet, (4, 6)),
    "message passing": (Graphs, (16, 32)),
    "gcn": (libraries.Gcn, (16, 24)),
    "gat": (libraries.Gat, (16, 24)),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "bf16"},
    {"precision": "bf16", "clip": 0},
)


def measure(_: Path) -> list[Figure]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    draw = random.Random(SEED)
    probes: dict[Any, Any] = {}
    results = [_run_case(draw, probes) for _ in range(NUM_CASES)]
    kinds = Counter(_kind(predicted - true) for predicted, true, _ in results)
    what = f"largest batch under a limit, {NUM_CASES} cases"
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    steps = sum(num_steps for *_, num_steps in results)
    return [
        Figure(what, "real steps under it", counts, unit=""),
        Figure("… real forward steps to predict it", "", float(steps), unit="", digits=0),
    ]


def _kind(difference: int) -> str:
    if difference > 0:
        return "too large"
    return {0: "exact", -1: "one below"}.get(difference, "too small")


def _run_case(draw: random.Random, probes: dict[Any, Any]) -> tuple[int, int, int]:
    """The batch as predicted, as it is, and the real forward steps of the prediction."""
    name = draw.choice(sorted(MODELS))
    make, widths = MODELS[name]
    width, which = draw.choice(widths), draw.randrange(len(OPTIONS))
    recipe, stage = make(width), stage_of(**OPTIONS[which])
    counted = _Counted(recipe)
    key = (name, width, which)
    if key not in probes:
        plain = fit_of(counted, stage).to_plain()
        probes[key] = read_probe({**plain, "key": "", "torch": "", "notes": []})
    probe = probes[key]
    batch = draw.randint(8, MAX_BATCH // 2)
    low, high = (probe.peak(batch=b, size=0) for b in (batch, batch + 1))
    cap = draw.randint(low, max(low, high))
    predicted = largest_by(lambda batch: probe.peak(batch=batch, size=0) <= cap, most=MOST_BATCH)
    return predicted, _truth(recipe, stage, cap, predicted), counted.forward_steps


class _Counted:
    """Counts the passes that compute numbers."""

    def __init__(self, recipe: Any) -> None:
        self._recipe, self.forward_steps = recipe, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recipe, name)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.forward_steps += not isinstance(next(model.parameters()), FakeTensor)
        return self._recipe.loss(model, batch)


def _truth(recipe: Any, stage: Any, cap: int, predicted: int) -> int:
    """The largest batch of which a real step fits."""
    fits = predicted > 0 and _fits(recipe, stage, cap, predicted)
    if fits and not _fits(recipe, stage, cap, predicted + 1):
        return predicted
    low, high = (predicted + 1, 4 * MAX_BATCH) if fits else (0, max(1, predicted))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(recipe, stage, cap, middle) else (low, middle)
    return low


def _fits(recipe: Any, stage: Any, cap: int, batch: int) -> bool:
    """Two steps: the second one has the optimizer's states from its beginning."""
    assembled = assemble(recipe, stage, device=CPU, total_steps=9, say=str)
    engine = make_engine(recipe, stage, assembled, ranks=ALONE, device=CPU, num_shapes=1, say=str)
    data = recipe.batch(batch)
    engine.step(iter([MicroBatch(recipe.batch(2), 2)]), 2)  # states, which count from now on
    engine.window.entries.clear()
    states = tensors_in(dict(assembled.tracked.optimizer.state))
    try:
        with memory_cap(cap, assembled.model, *states, *tensors_in(data)):
            engine.step(iter([MicroBatch(data, batch)]), batch)
    except torch.OutOfMemoryError:
        return False
    return True
