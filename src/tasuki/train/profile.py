"""`--profile`: where a step's time goes, measured over some steps of each stage by rank 0.

After a warm-up the parts of the engine, the waits for data and whatever the stopwatch times are
wrapped for a window of steps, and unwrapped again; then some steps are traced by torch's profiler,
for Perfetto. So steps outside the window, and runs that are not profiled, pay nothing, and no
number changes. At the end of the stage, or at a handover, the profile is written once more: with
how much saves and validation took in all, and how the loss went. A profile that cannot be made ends
no run.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tasuki.clock import utc
from tasuki.data.loader import MicroBatch
from tasuki.errors import TasukiError
from tasuki.runs.atomic import FORMAT, make_folder, write_bytes, write_json
from tasuki.train.busy import busy_s
from tasuki.train.engine import StepEngine
from tasuki.train.guidance import Figures, Loading, Losses, advise
from tasuki.train.prepare import Setup
from tasuki.train.snapshot import Progress
from tasuki.train.spans import Spans, timeline_of
from tasuki.train.task import Task
from tasuki.train.turns import Turns, read_turns
from tasuki.train.window import Window, plan_window
from tasuki.units import format_seconds

T = TypeVar("T")
_PARTS_OF_ENGINE = {
    "_forward": "forward",
    "_backward": "backward",
    "_sum_over_ranks": "clip",
    "_finish_gradients": "clip",
    "_apply": "optimizer",
}
WAIT = "data wait"
PARTS = (WAIT, "forward", "backward", "clip", "optimizer", "save", "validate", "other")
_NOTICED = 0.1
"""Of the window: shorter waits for a CPU change no share."""
_FAILURES = (TasukiError, OSError, RuntimeError, ValueError, KeyError)


class _State(Enum):
    WARMING_UP = auto()
    MEASURING = auto()
    TRACING = auto()
    OVER = auto()


class Profile:
    """Of one stage in one attempt."""

    def __init__(
        self,
        task: Task,
        setup: Setup,
        engine: StepEngine,
        *,
        step: int,
        loading: Callable[[], Loading],
        last_loss: Callable[[], float | None],
    ) -> None:
        self._task, self._setup, self._engine = task, setup, engine
        self._loading, self._last_loss = loading, last_loss
        self._first_step = step
        self._window: Window = plan_window(setup.total_steps - step)
        self._state = _State.WARMING_UP
        self._done = 0
        self._began_at = task.clock.monotonic()
        self._begun = 0
        """Steps that were done when the present state began."""
        self._spans: Spans | None = None
        self._turns: Turns | None = None
        """As the window began."""
        self._undo: list[Callable[[], None]] = []
        self._num_traced = 0
        self._tracer: Any = None
        self._in_trace: Any = None
        self._losses = Losses(lr=task.stage.lr, clip=task.stage.clip or None)
        self._found: dict[str, Any] | None = None
        """What was measured."""

    # -- from the loop --------------------------------------------------------------------------

    def waits(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; while it is measured, the time until each comes is a span."""
        while True:
            with self._span(WAIT):
                item = next(items, None)
            if item is None:
                return
            yield item

    def begin_step(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        return self.waits(batches)

    def undo_step(self) -> None:
        """Its time has passed all the same."""

    def end_step(self) -> bool:
        """After each step, until the stage is over: losses are looked at all along."""
        self._done += 1
        self._note_loss(self._last_loss())
        if self._state is not _State.OVER:
            self._safely(self._advance)
        return True

    def finish(self, progress: Progress, last_row: dict[str, Any]) -> None:
        """The stage ends, or is handed over; `last_row` is the last line of metrics."""
        self._safely(lambda: self._finish(progress, last_row))

    def leave(self) -> None:
        """The stage goes back: what was measured so far does not count."""
        self._safely(self._leave)

    def _leave(self) -> None:
        """Everything is as if there were no profile."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._spans = None
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            self._close_step()
            tracer.stop()
        self._state = _State.OVER

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except _FAILURES as error:
            with contextlib.suppress(*_FAILURES):
                self._leave()
            self._state = _State.OVER
            self._task.say(f"WARNING: the profile was given up: {error}")

    def _note_loss(self, loss: float | None) -> None:
        if loss is None or loss == self._losses.last:
            return
        known = self._losses
        self._losses = replace(
            known,
            first=loss if known.first is None else known.first,
            lowest=loss if known.lowest is None else min(known.lowest, loss),
            last=loss,
        )

    # -- the window -----------------------------------------------------------------------------

    def _advance(self) -> None:
        now = self._task.clock.monotonic()
        match self._state:
            case _State.WARMING_UP:
                settled = self._loading().is_settled
                if self._window.is_warm(self._done, now - self._began_at, is_settled=settled):
                    self._begin(_State.MEASURING, now)
            case _State.MEASURING:
                assert self._spans is not None
                self._spans.end_step()
                if self._window.is_measured(self._done, self._begun, now - self._began_at):
                    self._end_measuring()
            case _State.TRACING:
                self._close_step()
                if self._done - self._begun >= self._num_traced:
                    self._end_tracing()
                else:
                    self._open_step()
            case _State.OVER:
                pass

    def _begin(self, state: _State, now: float) -> None:
        if self._task.device.type == "cuda":
            torch.cuda.synchronize(self._task.device)
        self._state, self._begun, self._began_at = state, self._done, now
        timeline = timeline_of(self._task.device, self._task.clock)
        self._spans = Spans(timeline, is_named=state is _State.TRACING)
        self._turns = read_turns()
        if not self._undo:
            self._wrap()

    def _wrap(self) -> None:
        for name, part in _PARTS_OF_ENGINE.items():
            self._replace(self._engine, name, self._timed(getattr(self._engine, name), part))
        whole = self._task.stopwatch.part

        @contextlib.contextmanager
        def part_of_stopwatch(name: str) -> Iterator[None]:
            with self._span(name), whole(name):
                yield

        self._replace(self._task.stopwatch, "part", part_of_stopwatch)

    def _timed(self, whole: Callable[..., T], part: str) -> Callable[..., T]:
        @functools.wraps(whole)
        def timed(*arguments: Any, **named: Any) -> T:
            with self._span(part):
                return whole(*arguments, **named)

        return timed

    def _replace(self, owner: object, name: str, by: Any) -> None:
        """On this one object: what its class gives it shows again when that is deleted."""
        setattr(owner, name, by)
        self._undo.append(lambda: delattr(owner, name))

    def _span(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self._spans.span(name) if self._spans is not None else contextlib.nullcontext()

    def _end_measuring(self, *, is_last: bool = False) -> None:
        assert self._spans is not None
        parts, window_s = self._spans.add_up()
        steps = self._done - self._begun
        other = window_s - sum(parts.values())
        self._found = {
            "from_step": self._first_step + self._begun,
            "to_step": self._first_step + self._done,
            "window_s": window_s,
            "step_s": window_s / steps,
            "parts": {name: parts.pop(name, 0.0) for name in PARTS[:-1]} | parts | {"other": other},
            "cpu": self._cpu(window_s),
            "loading": self._loading(),
            "busy": None,
            "trace": None,
        }
        self._write()
        self._task.say(f"Profile: {in_words(self._found)}")
        self._num_traced = self._window.steps_to_trace(self._done, step_s=window_s / steps)
        if self._num_traced and not is_last:
            self._begin(_State.TRACING, self._task.clock.monotonic())
            self._begin_tracing()
        else:
            self._leave()

    def _cpu(self, window_s: float) -> dict[str, Any]:
        """`share`: of the CPU time it could have used; None where it hardly waited for any."""
        now = read_turns()
        if now is None or self._turns is None:
            return {"threads": self._task.threads, "ran_s": None, "waited_s": None, "share": None}
        turns = now.since(self._turns)
        is_noticed = turns.waited_s > _NOTICED * window_s
        return {
            "threads": self._task.threads,
            "ran_s": turns.ran_s,
            "waited_s": turns.waited_s,
            "share": turns.share if is_noticed else None,
        }

    # -- the trace ------------------------------------------------------------------------------

    def _begin_tracing(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self._task.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        tracer = profile(activities=activities)
        tracer.start()
        self._tracer = tracer
        self._open_step()

    def _open_step(self) -> None:
        step = self._first_step + self._done
        self._in_trace = record_function(f"step {step}")
        self._in_trace.__enter__()

    def _close_step(self) -> None:
        if self._in_trace is not None:
            self._in_trace.__exit__(None, None, None)
            self._in_trace = None

    def _end_tracing(self) -> None:
        assert self._found is not None
        if self._task.device.type == "cuda":
            torch.cuda.synchronize(self._task.device)
        tracer, num_traced = self._tracer, self._done - self._begun
        self._leave()
        path = self._path(".trace.json.gz")
        trace = _export(tracer)
        write_bytes(path, trace)
        self._found["trace"] = path.name
        if self._task.device.type == "cuda":
            # By the time of a step that was not traced: tracing makes the gaps longer.
            share = busy_s(trace) / num_traced / self._found["step_s"]
            self._found["busy"] = min(1.0, share)
        self._write()

    # -- what becomes of it ---------------------------------------------------------------------

    def _finish(self, progress: Progress, last_row: dict[str, Any]) -> None:
        if self._state is _State.MEASURING and self._done > self._begun:
            self._end_measuring(is_last=True)
        self._leave()
        self._note_loss(last_row.get("loss"))
        self._losses = replace(
            self._losses,
            skipped=progress.skipped,
            steps=progress.step,
            overflows=int(last_row.get("overflows", 0)),
        )
        if self._found is None:
            self._task.say("Profile: too few steps to measure")
            return
        for sentence in self._write():
            self._task.say(f"Profile: {sentence}")

    def _path(self, ending: str) -> Path:
        name = f"{self._task.orders.claim}.{self._task.stage.name}{ending}"
        return make_folder(self._task.run.profile) / name

    def _write(self) -> list[str]:
        """The profile as it is known now; its advice."""
        assert self._found is not None
        task, found = self._task, dict(self._found)
        loading: Loading = found.pop("loading")
        figures = self._figures(loading)
        advice = advise(figures)
        value = {
            "format": FORMAT,
            "experiment": task.run.name,
            "stage": task.stage.name,
            "attempt": task.orders.claim,
            "device": task.device.type,
            "ranks": task.ranks.world,
            **found,
            "stage_shares": dict(figures.stage_shares),
            "memory": {"peak_bytes": figures.peak_bytes, "total_bytes": figures.total_bytes},
            "batch": {
                "effective_batch": figures.effective_batch,
                "micro_batch": figures.micro_batch,
                "accumulation": figures.accumulation,
            },
            "loader": {"workers": loading.workers, "is_auto": loading.is_auto},
            "loss": {key: getattr(self._losses, key) for key in ("first", "lowest", "last")},
            "skipped": self._losses.skipped,
            "overflows": self._losses.overflows,
            "advice": advice,
            "at": utc(task.clock.wall()),
        }
        write_json(self._path(".json"), value)
        return advice

    def _figures(self, loading: Loading) -> Figures:
        assert self._found is not None
        stage, batch, window_s = self._task.stage, self._setup.batch, self._found["window_s"]
        peak, total = self._memory()
        optimizer = self._setup.tracked.optimizer
        is_fusable = "fused" in getattr(optimizer, "defaults", {})
        return Figures(
            shares={part: s / window_s for part, s in self._found["parts"].items()},
            step_s=self._found["step_s"],
            cpu_share=self._found["cpu"]["share"],
            threads=self._found["cpu"]["threads"],
            stage_shares=self._stage_shares(),
            busy=self._found["busy"],
            peak_bytes=peak,
            total_bytes=total,
            micro_batch=batch.micro_batch,
            accumulation=batch.accumulation,
            effective_batch=batch.effective_batch,
            is_fused=not is_fusable or bool(optimizer.param_groups[0].get("fused")),
            is_checkpointed=stage.gradient_checkpointing not in (False, "auto"),
            is_compiled=self._engine.is_compiled,
            is_save_auto=stage.save.every.unit == "auto",
            loading=loading,
            losses=self._losses,
        )

    def _stage_shares(self) -> dict[str, float]:
        """Of all this attempt did in the stage but starting: the window may have had no save."""
        parts = self._task.stopwatch.parts
        timed = {name: parts.get(name, 0.0) for name in ("data_wait", "step", "save", "validate")}
        whole = sum(timed.values())
        return {name: timed[name] / whole for name in ("save", "validate")} if whole else {}

    def _memory(self) -> tuple[int | None, int | None]:
        if self._task.device.type != "cuda":
            return None, None
        total = torch.cuda.get_device_properties(self._task.device).total_memory
        return int(torch.cuda.max_memory_reserved(self._task.device)), int(total)


def in_words(found: dict[str, Any]) -> str:
    """One line for the log."""
    window_s = found["window_s"]
    shares = ", ".join(f"{name} {s / window_s:.0%}" for name, s in found["parts"].items() if s)
    num = found["to_step"] - found["from_step"]
    return f"{num} steps of {format_seconds(found['step_s'])}: {shares}"


def _export(tracer: Any) -> bytes:
    """A compressed trace as Chrome and Perfetto read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        tracer.export_chrome_trace(str(path))
        return path.read_bytes()
