"""Where a step cannot be traced: real ones, of a few small batches, watched.

On a CPU the tracker looks at real tensors, so that a fit is as good as that of a trace. On a GPU
its allocator tells the most that tensors took, and nothing of what they were for. Where a GPU is
meant and none is here, steps are a CPU's, and a note says so. Bounded: no more than a minute, and
half of the host's free memory; what was seen until then counts if it is two batches.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tasuki.data.loader import MicroBatch
from tasuki.errors import TasukiError
from tasuki.loop.ranks import ALONE
from tasuki.memory.batches import Batches, choose_points
from tasuki.memory.bounded import Untraceable
from tasuki.memory.fit import Fit, Point, fit, fit_line
from tasuki.memory.steps import Device, opened
from tasuki.memory.trace import Event, Kind, Trace
from tasuki.spec.resolved import ResolvedStage
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.footprint import count_bytes, host_available, tensors_in
from tasuki.train.recipe import where

Wanted = tuple[Point, Callable[[], Any]]
"""A batch and how to get it: real ones lie there one at a time."""
MOST_S = 60.0
"""Of a stage: whoever asks sits and waits."""
_LITTLE_S = 5.0
"""That a batch far beyond the others may take."""
_SHARE_OF_FREE = 0.5
_TOTAL_STEPS = 1000
_LEAST = 2
"""Points that make a line."""


class Unmeasured(TasukiError):
    """Real steps tell nothing either."""


class _TooLong(TasukiError):
    """The time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """What real steps may take."""

    most_s: float = MOST_S
    most_bytes: int = field(default_factory=lambda: int(_SHARE_OF_FREE * host_available()))
    clock: Callable[[], float] = time.monotonic
    worked: Callable[[], float] = time.process_time
    """Of this process: what is chosen by it must not hang on who else works here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Steps, in the order that was asked for."""

    traces: tuple[Trace, ...]
    on: Device
    notes: tuple[str, ...]

    def plain(self, found: Fit, *notes: str) -> dict[str, Any]:
        """As a part of a probe file."""
        differs = [] if found.is_exact else [f"steps of different batches differ: {found.reason}"]
        told = {"measured_on": self.on, "notes": [*notes, *self.notes, *differs]}
        return {**found.to_plain(), **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSteps:
    """Of one stage, on what is here."""

    recipe: Any
    stage: ResolvedStage
    device: Device
    """That is meant."""
    ranks: int
    accumulates: bool
    progress: ProgressCallback
    bounded: Bounded = field(default_factory=Bounded)

    def fitted(self, batches: Batches, error: Untraceable) -> dict[str, Any]:
        """A probe file's part; over all sizes where steps go alike."""
        notes = [measured_instead(error)]
        if len(batches.sizes) > 1 and self.on == "cpu":
            points = choose_points(batches.sizes)
            wanted = _at(batches, [*points.used, points.near])
            watched = self.watch(wanted, more=_at(batches, [points.held_back]))
            if len(watched.traces) >= len(wanted):
                used = watched.traces[: len(points.used)]
                found = fit(used, held_back=watched.traces[-1])
                if found.is_exact:
                    return watched.plain(found, *notes)
        if len(batches.sizes) > 1:
            notes.append(f"the figures are those of the largest size, {batches.sizes[-1]}")
        points = choose_points(batches.sizes[-1:])
        far, size = points.held_back
        between = (far // 2, size)
        watched = self.watch(
            _at(batches, [*points.used, points.near]),
            more=_at(batches, [between, points.held_back]),
        )
        return watched.plain(_fitted(watched.traces), *notes)

    @property
    def on(self) -> Device:
        return "cuda" if self.device == "cuda" and torch.cuda.is_available() else "cpu"

    def watch(self, wanted: Sequence[Wanted], *, more: Sequence[Wanted] = ()) -> Watched:
        """`more`: far beyond, and only as far as it takes little time."""
        found: list[Trace] = []
        trouble = self._trouble_of(wanted, more, found)
        if len({trace.batch for trace in found}) < _LEAST:
            raise Unmeasured(trouble)
        is_cut = len(found) < len(wanted)
        cut = f"measured with {len(found)} of {len(wanted)} batches: {trouble}"
        notes = (*self._notes(), *([cut] if is_cut else []))
        return Watched(traces=tuple(found), on=self.on, notes=notes)

    def _trouble_of(
        self, wanted: Sequence[Wanted], more: Sequence[Wanted], found: list[Trace]
    ) -> str:
        """What ends it before all points are `found`, in words."""
        try:
            with _limited(self.bounded.most_bytes if self.on == "cpu" else None):
                self._take(wanted, more, found)
        except _TooLong:
            return f"after {self.bounded.most_s:g} s the time for real steps was over"
        except Untraceable as error:
            return f"`{error.op}` fails in a real step: {error.reason}"
        except TasukiError as error:
            return error.message
        except Exception as error:
            return f"a real step fails: {where(error)}"
        return ""

    def _take(self, wanted: Sequence[Wanted], more: Sequence[Wanted], found: list[Trace]) -> None:
        deadline, worked = _Deadline(self.bounded), self.bounded.worked
        points, took_s = [*wanted, *more], 0.0
        steps = self._on_gpu(points) if self.on == "cuda" else self._on_cpu(points, deadline)
        with contextlib.closing(steps):
            for (batch, _), _ in points:
                if len(found) >= len(wanted) and took_s * batch > _LITTLE_S * found[-1].batch:
                    return
                self.progress(Progress("measuring a step", len(found), len(points)))
                began = worked()
                found.append(next(steps))
                took_s = worked() - began
                deadline.check()

    def _notes(self) -> Iterator[str]:
        if self.on == "cuda":
            yield "measured by real steps on this GPU, each of two micro-batches"
            return
        there = ", as no GPU is here; one keeps other tensors" if self.device == "cuda" else ""
        yield f"measured by real steps on this CPU{there}"
        if self.stage.compile is not False:
            yield "measured as it is written: what `compile` saves is not in the figures"

    def _on_cpu(
        self, wanted: Sequence[Wanted], deadline: _Deadline
    ) -> Generator[Trace, None, None]:
        """A step before all others, and one at each point: they make what is kept from one step to
        the next, and what is there before a step must lie in the same order in all of them."""
        stage = msgspec.structs.replace(self.stage, compile=False)
        accumulation = 2 if self.accumulates else 1
        with opened(self.recipe, stage, device="cpu", is_fake=False, ranks=self.ranks) as traced:
            for number, ((batch, size), get) in enumerate([wanted[0], *wanted]):
                data = get()
                for _ in range(2 if number else 1):
                    with deadline:
                        trace = traced.trace(
                            data, batch=batch, size=size, accumulation=accumulation
                        )
                del data
                if number:
                    yield trace

    def _on_gpu(self, wanted: Sequence[Wanted]) -> Generator[Trace, None, None]:
        """Always two micro-batches: from peaks nobody can tell what gradients take of them."""
        device = torch.device("cuda", torch.cuda.current_device())
        made = assemble(
            self.recipe, self.stage, device=device, total_steps=_TOTAL_STEPS, say=_silent
        )
        engine = make_engine(
            self.recipe, self.stage, made, ranks=ALONE, device=device, num_shapes=None, say=_silent
        )
        model, optimizer = made.model, made.tracked.optimizer
        for number, (point, get) in enumerate(wanted):
            data = get()
            for _ in range(2):
                torch.cuda.reset_peak_memory_stats(device)
                engine.window.entries.clear()
                engine.step(iter([MicroBatch(data, point[0])] * 2), point[0] * 2)
            peak = torch.cuda.max_memory_allocated(device)
            del data
            weights = count_bytes([*model.parameters(), *model.buffers()])
            states = list(tensors_in(dict(getattr(optimizer, "state", {}))))
            there = count_bytes(state for state in states if state.is_cuda)
            copied = weights if self.ranks > 1 else 0
            yield of_peak(point, number, peak=peak, weights=weights, states=there, copied=copied)


def _silent(_: str) -> None:
    """Nobody listens to a probe."""


def measured_instead(error: Untraceable) -> str:
    return f"`{error.op}` cannot be traced ({error.reason}): measured instead"


def _at(batches: Batches, points: Sequence[Point]) -> list[Wanted]:
    return [(point, functools.partial(batches.at, *point)) for point in points]


def _fitted(traces: Sequence[Trace]) -> Fit:
    """Of one size. Where steps do not go alike the largest batches count: small ones tell little of
    large ones. Where not all points were seen, a line through those that were."""
    num = len(choose_points(()).used)
    if len(traces) <= num:
        return fit_line(traces[0], traces[-1], held_back=traces[1:-1])
    found = fit(traces[:num], held_back=traces[-1])
    return found if found.is_exact else fit(traces[-num - 1 : -1], held_back=traces[-1])


def of_peak(
    point: Point, number: int, *, peak: int, weights: int, states: int, copied: int = 0
) -> Trace:
    """What is known of a step on a GPU: one storage stands for all that comes and goes. `copied`:
    DDP's copy of the gradients, which no step here has. Of different numbers of events, so that
    nobody takes a peak for an allocation that grows evenly: peaks do not."""
    others = max(0, peak - weights - states)
    before: list[tuple[Kind, int]] = [("weights", weights), ("optimizer", states)]
    before += [("gradients", copied)] if copied else []
    named = [*before, *[("other", count) for count in (others, *[0] * (number + 1))]]
    return Trace(
        batch=point[0],
        size=point[1],
        begin=len(before),
        events=tuple(Event(n, count) for n, (_, count) in enumerate(named, 1)),
        kinds=tuple(kind for kind, _ in named),
    )


class _Deadline(TorchDispatchMode):
    """Looks at the clock before each operation: a single step may take minutes."""

    def __init__(self, bounded: Bounded) -> None:
        super().__init__()
        self._clock = bounded.clock
        self._end = bounded.clock() + bounded.most_s

    def check(self) -> None:
        if self._clock() > self._end:
            raise _TooLong("the time is over")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.check()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _limited(more: int | None) -> Iterator[None]:
    """So many bytes more for this process, and no more: who asks for them is refused, which is an
    error of the step. Without a limit the system would end this process, or somebody else's."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if more is not None:
        soft, hard = _data_bytes() + more, before[1]
        new = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (new, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int:
    """What counts against the limit now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0
