"""What further ranks bring: a rate beside the one that history knows of fewer ranks. Pure.

Called at a stage's end by train/finish.py. It does not say why ranks are slow; the share of a step
that waits for the exchange of gradients, which is measured before the first step, is a first hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.estimation.facts import stage_key
from tasuki.runs.history import wrong_in
from tasuki.spec.resolved import ResolvedStage

_MOST_RANKS = 256
EXCHANGE_BANDWIDTH = 10e9
"""Bytes per second between the ranks of a node, assumed: cards on a PCIe bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The same work with fewer ranks."""

    ranks: int
    samples_per_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How a stage's steps went on several ranks."""

    ranks: int
    samples_per_sec: float
    exchange: float | None = None
    """Share of a step's time that waits for the gradients of the others; None: not measured."""
    baseline: Baseline | None = None

    @property
    def speedup(self) -> float | None:
        """How many times the baseline's rate."""
        if self.baseline is None:
            return None
        return self.samples_per_sec / self.baseline.samples_per_sec

    @property
    def efficiency(self) -> float | None:
        """1: as many times the rate as times the ranks."""
        if self.baseline is None or self.speedup is None:
            return None
        return self.speedup * self.baseline.ranks / self.ranks

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "samples_per_sec": round(self.samples_per_sec, 3),
            "samples_per_sec_per_rank": round(self.samples_per_sec / self.ranks, 3),
            "exchange": _rounded(self.exchange),
            "baseline_ranks": self.baseline.ranks if self.baseline is not None else None,
            "speedup": _rounded(self.speedup),
            "efficiency": _rounded(self.efficiency),
        }

    def in_words(self) -> str:
        rate, share = self.samples_per_sec, self.samples_per_sec / self.ranks
        words = f"{self.ranks} ranks, {rate:.4g} samples/s ({share:.4g} each)"
        if self.baseline is not None and self.efficiency is not None:
            fewer = f"{self.baseline.ranks} rank{'s' if self.baseline.ranks > 1 else ''}"
            words += f"; {self.speedup:.2f} × of {fewer} ({self.efficiency:.0%}), by history"
        if self.exchange is not None:
            words += f"; exchange of gradients about {self.exchange:.0%} of a step"
        return words


def exchange_s(num_bytes: int, ranks: int) -> float:
    """Of gradients around a ring, as nobody has measured it: nothing goes on meanwhile."""
    return 2 * (ranks - 1) / ranks * num_bytes / EXCHANGE_BANDWIDTH


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def find_baseline(
    history: Iterable[Mapping[str, Any]],
    stage: ResolvedStage,
    *,
    device: str,
    ranks: int,
    device_model: str | None = None,
) -> Baseline | None:
    """Of the fewest ranks that history knows with the same work; their newest line counts. Lines
    of another `device_model` do not, where they tell theirs."""
    fewer = range(1, min(ranks, _MOST_RANKS))
    ranks_of = {stage_key(stage, device=device, ranks=number): number for number in fewer}
    newest: dict[int, Mapping[str, Any]] = {}
    for fact in history:
        number = ranks_of.get(str(fact.get("key")))
        if number is None or wrong_in(fact) is not None:
            continue
        if not fact.get("step_s") or not fact.get("effective_batch"):
            continue
        if None not in (device_model, told := fact.get("device_model")) and told != device_model:
            continue
        if number not in newest or (fact.get("at") or 0) >= (newest[number].get("at") or 0):
            newest[number] = fact
    if not newest:
        return None
    fewest = min(newest)
    fact = newest[fewest]
    return Baseline(ranks=fewest, samples_per_sec=fact["effective_batch"] / fact["step_s"])
