"""Which micro-batch, accumulation, recomputation and GPUs do a step of fixed size soonest.

Pure: whoever predicts (commands/candidates.py) hands in ways to do the same step, with what a card
must hold and how long they take. All of them have the same effective batch, so none changes what
is learnt. On a given number of GPUs the fastest that fits is taken; equal ones by fewer
micro-batches, then without recomputing. Where the number is open it is the largest whose GPUs are
still worth it. Each way that lost says why. More memory never makes the choice on a number of GPUs
slower: what fitted still does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tasuki.units import format_bytes

LEAST_EFFICIENCY = 0.7
"""Of further GPUs: speed-up for each of them. Below it they are better given to other stages."""
_SAME = 1.005
"""Times that lie no further apart are told as the same; the choice itself takes the shortest."""
_WORTH = 1.05
"""A way that the spec does not allow is pointed out from here on."""

Policy = bool | int | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to do the step. None: not known."""

    gpus: int
    gradient_checkpointing: Policy
    micro_batch: int | None
    """The smallest of its buckets; None: a budget bounds it."""
    accumulation: int | None
    budget: int | None = None
    peak_bytes: int | None
    step_s: float | None
    wall_s: float | None = None
    """Of all steps of the stage."""
    is_within: bool = True
    """No larger than `safety_factor` allows of what fits."""
    against: str = ""
    """What the spec gives and this way does not keep to; empty: it is allowed."""

    @property
    def recomputes(self) -> bool:
        return self.gradient_checkpointing is not False

    def fits(self, capacity: int | None) -> bool:
        return self.is_within and self.is_held(capacity)

    def is_held(self, capacity: int | None) -> bool:
        """By the card; who leaves nothing free may yet run out of memory."""
        return self.peak_bytes is None or capacity is None or self.peak_bytes <= capacity

    def in_words(self, *, names_gpus: bool = False) -> str:
        """`4 × 4 without checkpointing`, as people say it."""
        where = f" on {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if names_gpus else ""
        return f"{self._batch} {_policy_in_words(self.gradient_checkpointing)}{where}"

    @property
    def _batch(self) -> str:
        if self.budget is not None:
            return f"budget {self.budget:,}"
        if self.micro_batch is None:
            return "its batch"
        return f"{self.micro_batch} × {self.accumulation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    candidate: Candidate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    chosen: Candidate
    does_fit: bool
    lost: tuple[Lost, ...]
    reason: str
    better: Candidate | None = None
    """What would be faster on as many GPUs, if the spec allowed it."""

    def as_json(self, *, capacity: int | None) -> dict[str, Any]:
        """The values of a plan's `fits`, but for where they come from."""
        rows = [_row(one.candidate, capacity, one.reason) for one in self.lost]
        return {
            "chosen": _row(self.chosen, capacity, self.reason),
            "alternatives": rows,
            "gain": None if self.better is None else _gain(self.chosen, self.better),
        }


def choose(
    candidates: Sequence[Candidate], *, capacity: int | None, is_open: bool = False
) -> Choice:
    """`capacity`: bytes of a card; `is_open`: the number of GPUs is. Where nothing fits, the one
    that needs least is taken, and `does_fit` says so."""
    allowed = [one for one in candidates if not one.against]
    assert allowed, "the spec's own way is always among them"
    fitting = [one for one in allowed if one.fits(capacity)]
    if not fitting:
        chosen = min(allowed, key=lambda one: (one.peak_bytes or 0, one.gpus))
    elif is_open:
        chosen = _worth_their_gpus(fitting)
    else:
        chosen = _fastest(fitting)
    others = [one for one in candidates if one is not chosen]
    tell = _Teller(chosen, fitting, capacity)
    is_given = len(allowed) == 1 and len(candidates) > 1
    return Choice(
        chosen=chosen,
        does_fit=bool(fitting),
        lost=tuple(Lost(candidate=one, reason=tell.why_not(one)) for one in others),
        reason="as the spec gives it" if is_given else tell.why(num=len(fitting)),
        better=_better(chosen, others, capacity),
    )


def efficiency(few: Candidate, many: Candidate) -> float | None:
    """1: as many times the speed as times the GPUs. None: nobody knows the times."""
    if not few.step_s or not many.step_s:
        return None
    return few.step_s * few.gpus / (many.step_s * many.gpus)


def _fastest(fitting: Sequence[Candidate]) -> Candidate:
    if any(one.step_s is None for one in fitting):
        # Computing a third anew costs more than any number of micro-batches saves.
        return min(fitting, key=lambda one: (one.recomputes, *_ties(one)))
    return min(fitting, key=lambda one: (one.step_s, *_ties(one)))


def _ties(one: Candidate) -> tuple[int, bool, int]:
    return one.accumulation or 1, one.recomputes, one.peak_bytes or 0


def _worth_their_gpus(fitting: Sequence[Candidate]) -> Candidate:
    """Against the fewest GPUs on which it fits at all."""
    best = _best_of_each(fitting)
    few = best[0]
    worth = [one for one in best if (efficiency(few, one) or 0.0) >= LEAST_EFFICIENCY]
    return worth[-1] if worth else few


def _best_of_each(fitting: Sequence[Candidate]) -> list[Candidate]:
    numbers = sorted({one.gpus for one in fitting})
    return [_fastest([one for one in fitting if one.gpus == number]) for number in numbers]


def _better(
    chosen: Candidate, others: Sequence[Candidate], capacity: int | None
) -> Candidate | None:
    known = [
        one
        for one in others
        if one.fits(capacity) and one.step_s and one.gpus == chosen.gpus and one.against
    ]
    if not known or not chosen.step_s:
        return None
    best = _fastest(known)
    return best if _times(chosen, best) >= _WORTH else None


def _times(slow: Candidate, quick: Candidate) -> float:
    return (slow.step_s or 0.0) / (quick.step_s or math.inf)


def _gain(chosen: Candidate, better: Candidate) -> dict[str, Any]:
    times = _times(chosen, better)
    return {
        "times": round(times, 3),
        "words": f"{chosen.in_words()} → {better.in_words()}: {times:.1f} × as fast",
    }


def _row(one: Candidate, capacity: int | None, reason: str) -> dict[str, Any]:
    values = asdict(one)
    del values["is_within"], values["against"]
    if isinstance(one.gradient_checkpointing, tuple):
        values["gradient_checkpointing"] = list(one.gradient_checkpointing)
    return {**values, "fits": one.fits(capacity), "reason": reason}


class _Teller:
    """Why the others lost."""

    def __init__(
        self, chosen: Candidate, fitting: Sequence[Candidate], capacity: int | None
    ) -> None:
        self._chosen, self._capacity = chosen, capacity
        self._best = {one.gpus: one for one in _best_of_each(fitting)}

    def why(self, *, num: int) -> str:
        chosen, few = self._chosen, self._best.get(min(self._best, default=0))
        if not num:
            return f"needs least: nothing fits{self._of_capacity(chosen)}"
        if chosen.step_s is None:
            return "fits without computing anew" if not chosen.recomputes else "fits"
        if len(self._best) > 1 and few is not None:
            share = efficiency(few, chosen) or 0.0
            return f"the most GPUs that are worth it: each does {share:.0%} of what one would"
        return f"the fastest of {num} that fit" if num > 1 else "the only one that fits"

    def why_not(self, one: Candidate) -> str:
        chosen = self._chosen
        if not one.fits(self._capacity):
            return self._too_large(one)
        if one.against and self._is_faster(one):
            return f"{_told(_times(chosen, one))} × as fast, but the spec gives {one.against}"
        if one.gpus == chosen.gpus:
            return _slower(one, chosen)
        return f"the spec gives {one.against}" if one.against else self._other_gpus(one)

    def _is_faster(self, one: Candidate) -> bool:
        return bool(one.step_s and self._chosen.step_s) and _times(self._chosen, one) > _SAME

    def _too_large(self, one: Candidate) -> str:
        if one.is_held(self._capacity):
            return f"`safety_factor` keeps more free{self._of_capacity(one)}"
        return f"does not fit{self._of_capacity(one)}"

    def _of_capacity(self, one: Candidate) -> str:
        if one.peak_bytes is None or self._capacity is None:
            return ""
        return f": needs {format_bytes(one.peak_bytes)} of {format_bytes(self._capacity)}"

    def _other_gpus(self, one: Candidate) -> str:
        best, few = self._best.get(one.gpus), self._best[min(self._best)]
        if best is not None and one is not best:
            return f"{_slower(one, best)}, on as many GPUs"
        share = efficiency(few, one)
        if one.gpus > self._chosen.gpus:
            if share is None:
                return "what more GPUs bring is not known"
            return f"each GPU does {share:.0%} of what one would, less than {LEAST_EFFICIENCY:.0%}"
        times = _times(one, self._chosen)
        return f"{times:.1f} × as slow: fewer GPUs" if times else "fewer GPUs"


def _slower(one: Candidate, chosen: Candidate) -> str:
    times = _times(one, chosen)
    if not one.step_s or not chosen.step_s:
        return "how long it takes is not known"
    if times < 1 / _SAME:
        return f"{1 / times:.2f} × as fast"
    causes = list(_causes(one, chosen))
    if times <= _SAME:
        return f"same speed, {causes[0] if causes else 'more memory'}"
    return f"{_told(times)} × as slow{': ' if causes else ''}{' and '.join(causes)}"


def _told(times: float) -> str:
    return f"{times:.1f}" if times >= _WORTH else f"{times:.2f}"


def _causes(one: Candidate, chosen: Candidate) -> Iterator[str]:
    if one.recomputes and not chosen.recomputes:
        yield "recomputes activations"
    if (one.accumulation or 1) > (chosen.accumulation or 1):
        yield "more micro-batches"


def _policy_in_words(policy: Policy) -> str:
    if policy is False:
        return "without checkpointing"
    if policy is True:
        return "with checkpointing"
    if isinstance(policy, int):
        return f"with checkpointing of each {policy}. block"
    return f"with checkpointing of {', '.join(policy)}"
