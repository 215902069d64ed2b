"""Which switches `tasuki tune` tries on a stage, and what it makes of what was measured.

Pure: the child that measures (train/tune.py) hands in facts and figures. A switch is kept when its
interval lies above 1 and what is learnt stays within what another seed would change; nothing is
said of what was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tasuki.data.split import resolve_batch
from tasuki.errors import UsageError
from tasuki.estimation.ratios import FEWEST_PAIRS, Ratio
from tasuki.spec.resolved import ResolvedStage
from tasuki.units import format_seconds

WORKERS = "loader.workers"
SWITCHES = (
    "precision",
    "compile",
    "gradient_checkpointing",
    "micro_batch",
    WORKERS,
    "offload",
    "exact",
)
"""As the spec calls them."""
GIVES_UP = {"exact": "gives up exactness"}
"""Written only when they are asked for by name."""

NO_WAIT = 0.05
"""Where steps wait for data for less than this share, workers cannot win more."""
NARROW = 0.03
"""An interval that is wider than ±3 % and covers 1 says nothing."""
LEAST_TOLERANCE, MOST_TOLERANCE = 0.005, 0.02
"""Of the loss, whatever another seed does."""
_STEPS_OF_BLOCK, _STEPS_BEFORE = 3, 20
"""At the least, as train/tune.py takes turns."""
_PATIENCE, _LEAST_S = 1.5, 60.0
"""Steps may be so slow that the fewest pairs outlast the budget: then by so much at the most."""
_LONG_START_S = 10.0
_WORTH_TELLING = 0.05
"""Of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What can be known before anything is measured."""

    is_gpu: bool
    precisions: tuple[str, ...]
    """That the device computes in, quicker than in fp32 or not."""
    ranks: int
    cpus: int
    """Of a rank."""
    spare_cpus: int
    workers: int
    """That the loader has now."""
    num_blocks: int
    is_foreign: bool
    """The recipe brings a loader of its own."""
    wait_share: float
    """How long steps wait for their data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The stage with one switch in another position."""

    switch: str
    value: Any
    was: Any
    changes: dict[str, Any]
    """By key of the spec; accumulation follows micro_batch."""
    refused: str = ""
    """Why it is not tried."""

    @property
    def label(self) -> str:
        return ", ".join(f"{key}: {spell(value)}" for key, value in self.changes.items())


def spell(value: object) -> str:
    """As YAML says it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def variants_for(stage: ResolvedStage, facts: Facts, *, only: Sequence[str] = ()) -> list[Variant]:
    """What to try, in the order of the table. What cannot be is named only if it was asked for."""
    makers = (_precisions, _compile, _checkpointing, _micro_batches, _workers)
    found = [v for make in makers for v in make(stage, facts, bool(only))]
    found += [*_offload(stage, is_gpu=facts.is_gpu), *_exact(stage)]
    chosen = [v for v in found if not only or v.switch in only]
    return [v for v in chosen if only or not v.refused]


def never_tried(stage: ResolvedStage, only: Sequence[str], *, is_gpu: bool) -> str:
    """Why nothing of what is asked for can be tried, as far as spec and device tell before anything
    is built; empty: something may be."""
    known = {"offload": _offload(stage, is_gpu=is_gpu), "exact": _exact(stage)}
    if not only or not set(only) <= set(known):
        return ""
    return why_none(v for switch in only for v in known[switch])


def why_none(variants: Iterable[Variant]) -> str:
    """Why none of them is tried; empty: one is."""
    reasons = {variant.switch: variant.refused for variant in variants}
    if not all(reasons.values()):
        return ""
    return "; ".join(f"`{switch}`: {why}" for switch, why in reasons.items())


def nothing_to_try(why: str) -> UsageError:
    return UsageError(
        f"there is nothing to measure{f': {why}' if why else ''}",
        hint="leave `--only` out, or name other switches; `--dry-run` lists what can be tried",
    )


def most_s(budget_s: float) -> float:
    """How long a measurement may take at the most, without starts and compilers."""
    return max(_LEAST_S, _PATIENCE * budget_s)


def _one(switch: str, value: Any, was: Any, refused: str = "") -> Variant:
    return Variant(switch=switch, value=value, was=was, changes={switch: value}, refused=refused)


def _precisions(stage: ResolvedStage, facts: Facts, _: bool) -> Iterator[Variant]:
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        if precision != stage.precision:
            why = "" if precision in facts.precisions else "this device has no gain from it"
            yield _one("precision", precision, stage.precision, why)


def _compile(stage: ResolvedStage, _: Facts, __: bool) -> Iterator[Variant]:
    yield _one("compile", stage.compile is False, stage.compile)


def _checkpointing(stage: ResolvedStage, facts: Facts, _: bool) -> Iterator[Variant]:
    was = stage.gradient_checkpointing
    if was not in (False, "auto"):
        yield _one("gradient_checkpointing", False, was)
        return
    yield _one("gradient_checkpointing", True, was)
    if facts.num_blocks >= 4:
        yield _one("gradient_checkpointing", 2, was)


def _micro_batches(stage: ResolvedStage, facts: Facts, _: bool) -> Iterator[Variant]:
    """Half and double; the effective batch stays."""
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, facts.ranks)
    now, times = batch.micro_batch, batch.accumulation
    why = ""
    if facts.is_foreign:
        why = "the recipe's own loader decides about its batches"
    elif stage.buckets.kind == "cost":
        why = "`buckets: cost` decides step by step"
    elif now == 1 and times == 1:
        why = "a rank has one sample in a step"
    for value, count in ((now // 2, 2 * times), (2 * now, times // 2)):
        is_even = value * count == now * times
        if value < 1 or count < 1 or (stage.accumulation is not None and not is_even):
            continue
        changes: dict[str, Any] = {"micro_batch": value}
        if stage.accumulation is not None:
            changes["accumulation"] = count
        yield Variant(
            switch="micro_batch", value=value, was=stage.micro_batch, changes=changes, refused=why
        )
    if now == 1 and times == 1:
        yield _one("micro_batch", 1, stage.micro_batch, why)


def _workers(stage: ResolvedStage, facts: Facts, is_asked: bool) -> Iterator[Variant]:
    why = ""
    most = max(facts.spare_cpus, min(1, facts.cpus - 1))
    if facts.is_foreign:
        why = "the recipe brings a loader of its own"
    elif most == 0 and facts.workers == 0:
        why = "no CPU is left for loader workers"
    elif facts.workers == 0 and facts.wait_share < NO_WAIT and not is_asked:
        why = f"steps wait {facts.wait_share:.1%} of their time for data"
    if why:
        yield _one(WORKERS, max(1, most), stage.loader.workers, why)
        return
    for workers in sorted({0, min(1, most), most // 2, most} - {facts.workers}):
        yield _one(WORKERS, workers, stage.loader.workers)


def _offload(stage: ResolvedStage, *, is_gpu: bool) -> Iterator[Variant]:
    why = "" if is_gpu else "there is no GPU here to relieve"
    yield _one("offload", not stage.offload, stage.offload, why)


def _exact(stage: ResolvedStage) -> Iterator[Variant]:
    why = "" if stage.exact else "the stage is `exact: false` already"
    yield _one("exact", False, stage.exact, why)


def changed(stage: ResolvedStage, changes: Mapping[str, Any]) -> ResolvedStage:
    """The stage with other values."""
    plain = dict(changes)
    if WORKERS in plain:
        plain["loader"] = msgspec.structs.replace(stage.loader, workers=plain.pop(WORKERS))
    return msgspec.structs.replace(stage, **plain)


def expected_s(*, step_s: float, num: int, budget_s: float) -> float:
    """How long so many measurements take, about, without compilers: each has its share of the
    budget, but six pairs of blocks at least, after steps that warm both up."""
    each_s = max(budget_s / max(1, num), FEWEST_PAIRS * 2 * _STEPS_OF_BLOCK * step_s)
    return num * (each_s + _STEPS_BEFORE * step_s)


# -- what was measured -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A variant beside the baseline."""

    variant: Variant
    ratio: Ratio | None = None
    """None: it could not be measured, and `error` says why."""
    memory_share: float | None = None
    """Of the baseline's."""
    loss_difference: float | None = None
    """Relative, at the same steps."""
    later_s: float = 0.0
    """How much later than the baseline it is through its first steps: compilers take minutes."""
    saves_s: float = math.inf
    """Of the whole stage, once it is started."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What a change that changes nothing measures: the baseline once more, with another seed."""

    ratio: Ratio | None = None
    loss_difference: float | None = None

    @property
    def floor(self) -> float:
        """What a gain must exceed: 1, or what nothing gained."""
        if self.ratio is None or self.ratio.covers_one:
            return 1.0
        return max(self.ratio.value, 1 / self.ratio.value)

    @property
    def reach(self) -> float:
        """How large a gain may look that is none: six lucky pairs are not so rare where pairs
        differ by half."""
        return max(self.ratio.high, 1 / self.ratio.low) if self.ratio is not None else 1.0

    @property
    def tolerance(self) -> float:
        """Of the loss: a difference that another seed makes too is none."""
        seed = abs(self.loss_difference or 0.0)
        return min(MOST_TOLERANCE, max(LEAST_TOLERANCE, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    verdict: str
    is_kept: bool = False
    """A winner: it may be written."""
    gives_up: str = ""
    """A winner that costs something else than memory: only by name."""
    notes: tuple[str, ...] = field(default=())


def judge(found: Measured, yardstick: Yardstick, *, budget: str) -> Judged:
    """In words; `budget` is a longer one to try."""
    if found.ratio is None:
        return Judged(verdict=found.error)
    ratio, floor = found.ratio, yardstick.floor
    memory = _memory_words(found.memory_share)
    if ratio.high < 1 / floor and ratio.value < 1 / yardstick.reach:
        return Judged(verdict=f"slower{memory}")
    if ratio.low <= floor and (ratio.width <= NARROW or ratio.high <= floor):
        return Judged(verdict=f"no gain{memory}")
    if ratio.low <= floor:
        return Judged(verdict=f"too noisy to tell: try --budget {budget}{memory}")
    if ratio.value <= yardstick.reach:
        noise = f"noise alone measured up to {yardstick.reach:.2f}"
        return Judged(verdict=f"above 1, but {noise}: try --budget {budget}{memory}")
    difference = found.loss_difference
    if difference is not None and not abs(difference) <= yardstick.tolerance:
        limit = f"{yardstick.tolerance:.1%}"
        return Judged(verdict=f"quicker, but the loss differs by more than {limit}{memory}")
    if found.later_s > max(_LONG_START_S, found.saves_s):
        later, saves = format_seconds(found.later_s), format_seconds(found.saves_s)
        return Judged(verdict=f"quicker, but starts {later} later to save {saves}{memory}")
    if given_up := GIVES_UP.get(found.variant.switch, ""):
        return Judged(verdict=f"{given_up}{memory}", is_kept=True, gives_up=given_up)
    return Judged(verdict=f"keep{memory}", is_kept=True)


def _memory_words(share: float | None) -> str:
    if share is None or abs(share - 1.0) < _WORTH_TELLING:
        return ""
    return f"; {abs(1.0 - share):.0%} {'less' if share < 1 else 'more'} memory"


def winners(
    found: Sequence[tuple[Measured, Judged]], *, asked: Sequence[str] = ()
) -> list[Measured]:
    """The best position of each switch that is kept: of those asked for, else of all that give up
    nothing."""
    best: dict[str, Measured] = {}
    for one, judged in found:
        switch = one.variant.switch
        is_wanted = switch in asked if asked else not judged.gives_up
        if not judged.is_kept or not is_wanted:
            continue
        other = best.get(switch)
        if other is None or _gain(one) > _gain(other):
            best[switch] = one
    return list(best.values())


def _gain(found: Measured) -> float:
    return found.ratio.value if found.ratio is not None else 0.0


def loss_difference(base: Sequence[float], other: Sequence[float]) -> tuple[float, bool] | None:
    """(relative difference over the last quarter of the common steps, same to the bit in all)."""
    num = min(len(base), len(other))
    if not num:
        return None
    tail = slice(num - max(1, num // 4), num)
    before, after = math.fsum(base[tail]), math.fsum(other[tail])
    is_same = list(base[:num]) == list(other[:num])
    if is_same or before == after:
        return 0.0, is_same
    return (after - before) / abs(before) if before else math.inf, False
