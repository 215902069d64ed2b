"""At epoch borders: may micro-batches be larger, must they be smaller? (`micro_batch: auto`)

Rank 0 decides for all from the highest peak of any rank (estimation/factor.py), before anything of
the border is saved: the decision is an event `safety-factor` after the `micro-batch` events it
stands for, on disk before the step from which it holds, and an attempt that comes by again does
not decide again. Peaks are those of training: a validation has a batch of its own, which is no
micro-batch, and survives a want of memory by itself (roomier.py). Between borders it costs nothing.
Held by fitting.py.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tasuki.data.shares import Limit, StepSplit
from tasuki.estimation.factor import Border, Decision, Shrunk, Tuned, can_rise, decide
from tasuki.failpoints import failpoint
from tasuki.memory.tuned import DECISION
from tasuki.train.gauge import open_gauge
from tasuki.train.task import Task

EVENT = "safety-factor"
_FEWEST_STEPS = 5
"""Between two borders: a stage of tiny epochs is not to write a decision after every step."""
_HEARD_WITHIN = timedelta(minutes=30)


@dataclass(slots=True)
class State:
    """What all borders so far have come to; read from events, so that attempts agree."""

    factor: float
    ratios: list[float] = field(default_factory=list)
    shrunk: list[Shrunk] = field(default_factory=list)
    num_new: int = 0
    decided: set[int] = field(default_factory=set)
    """Steps."""


def read_state(events: Iterable[Mapping[str, Any]], stage: str, tuned: Tuned) -> State:
    """`events` in the order of the run."""
    state = State(tuned.factor)
    for event in events:
        if event.get("stage") != stage:
            continue
        if event["kind"] == EVENT:
            state.factor = float(event["factor"])
            if event["ratio"] is not None:
                state.ratios.append(float(event["ratio"]))
            state.decided.add(int(event["step"]))
            state.num_new = 0
        elif event["kind"] == DECISION and "factor" not in event:
            state.shrunk.append(Shrunk(bucket=int(event["bucket"]), was=int(event["was"])))
            state.num_new += 1
    return state


class Borders:
    """Of one stage, on one rank. `period` is None where nothing is ever decided."""

    def __init__(
        self,
        task: Task,
        *,
        steps_per_epoch: int,
        is_adaptive: bool,
        tuned: Tuned | None = None,
        state: State | None = None,
    ) -> None:
        self._task = task
        self._gauge = open_gauge(task.device) if is_adaptive else None
        self._steps_per_epoch = steps_per_epoch
        self._tuned, self._state = tuned, state
        """Rank 0 alone knows."""
        self._earlier_peak = 0
        """Of steps since the last border that an earlier attempt did, or this one before it was
        interrupted by a validation."""

    @property
    def period(self) -> int | None:
        """In steps."""
        if self._gauge is None:
            return None
        return self._steps_per_epoch * -(-_FEWEST_STEPS // self._steps_per_epoch)

    def begin(self, earlier_peak: int) -> None:
        """Before an attempt's first step: what a restore takes is not a step's."""
        if self._gauge is not None:
            self._earlier_peak = earlier_peak
            self._gauge.forget()

    def note_shrunk(self, bucket: int, was: int) -> None:
        """A step ran out of memory."""
        if self._state is not None:
            self._state.shrunk.append(Shrunk(bucket=bucket, was=was))
            self._state.num_new += 1

    def peak_bytes(self) -> int:
        """Since the last border."""
        if self._gauge is None:
            return 0
        return max(self._earlier_peak, self._gauge.peak_bytes())

    @contextlib.contextmanager
    def apart(self, keep: Callable[[], None] = lambda: None) -> Iterator[None]:
        """What happens inside is no training: its peak does not count. `keep` is called before
        peaks are counted anew."""
        if self._gauge is None:
            yield
            return
        keep()
        self._earlier_peak = self.peak_bytes()
        self._gauge.reset()
        try:
            yield
        finally:
            keep()
            self._gauge.forget()

    def decide(self, step: int, split: StepSplit) -> tuple[Limit, ...]:
        """What holds from this step on; the same on all ranks. All ask at the same step."""
        peaks = self._all_peaks(step)
        told: list[list[int]] | None = None
        if self._task.is_first:
            told = self._decide_first(step, split, max(peaks))
        told = self._agree(step, told)
        assert self._gauge is not None
        self._earlier_peak = 0
        self._gauge.reset()
        return tuple(Limit(bucket=bucket, from_step=step, most=most) for bucket, most in told)

    def _decide_first(self, step: int, split: StepSplit, peak: int) -> list[list[int]]:
        tuned, state = self._tuned, self._state
        assert tuned is not None and state is not None
        if step in state.decided:
            return []
        border = Border(
            factor=state.factor,
            in_use={b.bucket: split.most_at(step, b.bucket) for b in tuned.buckets},
            peak_bytes=peak,
            ratios=state.ratios,
            shrunk=state.shrunk,
            num_new=state.num_new,
        )
        decision = decide(tuned, border)
        if not decision.changes and not border.num_new and not can_rise(tuned, border):
            return []
        self._write(step, border, decision)
        self._keep(state, step, decision)
        return [[bucket, most] for bucket, most in decision.changes.items()]

    @staticmethod
    def _keep(state: State, step: int, decision: Decision) -> None:
        """As whoever reads the events will."""
        state.factor, state.num_new = decision.factor, 0
        state.decided.add(step)
        if decision.ratio is not None:
            state.ratios.append(decision.ratio)

    def _write(self, step: int, border: Border, decision: Decision) -> None:
        task, name = self._task, self._task.stage.name
        reason = f"factor {border.factor:g} → {decision.factor:g}: {decision.reason}"
        for bucket, most in decision.changes.items():
            task.events.add(
                DECISION,
                stage=name,
                bucket=bucket,
                from_step=step,
                most=most,
                was=border.in_use[bucket],
                unit="samples" if task.stage.buckets.cost is None else "cost",
                reason=reason,
                factor=decision.factor,
            )
        task.events.add(
            EVENT,
            stage=name,
            step=step,
            factor=decision.factor,
            was=border.factor,
            peak_bytes=border.peak_bytes,
            predicted_bytes=decision.predicted_bytes,
            ratio=decision.ratio,
            bound=decision.bound,
            reason=decision.reason,
        )
        task.events.sync()
        failpoint("border.decided")
        if decision.changes:
            told = ", ".join(f"{border.in_use[b]} → {m}" for b, m in decision.changes.items())
            task.say(
                f"Safety factor {border.factor:.0%} → {decision.factor:.0%} from step {step} on "
                f"({decision.reason}): micro-batch {told}; the effective batch stays"
            )

    # -- several ranks --------------------------------------------------------------------------

    def _all_peaks(self, step: int) -> list[int]:
        """On rank 0 those of all; else this one's."""
        own, ranks = self.peak_bytes(), self._task.ranks
        if ranks.store is None:
            return [own]
        if not self._task.is_first:
            ranks.store.set(self._key(step, f"peak/{ranks.rank}"), str(own))
            return [own]
        keys = [self._key(step, f"peak/{rank}") for rank in range(1, ranks.world)]
        ranks.store.wait(keys, _HEARD_WITHIN)
        return [own, *(int(ranks.store.get(key)) for key in keys)]

    def _agree(self, step: int, told: list[list[int]] | None) -> list[list[int]]:
        store = self._task.ranks.store
        if store is None:
            return told or []
        key = self._key(step, "decision")
        if told is not None:
            store.set(key, json.dumps(told))
            return told
        store.wait([key], _HEARD_WITHIN)
        heard: list[list[int]] = json.loads(store.get(key))
        return heard

    def _key(self, step: int, what: str) -> str:
        return f"tasuki/border/{self._task.stage.name}/{step}/{what}"
