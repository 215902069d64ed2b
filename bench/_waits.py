"""`wait`: how long steps wait for their data under `workers: auto`, in a real `tasuki run`.

Steps and samples compute for fixed CPU times, so that the figures depend on the machine as little
as possible. "Before" is the fraction at the loader's first decision, "after" are slices of about a
second since its last change, both from the run's events. The run is interrupted when there are
enough. A part of loader.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from _measure import Figure, sized, spread

EFFECTIVE_BATCH = 8
STEP_MS, SAMPLE_MS = 20, 1.5
NUM_CPUS = 4
NUM_SLICES = sized(5, smoke=1)
_TIMEOUT_S = 60.0
_INTERRUPTED = 75
"""The exit status of a run that can continue."""
_RECIPE = '''
import time

import torch
from torch import nn


class Costly:
    """Samples that cost CPU time."""

    def __init__(self, cost_ms):
        self.cost_s = cost_ms / 1000

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        compute(self.cost_s)
        return torch.full((64,), float(index % 7)), index % 10


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


class Linear(nn.Module):
    """What torch does on one thread: several wait for each other on a busy machine."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64))

    def forward(self, inputs):
        return (inputs * self.weight).sum(1)


class Waits:
    def __init__(self, cost_ms, step_ms):
        self.cost_ms, self.step_s = cost_ms, step_ms / 1000

    def build_model(self):
        return Linear()

    def build_dataset(self, source, split):
        return Costly(self.cost_ms)

    def loss(self, model, batch):
        compute(self.step_s)
        inputs, answers = batch
        return (model(inputs) - answers).square().mean()
'''


def measure(folder: Path) -> list[Figure]:
    (folder / "waits_recipe.py").write_text(_RECIPE)
    (folder / "tasuki.yaml").write_text(json.dumps(_spec()))  # JSON is YAML
    with (folder / "output").open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasuki", "run"],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("TASUKI_")},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    events = _interrupt_when_enough(process, folder / "runs" / "decode")
    slices = _slices_after(events)
    if process.returncode != _INTERRUPTED or len(slices) < NUM_SLICES:
        output = (folder / "output").read_text()
        sys.exit(f"error: the run ended with {process.returncode}\n{output}")
    before = 100 * _decisions(events)[0]["wait"]
    return [
        Figure("fraction of a step's time spent waiting", "before workers", before, unit="%"),
        Figure("… after `workers: auto`", "", spread(slices, scale=100), unit="%", goal=5),
    ]


def _spec() -> dict[str, Any]:
    stage = {
        "name": "decode",
        "data": "generated",
        "steps": 1_000_000,
        "effective_batch": EFFECTIVE_BATCH,
        "lr": 0.001,
        "seed": 7,
        "params": {"cost_ms": SAMPLE_MS, "step_ms": STEP_MS},
        "save": {"every": "1h"},
    }
    return {
        "project": "bench",
        "recipe": "waits_recipe:Waits",
        "runs": "runs",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": NUM_CPUS},
        "experiments": {"decode": {"stages": [stage]}},
    }


def _interrupt_when_enough(process: subprocess.Popen[bytes], run: Path) -> list[dict[str, Any]]:
    """The events at that moment. Ctrl-C makes the run save and stop."""
    end = time.monotonic() + _TIMEOUT_S
    while process.poll() is None and time.monotonic() < end:
        if len(_slices_after(_read_events(run))) >= NUM_SLICES:
            break
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    return _read_events(run)


def _read_events(run: Path) -> list[dict[str, Any]]:
    """The last line may be incomplete."""
    texts = [path.read_text() for path in (run / "events").glob("*rank0*")]
    return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]


def _decisions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "loader"]


def _slices_after(events: list[dict[str, Any]]) -> list[float]:
    """The waiting fraction between progress events since the last change of the loader."""
    decisions = _decisions(events)
    if not decisions:
        return []
    changes = [
        decision
        for before, decision in pairwise([{"workers": 0, "prefetch": 2}, *decisions])
        if (before["workers"], before["prefetch"]) != (decision["workers"], decision["prefetch"])
    ]
    first = events.index(changes[-1] if changes else decisions[0])
    progress = [event["parts"] for event in events[first:] if event["kind"] == "progress"]
    fractions = []
    for before, after in pairwise(progress):
        wait_s, step_s = (
            after.get(part, 0.0) - before.get(part, 0.0) for part in ("data_wait", "step")
        )
        fractions.append(wait_s / (wait_s + step_s))
    return fractions
