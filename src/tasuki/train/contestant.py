"""A stage's training as `tune` measures it: built as a run builds it, stepped in short blocks.

Several live in one process and take turns. What holds for the whole process (threads, deterministic
algorithms, TF32, random numbers) is put in place at each turn, so that one does not see the other:
equal weights, equal data and equal random numbers give equal losses, to the bit where the switch
allows it. Nothing is saved.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tasuki.data.fetch import RandomStates, host_random_states, set_host_random_states
from tasuki.data.foreign import ForeignOrder
from tasuki.data.loader import MicroBatch
from tasuki.data.split import resolve_batch
from tasuki.data.tempo import LoaderSettings, share_cpus
from tasuki.errors import RunError
from tasuki.loop.exact import set_deterministic
from tasuki.loop.ranks import ALONE
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.assemble import assemble, make_engine, num_shapes
from tasuki.train.data import StageData, make_loader
from tasuki.train.engine import LossEntry, LossWindow
from tasuki.train.precision import apply_precision

_FOR_EVER = 1 << 40
_REPLAYED_STEPS = 16
"""Of a loader that the recipe brings: it cannot be read by two at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all contestants of a stage share."""

    recipe: Any
    data: StageData
    device: torch.device
    total_steps: int
    ranks: int
    cpus: int
    """Of a rank."""
    random: RandomStates
    """As they are when a run builds its model."""
    replayed: tuple[tuple[tuple[MicroBatch, ...], int], ...] = ()
    """The first steps of a loader of the recipe's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What some steps took."""

    wall_s: float
    cpu_s: float
    wait_s: float
    """For data; part of wall_s."""
    idle_s: float
    """Of the wait: for a disk or a clock, with no CPU at work."""

    @property
    def quiet_s(self) -> float:
        """What the wall clock would tell of one thread if nobody else were on the machine."""
        return self.cpu_s + self.idle_s


class Contestant:
    """One way to train the stage."""

    def __init__(self, stage: ResolvedStage, ground: Ground, *, seed: int | None = None) -> None:
        """`seed`: other weights and random numbers than a run of this spec would have."""
        self._stage, self._ground = stage, ground
        self.said: list[str] = []
        self.losses: list[float] = []
        """Of every step since it was built, until it was rewound."""
        self._is_recorded = True
        self._loader: Any = None
        self._entries: list[list[LossEntry]] = []
        workers = stage.loader.workers if isinstance(stage.loader.workers, int) else None
        is_gpu = ground.device.type == "cuda"
        self.threads, most = share_cpus(ground.cpus, is_gpu=is_gpu, workers=workers)
        self.workers = min(workers or 0, most)
        self._random = _states(ground.device, ground.random)
        with self._turn():
            if seed is not None:
                torch.manual_seed(seed)
            self._build()
        self.rewind()

    def _build(self) -> None:
        stage, ground = self._stage, self._ground
        # A copy: a recipe that counts its calls, or keeps its model, keeps it for itself.
        recipe = copy.copy(ground.recipe)
        self._assembled = assemble(
            recipe,
            stage,
            device=ground.device,
            total_steps=ground.total_steps,
            say=self.said.append,
        )
        self._engine = make_engine(
            recipe,
            stage,
            self._assembled,
            ranks=ALONE,
            device=ground.device,
            num_shapes=num_shapes(ground.data.order),
            say=self.said.append,
        )

    @property
    def model(self) -> torch.nn.Module:
        return self._assembled.model

    @property
    def is_as_compiled_as_asked(self) -> bool:
        """Not so where the compiler gave up."""
        return self._engine.is_compiled == (self._stage.compile is not False)

    @property
    def last_warning(self) -> str:
        warnings = [w.removeprefix("WARNING: ") for w in self.said if w.startswith("WARNING")]
        return warnings[-1] if warnings else ""

    def rewind(self) -> None:
        """From the first step's data again, with the weights as they are now."""
        if self._loader is not None:
            self._loader.stop()
            self._is_recorded = False
        self._loader = self._make_loader()
        self._steps = self._loader.steps()
        self._step_number = 0

    def leave(self) -> None:
        self._loader.stop()

    def run(self, num_steps: int, *, lead_in: int = 0) -> Block:
        """So many steps, timed; those of the lead-in are not."""
        with self._turn():
            for _ in range(lead_in):
                self._step()
            self._wait_s = self._idle_s = 0.0
            self._finish_device()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(num_steps):
                self._step()
            self._finish_device()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self._read_losses()
        return Block(wall_s=wall, cpu_s=cpu, wait_s=self._wait_s, idle_s=self._idle_s)

    def lead_in(self) -> int:
        """Steps until worker processes have given all that they fetched during others' turns."""
        if not self.workers:
            return 0
        ahead = self.workers * self._stage.loader.prefetch
        return -(-ahead // self._ground.data.batch.accumulation) + 1

    def peak_bytes(self, *, others_bytes: int) -> int:
        """Of tensors in one step: what lies there anyway, and the most that a step adds."""
        if self._ground.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.run(1)
            return torch.cuda.max_memory_allocated() - others_bytes
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            self.run(1)
        return self.resident_bytes() + _peak(profile)

    def resident_bytes(self) -> int:
        """Weights, buffers and the optimizer's states on the device."""
        tracked = self._assembled.tracked
        states = [v for s in tracked.optimizer.state.values() for v in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *states]
        here = [t for t in tensors if isinstance(t, Tensor) and t.device == self._place()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in here}
        return sum(storages.values())

    def _place(self) -> torch.device:
        return next(self.model.parameters()).device

    # -- one step -------------------------------------------------------------------------------

    def _step(self) -> None:
        batches, num_samples = self._timed_next(self._steps)
        assembled = self._assembled
        if assembled.schedule is not None:
            last = self._ground.total_steps - 1
            assembled.schedule.set_for(min(self._step_number, last))
        self._engine.step(self._timed(batches), num_samples)
        if assembled.tracked.schedule is not None and self._step_number < self._ground.total_steps:
            assembled.tracked.schedule.step()  # type: ignore[attr-defined]
        self._step_number += 1
        if self._is_recorded:
            self._entries.append(self._engine.window.entries)
        self._engine.window.entries = []

    def _timed(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        with contextlib.suppress(StopIteration):
            while True:
                yield self._timed_next(batches)

    def _timed_next(self, items: Iterator[Any]) -> Any:
        wall, cpu, rests = time.perf_counter(), time.process_time(), _rests()
        try:
            return next(items)
        finally:
            wall = time.perf_counter() - wall
            self._wait_s += wall
            # Who only had to give way to others did not rest: counting that would add the same to
            # both times, and drag their ratio towards 1.
            if _rests() != rests:
                self._idle_s += max(0.0, wall - (time.process_time() - cpu))

    _wait_s = _idle_s = 0.0

    def _finish_device(self) -> None:
        if self._ground.device.type == "cuda":
            torch.cuda.synchronize()

    def _read_losses(self) -> None:
        """After the block: reading waits for the device."""
        for entries in self._entries:
            window = LossWindow()
            window.entries = entries
            total, weight = map(float, window.sums()) if entries else (0.0, 0.0)
            if total - total != 0.0:
                raise RunError(f"the loss is {total} in step {len(self.losses) + 1}")
            self.losses.append(total / weight if weight else 0.0)
        self._entries = []

    # -- its turn -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        stage, device = self._stage, self._ground.device
        torch.set_num_threads(self.threads)
        set_deterministic(stage.exact)
        torch.backends.cudnn.deterministic = stage.exact
        self.said += apply_precision(stage.precision, device)
        _set_states(device, self._random)
        try:
            yield
        finally:
            self._random = _states(device, host_random_states())

    def _make_loader(self) -> Any:
        ground, stage = self._ground, self._stage
        if isinstance(ground.data.order, ForeignOrder):
            return _Replayed(ground)
        micro = None if stage.micro_batch == "auto" else stage.micro_batch
        batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ground.ranks)
        split = replace(ground.data.split, micro_batch=batch.micro_batch)
        is_gpu = ground.device.type == "cuda"
        options = stage.loader
        settings = LoaderSettings(
            workers=self.workers,
            prefetch=options.prefetch,
            context="fork" if options.context == "auto" else options.context,
            pin=is_gpu if options.pin == "auto" else options.pin,
        )
        data = replace(ground.data, batch=batch, split=split)
        return make_loader(data, first_step=0, total_steps=_FOR_EVER, settings=settings)


class _Replayed:
    """The first steps of a loader of the recipe's own, again and again."""

    def __init__(self, ground: Ground) -> None:
        self._kept = ground.replayed

    def steps(self) -> Iterator[tuple[Iterator[MicroBatch], int]]:
        for batches, num_samples in itertools.cycle(self._kept):
            yield iter(batches), num_samples

    def stop(self) -> None:
        """It reads nothing."""


def _rests() -> int:
    """How often this thread gave up the CPU by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def first_steps(data: StageData) -> tuple[tuple[tuple[MicroBatch, ...], int], ...]:
    """Of a loader of the recipe's own, to be replayed."""
    loader = make_loader(data, first_step=0, total_steps=_REPLAYED_STEPS)
    kept = tuple((tuple(batches), num) for batches, num in loader.steps())
    loader.stop()
    return kept


def _states(device: torch.device, host: RandomStates) -> tuple[RandomStates, Tensor | None]:
    return host, torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_states(device: torch.device, states: tuple[RandomStates, Tensor | None]) -> None:
    set_host_random_states(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1], device)


def _peak(profile: Any) -> int:
    """The most bytes that were allocated at once, beyond those before."""
    events = profile.profiler.kineto_results.events()
    told = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, num_bytes in told:
        now += num_bytes
        most = max(most, now)
    return most
