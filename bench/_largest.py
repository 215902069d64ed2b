"""`largest`: the largest batch under a limit of memory, foretold and found by really trying.

Random cases of a fixed seed: a model, its width, the keys of its stage, a limit. The batch is
foretold from fake steps; passes that compute numbers on the way are counted. What is true is found
by real steps under `tasuki.testing.memory_cap`: at the foretold batch and at one more; where either
is not as foretold, by bisection. `BENCH_CASES` sets how many cases there are (200).
"""

from __future__ import annotations

import os
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

from tests.memory import library_models as libraries
from tests.memory import odd_models as odd
from tests.memory.models import Convolutions, Frozen, Graphs, Mlp, fit_of, stage_of

from _measure import print_table
from tasuki.data.loader import MicroBatch
from tasuki.estimation.memory import largest_tensor_batch
from tasuki.estimation.probes import read_probe
from tasuki.loop.ranks import ALONE
from tasuki.testing import memory_cap
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.footprint import tensors_in

SEED = 7
NUM_CASES = 200
MOST = 700
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
    {"fused": True},
    {"precision": "bf16", "clip": 0},
)


def measure() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = os.environ.get("BENCH_CASES", "")
    count = int(wanted) if wanted.isdecimal() else NUM_CASES
    draw = random.Random(SEED)
    cache: dict[Any, Any] = {}
    rows = [_case(draw, cache) for _ in range(count)]
    kinds = Counter(row["kind"] for row in rows)
    good = kinds["exact"] + kinds["one below"]
    return {
        "cases": rows,
        **dict(kinds),
        "share": good / max(1, len(rows)),
        "forward_steps": sum(row["forward_steps"] for row in rows),
    }


def _case(draw: random.Random, cache: dict[Any, Any]) -> dict[str, Any]:
    name = draw.choice(sorted(MODELS))
    make, widths = MODELS[name]
    width, which = draw.choice(widths), draw.randrange(len(OPTIONS))
    key = (name, width, which)
    recipe, stage = make(width), stage_of(**OPTIONS[which])
    counted = _Counted(recipe)
    if key not in cache:
        plain = fit_of(counted, stage).to_plain()
        cache[key] = read_probe({**plain, "key": "", "torch": "", "notes": []})
    probe = cache[key]
    meant = draw.randint(8, MOST // 2)
    low, high = (probe.peak(batch=b, size=0) for b in (meant, meant + 1))
    cap = draw.randint(low, max(low, high))
    foretold = largest_tensor_batch(probe, capacity=cap)
    true = _truth(recipe, stage, cap, foretold)
    kind = {0: "exact", -1: "one below"}.get(foretold - true, "too large")
    if foretold < true - 1:
        kind = "too small"
    return {
        "model": name,
        "width": width,
        "keys": OPTIONS[which],
        "cap": cap,
        "foretold": foretold,
        "true": true,
        "kind": kind,
        "forward_steps": counted.forward_steps,
    }


class _Counted:
    """Counts the passes that compute numbers."""

    def __init__(self, recipe: Any) -> None:
        self._recipe, self.forward_steps = recipe, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recipe, name)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.forward_steps += not isinstance(next(model.parameters()), FakeTensor)
        return self._recipe.loss(model, batch)


def _truth(recipe: Any, stage: Any, cap: int, foretold: int) -> int:
    """Really tried."""
    fits_it = foretold > 0 and _fits(recipe, stage, cap, foretold)
    if fits_it and not _fits(recipe, stage, cap, foretold + 1):
        return foretold
    low, high = (foretold + 1, 4 * MOST) if fits_it else (0, max(1, foretold))
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


def show(found: dict[str, Any]) -> None:
    kinds = ("exact", "one below", "too large", "too small")
    print_table(
        "Largest batch under a limit, foretold and really tried",
        ["model", "cases", *kinds],
        [
            [name, str(len(rows)), *(str(sum(r["kind"] == k for r in rows)) for k in kinds)]
            for name in sorted({row["model"] for row in found["cases"]})
            if (rows := [row for row in found["cases"] if row["model"] == name])
        ],
    )
    print(
        f"\nexact or one below in {found['share']:.1%} of {len(found['cases'])} cases; "
        f"real forward steps to foretell: {found['forward_steps']}"
    )
