"""Why do two gradients differ? Found by experiments, one for each possible cause.

All causes can be put to rest on both sides: random numbers give their average, norms take their
running statistics, nothing is computed anew, samples are remembered, micro-batches are cut from the
plain batch, weights are those that fit best. With all at rest the sides are equal, unless the whole
batch is needed; then each cause is let live alone, and is a culprit if the sides differ. So several
culprits at once are all found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError, TasukiError
from tasuki.train.equiv.batches import Batches, Step, counts_of
from tasuki.train.equiv.combined import Combined, combine, name_weights
from tasuki.train.equiv.mixing import find_mixing, find_statistics
from tasuki.train.equiv.passes import (
    ALL,
    NOTHING,
    Bench,
    Cause,
    Difference,
    Found,
    Gradient,
    Shares,
    compare,
)

Culprit = Literal[
    "random", "statistics", "checkpointing", "data", "padding", "weights", "whole_batch", "state",
    "engine", "unknown",
]  # fmt: skip
_LOOSER = 100.0
"""Best weights are found by least squares, which costs some digits."""
_OTHER_DRAWS = 1
"""A GPU draws in another order for another shape. A CPU may happen to draw the same for parts of a
batch as for the whole: that would prove nothing, so the sides begin with other random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One culprit, and the experiment that showed it."""

    cause: Culprit
    alone: float | None
    """The difference with this cause alone; None: it cannot be separated from the others."""
    at_rest: float
    """The difference with all causes at rest."""
    modules: tuple[tuple[str, str], ...] = ()
    """(name, kind) of those that do it; a name of "" is the loss itself."""
    over: str | None = None
    """Of weights: what the loss is a mean over."""
    is_mean: bool = False
    weights: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Of the micro-batches: as they are taken, and as they should be."""
    error: str = ""


class Trial:
    """One step, under all the conditions that are asked for."""

    def __init__(self, bench: Bench, batches: Batches, step: Step, tolerance: float) -> None:
        self.bench, self._batches, self.step = bench, batches, step
        self.tolerance = tolerance
        self._plain: dict[frozenset[Cause], Found] = {}
        self.has_checkpoints = False
        """Something was computed anew."""

    def plain(self, live: frozenset[Cause]) -> Found:
        """One micro-batch of all samples, nothing computed anew."""
        live = live - {"checkpointing", "padding", "weights"}
        if live not in self._plain:
            shares = self._batches.plain(self.step, live)
            self._plain[live] = self.bench.gradient(
                shares, len(self.step.indices), live, world=1, draws=_OTHER_DRAWS
            )
            _refuse_idle(self._plain[live].gradient)
        return self._plain[live]

    def trade(self, live: frozenset[Cause]) -> Found:
        shares = self._batches.trade(self.step, live)
        found = self.bench.gradient(shares, len(self.step.indices), live)
        self.has_checkpoints = self.has_checkpoints or found.has_checkpoints
        return found

    def difference(self, live: frozenset[Cause]) -> Difference:
        """Between the trade and the plain batch. What a trade raises and a plain batch does not is
        a difference, too."""
        plain = self.plain(live)
        try:
            return compare(self.trade(live).gradient, plain.gradient)
        except TasukiError:
            raise
        except Exception as error:
            return Difference(error=_words(error))

    def combined(self, live: frozenset[Cause]) -> Combined:
        """The plain batch, of its micro-batches each for itself."""
        plain = self.plain(live)
        micro = self.micro_batches(live)
        found = [self.bench.gradient([[m]], m.num_samples, live, world=1) for m in micro]
        given = [sum(one.weights) for one in found]
        return combine([one.gradient for one in found], given, plain.gradient)

    def residual(self, live: frozenset[Cause]) -> Difference:
        """What no weights can make equal. Below the tolerance: nothing."""
        found = self.difference(live)
        if found.worst <= self.tolerance or found.error or self.num_parts < 2:
            return found
        try:
            left = self.combined(live).residual
        except TasukiError:
            raise
        except Exception as error:
            return Difference(error=_words(error))
        return Difference(by_parameter={"": left if left > self.tolerance * _LOOSER else 0.0})

    def micro_batches(self, live: frozenset[Cause]) -> list[MicroBatch]:
        shares: Shares = self._batches.trade(self.step, live)
        return [micro for share in shares for micro in share if micro.num_samples]

    @property
    def num_parts(self) -> int:
        return sum(1 for counts in self.step.counts for count in counts if count)

    def whole(self) -> tuple[Any, list[int], int]:
        """The plain batch, and where in it the samples of the last micro-batch are."""
        (((whole, num, *_),),) = self._batches.plain(self.step, NOTHING)
        shares = [share for share in self.step.shares if any(share.counts)]
        return whole, self._batches.rows(self.step, shares[-1].requests[-1]), num

    def is_padded(self) -> bool:
        return self._batches.is_padded(self.step)

    def varies(self) -> bool:
        return self._batches.varies(self.step)


def _refuse_idle(gradient: Gradient) -> None:
    """What cannot be compared with anything."""
    wrong = [name for name, one in gradient.items() if not bool(one.isfinite().all())]
    if wrong:
        raise RecipeError(
            f"the gradient of the plain batch is not finite, first in `{wrong[0]}`: there is "
            "nothing to compare with",
            hint="look at the loss: a division by 0, the log of 0, a sample that is not finite",
        )
    if not any(bool(one.any()) for one in gradient.values()):
        raise RecipeError(
            "the gradient of the plain batch is 0 everywhere: every split is equal to that",
            hint="is the loss made of what the model gives? do these samples count in it?",
        )


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def find_causes(trial: Trial) -> list[Finding]:
    """All culprits of a step whose sides differ."""
    modules = find_statistics(trial.bench, *trial.whole())
    rest = trial.residual(NOTHING).worst
    found = _checkpointing(trial, rest)
    possible = _possible(trial, has_statistics=bool(modules))
    if rest > trial.tolerance:
        seen: list[Cause] = [cause for cause in possible if cause in ("random", "data")]
        found += [_named(Finding(cause=c, alone=None, at_rest=rest), trial) for c in seen]
        return found + _whole_batch(trial, rest)
    weights = _weights(trial, rest)
    for cause in possible:
        live: frozenset[Cause] = frozenset((cause,))
        # With wrong weights every cause would look guilty: then only what no weights explain is.
        alone = trial.residual(live) if weights else trial.difference(live)
        if alone.worst > trial.tolerance:
            finding = Finding(cause=cause, alone=alone.worst, at_rest=rest, error=alone.error)
            found.append(_named(finding, trial))
    return (found + weights) or _together(trial, rest)


def _possible(trial: Trial, *, has_statistics: bool) -> list[Cause]:
    plain = trial.plain(ALL)
    found: list[Cause] = []
    if plain.drawn or plain.has_drawn_on_host:
        found.append("random")
    if has_statistics:
        found.append("statistics")
    if trial.varies():
        found.append("data")
    if trial.is_padded():
        found.append("padding")
    return found


def _named(finding: Finding, trial: Trial) -> Finding:
    kinds = {name: type(m).__name__ for name, m in trial.bench.model.named_modules()}
    if finding.cause == "statistics":
        names = [trial.bench.name_of(module) for module in trial.bench.statistics]
    elif finding.cause == "random":
        plain = trial.plain(ALL)
        names = list(plain.drawn) or [""]
    else:
        return finding
    return replace(finding, modules=tuple((name, kinds.get(name, "")) for name in names))


def _checkpointing(trial: Trial, rest: float) -> list[Finding]:
    """Compared with the same trade, the same random numbers, and nothing computed anew."""
    try:
        without = trial.trade(ALL - {"checkpointing"})
    except TasukiError:
        raise
    except Exception:
        return []  # something else is wrong with the trade
    error, alone = "", float("inf")
    try:
        found = trial.trade(ALL)
        if not found.has_checkpoints:
            return []
        alone = compare(found.gradient, without.gradient).worst
    except TasukiError:
        raise
    except Exception as raised:
        error = _words(raised)
    if alone <= trial.tolerance:
        return []
    return [Finding(cause="checkpointing", alone=alone, at_rest=rest, error=error)]


def _weights(trial: Trial, rest: float) -> list[Finding]:
    """With all others at rest: do the engine's weights make the sum come out?"""
    alone = trial.difference(frozenset(("weights",))).worst
    if alone <= trial.tolerance or trial.num_parts < 2:
        return []
    return [_finding_of_weights(trial, NOTHING, alone, rest)]


def _finding_of_weights(trial: Trial, live: frozenset[Cause], alone: float, rest: float) -> Finding:
    combined = trial.combined(live)
    if combined.as_given <= trial.tolerance * _LOOSER:
        return Finding(cause="engine", alone=alone, at_rest=rest)
    micro = trial.micro_batches(live)
    given = trial.trade(live)
    total = sum(given.weights) or 1.0
    return Finding(
        cause="weights",
        alone=alone,
        at_rest=rest,
        over=name_weights(
            combined.weights,
            [counts_of(m.data, m.num_samples) for m in micro],
            [m.num_samples for m in micro],
        ),
        is_mean=given.is_mean,
        weights=(tuple(weight / total for weight in given.weights), combined.weights),
    )


def _whole_batch(trial: Trial, rest: float) -> list[Finding]:
    """With everything at rest the sides differ."""
    bench = trial.bench
    again = bench.gradient(
        [[MicroBatch(trial.whole()[0], len(trial.step.indices))]],
        len(trial.step.indices),
        NOTHING,
        world=1,
    )
    repeated = compare(again.gradient, trial.plain(NOTHING).gradient).worst
    if repeated > trial.tolerance:
        return [Finding(cause="state", alone=repeated, at_rest=rest)]
    mixing = find_mixing(bench, *trial.whole(), NOTHING)
    names = tuple((bench.name_of(m), type(m).__name__) for m in mixing)
    healed = [m for m in bench.statistics if not any(m is one for one in mixing)]
    found = [Finding(cause="whole_batch", alone=rest, at_rest=rest, modules=names)]
    if healed and find_mixing(bench, *trial.whole(), frozenset(("statistics",))):
        modules = tuple((bench.name_of(m), type(m).__name__) for m in healed)
        found.insert(0, Finding(cause="statistics", alone=None, at_rest=rest, modules=modules))
    return found


def _together(trial: Trial, rest: float) -> list[Finding]:
    """No cause alone is enough: which of them, put to rest, makes the sides equal?"""
    found: list[Finding] = []
    causes: Sequence[Cause] = ("padding", "statistics", "random", "data")
    for cause in causes:
        left = trial.difference(ALL - {cause})
        if left.worst <= trial.tolerance:
            found.append(_named(Finding(cause=cause, alone=None, at_rest=rest), trial))
    if not found and trial.num_parts > 1:
        live = ALL - {"weights", "random"}
        if trial.residual(live).worst <= trial.tolerance:
            return [_finding_of_weights(trial, live, trial.difference(ALL).worst, rest)]
    return found or [Finding(cause="unknown", alone=None, at_rest=rest)]
