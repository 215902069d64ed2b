"""Is the memory of a step what a memory probe foretells?

Run as `python bench/memory.py`; some minutes on one core. For each model and option: the peak that
is foretold from a few small fake steps (batches up to 5, lengths up to 48) for a far larger batch;
the peak of the real step there on a CPU, by the same tracker and by torch's own profiler; how far
the first is from both; CPU seconds of the probe. A CPU's convolutions take scratch memory inside,
which the profiler counts and which is no tensor: there only the first error means something.
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

from tests.train.probe.models import (
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

from _measure import machine_facts, print_facts, print_table, write_results

BF16 = {"precision": "bf16"}
ANEW = {"gradient_checkpointing": True}
CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "mlp": (Mlp(512), {}, 1),
    "mlp, fused": (Mlp(512), {"fused": True}, 1),
    "mlp, bf16": (Mlp(512), BF16, 1),
    "mlp, 2 micro-batches": (Mlp(512), {}, 2),
    "mlp, mostly frozen": (Frozen(512), {}, 1),
    "convolutions": (Convolutions(32), {}, 1),
    "convolutions, bf16, checkpointed": (Convolutions(32), {**BF16, **ANEW}, 1),
    "message passing": (Graphs(256), {}, 1),
    "gpt": (Gpt(width=64, tokens=512), {}, 1),
    "gpt, dropout": (Gpt(width=64, tokens=512, dropout=0.1), {}, 1),
    "gpt, fused attention": (Gpt(width=64, tokens=512, is_fused=True), {}, 1),
    "gpt, bf16": (Gpt(width=64, tokens=512), BF16, 1),
    "gpt, checkpointed": (Gpt(width=64, tokens=512), ANEW, 1),
}
FAR = {Gpt: (24, 384), Convolutions: (64, 0)}
"""Batch and length of the real step; (2048, 0) where nothing stands here."""
MIB = 1 << 20


def measure(name: str) -> dict[str, Any]:
    recipe, keys, accumulation = CASES[name]
    stage = stage_of(**keys)
    point = FAR.get(type(recipe), (2048, 0))
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


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    facts = machine_facts("torch")
    print_facts(facts)
    wanted = os.environ.get("BENCH_CASES", "")
    found = {name: measure(name) for name in CASES if wanted in name}
    print_table(
        "Peak of a step's tensors, foretold and real",
        ["model", "foretold MiB", "real MiB", "error", "by torch.profiler", "CPU s"],
        [
            [
                name,
                f"{row['foretold'] / MIB:.2f}",
                f"{row['real'] / MIB:.2f}",
                f"{row['error']:+.4%}",
                f"{row['error_of_profiler']:+.4%}",
                f"{row['cpu_s']:.1f}",
            ]
            for name, row in found.items()
        ],
    )
    if not wanted:
        write_results("memory", {"facts": facts, "cases": found})


if __name__ == "__main__":
    main()
