"""How long steps wait for their data under `workers: auto`, in real runs of the command line.

Each case is one `tasuki run` in a temporary project. Its steps compute for a fixed CPU time, its
samples cost a fixed CPU time (they are decoded) or a fixed time of waiting (they come from far
away), so that the figures hang on the machine as little as possible. "Before" is the first thing
the run's log says; "after" are slices of about a second since the last change of the loader, as the
run's progress events tell them. A run is interrupted when there are enough. Used by loader.py.
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
from typing import Any, NamedTuple

from _measure import print_table, spread

GONE = 0.05
"""Up to this share the wait counts as gone."""
EFFECTIVE_BATCH = 8
STEP_MS = 20
SHORT_STEP_MS = 2
"""Of the cheap data: even a short step need not wait for them."""
SAMPLE_MS = 1.5
SLICES = 5
LINE = "Data: steps wait "
_TIMEOUT_S = 60.0
_HANDED_OVER = 75
"""The exit code of a run that is not finished."""

_RECIPE = '''
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Costly:
    """Samples that cost CPU time, or time of waiting."""

    def __init__(self, kind, cost_ms):
        self.kind, self.cost_s = kind, cost_ms / 1000

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        if self.kind == "far":
            time.sleep(self.cost_s)
        else:
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
    def __init__(self, kind, cost_ms, step_ms):
        self.kind, self.cost_ms, self.step_s = kind, cost_ms, step_ms / 1000

    def build_model(self):
        return Linear()

    def build_dataset(self, source, split):
        if self.kind == "arrays":
            return TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
        return Costly(self.kind, self.cost_ms)

    def loss(self, model, batch):
        compute(self.step_s)
        inputs, answers = batch
        return (model(inputs) - answers).square().mean()
'''


class Case(NamedTuple):
    title: str
    kind: str
    cpus: int
    step_ms: int


CASES = {
    "cheap": Case("arrays in memory", "arrays", 4, SHORT_STEP_MS),
    "decode": Case("samples that compute, a CPU to spare", "decode", 4, STEP_MS),
    "far": Case("samples from far away, a CPU to spare", "far", 4, STEP_MS),
    "crowded": Case("samples that compute, no CPU to spare", "decode", 2, STEP_MS),
}


class Slice(NamedTuple):
    """What happened between two progress events."""

    wait_s: float
    step_s: float
    samples: int

    @property
    def share(self) -> float:
        return self.wait_s / (self.wait_s + self.step_s)

    @property
    def samples_per_s(self) -> float:
        return self.samples / (self.wait_s + self.step_s)


def measure(folder: Path) -> dict[str, Any]:
    (folder / "waits_recipe.py").write_text(_RECIPE)
    return {name: _measure_case(folder, name, case) for name, case in CASES.items()}


def _measure_case(folder: Path, name: str, case: Case) -> dict[str, Any]:
    (folder / f"{name}.yaml").write_text(json.dumps(_spec(name, case)))
    output = folder / f"{name}.out"
    with output.open("w") as file:
        ran = subprocess.Popen(
            [sys.executable, "-m", "tasuki", "run", f"{name}.yaml"],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("TASUKI_")},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    is_enough = _run_until_enough(ran, folder / "runs" / name)
    if not is_enough or ran.returncode != _HANDED_OVER:
        sys.exit(f"error: the run `{name}` ended with {ran.returncode}\n{output.read_text()}")
    return _figures(folder / "runs" / name)


def _run_until_enough(ran: subprocess.Popen[bytes], run: Path) -> bool:
    """Ctrl-C hands a run over: it saves and leaves."""
    end = time.monotonic() + _TIMEOUT_S
    while not (is_enough := len(_slices_after(_read_events(run))) >= SLICES):
        if ran.poll() is not None or time.monotonic() > end:
            break
        time.sleep(0.2)
    ran.send_signal(signal.SIGINT)
    try:
        ran.wait(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        ran.kill()
    return is_enough


def _spec(name: str, case: Case) -> dict[str, Any]:
    """JSON is YAML."""
    stage = {
        "name": name,
        "data": "generated",
        "steps": 1_000_000,
        "effective_batch": EFFECTIVE_BATCH,
        "lr": 0.001,
        "seed": 7,
        "params": {"kind": case.kind, "cost_ms": SAMPLE_MS, "step_ms": case.step_ms},
        "save": {"every": "1h"},
    }
    return {
        "project": "bench",
        "recipe": "waits_recipe:Waits",
        "runs": "runs",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": case.cpus},
        "experiments": {name: {"stages": [stage]}},
    }


def _figures(run: Path) -> dict[str, Any]:
    [log] = (run / "logs").glob("*.log")
    said = [line for line in log.read_text().splitlines() if line.startswith(LINE)]
    events = _read_events(run)
    decisions = _decisions(events)
    after = _slices_after(events)
    return {
        "said": said,
        "before": decisions[0]["wait"],
        "after": spread([one.share for one in after]),
        "samples_per_s": spread([one.samples_per_s for one in after]),
        "workers": decisions[-1]["workers"],
    }


def _read_events(run: Path) -> list[dict[str, Any]]:
    """The last line may not be whole yet."""
    texts = [path.read_text() for path in (run / "events").glob("*rank0*")]
    return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]


def _decisions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "loader"]


def _slices_after(events: list[dict[str, Any]]) -> list[Slice]:
    """Since the last change of the loader; of a loader that did not change, since it was judged."""
    decisions = _decisions(events)
    if not decisions:
        return []
    changes = [
        one
        for before, one in pairwise([{"workers": 0, "prefetch": 2}, *decisions])
        if (before["workers"], before["prefetch"]) != (one["workers"], one["prefetch"])
    ]
    begin = events.index(changes[-1] if changes else decisions[0])
    told = [event for event in events[begin:] if event["kind"] == "progress"]
    return [_slice(one, other) for one, other in pairwise(told)]


def _slice(before: dict[str, Any], after: dict[str, Any]) -> Slice:
    def part(name: str) -> float:
        return float(after["parts"].get(name, 0.0) - before["parts"].get(name, 0.0))

    return Slice(part("data_wait"), part("step"), after["samples"] - before["samples"])


def show(found: dict[str, Any]) -> None:
    print_table(
        f"The wait for data under `workers: auto`: share of a step's time. Steps of "
        f"{EFFECTIVE_BATCH} samples of {SAMPLE_MS} ms each (arrays: none);\n"
        f"medians of {SLICES} seconds or more after the last change [quartiles]",
        ["data", "a step computes", "CPUs", "wait before", "wait after", "workers", "goal"],
        [
            [
                case.title,
                f"{case.step_ms} ms",
                str(case.cpus),
                f"{found[name]['before']:.1%}",
                found[name]["after"].show(1, scale=100) + " %",
                str(found[name]["workers"]),
                _goal(name, found[name]["after"].median),
            ]
            for name, case in CASES.items()
        ],
    )
    for name, case in CASES.items():
        print(f"  {case.title}; the log says:")
        for line in found[name]["said"]:
            print(f"    {line}")


def _goal(name: str, share: float) -> str:
    if name == "crowded":
        return ""
    return f"≤ {GONE:.0%}: {'met' if share <= GONE else 'missed'}"
