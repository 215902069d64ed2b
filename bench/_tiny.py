"""A small model and its data, the same for every tool, that note what happens to them.

The model's forward notes which samples it saw and what their loss was, to the last bit; the data
count how many samples were fetched. So nothing of a tool needs to be understood to tell whether it
replays, repeats or skips samples, or whether a resumed run goes on with the same numbers. Notes are
JSON lines of one file: {"kind": "data" | "resumed" | "saved" | "step", "t": monotonic time, …}.

Needs torch alone: runs in both environments, and as tasuki's recipe (_ours.py).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

FEATURES = 16
SEED = 7
_NOTICED_S = 0.4
"""A notice is seen by a thread; a step of a millisecond would not be the last one."""
Sample = dict[str, Any]


class Notes:
    """Lines in a file; and what the process is to do at a certain call of its model."""

    def __init__(self, tiny: dict[str, Any]) -> None:
        self._fd = os.open(tiny["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls = 0
        self._pause_s: float = tiny.get("pause_s", 0.0)
        self._leave_at: int | None = tiny.get("leave_at")
        self._leave_by: str = tiny.get("leave_by", "exit")
        self._quiet_until: int = tiny.get("quiet_until", 0)
        self._is_age_told: bool = tiny.get("is_age_told", False)
        self.fetched = 0

    def add(self, kind: str, **facts: Any) -> None:
        line = {"kind": kind, "t": time.monotonic(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def step(self, index: Tensor, loss: Tensor) -> None:
        """A call of the model: one step. `leave_at` counts them from 1, in this process."""
        self._calls += 1
        if self._calls > self._quiet_until:
            self.add(
                "step",
                samples=index.tolist(),
                loss=float(loss).hex(),
                fetched=self.fetched,
                **(_times() if self._is_age_told else {}),
            )
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
    """What a start of tasuki's recipe is told."""
    tiny: dict[str, Any] = json.loads(Path(path).read_text())
    return tiny


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Those that are whole; none when nobody has written yet."""
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
    """The steps after a resume at step `at` with those of the undisturbed run, to the end of the
    epoch that began at step `epoch`."""
    before = {index for step in whole[epoch:at] for index in step["samples"]}
    due = {index for step in whole[at:] for index in step["samples"]}
    seen = {index for step in rest for index in step["samples"]}
    is_whole = len(rest) == len(whole) - at
    pairs = list(zip(whole[at:], rest, strict=False))
    return {
        "is_bitwise_equal": is_whole and all(a["loss"] == b["loss"] for a, b in pairs),
        "is_same_order": is_whole and all(a["samples"] == b["samples"] for a, b in pairs),
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


def _content(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(count, FEATURES, generator=generator)
    return x, x[:, :2].sum(1, keepdim=True)


class Samples(Dataset[Sample]):
    """Map-style. Each sample costs some microseconds, as if it were decoded."""

    def __init__(self, tiny: dict[str, Any], notes: Notes) -> None:
        notes.add("data")
        self._x, self._y = _content(tiny["samples"])
        self._cost_s = tiny.get("cost_us", 0) / 1e6
        self._notes = notes

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Sample:
        _spend(self._cost_s)
        self._notes.fetched += 1
        return {"x": self._x[index], "y": self._y[index], "index": index}


class Stream(IterableDataset[Sample]):
    """The same samples one after another, as from a file that is read from its beginning."""

    def __init__(self, tiny: dict[str, Any], notes: Notes) -> None:
        self._samples = Samples(tiny, notes)
        self._next = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        begin, self._next = self._next, 0
        for index in range(begin, len(self._samples)):
            self._given = index + 1
            yield self._samples[index]


class StatefulStream(Stream):
    """A stream that can say where it stands and go on from there."""

    _given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = self._given = state["given"]


KINDS: dict[str, type[Dataset[Sample]]] = {
    "map": Samples,
    "iterable": Stream,
    "stateful": StatefulStream,
}


def _spend(seconds: float) -> None:
    if seconds:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
