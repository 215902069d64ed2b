"""`python -m tasuki.train.equiv.child FD`: is the gradient of the trade that of the plain batch?

A child process (answers.py) of `tasuki equiv` that leaves nothing behind. The order: {"stage":
plain values, "folder", "ranks", "samples": the most of a step, or null, "threads"}.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch

from tasuki.answers import Told, answer
from tasuki.data.fetch import seed_everything
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit
from tasuki.data.split import Batch, resolve_batch
from tasuki.errors import DataError, RecipeError, TasukiError, place_of
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.train.advice import is_out_of_memory
from tasuki.train.assemble import Assembled, assemble
from tasuki.train.data import StageData, prepare_data
from tasuki.train.equiv.batches import Batches, Step, choose_steps, shrink
from tasuki.train.equiv.causes import Finding, Trial, find_causes
from tasuki.train.equiv.double import model_to_double
from tasuki.train.equiv.passes import ALL, NOTHING, Bench, Difference
from tasuki.train.equiv.words import words_of
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe, optional
from tasuki.train.recompute import find_blocks, recompute

TOLERANCE = 1e-9
"""Relative. A sum of n numbers in another order differs by about n × 1e-16 in float64; a thousand
samples with some cancellation in between stay below 1e-11. A wrong weight or a mixed batch makes
1e-4 and more: nothing lies between."""
LOW_TOLERANCE = 1e-4
"""Where an operation computes in float32 all the same: the same reasoning with 1e-7."""
_MOST_SAMPLES = 64
_BUDGET_S = 60.0
"""For the comparison, unless --samples is given; looking for a culprit takes some times as long."""
_MOST_STEPS = 4
_PARAMETERS_SHOWN = 1000
_NOT_CHECKED = (
    "rounding in fp32, tf32, bf16 and fp16: everything was computed in float64",
    "GPU kernels: the passes ran on a CPU",
    "clipping, optimizer and schedule: they see the gradient alone",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What is compared, and what there is to say of it."""

    stage: ResolvedStage
    bench: Bench
    data: StageData
    wanted: Batch
    """As a run has it."""
    split: StepSplit
    notes: tuple[str, ...]

    @property
    def order(self) -> Order:
        assert isinstance(self.data.order, Order)
        return self.data.order


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    torch.set_num_threads(max(1, int(order["threads"])))
    return prove(
        stage_from_plain(order["stage"]),
        folder=Path(order["folder"]),
        ranks=order["ranks"],
        samples=order["samples"],
        told=told.progress,
    )


def prove(
    stage: ResolvedStage,
    *,
    folder: Path,
    ranks: int,
    samples: int | None,
    told: Any = lambda *_: None,
) -> dict[str, Any]:
    """The answer of a stage; what cannot be computed at all is said in words."""
    told("opening recipe and data", 0, None)
    ground = _lay_ground(stage, folder=folder, ranks=ranks, samples=samples)
    try:
        return _compare(ground, told)
    except TasukiError:
        raise
    except Exception as error:
        raise _cannot(error, ground.order.effective_batch) from error


def _cannot(error: Exception, samples: int) -> RecipeError:
    lines = str(error).strip().splitlines() or [""]
    told = f"{type(error).__name__}: {lines[0]}{place_of(error)}"
    if is_out_of_memory(error):
        return RecipeError(
            f"{samples} samples in float64 do not fit this machine's memory: {told}",
            hint=f"try --samples {max(2, samples // 4)}",
        )
    return RecipeError(
        f"the passes cannot be made in float64 on a CPU: {told}",
        hint="an operation that has no float64 or no CPU form (quantised layers, fused kernels) "
        "cannot be compared here; give the recipe a `params` switch that leaves it out, and use it "
        "with --set params.NAME=VALUE",
    )


# -- what is compared ----------------------------------------------------------------------------


def _lay_ground(stage: ResolvedStage, *, folder: Path, ranks: int, samples: int | None) -> Ground:
    assert stage.recipe is not None
    notes: list[str] = []
    plain = msgspec.structs.replace(stage, precision="fp32", offload=False, compile=False)
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
    wanted = _wanted(stage, ranks, notes)
    most = samples or max(_MOST_SAMPLES, 2 * ranks)
    batch = shrink(wanted, ranks=ranks, most=most)
    data = _open(recipe, plain, wanted, batch, ranks)
    assembled = _assemble(recipe, plain, data, notes)
    model_to_double(assembled.model)
    _wake(assembled)
    bench = Bench(recipe, assembled, world=ranks)
    if samples is None:
        affordable = _affordable(bench, data, batch)
        if affordable < batch.effective_batch:
            batch = shrink(wanted, ranks=ranks, most=affordable)
            data = _open(recipe, plain, wanted, batch, ranks)
    if batch != wanted:
        notes.append(
            f"a step of {wanted.effective_batch} samples was made smaller: "
            f"{batch.effective_batch} samples, in micro-batches of {batch.micro_batch}"
        )
    if stage.init_from != "none":
        notes.append(f"`init_from: {stage.init_from}` is left out: weights are fresh ones")
    split = _halved(data, stage, notes)
    return Ground(
        stage=stage, bench=bench, data=data, wanted=wanted, split=split, notes=tuple(notes)
    )


def _wanted(stage: ResolvedStage, ranks: int, notes: list[str]) -> Batch:
    """As the spec has it; what is left open is halved once, as a run may do it."""
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
    is_open = stage.micro_batch == "auto" and stage.accumulation is None
    if not is_open or stage.buckets.kind == "cost" or batch.micro_batch == 1:
        return batch
    half = -(-batch.micro_batch // 2)
    notes.append(
        f"`micro_batch: auto` is found when the stage runs: tried with {half}, half of a rank's "
        "share; `--set micro_batch=N` tries another"
    )
    share = batch.micro_batch
    return replace(batch, micro_batch=half, accumulation=-(-share // half))


def _open(recipe: Any, stage: ResolvedStage, wanted: Batch, batch: Batch, ranks: int) -> StageData:
    sized = msgspec.structs.replace(
        stage,
        effective_batch=batch.effective_batch,
        micro_batch=batch.micro_batch,
        accumulation=None,
    )
    data = prepare_data(recipe, sized, rank=0, world=ranks)
    if not isinstance(data.order, Order):
        raise DataError(
            f"stage `{stage.name}` brings a loader of its own: its batches cannot be joined to one "
            "plain batch, so there is nothing to compare with",
            hint="return a map-style data set from build_dataset",
        )
    if stage.buckets.given_budget is None or batch == wanted:
        return data
    budget = stage.buckets.given_budget * batch.effective_batch // wanted.effective_batch
    return replace(data, split=replace(data.split, budget=max(1, budget)))


def _halved(data: StageData, stage: ResolvedStage, notes: list[str]) -> StepSplit:
    """A budget that is still to be found bounds nothing: half of a rank's share is tried."""
    split = data.split
    if split.costs is None or stage.buckets.given_budget is not None:
        return split
    of_step = int(split.costs[_order(data).step(0, 0).indices].sum())
    budget = max(1, of_step // (2 * split.world))
    notes.append(
        f"the budget of `buckets` is found when the stage runs: tried with {budget}, half of a "
        "rank's share"
    )
    return replace(split, budget=budget)


def _assemble(recipe: Any, stage: ResolvedStage, data: StageData, notes: list[str]) -> Assembled:
    total = data.order.total_steps(stage.length.unit, stage.length.count)
    is_open = stage.gradient_checkpointing == "auto"
    known = msgspec.structs.replace(stage, gradient_checkpointing=False) if is_open else stage
    assembled = assemble(
        recipe, known, device=torch.device("cpu"), total_steps=total, say=lambda _: None
    )
    if is_open and find_blocks(assembled.model):
        recompute(assembled.model, True)
        notes.append("`gradient_checkpointing: auto`: tried with it")
    return assembled


@torch.no_grad()
def _wake(assembled: Assembled) -> None:
    """What begins as zeros alone hides what lies before it (the second half of an adapter)."""
    generator = torch.Generator().manual_seed(0)
    for parameter in assembled.model.parameters():
        if parameter.requires_grad and parameter.is_floating_point() and not parameter.any():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.02 * noise.to(parameter.dtype))


def _affordable(bench: Bench, data: StageData, batch: Batch) -> int:
    """Samples of a step, by what a pass over a few takes: time, and memory."""
    step = choose_steps(_order(data), data.split, is_seeded=data.fetcher.is_seeded)[0]
    few = replace(
        step, indices=step.indices[:2], seeds=None if step.seeds is None else step.seeds[:2]
    )
    batches = Batches(data.fetcher, None)
    shares = batches.plain(few, ALL)
    before, began = _peak_bytes(), time.monotonic()
    try:
        bench.gradient(shares, len(few.indices), NOTHING, world=1)
    except TasukiError:
        raise
    except Exception as error:
        raise _cannot(error, len(few.indices)) from error
    each_s = (time.monotonic() - began) / len(few.indices)
    each_bytes = max(0, _peak_bytes() - before) / len(few.indices)
    by_time = _BUDGET_S / max(1e-9, 2 * _MOST_STEPS * each_s)
    by_memory = 0.5 * psutil.virtual_memory().available / max(1.0, each_bytes)
    return max(4, min(batch.effective_batch, int(by_time), int(by_memory)))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _order(data: StageData) -> Order:
    assert isinstance(data.order, Order)
    return data.order


# -- the comparison ------------------------------------------------------------------------------


def _compare(ground: Ground, told: Any) -> dict[str, Any]:
    data, bench = ground.data, ground.bench
    steps = choose_steps(ground.order, ground.split, is_seeded=data.fetcher.is_seeded)
    batches = Batches(data.fetcher, optional(bench.recipe, "collate"))
    trials = [Trial(bench, batches, step, TOLERANCE) for step in steps]
    found = []
    for number, trial in enumerate(trials):
        told("comparing gradients", number, len(trials))
        found.append(trial.difference(ALL))
    low = trials[0].plain(ALL).low
    tolerance = LOW_TOLERANCE if low else TOLERANCE
    for trial in trials:
        trial.tolerance = tolerance
    unequal = [
        (trial, difference)
        for trial, difference in zip(trials, found, strict=True)
        if not difference.worst <= tolerance
    ]
    culprits = _culprits(unequal, told)
    return {
        "equal": not unequal,
        "verdict": _verdict(culprits, is_equal=not unequal),
        "tolerance": tolerance,
        "trade": _trade(ground, trials),
        "steps": [_row(t.step, d, tolerance) for t, d in zip(trials, found, strict=True)],
        "parameters": _parameters(found),
        "culprits": culprits,
        "notes": [*ground.notes, *_notes(ground, trials, low)],
        "not_checked": list(_NOT_CHECKED) + _unchecked(ground.stage),
    }


def _verdict(culprits: list[dict[str, Any]], *, is_equal: bool) -> str:
    """Random numbers alone leave the gradient what it is on average: no split is a wrong one."""
    if is_equal:
        return "equal"
    is_random = {culprit["cause"] for culprit in culprits} == {"random"}
    return "equal on average" if is_random else "unequal"


def _culprits(unequal: list[tuple[Trial, Difference]], told: Any) -> list[dict[str, Any]]:
    """Of every step that differs: a culprit of all of them may hide one of partial steps alone."""
    found: dict[str, Finding] = {}
    of_full: set[str] = set()
    for number, (trial, _) in enumerate(unequal):
        told("looking for the culprit", number, len(unequal))
        for finding in find_causes(trial):
            found.setdefault(finding.cause, finding)
            if trial.step.kind == "full":
                of_full.add(finding.cause)
    if len(found) > 1:
        found.pop("unknown", None)
    return [_culprit(f, is_partial_only=cause not in of_full) for cause, f in found.items()]


def _culprit(finding: Finding, *, is_partial_only: bool) -> dict[str, Any]:
    words, advice = words_of(finding, is_partial_only=is_partial_only)
    is_partial = is_partial_only and finding.cause == "weights"
    return {
        "cause": "partial_group" if is_partial else finding.cause,
        "words": words,
        "advice": advice,
        "modules": [{"name": name, "kind": kind} for name, kind in finding.modules],
        "alone": _finite(finding.alone),
        "at_rest": _finite(finding.at_rest),
        "partial_steps_only": is_partial_only,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: a side that could not be computed has no difference."""
    return None if value is None or value == float("inf") else value


def _trade(ground: Ground, trials: list[Trial]) -> dict[str, Any]:
    wanted, batch, split = ground.wanted, ground.data.batch, ground.split
    return {
        "effective_batch": wanted.effective_batch,
        "micro_batch": wanted.micro_batch if split.costs is None else None,
        "accumulation": wanted.accumulation if split.costs is None else None,
        "budget": split.budget if split.costs is not None else None,
        "ranks": split.world,
        "ranks_are": "simulated" if split.world > 1 else "one",
        "gradient_checkpointing": ground.stage.gradient_checkpointing,
        "computes_anew": any(trial.has_checkpoints for trial in trials),
        "samples": batch.effective_batch,
        "shrunk": batch.effective_batch < wanted.effective_batch,
        "loss": "mean" if trials[0].plain(ALL).is_mean else "(sum, weight)",
    }


def _row(step: Step, difference: Difference, tolerance: float) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "step": step.number,
        "bucket": step.bucket,
        "size": step.size,
        "samples": len(step.indices),
        "micro_batches": step.counts,
        "difference": _finite(difference.worst),
        "parameter": difference.parameter,
        "equal": difference.worst <= tolerance,
        "error": difference.error or None,
    }


def _parameters(found: Iterable[Difference]) -> list[dict[str, Any]]:
    """The largest difference of each, over all steps; the largest first."""
    worst: dict[str, float] = {}
    for difference in found:
        for name, value in difference.by_parameter.items():
            worst[name] = max(value, worst.get(name, 0.0))
    ranked = sorted(worst.items(), key=lambda item: -item[1])[:_PARAMETERS_SHOWN]
    return [{"name": name, "difference": _finite(value)} for name, value in ranked]


def _notes(ground: Ground, trials: list[Trial], low: dict[str, str]) -> list[str]:
    notes = []
    if all(trial.num_parts == 1 for trial in trials):
        notes.append("a step is one micro-batch already: nothing is split")
    if not any(trial.step.kind == "partial" for trial in trials):
        notes.append("every step is full: there is no partial last group")
    if ground.split.world > 1:
        notes.append(
            f"the {ground.split.world} ranks were simulated: shares, factors and sums as in a run, "
            "in one process, without DDP"
        )
    buckets = len(ground.order.plan.buckets)
    if buckets > 2:
        notes.append(f"of {buckets} sizes the smallest and the largest were compared")
    if low:
        where, operation = next(iter(low.items()))
        notes.append(
            f"`{operation}` in {f'`{where}`' if where else 'the loss'} computes in float32 all the "
            f"same: differences up to {LOW_TOLERANCE:g} cannot be told from rounding"
        )
    return notes


def _unchecked(stage: ResolvedStage) -> list[str]:
    found = []
    if stage.compile is not False:
        found.append(f"`compile: {stage.compile}`: the model ran uncompiled")
    if stage.offload:
        found.append("`offload`: it moves the optimizer, not the gradient")
    return found


if __name__ == "__main__":
    answer(work)
