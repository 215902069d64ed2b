"""Ways to do the step of a stage on a card: what planning/fit.py chooses from.

Pure: from what was foretold of the stage (predict.py), once for each way to recompute. A rank's
share is cut into 1, 2, 4, … even micro-batches, or as the spec gives it; ranks beyond the traced
one follow from it. Times are a data sheet's, put right by history where it knows one of the ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import msgspec

from tasuki.commands.outlook import outlook_of
from tasuki.commands.predict import Foretold
from tasuki.data.split import resolve_batch
from tasuki.estimation.fitted import BucketFit, Card, predicted_times, put_bucket, share_of
from tasuki.estimation.scaling import exchange_s
from tasuki.estimation.times import StageTimes, estimate_stage
from tasuki.planning.fit import Candidate, Policy
from tasuki.spec.resolved import ResolvedStage

CHECKPOINTING = "gradient_checkpointing"
Kept = dict[tuple[Policy, int], tuple[list[Candidate], float | None]]
"""By way to recompute and number of ranks: candidates, and what history says of their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A stage whose step may be done in several ways."""

    stage: ResolvedStage
    card: Card
    numbers: tuple[int, ...]
    """Of ranks that come into question."""
    foretold: Mapping[Policy, Foretold]
    history: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def is_open(self) -> bool:
        """Is the number of GPUs?"""
        return self.stage.chooses_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    candidates: tuple[Candidate, ...]
    from_history: frozenset[tuple[Policy, int]] = frozenset()
    """Ways to recompute and numbers of ranks whose time past runs tell."""


def find_candidates(question: Question, kept: Kept) -> Found:
    """`kept`: what was worked out before, with fewer ways to recompute; it is added to."""
    for policy, foretold in question.foretold.items():
        for ranks in question.numbers:
            if (policy, ranks) not in kept:
                pair = _Pair(question, policy, ranks, foretold)
                kept[policy, ranks] = list(pair.candidates()), pair.ratio()
    ratios = {key: ratio for key, (_, ratio) in kept.items() if ratio is not None}
    usual = median(ratios.values()) if ratios else 1.0
    return Found(
        candidates=tuple(
            _put_right(one, ratios.get(key, usual)) for key, (own, _) in kept.items() for one in own
        ),
        from_history=frozenset(ratios),
    )


def with_policy(stage: ResolvedStage, policy: Policy) -> ResolvedStage:
    written = list(policy) if isinstance(policy, tuple) else policy
    return msgspec.structs.replace(stage, gradient_checkpointing=written)


def policy_of(stage: ResolvedStage) -> Policy | None:
    """None: it is to be chosen."""
    given = stage.gradient_checkpointing
    if isinstance(given, str):
        return None
    return tuple(given) if isinstance(given, list) else given


def _put_right(one: Candidate, ratio: float) -> Candidate:
    return replace(
        one,
        step_s=None if one.step_s is None else one.step_s * ratio,
        wall_s=None if one.wall_s is None else one.wall_s * ratio,
    )


class _Pair:
    """A way to recompute on a number of ranks: its micro-batches."""

    def __init__(self, question: Question, policy: Policy, ranks: int, foretold: Foretold) -> None:
        self._question, self._policy, self._ranks = question, policy, ranks
        self._card = replace(question.card, ranks=ranks)
        self._foretold = _on_ranks(foretold, ranks if question.is_open else 1)
        stage = question.stage
        micro = None if stage.micro_batch == "auto" else stage.micro_batch
        batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
        self._whole = batch.effective_batch
        self._stage = msgspec.structs.replace(
            with_policy(stage, policy),
            effective_batch=self._whole,
            micro_batch="auto",
            accumulation=None,
            expect_wall_s=None,
        )
        self._share, self._given = share_of(stage, ranks)
        self._auto = outlook_of(self._stage, self._card, self._foretold)
        self._exchange_s = self._of_exchange()

    def candidates(self) -> Iterator[Candidate]:
        if self._stage.buckets.kind == "cost":
            yield self._candidate(self._auto.fits, is_within=True, against=self._against_policy())
            return
        seen = set()
        for micro in self._micros():
            fits = self._put(micro)
            micros = tuple(fit.micro_batch for fit in fits)
            if micros in seen:
                continue
            seen.add(micros)
            within = all((fit.micro_batch or 1) <= most for fit, most in self._with_most(fits))
            is_given = micro == self._given
            against = self._against_policy() or self._against_batch(is_given=is_given)
            yield self._candidate(fits, is_within=within or is_given, against=against)

    def ratio(self) -> float | None:
        """What past runs took of it, as a multiple of what is predicted. None: there are none."""
        stage = msgspec.structs.replace(
            with_policy(self._question.stage, self._policy), expect_wall_s=None
        )
        past = estimate_stage(
            stage,
            device="cuda",
            ranks=self._ranks,
            own_events=(),
            history=self._question.history,
            measured=None,
            shape=self._auto.shape,
            gpu=self._card.called,
        )
        if not past.source.startswith("history") or not past.step_s:
            return None
        usual = self._put(self._given) if self._given is not None else self._auto.fits
        predicted = self._times(usual)
        if predicted is None or not predicted.step_s:
            return None
        return past.step_s / (predicted.step_s + self._exchange_s)

    def _micros(self) -> list[int]:
        """Each as even parts of a share have it, the largest first."""
        parts, micros = 1, []
        while parts < 2 * self._share:
            micros.append(-(-self._share // parts))
            parts *= 2
        micros += [_even(self._share, most) for most in self._most]
        if self._given is not None:
            micros.append(self._given)
        return sorted(set(micros), reverse=True)

    @property
    def _most(self) -> list[int]:
        """Of each bucket, with the safety factor."""
        return [fit.micro_batch or 1 for fit in self._auto.fits]

    def _with_most(self, fits: Sequence[BucketFit]) -> Iterator[tuple[BucketFit, int]]:
        yield from zip(fits, self._most, strict=True)

    def _put(self, micro: int) -> tuple[BucketFit, ...]:
        """Of several buckets each takes what it can of it, unless it is given."""
        buckets, probe = self._foretold.facts["buckets"], self._foretold.probe
        bounds = len(buckets) > 1 and micro != self._given
        return tuple(
            put_bucket(
                self._stage,
                bucket,
                probe,
                self._auto.card,
                micro=_even(self._share, min(micro, most)) if bounds else min(micro, self._share),
                share=self._share,
            )
            for bucket, most in zip(buckets, self._most, strict=True)
        )

    def _candidate(self, fits: Sequence[BucketFit], *, is_within: bool, against: str) -> Candidate:
        one, times = replace(self._auto, fits=tuple(fits)), self._times(fits)
        step_s = None if times is None or times.step_s is None else times.step_s + self._exchange_s
        smallest = min(fits, key=lambda fit: fit.micro_batch or 0)
        steps = None if times is None else times.total_steps
        return Candidate(
            gpus=self._ranks,
            gradient_checkpointing=self._policy,
            micro_batch=smallest.micro_batch,
            accumulation=smallest.accumulation,
            budget=smallest.budget,
            peak_bytes=one.peak_bytes,
            step_s=step_s,
            wall_s=None if step_s is None or steps is None else step_s * steps,
            is_within=is_within,
            against=against,
        )

    def _times(self, fits: Sequence[BucketFit]) -> StageTimes | None:
        return predicted_times(self._foretold.facts, fits)

    def _of_exchange(self) -> float:
        """Where the number of ranks is open, what more of them have to say to each other counts."""
        probe = self._foretold.probe
        if not self._question.is_open or probe is None or self._ranks == 1:
            return 0.0
        size = max(
            (bucket["largest"] or 0 for bucket in self._foretold.facts["buckets"]), default=0
        )
        return exchange_s(probe.most_of("gradients", batch=1, size=size), self._ranks)

    def _against_policy(self) -> str:
        given = policy_of(self._question.stage)
        if given is None or given == self._policy:
            return ""
        return f"`{CHECKPOINTING}: {_written(given)}`"

    def _against_batch(self, *, is_given: bool) -> str:
        if self._given is None or is_given:
            return ""
        stage = self._question.stage
        if stage.micro_batch == "auto":
            return f"`accumulation: {stage.accumulation}`"
        return f"`micro_batch: {stage.micro_batch}`"


def _written(policy: Policy) -> str:
    if isinstance(policy, tuple):
        return f"[{', '.join(policy)}]"
    return str(policy).lower()


def _even(share: int, micro: int) -> int:
    """Nine samples by four are three times three (data/split.py)."""
    micro = min(share, micro)
    return -(-share // -(-share // micro))


def _on_ranks(foretold: Foretold, ranks: int) -> Foretold:
    """What was looked at with one rank, on several: what its samples cost is dealt out."""
    if ranks == 1:
        return foretold
    buckets = [_dealt(bucket, ranks) for bucket in foretold.facts["buckets"]]
    return replace(foretold, facts={**foretold.facts, "buckets": buckets})


def _dealt(bucket: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    if bucket.get("whole_cost") is None:
        return dict(bucket)
    whole = max(bucket["cost"], -(-bucket["whole_cost"] // ranks))
    return {**bucket, "whole_cost": whole, "mean_cost": bucket["mean_cost"] / ranks}


def in_one_piece(candidates: Sequence[Candidate], *, capacity: int | None) -> bool:
    """Does a rank's whole share fit at once, without recomputing, on any number of ranks? Then
    nothing is gained by it."""
    numbers = {one.gpus for one in candidates}
    whole = {
        one.gpus
        for one in candidates
        if one.fits(capacity) and one.accumulation == 1 and not one.recomputes
    }
    return numbers == whole
