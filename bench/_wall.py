"""How long a stage takes: foretold after one past run of its recipe at another data size.

Real runs of one recipe by `tasuki run`, in fresh processes: a small network over matrices of two
sizes, validated every epoch and evaluated at its end. Every run in turn is the only past one, and
all others are held back: what is foretold of them (start, steps, saves, validation, evaluation)
beside what they took, from the start of the first process to the end of the last. The data are
generated, so what is asked of them is their number alone.

Part of memory.py; alone: `python bench/_wall.py`. BENCH_WALL: numbers of samples, with commas.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _measure import machine_facts, print_facts, print_table
from tasuki.estimation.past import read_pasts
from tasuki.estimation.scale import shape_of
from tasuki.estimation.times import StageTimes, estimate_stage
from tasuki.runs.events import read_events
from tasuki.runs.history import look_at_history
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedStage

SAMPLES = tuple(
    int(word) for word in os.environ.get("BENCH_WALL", "400,800,1600,3200,6400,12800").split(",")
)
GOAL_ERROR, GOAL_COVERED = 0.10, 0.85
_WITHIN_S = 600.0
_RECIPE = '''
import torch
from torch import nn

SIZES = (24, 48)


class Matrices(torch.utils.data.Dataset):
    def __init__(self, samples, seed):
        self.sizes = [SIZES[i % 3 == 0] for i in range(samples)]
        self.seed = seed

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        n = self.sizes[i]
        x = torch.randn(n, n, generator=torch.Generator().manual_seed(self.seed + i))
        return x, x.diagonal().mean()


class Mixer:
    """Row after row through a network, then their mean."""

    def build_model(self):
        model = nn.Module()
        model.rows = nn.ModuleList([nn.Linear(n, 256) for n in SIZES])
        model.deep = nn.Sequential(nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
        return model

    def build_dataset(self, source, split):
        share = {"train": 1, "val": 8, "test": 4}[split]
        return Matrices(int(source) // share, {"train": 0, "val": 10**6, "test": 2 * 10**6}[split])

    def loss(self, model, batch):
        x, y = batch
        rows = model.rows[SIZES.index(x.shape[-1])](x)
        return nn.functional.mse_loss(model.deep(rows).mean(1)[:, 0], y)
'''


def measure(samples: tuple[int, ...] = SAMPLES) -> dict[str, Any]:
    """Prints a table; the values of it."""
    with tempfile.TemporaryDirectory() as folder:
        taken = _train_all(Path(folder), samples)
        stages = _stages(Path(folder))
        history = look_at_history(Path(folder) / "runs").facts
    pairs = [
        _foretell(stages[held], history, past=past, held=held, taken_s=taken[held])
        for past in samples
        for held in samples
        if held != past
    ]
    _print(samples, taken, pairs)
    errors = [abs(pair["foretold_s"] / pair["taken_s"] - 1) for pair in pairs]
    covered = [pair["taken_s"] <= pair["foretold_s_p90"] for pair in pairs]
    return {
        "samples": list(samples),
        "taken_s": taken,
        "pairs": pairs,
        "median_error": median(errors),
        "worst_error": max(errors),
        "covered": sum(covered) / len(covered),
    }


def _train_all(folder: Path, samples: tuple[int, ...]) -> dict[int, float]:
    (folder / "recipe.py").write_text(_RECIPE)
    stage = {"epochs": 4, "validate": {}, "evaluate": {}}
    experiments = {
        f"n{number}": {"stages": [{"name": "one", "data": str(number), **stage}]}
        for number in samples
    }
    cluster = {"gpu": "cpu", "gpus": 1, "cpus": 1}
    spec = {"project": "wall", "recipe": "recipe:Mixer", "cluster": cluster}
    (folder / "tasuki.yaml").write_text(json.dumps({**spec, "experiments": experiments}))
    return {number: _train(folder, number) for number in samples}


def _train(folder: Path, number: int) -> float:
    command = [sys.executable, "-m", "tasuki", "run", "--experiment", f"n{number}"]
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_WITHIN_S)
    print(f"  {number} samples: {time.monotonic() - began:.1f} s", file=sys.stderr)
    events = read_events(RunFolder(folder / "runs" / f"n{number}"))
    begun = [event["t"] for event in events if event["kind"] == "worker-started"]
    ended = [event["t"] for event in events if event["kind"] == "worker-ended"]
    return sum(end - begin for begin, end in zip(begun, ended, strict=True))


def _stages(folder: Path) -> dict[int, ResolvedStage]:
    spec = load_spec(str(folder), environ={})
    return {int(e.name.removeprefix("n")): e.stages[0] for e in spec.experiments}


def _foretell(
    stage: ResolvedStage, history: Any, *, past: int, held: int, taken_s: float
) -> dict[str, Any]:
    """Of the held-back run its number of samples by size is known, and nothing else."""
    [own] = [one for one in read_pasts(history) if one.run == f"n{held}"]
    times: StageTimes = estimate_stage(
        stage,
        device="cpu",
        ranks=1,
        own_events=(),
        history=[fact for fact in history if fact["run"] == f"n{past}"],
        measured=None,
        shape=shape_of(own),
    )
    assert times.used == (f"n{past}/one",), times
    return {
        "past": past,
        "held": held,
        "taken_s": taken_s,
        "foretold_s": times.whole_s(evaluates=True),
        "foretold_s_p90": times.whole_s_p90(evaluates=True),
        "steps_s": own.train_s,
        "foretold_steps_s": times.wall_s,
    }


def _print(samples: tuple[int, ...], taken: dict[int, float], pairs: list[dict[str, Any]]) -> None:
    rows = []
    for held in samples:
        of_it = [pair for pair in pairs if pair["held"] == held]
        off = [pair["foretold_s"] / pair["taken_s"] - 1 for pair in of_it]
        covered = sum(pair["taken_s"] <= pair["foretold_s_p90"] for pair in of_it)
        steps = of_it[0]["steps_s"]
        rows.append(
            [
                str(held),
                f"{taken[held]:.2f} s",
                f"{steps:.2f} s",
                f"{median(off):+.1%}",
                f"{min(off):+.1%} … {max(off):+.1%}",
                f"{covered} of {len(of_it)}",
            ]
        )
    head = ["samples", "took", "of it steps", "foretold, median", "foretold", "within 90 %"]
    print_table("wall time after one past run at another data size", head, rows)
    errors = [abs(pair["foretold_s"] / pair["taken_s"] - 1) for pair in pairs]
    covered = sum(pair["taken_s"] <= pair["foretold_s_p90"] for pair in pairs) / len(pairs)
    print(f"\n  median error {median(errors):.1%} (goal {GOAL_ERROR:.0%}), ", end="")
    print(f"{covered:.0%} within the 90th percentile (goal {GOAL_COVERED:.0%})")


if __name__ == "__main__":
    measure()
    print_facts(machine_facts("torch"))
