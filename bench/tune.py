"""Does the interval that `tasuki tune` tells hold what a longer, separate measurement finds?

Run as `python bench/tune.py`; about seven minutes. A switch of known effect: gradient checkpointing
of a stack of blocks, which computes every forward pass a second time. `tune` measures it ten times
with a small budget, each time in a process of its own; between these runs a loop of its own, with
nothing of tune's code (another clock, trimmed means instead of ranks), measures the same training
in pieces, so that both see the same minutes of the machine. Counted is how many of the ten
intervals hold the loop's ratio. Exit code 1 below eight.

One thread and CPU time on both sides: on a machine that others use too, the wall clock tells of
them. The ratios by the wall clock stand beside.
"""

from __future__ import annotations

import gc
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tasuki
from _measure import machine_facts, print_facts, print_table, write_results
from tasuki.loop.ranks import ALONE
from tasuki.spec.load import load_spec
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.data import make_loader, prepare_data
from tasuki.train.recipe import load_recipe

REPEATS = 10
GOAL = 8
BUDGET = "24s"
PAIRS_BETWEEN = 40
"""Of the separate measurement, before each repeat and after the last."""
BATCH, WIDTH, BLOCKS = 64, 96, 6

RECIPE = f"""
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear({WIDTH}, {4 * WIDTH}), nn.GELU(), nn.Linear({4 * WIDTH}, {WIDTH})
        )

    def forward(self, x):
        return x + self.layers(x)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range({BLOCKS}))
        self.head = nn.Linear({WIDTH}, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Blocks:
    def build_model(self):
        return Stack()

    def build_dataset(self, source, split):
        x = torch.randn(2048, {WIDTH}, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x[:, :1].sin())

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
"""

SPEC = f"""
recipe: blocks:Blocks
cluster: {{gpu: cpu, cpus: 1}}
experiments:
  stack: {{data: generated, epochs: 5, effective_batch: {BATCH}}}
"""


class Loop:
    """The stage as a run trains it: tasuki's model, loader and engine, none of `tune`'s code."""

    def __init__(self, folder: Path, *, recomputes: bool) -> None:
        setting = f"gradient_checkpointing={str(recomputes).lower()}"
        spec = load_spec(str(folder), settings=[setting], environ=os.environ)
        stage = spec.experiments[0].stages[0]
        recipe = load_recipe(stage.recipe or "", stage.params, paths=[folder])
        data = prepare_data(recipe, stage, rank=0, world=1)
        device = torch.device("cpu")
        made = assemble(recipe, stage, device=device, total_steps=160, say=lambda _: None)
        self._schedule = made.schedule
        self._engine = make_engine(
            recipe,
            stage,
            made,
            ranks=ALONE,
            device=device,
            num_shapes=1,
            say=lambda _: None,
        )
        self._steps = make_loader(data, first_step=0, total_steps=1 << 40).steps()

    def run(self, steps: int) -> tuple[float, float]:
        """(CPU seconds, wall seconds)."""
        cpu, wall = time.process_time(), time.perf_counter()
        for number in range(steps):
            batches, num_samples = next(self._steps)
            if self._schedule is not None:
                self._schedule.set_for(number)
            self._engine.step(batches, num_samples)
        return time.process_time() - cpu, time.perf_counter() - wall


class Separate:
    """The measurement beside: plain and recomputing loops in turn, log ratios added up."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self._plain = Loop(folder, recomputes=False)
        self._recomputing = Loop(folder, recomputes=True)
        self._turns = random.Random(4)
        self.cpu: list[float] = []
        self.wall: list[float] = []
        for loop in (self._plain, self._recomputing):
            loop.run(10)

    def go_on(self, pairs: int) -> None:
        gc.collect()
        for _ in range(pairs):
            loops = [self._plain, self._recomputing]
            self._turns.shuffle(loops)
            taken = {id(loop): loop.run(8) for loop in loops}
            plain, other = taken[id(self._plain)], taken[id(self._recomputing)]
            self.cpu.append(math.log(plain[0] / other[0]))
            self.wall.append(math.log(plain[1] / other[1]))


def _middle(logs: list[float]) -> tuple[float, float]:
    """(mean without the outer tenth at either end, its standard error) of log ratios."""
    cut = len(logs) // 10
    kept = sorted(logs)[cut : len(logs) - cut]
    mean = math.fsum(kept) / len(kept)
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in kept) / (len(kept) - 1))
    return mean, spread / math.sqrt(len(kept))


def _tune(folder: Path) -> dict[str, Any]:
    found = tasuki.tune(folder / "tasuki.yaml", only=["gradient_checkpointing"], budget=BUDGET)
    assert found["clock"] == "cpu", found["clock"]
    [row] = [row for row in found["rows"] if row["value"] is True]
    assert row["error"] is None, row["error"]
    return {**row, "control": found["control"]}


def _measure(folder: Path, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], Separate]:
    separate = Separate(folder)
    rows = []
    for number in range(REPEATS):
        separate.go_on(PAIRS_BETWEEN)
        rows.append(_tune(folder))
        say(f"{number + 1} of {REPEATS}: {_show(rows[-1])}")
    separate.go_on(PAIRS_BETWEEN)
    return rows, separate


def _show(row: dict[str, Any]) -> str:
    return f"{row['gain']:.3f} [{row['low']:.3f} … {row['high']:.3f}]"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name:
        folder = Path(name)
        (folder / "blocks.py").write_text(RECIPE)
        (folder / "tasuki.yaml").write_text(SPEC)
        rows, separate = _measure(folder, lambda text: print(text, file=sys.stderr))
    (cpu, cpu_error), (wall, wall_error) = _middle(separate.cpu), _middle(separate.wall)
    facts = machine_facts("tasuki", "torch")
    print_facts(facts)
    truth, truth_wall = math.exp(cpu), math.exp(wall)
    covers = [row["low"] <= truth <= row["high"] for row in rows]
    by_wall = [row["wall"]["low"] <= truth_wall <= row["wall"]["high"] for row in rows]
    controls = [row["control"]["low"] <= 1.0 <= row["control"]["high"] for row in rows]
    print_table(
        f"gradient_checkpointing: true, {REPEATS} runs of `tune --budget {BUDGET}`",
        ["run", "gain [95 %]", "pairs", "holds it", "by the wall clock", "holds it"],
        [
            [
                str(number + 1),
                _show(row),
                str(row["pairs"]),
                "yes" if is_in else "no",
                _show(row["wall"]),
                "yes" if is_in_wall else "no",
            ]
            for number, (row, is_in, is_in_wall) in enumerate(
                zip(rows, covers, by_wall, strict=True)
            )
        ],
    )
    num = len(separate.cpu)
    print(f"\nseparately, {num} pairs: {truth:.3f} ± {truth * cpu_error:.3f} by CPU time,")
    print(f"  {truth_wall:.3f} ± {truth_wall * wall_error:.3f} by the wall clock (standard errors)")
    print(f"intervals that hold it: {sum(covers)} of {REPEATS} (goal {GOAL});")
    print(f"  by the wall clock {sum(by_wall)}; 1 in the control's {sum(controls)}")
    widths = sorted(math.sqrt(row["high"] / row["low"]) - 1 for row in rows)
    print(f"half an interval: {widths[len(widths) // 2]:.0%} in the middle run")
    figures = {
        "separate": {"cpu": truth, "cpu_error": cpu_error, "wall": truth_wall, "pairs": num},
        "covered": sum(covers),
        "covered_wall": sum(by_wall),
        "controls_covering_1": sum(controls),
        "runs": rows,
    }
    write_results("tune", {"machine": facts, **figures})
    return 0 if sum(covers) >= GOAL else 1


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    sys.exit(main())
