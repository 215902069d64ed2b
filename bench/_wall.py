"""`wall`: how long a stage takes, predicted after one past run of its recipe on other data.

Real runs of one recipe by `tasuki run`, in fresh processes: a small network over matrices of two
sizes, validated every epoch and evaluated at its end. Each run in turn is the only past one. The
prediction for every other one (start, steps, saves, validation, evaluation) is compared with what
it took, from the start of its first process to the end of its last. The data are generated, so
only their number differs. A part of memory.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from _measure import Figure, run_timed, sized
from tasuki.estimation.past import read_pasts
from tasuki.estimation.scale import shape_of
from tasuki.estimation.times import estimate_stage
from tasuki.runs.events import read_events
from tasuki.runs.history import look_at_history
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

NUM_SAMPLES = sized((400, 800, 1600, 3200, 6400, 12800), smoke=(40, 80))
GOAL_ERROR_PERCENT = 10.0
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


def measure(folder: Path) -> list[Figure]:
    (folder / "recipe.py").write_text(_RECIPE)
    (folder / "tasuki.yaml").write_text(json.dumps(_spec()))
    taken_s = {number: _train(folder, number) for number in NUM_SAMPLES}
    spec = load_spec(str(folder), environ={})
    stages = {int(e.name.removeprefix("n")): e.stages[0] for e in spec.experiments}
    history = look_at_history(folder / "runs").facts
    errors, covered = [], []
    for past in NUM_SAMPLES:
        for number in NUM_SAMPLES:
            if number != past:
                predicted_s, p90_s = _predict(stages[number], history, past=past, number=number)
                errors.append(100 * abs(predicted_s / taken_s[number] - 1))
                covered.append(taken_s[number] <= p90_s)
    what = f"wall time predicted from one past run with other data, {len(errors)} pairs"
    return [
        Figure(f"{what}: median error", "", median(errors), unit="%", goal=GOAL_ERROR_PERCENT),
        Figure("… largest error", "", max(errors), unit="%"),
        Figure("… within the 90th percentile", "", 100 * sum(covered) / len(covered), unit="%"),
    ]


def _spec() -> dict[str, Any]:
    stage = {"name": "one", "epochs": 4, "validate": {}, "evaluate": {}}
    return {
        "project": "wall",
        "recipe": "recipe:Mixer",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": 1},
        "experiments": {
            f"n{number}": {"stages": [{**stage, "data": str(number)}]} for number in NUM_SAMPLES
        },
    }


def _train(folder: Path, number: int) -> float:
    """The seconds of its processes."""
    command = [sys.executable, "-m", "tasuki", "run", "--experiment", f"n{number}"]
    run_timed(command, cwd=folder)
    events = read_events(RunFolder(folder / "runs" / f"n{number}"))
    started = [event["t"] for event in events if event["kind"] == "worker-started"]
    ended = [event["t"] for event in events if event["kind"] == "worker-ended"]
    taken_s = sum(end - start for start, end in zip(started, ended, strict=True))
    print(f"  {number} samples: {taken_s:.1f} s", file=sys.stderr)
    return taken_s


def _predict(stage: Any, history: Any, *, past: int, number: int) -> tuple[float, float]:
    """Seconds and their 90th percentile. Of the run only its samples by size are known."""
    [own] = [one for one in read_pasts(history) if one.run == f"n{number}"]
    times = estimate_stage(
        stage,
        device="cpu",
        ranks=1,
        own_events=(),
        history=[fact for fact in history if fact["run"] == f"n{past}"],
        measured=None,
        shape=shape_of(own),
    )
    assert times.used == (f"n{past}/one",), times
    return times.whole_s(evaluates=True), times.whole_s_p90(evaluates=True)
