"""Stages on a card before they run: batches, memory, times. Shared by estimate, plan and inspect.

Asks the oracle (predict.py) once for all stages, and once more where one does not fit: it may with
gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasuki.commands.asking import Asking
from tasuki.commands.machine import Machine, device_for, gpu_here, memory_here
from tasuki.commands.predict import Foretold, Oracle
from tasuki.data.split import resolve_batch
from tasuki.errors import TasukiError, UsageError
from tasuki.estimation.fitted import (
    BucketFit,
    Card,
    fit_bucket,
    fit_cost,
    predicted_times,
    shape_of_stage,
    smallest_card,
)
from tasuki.estimation.gpus import CPU, find_gpu
from tasuki.estimation.learnt import learn_calibration, learn_margin
from tasuki.estimation.memory import Needs
from tasuki.estimation.scale import Shape
from tasuki.estimation.times import StageTimes
from tasuki.estimation.works import checkpointing
from tasuki.spec.allocator import GROWING_SEGMENTS, parse_allocator
from tasuki.spec.resolved import ResolvedCluster, ResolvedSpec, ResolvedStage
from tasuki.spec.site import Site
from tasuki.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A stage on a card."""

    stage: ResolvedStage
    card: Card
    foretold: Foretold | None
    """None: nothing is known of it."""
    fits: tuple[BucketFit, ...] = ()
    remedies: tuple[str, ...] = ()
    """Where it does not fit: by how much, and what would help."""

    @property
    def does_fit(self) -> bool:
        return all(fit.fits for fit in self.fits)

    @property
    def peak_bytes(self) -> int | None:
        """Of the bucket that needs most."""
        return max((f.needs.peak_bytes for f in self.fits if f.needs is not None), default=None)

    @property
    def micro_batch(self) -> int | None:
        """Of the bucket that has the smallest."""
        known = [fit.micro_batch for fit in self.fits if fit.micro_batch is not None]
        return min(known, default=None)

    @property
    def predicted(self) -> StageTimes | None:
        """By data sheet."""
        return predicted_times(self.foretold.facts, self.fits) if self.foretold else None

    @property
    def shape(self) -> Shape | None:
        """Of the data, where somebody looked."""
        stage, ranks = self.stage, self.card.ranks
        micro = None if stage.micro_batch == "auto" else stage.micro_batch
        batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
        return shape_of_stage(self.fits, batch.effective_batch)

    @property
    def prediction(self) -> dict[str, Any] | None:
        """What the stage is compared with when it is done (learnt.py): its mean step by data sheet
        alone, and its largest peak."""
        steps = [fit.step for fit in self.fits if fit.step is not None]
        needs = [fit.needs for fit in self.fits if fit.needs is not None]
        if self.predicted is None or not steps or not needs:
            return None
        step_s, peak = self.predicted.step_s, max(needs, key=lambda one: one.peak_bytes)
        return {
            "gpu": self.card.gpu.name,
            "bare_step_s": None if step_s is None else step_s / steps[0].factor,
            "tensor_bytes": peak.tensors.bytes,
            "reserved_bytes": peak.reserved.bytes,
        }


@dataclass(slots=True)
class Prospect:
    """Looks at the stages of one spec; remembers what it was told."""

    spec: ResolvedSpec
    ranks: int
    """Of a job."""
    site: Site
    asking: Asking | None
    """None: only what is kept counts."""
    history: Sequence[Mapping[str, Any]] = ()
    """What past runs measured."""
    measures_on: str | None = None
    """cuda or cpu: real steps may be taken here where none can be traced. None: they must not."""
    notes: list[str] = field(default_factory=list)
    _oracles: dict[str, Oracle] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    """Stages that cannot be checkpointed, and why."""

    def card(self, name: str) -> Card:
        found = find_gpu(name, site=self.site.gpus)
        if found.note and found.note not in self.notes:
            self.notes.append(found.note)
        gpu, cluster = found.gpu, self.spec.cluster
        capacity = gpu.memory_bytes
        if gpu.is_cpu:
            capacity = (cluster.memory_bytes or memory_here()) // cluster.gpus
        return Card(
            gpu=gpu,
            name=name,
            capacity=capacity,
            ranks=self.ranks,
            calibration=learn_calibration(self.history, gpu=name),
            margin=learn_margin(self.history, gpu=name),
        )

    def look(self, stages: Sequence[ResolvedStage], cards: Sequence[Card]) -> list[list[Outlook]]:
        """For each card the stages in their order."""
        found = [self._first(stages, card) for card in cards]
        too_large = [one for row in found for one in row if not one.does_fit and _can_check(one)]
        self._ask(too_large)
        return [[replace(one, remedies=self._remedies(one)) for one in row] for row in found]

    def foretell(self, stages: Sequence[ResolvedStage], card: Card) -> list[Foretold | None]:
        """What is known of stages with recipes on such a card, in their order."""
        return self._oracle(card).foretell(stages)

    def _first(self, stages: Sequence[ResolvedStage], card: Card) -> list[Outlook]:
        traced = [stage for stage in stages if stage.recipe is not None]
        answers = iter(self.foretell(traced, card))
        return [
            outlook_of(stage, card, next(answers) if stage.recipe is not None else None)
            for stage in stages
        ]

    def _ask(self, outlooks: Sequence[Outlook]) -> None:
        """With gradient checkpointing, all at once: one child for each kind of device."""
        for device in {_device(one.card) for one in outlooks}:
            own = [one for one in outlooks if _device(one.card) == device]
            try:
                self._oracle(own[0].card).foretell([checkpointing(one.stage) for one in own])
            except TasukiError as error:  # a model without blocks, say: no reason to tell nothing
                self._refused |= dict.fromkeys((one.stage.name for one in own), error.message)

    def _remedies(self, one: Outlook) -> tuple[str, ...]:
        if one.does_fit:
            return ()
        worst = max(one.fits, key=lambda fit: fit.missing_bytes)
        needs, gpu = worst.needs, one.card.gpu
        assert needs is not None
        peak, missing = format_bytes(needs.peak_bytes), format_bytes(worst.missing_bytes)
        told = [f"{_amount(worst, needs)} needs {peak}: {missing} more than a {gpu.name} has"]
        if worst.max_budget:
            told.append(f"`budget: {worst.max_budget}` is the largest that fits")
        elif needs.batch > 1 and worst.max_micro_batch:
            told.append(f"`micro_batch: {worst.max_micro_batch}` is the largest that fits")
        if _can_check(one):
            told += self._with_checkpointing(one)
        card = None if gpu.is_cpu else smallest_card(needs)
        if card is not None:
            told.append(f"a {card.name} ({format_bytes(card.memory_bytes or 0)}) would hold it")
        elif not gpu.is_cpu:
            told.append("no card that is known would hold it")
        return tuple(told)

    def _with_checkpointing(self, one: Outlook) -> list[str]:
        if one.stage.name in self._refused:
            return [f"gradient checkpointing cannot help: {self._refused[one.stage.name]}"]
        changed = checkpointing(one.stage)
        [foretold] = self._oracle(one.card).foretell([changed])
        if foretold is None or foretold.probe is None:
            return []
        other = outlook_of(changed, one.card, foretold)
        peak = format_bytes(other.peak_bytes or 0)
        if other.does_fit:
            return [f"with `gradient_checkpointing: true` it needs {peak}, which fits"]
        missing = format_bytes(max(fit.missing_bytes for fit in other.fits))
        return [f"with `gradient_checkpointing: true` it needs {peak}, still {missing} too much"]

    def _oracle(self, card: Card) -> Oracle:
        device = _device(card)
        if device not in self._oracles:
            self._oracles[device] = Oracle(
                folder=self.spec.folder,
                runs=Path(self.spec.runs),
                device=device,
                ranks=self.ranks,
                asking=self.asking,
                measures_on=self.measures_on,
                notes=self.notes,
            )
        return self._oracles[device]


def gpu_name(cluster: ResolvedCluster, machine: Machine) -> str:
    """The card that a spec means: its own word, else what is here."""
    if device_for(cluster, machine) == CPU:
        return CPU
    name = cluster.gpu or gpu_here()
    if name is None:
        raise UsageError(
            "which GPU is meant is not known",
            hint="name it: `--gpu a100-40gb`, or `cluster.gpu` in the spec",
        )
    return name


def outlook_of(stage: ResolvedStage, card: Card, foretold: Foretold | None) -> Outlook:
    """Batches, memory and times as far as they follow from what was foretold."""
    if foretold is None:
        return Outlook(stage=stage, card=card, foretold=None)
    written = stage.allocator
    grows = written is None or GROWING_SEGMENTS in (parse_allocator(written) or "")
    card = replace(card, grows=grows)
    buckets = foretold.facts["buckets"]
    probe, small = foretold.probe, foretold.small
    if stage.buckets.kind == "cost":
        fits = tuple(fit_cost(stage, bucket, probe, small, card) for bucket in buckets)
    else:
        fits = tuple(fit_bucket(stage, bucket, probe, card) for bucket in buckets)
    return Outlook(stage=stage, card=card, foretold=foretold, fits=fits)


def _amount(fit: BucketFit, needs: Needs) -> str:
    if fit.budget is not None and not needs.size:
        alone = fit.max_budget == 0
        return f"{'the dearest sample, of' if alone else 'a micro-batch of'} cost {needs.batch:,}"
    batch = "one sample" if needs.batch == 1 else f"a micro-batch of {needs.batch}"
    return f"{batch} of size {fit.size}" if fit.size else batch


def untraced_in_words(outlooks: Iterable[Outlook]) -> Iterator[str]:
    """Stages of which nothing is known because nobody has measured: for verbs that do not."""
    for one in outlooks:
        foretold = one.foretold
        if foretold is not None and foretold.probe is None and foretold.untraced is not None:
            yield (
                f"stage `{one.stage.name}`: `{foretold.untraced['op']}` cannot be traced, so its "
                "memory is not known; `tasuki estimate` measures it, with a few real steps"
            )


def _device(card: Card) -> str:
    return CPU if card.gpu.is_cpu else "cuda"


def _can_check(one: Outlook) -> bool:
    return one.stage.gradient_checkpointing in (False, "auto")
