"""A small model and its data, the same for every tool, that note what happens to them.

The model's forward notes which samples it saw and their loss, to the last bit. So the bench sees
whether a tool repeats or skips samples, and whether a resumed run continues with the same numbers,
without looking into the tool. Notes are JSON lines of one file:
{"kind": "resumed" | "saved" | "step", "t": monotonic time, …}.

Needs torch alone: runs in both environments, and as tasuki's recipe (_ours.py).
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

FEATURES = 16
SEED = 7
_NOTICED_S = 0.4
"""A thread sees the signal; a step of a millisecond would not be the last one."""
Sample = dict[str, Any]


class Notes:
    """Lines in a file; and when the process leaves, at a call of its model."""

    def __init__(self, tiny: dict[str, Any]) -> None:
        self._fd = os.open(tiny["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls = 0
        self._pause_s: float = tiny.get("pause_s", 0.0)
        self._leave_at: int | None = tiny.get("leave_at")
        self._leave_by: str = tiny.get("leave_by", "exit")
        self._has_age: bool = tiny.get("has_age", False)

    def add(self, kind: str, **facts: Any) -> None:
        line = {"kind": kind, "t": time.monotonic(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def step(self, index: Tensor, loss: Tensor) -> None:
        """A call of the model: one step. `leave_at` counts them from 1, in this process."""
        self._calls += 1
        times = _times() if self._has_age else {}
        self.add("step", samples=index.tolist(), loss=float(loss).hex(), **times)
        if self._calls == self._leave_at:
            if self._leave_by == "exit":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_NOTICED_S)
        if self._pause_s:
            time.sleep(self._pause_s)


def _times() -> dict[str, float]:
    """Since the kernel made this process, in steps of 10 ms; and its CPU time."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return {"age_s": age_s, "cpu_s": time.process_time()}


def read_tiny(path: str) -> dict[str, Any]:
    """The settings of a start of tasuki's recipe."""
    tiny: dict[str, Any] = json.loads(Path(path).read_text())
    return tiny


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The complete lines; none before the first."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def steps_of(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [note for note in notes if note["kind"] == "step"]


def compare_steps(
    whole: list[dict[str, Any]], rest: list[dict[str, Any]], *, at: int, epoch: int = 0
) -> dict[str, Any]:
    """The steps after a resume at step `at` with those of the uninterrupted run, to the end of the
    epoch that started at step `epoch`."""
    before = {index for step in whole[epoch:at] for index in step["samples"]}
    due = {index for step in whole[at:] for index in step["samples"]}
    seen = {index for step in rest for index in step["samples"]}
    expected, losses = ([step["loss"] for step in steps] for steps in (whole[at:], rest))
    return {
        "is_bitwise_equal": expected == losses,
        "of": len(due),
        "repeated": len(seen & before),
        "skipped": len(due - seen),
    }


class Tiny(nn.Module):
    """Two layers or more, with dropout."""

    def __init__(self, tiny: dict[str, Any], notes: Notes) -> None:
        super().__init__()
        width, depth = tiny.get("width", 32), tiny.get("depth", 1)
        layers: list[nn.Module] = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Dropout(0.1)]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))
        self._notes = notes

    def forward(self, x: Tensor, y: Tensor, index: Tensor) -> dict[str, Tensor]:
        loss = nn.functional.mse_loss(self.layers(x), y)
        self._notes.step(index, loss.detach())
        return {"loss": loss}


class Samples(Dataset[Sample]):
    """Map-style."""

    def __init__(self, tiny: dict[str, Any]) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._x = torch.randn(tiny["samples"], FEATURES, generator=generator)
        self._y = self._x[:, :2].sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Sample:
        return {"x": self._x[index], "y": self._y[index], "index": index}
