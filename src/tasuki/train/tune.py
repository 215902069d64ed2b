"""Measure the steps of a stage under other settings: the child process of `tasuki tune`.

The stage as it is and one variant live next to each other and take turns, so a busy minute of the
machine slows both. The functions that build a run build them, and its step engine does their steps.
What the figures mean is decided in commands/tune.py.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from tasuki.data.fetch import seed_everything
from tasuki.data.foreign import ForeignOrder
from tasuki.data.split import resolve_batch
from tasuki.data.tempo import LoaderSettings, share_cpus
from tasuki.errors import RunError, TasukiError, place_of
from tasuki.loop.exact import set_deterministic
from tasuki.loop.ranks import ALONE
from tasuki.spec.resolved import ResolvedStage, apply_changes
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.advice import is_out_of_memory
from tasuki.train.assemble import assemble, make_engine, num_shapes
from tasuki.train.data import StageData, make_loader, prepare_data
from tasuki.train.precision import apply_precision
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe
from tasuki.train.recompute import find_blocks
from tasuki.units import format_seconds

_WARM_UP_STEPS = 5  # the first ones allocate memory, compile and open files
_MAX_WARM_UP_STEPS = 40
_MIN_ROUNDS = 5
_MAX_ROUNDS = 1000
_MIN_EXTRA_S = 10.0
_BLOCK_S = 0.05
_REPLAYED_BATCHES = 16

Changes = dict[str, bool | int | str]


class Setup(NamedTuple):
    """What all variants of a stage share."""

    recipe: Any
    data: StageData
    device: torch.device
    total_steps: int
    ranks: int
    cpus: int  # per rank

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_custom_loader(self) -> bool:
        return isinstance(self.data.order, ForeignOrder)


def measure(
    stage: ResolvedStage,
    folder: Path,
    ranks: int,
    cpus: int,
    device: str,
    only: Sequence[str],
    winners: Changes,
    time_budget_s: float,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Return figures of the stage as it is, and a row for each variant.

    With `winners` there is only one variant, in which all of them are changed.
    """
    progress(Progress("opening the data"))
    setup = open_setup(stage, folder, ranks, cpus, device)
    progress(Progress("warming up the stage as it is"))
    default = Trainer(stage, setup)
    every = [winners] if winners else list(list_variants(stage, setup, default))
    variants = [changes for changes in every if not only or next(iter(changes)) in only]
    rows = []
    left_s = time_budget_s
    for number, changes in enumerate(variants):
        names = ", ".join(f"{key}: {value}" for key, value in changes.items())
        progress(Progress(f"measuring {names}", number, len(variants)))
        began = time.perf_counter()
        # The winners are measured together at the end, in another process.
        share_s = left_s / (len(variants) - number + (not winners))
        max_s = left_s + max(_MIN_EXTRA_S, time_budget_s / 2)
        row = _measure_variant(apply_changes(stage, changes), setup, default, share_s, max_s)
        rows.append({"changes": changes, **row})
        gc.collect()
        if setup.is_gpu:
            torch.cuda.empty_cache()
        # Compilers take their time on top of the budget.
        left_s -= time.perf_counter() - began - row.get("start_s", 0.0)
    default.stop()
    name = torch.cuda.get_device_name() if setup.is_gpu else "cpu"
    figures = {"total_steps": setup.total_steps, **default.figures()}
    return {"device": name, "rows": rows, "default": figures}


def open_setup(stage: ResolvedStage, folder: Path, ranks: int, cpus: int, device: str) -> Setup:
    """Open recipe and data as rank 0 of a run does."""
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
    data = prepare_data(recipe, stage, rank=0, world=ranks)
    total_steps = data.order.total_steps(stage.length.unit, stage.length.count)
    if isinstance(data.order, ForeignOrder):
        # Two trainers cannot read one loader, so each goes over its first batches.
        times = stage.accumulation or 1
        first = list(islice(data.dataset, _REPLAYED_BATCHES))
        order = ForeignOrder(first, seed=0, stage=stage.name, accumulation=times, length_steps=None)
        data = replace(data, dataset=first, order=order)
    return Setup(recipe, data, torch.device(device), total_steps, ranks, max(1, cpus // ranks))


class Trainer:
    """A stage that trains in blocks of steps, in turns with another one in the same process."""

    def __init__(self, stage: ResolvedStage, setup: Setup) -> None:
        began = time.perf_counter()
        self._stage, self._setup = stage, setup
        given = stage.loader.workers if isinstance(stage.loader.workers, int) else None
        self._threads, most = share_cpus(setup.cpus, is_gpu=setup.is_gpu, workers=given)
        self.workers = min(given or 0, most)
        self._num_steps = 0
        self._step_times: list[float] = []
        self._messages: list[str] = []
        self.losses: list[float] = []
        others_bytes = torch.cuda.memory_allocated() if setup.is_gpu else 0
        self._apply_process_settings()
        seed_everything(start_seed(stage, "model", 0))
        recipe = copy.copy(setup.recipe)  # it may count its calls, or keep its model
        common: Any = {"device": setup.device, "say": self._messages.append}
        self._assembled = assemble(recipe, stage, total_steps=setup.total_steps, **common)
        common |= {"ranks": ALONE, "num_shapes": num_shapes(setup.data.order)}
        self._engine = make_engine(recipe, stage, self._assembled, **common)
        self.num_blocks = len(find_blocks(self._assembled.model))
        self._open_loader()
        try:
            self._warm_up()
        except BaseException:
            self.stop()
            raise
        self._start_s = time.perf_counter() - began
        self._memory_bytes = None
        if setup.is_gpu:
            self._memory_bytes = torch.cuda.max_memory_allocated() - others_bytes

    @property
    def step_s(self) -> float:
        return median(self._step_times)

    def figures(self) -> dict[str, Any]:
        return {
            "step_s": self.step_s,
            "peak_memory_bytes": self._memory_bytes,
            "start_s": self._start_s,
        }

    @property
    def num_prefetched_steps(self) -> int:
        """Steps that the batches last which workers fetch during the other's turn."""
        ahead = self.workers * self._stage.loader.prefetch
        return -(-ahead // self._accumulation)

    def run(self, num_steps: int, *, lead_in: int = 0) -> float:
        """Do `lead_in` steps, then so many more, and return the seconds of one of the latter."""
        self._apply_process_settings()
        for _ in range(lead_in):
            self._step()
        self._wait_for_device()
        began = time.perf_counter()
        for _ in range(num_steps):
            self._step()
        self._wait_for_device()
        self._step_times.append((time.perf_counter() - began) / num_steps)
        total, weight = self._engine.read_losses()
        self.losses.append(total / weight if weight else 0.0)
        if not math.isfinite(self.losses[-1]):
            raise RunError(f"the loss is {self.losses[-1]} at step {self._num_steps}")
        return self._step_times[-1]

    def stop(self) -> None:
        self._loader.stop()

    def _open_loader(self) -> None:
        data, stage, options = self._setup.data, self._stage, self._stage.loader
        if not self._setup.has_custom_loader:
            micro = None if stage.micro_batch == "auto" else stage.micro_batch
            ranks = self._setup.ranks
            batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
            split = replace(data.split, micro_batch=batch.micro_batch)
            data = replace(data, batch=batch, split=split)
        settings = LoaderSettings(
            workers=self.workers,
            prefetch=options.prefetch,
            context="fork" if options.context == "auto" else options.context,
            pin=self._setup.is_gpu if options.pin == "auto" else options.pin,
        )
        self._accumulation = data.batch.accumulation
        self._loader = make_loader(data, first_step=0, total_steps=1 << 40, settings=settings)
        self._steps = self._loader.steps()

    def _warm_up(self) -> None:
        # A compiler begins again with each size.
        while len(self.losses) < _WARM_UP_STEPS or not self._loader.has_seen_every_bucket():
            self.run(1)
            if len(self.losses) == _MAX_WARM_UP_STEPS:
                break
        # In a run, a compiler that fails is a warning, and the model trains without it.
        if self._engine.is_compiled != (self._stage.compile is not False):
            raise RunError(self._messages[-1].removeprefix("WARNING: "))
        self.first_loss = fmean(self.losses[:_WARM_UP_STEPS])
        if self._setup.is_gpu:
            torch.cuda.reset_peak_memory_stats()
        self._step_times.clear()
        self.run(3)

    def _step(self) -> None:
        batches, num_samples = next(self._steps)
        last = self._setup.total_steps - 1
        if self._assembled.schedule is not None:
            self._assembled.schedule.set_for(min(self._num_steps, last))
        self._engine.step(batches, num_samples)
        custom_schedule: Any = self._assembled.tracked.schedule
        if custom_schedule is not None and self._num_steps <= last:
            custom_schedule.step()
        self._num_steps += 1

    def _apply_process_settings(self) -> None:
        # They hold for the whole process, and the other trainer has set its own.
        torch.set_num_threads(self._threads)
        set_deterministic(self._stage.exact)
        torch.backends.cudnn.deterministic = self._stage.exact
        apply_precision(self._stage.precision, self._setup.device)

    def _wait_for_device(self) -> None:
        if self._setup.is_gpu:
            torch.cuda.synchronize()


def _measure_variant(
    stage: ResolvedStage, setup: Setup, default: Trainer, share_s: float, max_s: float
) -> dict[str, Any]:
    """Return the figures of a variant, or the reason why there are none."""
    variant = None
    try:
        variant = Trainer(stage, setup)
        ratios = compare(default, variant, share_s, max_s)
        difference = variant.first_loss / default.first_loss - 1 if default.first_loss else 0.0
        return {"ratios": ratios, "loss_difference": difference, **variant.figures()}
    except Exception as error:
        if is_out_of_memory(error):
            return {"reason": "out of memory, with the stage as it is next to it"}
        if isinstance(error, TasukiError):
            return {"reason": error.message}
        first_line = str(error).strip().partition("\n")[0]
        return {"reason": f"{type(error).__name__}: {first_line}{place_of(error)}"}
    finally:
        if variant is not None:
            variant.stop()


def compare(default: Trainer, variant: Trainer, share_s: float, max_s: float) -> list[float]:
    """Return the ratio of the step times (default to variant) in each round.

    In a round both train for a block of steps. The one that was last begins the next round.
    """
    # At least one step that is not timed: the other's turn has emptied the caches of the CPU.
    lead_in = 1 + max(default.num_prefetched_steps, variant.num_prefetched_steps)
    pair_s = default.step_s + variant.step_s
    steps = max(lead_in, round(2 * _BLOCK_S / pair_s))
    needed_s = _MIN_ROUNDS * (steps + lead_in) * pair_s
    if needed_s > max_s:
        rounds = f"{_MIN_ROUNDS} rounds need {format_seconds(needed_s)}"
        raise RunError(f"{rounds}: use a longer --time-budget")
    until = time.perf_counter() + share_s
    ratios: list[float] = []
    while len(ratios) < _MIN_ROUNDS or (len(ratios) < _MAX_ROUNDS and time.perf_counter() < until):
        if len(ratios) % 2:
            default_s, variant_s = (one.run(steps, lead_in=lead_in) for one in (default, variant))
        else:
            variant_s, default_s = (one.run(steps, lead_in=lead_in) for one in (variant, default))
        ratios.append(default_s / variant_s)
    return ratios


def list_variants(stage: ResolvedStage, setup: Setup, default: Trainer) -> Iterator[Changes]:
    """Yield what can be tried on this device, one setting at a time."""
    for precision in ("fp32", "tf32", "bf16", "fp16") if setup.is_gpu else ("fp32", "bf16"):
        if precision != stage.precision:
            yield {"precision": precision}
    yield {"compile": stage.compile is False}
    if stage.gradient_checkpointing not in (False, "auto"):
        yield {"gradient_checkpointing": False}
    elif default.num_blocks:
        yield {"gradient_checkpointing": True}
        if default.num_blocks >= 4:
            yield {"gradient_checkpointing": 2}
    if setup.is_gpu:
        yield {"offload": not stage.offload}
    if stage.exact:
        yield {"exact": False}
    if setup.has_custom_loader:
        return  # it decides about batches and workers
    if stage.buckets.kind != "cost":
        yield from _list_micro_batches(stage, setup)
    spare = share_cpus(setup.cpus, is_gpu=setup.is_gpu, workers=None)[1]
    most = max(spare, min(1, setup.cpus - 1))
    for workers in sorted({0, min(1, most), most // 2, most} - {default.workers}):
        yield {"loader.workers": workers}


def _list_micro_batches(stage: ResolvedStage, setup: Setup) -> Iterator[Changes]:
    """Yield half and double of the micro-batch. The effective batch stays."""
    micro, times = setup.data.batch.micro_batch, setup.data.batch.accumulation
    for value in (micro // 2, 2 * micro):
        if value and micro * times % value == 0:
            changes: Changes = {"micro_batch": value}
            if stage.accumulation is not None:
                changes["accumulation"] = micro * times // value
            yield changes
