"""`peaks`: the peak of a step's tensors, predicted from small fake steps, against the real step.

For each model and option: the peak predicted from fake steps of batches up to 5 (lengths up to 48),
checked at one of 56, for a batch 8 to 400 times as large. The real step there runs on a CPU and is
measured by the same tracker and by torch's profiler. The profiler also counts what a kernel takes
inside and gives back, which is not a tensor: convolutions on a CPU take much, and mixed formats (a
mask times floats) are cast there first. Such cases are named "inside" and judged by the tracker
alone. A part of memory.py.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.memory import library_models as libraries
from tests.unit.memory import odd_models as odd
from tests.unit.memory.models import (
    Convolutions,
    Frozen,
    Gpt,
    Graphs,
    Mlp,
    fit_of,
    profiled_peak,
    stage_of,
    traces_of,
)

from _measure import Figure, print_table, sized

BF16 = {"precision": "bf16"}
AGAIN = {"gradient_checkpointing": True}
MANY, SOME, FEW = (2048, 0), (512, 0), (64, 0)
LONGER = (24, 384)
CASES: dict[str, tuple[Any, dict[str, Any], int, tuple[int, int]]] = {
    "mlp": (Mlp(512), {}, 1, MANY),
    "mlp, bf16": (Mlp(512), BF16, 1, MANY),
    "mlp, 2 micro-batches": (Mlp(512), {}, 2, MANY),
    "mlp, mostly frozen": (Frozen(512), {}, 1, MANY),
    "mlp, own autograd function": (odd.OwnFunction(256), {}, 1, MANY),
    "contrastive": (odd.Contrastive(128), {}, 1, SOME),
    "gradients per sample": (odd.Functional(32), {}, 1, SOME),
    "torch's transformer": (odd.Encoder(64), {}, 1, SOME),
    "convolutions (inside)": (Convolutions(32), {}, 1, FEW),
    "convolutions, bf16, checkpointed (inside)": (Convolutions(32), {**BF16, **AGAIN}, 1, FEW),
    "u-net (inside)": (odd.UNet(16), {}, 1, FEW),
    "message passing": (Graphs(256), {}, 1, MANY),
    "gcn": (libraries.Gcn(64), {}, 1, SOME),
    "gat": (libraries.Gat(64), {}, 1, SOME),
    "gin (inside)": (libraries.Gin(64), {}, 1, SOME),
    "gpt": (Gpt(width=64, tokens=512), {}, 1, LONGER),
    "gpt, dropout": (Gpt(width=64, tokens=512, dropout=0.1), {}, 1, LONGER),
    "gpt, fused attention": (Gpt(width=64, tokens=512, is_fused=True), {}, 1, LONGER),
    "gpt, bf16": (Gpt(width=64, tokens=512), BF16, 1, LONGER),
    "gpt, checkpointed": (Gpt(width=64, tokens=512), AGAIN, 1, LONGER),
    "hf gpt-2": (libraries.Gpt2(width=64), {}, 1, SOME),
    "hf gpt-2, checkpointed": (libraries.Gpt2(width=64), AGAIN, 2, SOME),
    "hf llama, fused attention": (libraries.Llama(width=64, attention="sdpa"), {}, 1, SOME),
    "hf bert": (libraries.Bert(width=64), {}, 1, SOME),
    "hf gpt-2 with lora": (libraries.Lora(width=64), {}, 1, SOME),
}
"""Recipe, keys of its stage, micro-batches, and batch and size of the real step."""
NAMES = sized(tuple(CASES), smoke=("mlp", "gpt"))


def measure(_: Path) -> list[Figure]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    errors = {name: _errors(name) for name in NAMES}
    print_table(
        "Predicted peak of a step's tensors against the real one",
        ["model", "by the same tracker", "by torch's profiler"],
        [[name, *(f"{error:+.4%}" for error in pair)] for name, pair in errors.items()],
    )
    by_tracker = [abs(error) for error, _ in errors.values()]
    by_profiler = [abs(error) for name, (_, error) in errors.items() if "inside" not in name]
    what = "predicted peak of a step's tensors: largest error of"
    return [
        Figure(f"{what} {len(by_tracker)}", "the same tracker", f"{max(by_tracker):.4%}", unit=""),
        Figure(
            f"{what} {len(by_profiler)}", "torch's profiler", f"{max(by_profiler):.4%}", unit=""
        ),
    ]


def _errors(name: str) -> tuple[float, float]:
    """Relative to the real peak, by the tracker and by the profiler."""
    recipe, keys, accumulation, point = CASES[name]
    stage = stage_of(**keys)
    predicted = fit_of(recipe, stage, accumulation=accumulation).peak(*point)
    [real] = traces_of(recipe, stage, [point], is_fake=False, accumulation=accumulation)
    profiled = profiled_peak(recipe, stage, point, accumulation=accumulation)
    print(f"  {name}: {predicted / real.peak - 1:+.4%}", file=sys.stderr, flush=True)
    return predicted / real.peak - 1, predicted / profiled - 1
