"""What a line of metrics tells of a step's speed and memory beside its loss.

None of these numbers is part of the result: two equal runs differ in them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tasuki.errors import RecipeError
from tasuki.runs.machine import GIB
from tasuki.train.footprint import rank_rss_bytes

BY_WEIGHT = "weight"
_FRESH_S = 1.0


def read_tokens_per_sample(recipe: Any) -> float | str | None:
    """The recipe's own word: a number, or `weight` where the weight of its `loss` counts tokens."""
    told = getattr(recipe, "tokens_per_sample", None)
    if told is None or told == BY_WEIGHT:
        return told
    if isinstance(told, bool) or not isinstance(told, int | float) or told <= 0:
        raise RecipeError(
            f"`tokens_per_sample` of the recipe is {told!r}",
            hint='give a number, or "weight" where `loss` returns (sum, number of tokens)',
        )
    return float(told)


def speeds(
    tokens_per_sample: float | str | None, *, samples_per_sec: float, weight: float, samples: int
) -> dict[str, float]:
    """`weight` and `samples` are those since the last line, which may lie in an earlier attempt:
    so tokens are taken per sample, and the time from the samples of this attempt."""
    found = {"samples_per_sec": round(samples_per_sec, 3)}
    if tokens_per_sample == BY_WEIGHT:
        tokens_per_sample = weight / samples if samples > 0 else None
    if isinstance(tokens_per_sample, float):
        found["tokens_per_sec"] = round(samples_per_sec * tokens_per_sample, 3)
    return found


class MemoryGauge:
    """How much memory is taken; read once a second at most, since a look at /proc takes longer than
    all the rest of a line."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gb = self._most_gb = 0.0
        self._read_at = -math.inf

    def read_gb(self, now: float) -> float:
        """On a GPU the most that tensors have taken so far in this attempt; on the CPU what rank
        0's process takes. In GiB, as the `[GPU Stats]` lines are."""
        if now - self._read_at >= _FRESH_S:
            self._read_at = now
            self._gb = max(self._most_gb, memory_allocated_gb(self._device))
        return self._gb

    def keep(self) -> None:
        """Before the peaks of a GPU are counted anew (borders.py)."""
        if self._device.type == "cuda":
            self._most_gb = max(self._most_gb, memory_allocated_gb(self._device))


def memory_allocated_gb(device: torch.device) -> float:
    on_gpu = device.type == "cuda"
    used = torch.cuda.max_memory_allocated(device) if on_gpu else rank_rss_bytes()
    return round(used / GIB, 4)
