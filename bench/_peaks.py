"""`peaks`: the peak of a step's tensors, foretold from small fake steps, beside the real step.

For each model and option: the peak that is foretold from fake steps of batches up to 5 (lengths up
to 48), checked at one of 56, for a batch 8 to 400 times as large; the peak of the real step there
on a CPU, by the same tracker and by torch's own profiler; how far the first is from both. The
profiler also counts what a kernel takes inside and gives back, which is no tensor: a CPU's
convolutions take much, and mixed formats (a mask times floats, in the gradient of a largest entry)
are cast there first. So such cases say "inside" and are judged by the tracker alone; their row
shows the profiler's difference all the same, and nothing is taken off others.
`BENCH_CASES=gpt` takes the cases with this word in their name.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.memory import library_models as libraries
from tests.memory import odd_models as odd
from tests.memory.models import (
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

from _measure import print_table

BF16 = {"precision": "bf16"}
AGAIN = {"gradient_checkpointing": True}
MANY, SOME, FEW = (2048, 0), (512, 0), (64, 0)
LONGER = (24, 384)
CASES: dict[str, tuple[Any, dict[str, Any], int, tuple[int, int]]] = {
    "mlp": (Mlp(512), {}, 1, MANY),
    "mlp, fused": (Mlp(512), {"fused": True}, 1, MANY),
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
"""Recipe, keys of its stage, micro-batches, and where the real step is."""
MIB = 1 << 20


def measure() -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = os.environ.get("BENCH_CASES", "")
    found = {}
    for name in CASES:
        if wanted in name:
            found[name] = _measure(name)
            print(f"  {name}: {found[name]['error']:+.4%}", file=sys.stderr, flush=True)
    return found


def _measure(name: str) -> dict[str, Any]:
    recipe, keys, accumulation, point = CASES[name]
    stage = stage_of(**keys)
    began = time.process_time()
    fitted = fit_of(recipe, stage, accumulation=accumulation)
    took = time.process_time() - began
    [real] = traces_of(recipe, stage, [point], is_fake=False, accumulation=accumulation)
    profiled = profiled_peak(recipe, stage, point, accumulation=accumulation)
    foretold = fitted.peak(*point)
    return {
        "is_exact": fitted.is_exact,
        "foretold": foretold,
        "real": real.peak,
        "profiled": profiled,
        "error": foretold / real.peak - 1,
        "error_of_profiler": foretold / profiled - 1,
        "cpu_s": took,
    }


def show(found: dict[str, Any]) -> None:
    print_table(
        "Peak of a step's tensors, foretold and real",
        ["model", "foretold MiB", "real MiB", "error", "by torch.profiler", "CPU s"],
        [
            [
                name if row["is_exact"] else f"{name} (not exact)",
                f"{row['foretold'] / MIB:.2f}",
                f"{row['real'] / MIB:.2f}",
                f"{row['error']:+.4%}",
                f"{row['error_of_profiler']:+.4%}",
                f"{row['cpu_s']:.1f}",
            ]
            for name, row in found.items()
        ],
    )
    worst = max((abs(row["error"]) for row in found.values()), default=0.0)
    judged = [abs(r["error_of_profiler"]) for n, r in found.items() if "inside" not in n]
    print(
        f"\n{len(found)} cases: at most {worst:.4%} from the same tracker, "
        f"{max(judged, default=0.0):.4%} from the profiler ({len(judged)} not marked)"
    )
