"""What a loop logs: kept unread, written every so many steps.

`run.log` is called in every step, so it only keeps what it is given. Tensors are read when a line
is written, or saved: reading one waits for the GPU. A line holds the newest value of each name.
Splits other than `train` are rare, and theirs are the numbers that people compare: written at once.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
from torch import Tensor

from tasuki.errors import UsageError
from tasuki.runs.metrics import TIMING_KEYS

Value = float | int | str | bool
_OURS = frozenset({"stage", "epoch", "step", "samples", "split", "resume", *TIMING_KEYS})
"""Names that a line has already; users like to log steps and epochs too."""


class Rows:
    """Values that were logged since the last line, by split."""

    def __init__(self) -> None:
        self.pending: dict[str, Any] = {}
        """Of the split `train`. Always this dict: who logs has it at hand."""
        self.others: dict[str, dict[str, Any]] = {}
        """Of the other splits: for the end of the step that is being done."""
        self._written: dict[str, tuple[int, dict[str, Value]]] = {}
        """The newest line of each split, with its step."""

    def add(self, values: dict[str, Any], split: str) -> None:
        self.others.setdefault(split, {}).update(values)

    def take(self, split: str, *, step: int) -> dict[str, Value]:
        """What is due of a split, read; nothing of it is left. A second line of one step stands for
        the first as well: of each step one counts."""
        values = self.pending if split == "train" else self.others.pop(split)
        found = read(values)
        values.clear()
        at, before = self._written.get(split, (-1, {}))
        if at == step:
            found = before | found
        self._written[split] = (step, found)
        return found

    @property
    def last(self) -> dict[str, Value]:
        """The newest line of `train`."""
        return self._written.get("train", (-1, {}))[1]

    def clear(self) -> None:
        """Nobody reads them: another rank writes the lines."""
        self.pending.clear()
        self.others = {}

    def state(self) -> dict[str, Any]:
        """For a checkpoint: what is not written yet is not lost."""
        return {
            "train": read(self.pending),
            "others": {split: read(values) for split, values in self.others.items()},
            "written": {split: list(line) for split, line in self._written.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.clear()
        self.pending.update(state["train"])
        self.others = {split: dict(values) for split, values in state["others"].items()}
        written = state.get("written") or {"train": (-1, state.get("last") or {})}
        self._written = {split: (at, dict(values)) for split, (at, values) in written.items()}


def read(values: dict[str, Any]) -> dict[str, Value]:
    """Numbers and texts; a tensor of one element is its number. NaN is one too."""
    return {
        f"own_{name}" if name in _OURS else name: value
        if type(value) is float  # most are, and it is done in the loop
        else _read(name, value)
        for name, value in values.items()
    }


def _read(name: str, value: Any) -> Value:
    plain = _plain(value)
    if plain is not None:
        return plain
    what = f"a {type(value).__name__}"
    if isinstance(value, Tensor | np.generic | np.ndarray):
        if value.size == 1 if isinstance(value, np.ndarray | np.generic) else value.numel() == 1:
            with contextlib.suppress(RuntimeError):  # on the device `meta` there are no numbers
                found = _plain(value.item())
                if found is not None:
                    return found
        what = f"{what} of shape {tuple(value.shape)}"
    raise UsageError(
        f"`{name}` was logged as {what}, which is no single number or text",
        hint=f"log one number: `{name}=value.mean()`",
    )


def _plain(value: Any) -> Value | None:
    """As lines and checkpoints hold it: of an enum or another heir its number or text, of a text
    what UTF-8 has, of a number beyond all others infinity. None: it is neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() <= _MOST_BITS:
            return int(value)
        return math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value).encode("utf-8", "replace").decode()
    return None


_MOST_BITS = 1000
"""What a float can hold, about: longer ones are neither JSON nor anybody's metric."""
