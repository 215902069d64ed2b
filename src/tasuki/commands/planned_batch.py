"""What a plan says of a stage's batches: what the spec decides, else what is known of the rest.

Pure. With `auto` the micro-batch is found at a stage's first start, where memory has an end; until
then it is what this run has decided, what the same work had the last time, or what is predicted,
and each says so; else `auto`. Nothing is looked for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasuki.commands.outlook import Outlook
from tasuki.data.split import Batch, resolve_batch
from tasuki.estimation.facts import stage_key
from tasuki.estimation.past import read_pasts
from tasuki.spec.resolved import ResolvedStage

Source = Literal["given", "this run", "history", "predicted", "whole share", "auto", "command"]
_DECISION = "micro-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """Of the bucket with the smallest micro-batch; None: not known before the stage runs."""

    effective_batch: int
    micro_batch: int | None = None
    accumulation: int | None = None
    budget: int | Literal["auto"] | None = None
    """Of what a micro-batch may cost; None: samples are counted."""
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Of a stage, beside its spec."""

    ranks: int
    device: str
    """cuda or cpu."""
    gpu: str | None = None
    """As the spec names it."""
    events: Sequence[Mapping[str, Any]] = ()
    """Of this run."""
    history: Sequence[Mapping[str, Any]] = ()
    outlook: Outlook | None = None


def plan_batch(stage: ResolvedStage, known: Known) -> PlannedBatch:
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    whole = resolve_batch(stage.effective_batch, micro, stage.accumulation, known.ranks)
    if stage.recipe is None:
        return PlannedBatch(effective_batch=whole.effective_batch, source="command")
    is_by_cost = stage.buckets.kind == "cost"
    most, source = _most(stage, known, whole, is_by_cost=is_by_cost)
    if is_by_cost:
        budget: int | Literal["auto"] = "auto" if most is None else most
        return PlannedBatch(effective_batch=whole.effective_batch, budget=budget, source=source)
    if most is None:
        return PlannedBatch(effective_batch=whole.effective_batch, source=source)
    share = -(-whole.effective_batch // known.ranks)
    micro = min(most, share)
    times = -(-share // micro)
    return PlannedBatch(
        effective_batch=whole.effective_batch,
        # Of a limit of nine, sixteen samples are eight and eight (data/split.py).
        micro_batch=-(-share // times) if source == "predicted" else micro,
        accumulation=times,
        source=source,
    )


def _most(
    stage: ResolvedStage, known: Known, whole: Batch, *, is_by_cost: bool
) -> tuple[int | None, Source]:
    """Samples of a micro-batch, or what they may cost. What this run has decided goes before the
    spec: it was halved because it had no room."""
    decided = _decided(stage, known.events)
    if decided is not None:
        return decided, "this run"
    if is_by_cost and stage.buckets.given_budget is not None:
        return stage.buckets.given_budget, "given"
    is_open = stage.micro_batch == "auto" and stage.accumulation is None
    if not is_by_cost and not is_open:
        return whole.micro_batch, "given"
    if known.device == "cpu" or (not is_by_cost and whole.micro_batch == 1):
        return None if is_by_cost else whole.micro_batch, "whole share"
    if not is_by_cost and (past := _of_the_same_work(stage, known)) is not None:
        return past, "history"
    predicted = _predicted(known.outlook, is_by_cost=is_by_cost)
    return predicted, "auto" if predicted is None else "predicted"


def _decided(stage: ResolvedStage, events: Iterable[Mapping[str, Any]]) -> int | None:
    """The last word about each bucket; of these the smallest."""
    last = {
        event.get("bucket"): int(event["most"])
        for event in events
        if event.get("kind") == _DECISION and event.get("stage") == stage.name
    }
    return min(last.values(), default=None)


def _of_the_same_work(stage: ResolvedStage, known: Known) -> int | None:
    key = stage_key(stage, device=known.device, ranks=known.ranks)
    for past in read_pasts(known.history):
        batches = [b.micro_batch for b in past.buckets if b.micro_batch]
        if past.key == key and past.may_be_of(known.gpu) and batches:
            return min(batches)
    return None


def _predicted(outlook: Outlook | None, *, is_by_cost: bool) -> int | None:
    """Without a probe a fit is the whole share, which nobody has foretold."""
    fits = [] if outlook is None else [fit for fit in outlook.fits if fit.needs is not None]
    found = [fit.budget if is_by_cost else fit.micro_batch for fit in fits]
    return min((most for most in found if most is not None), default=None)
