"""What a checkpoint of a loop holds: asked by loop/saving.py at step boundaries, on every rank.

Where the loop stands, what it holds, what it has logged and which samples it used; when that is
saved is not decided here (loop.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasuki.checkpoint.manifest import Position
from tasuki.data.used import Used
from tasuki.loop.state import State, capture_random
from tasuki.runs.atomic import read_json_or_none
from tasuki.runs.lines import spelled

if TYPE_CHECKING:
    from tasuki.integrations.loop import Loop


class LoopContents:
    """Of one loop, as it stands."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def position(self, *, is_end: bool) -> Position:
        worker, step = self._loop.worker, self._loop.progress.step
        return Position(
            stage=worker.stage.name,
            stage_number=worker.stage_number,
            step=self._steps_before() + step,
            stage_step=step,
            epoch=step // self._loop.course.steps_per_epoch,
            samples=self._loop.progress.samples,
            is_start=step == 0,
            is_end=is_end,
        )

    def _steps_before(self) -> int:
        """Of earlier stages; nobody has counted those of a plain command."""
        folders = [self._loop.worker.run.stage(name) for name in self._loop.stages_before]
        told = [read_json_or_none(folder.metrics) or {} for folder in folders]
        return sum(int(value.get("steps") or 0) for value in told)

    def state(self) -> State:
        self._loop.journal.flush(self._loop.worker.clock.monotonic())
        own = {"random": capture_random(), "own": self._loop.holds.capture_rank()}
        state: State = {"rank": own}
        if self._loop.worker.is_first:
            progress = self._loop.progress
            state["shared"] = self._loop.holds.capture()
            state["progress"] = {
                "course": self._loop.fixed_facts(),
                "knows_samples": self._loop.course.knows_samples,
                "step": progress.step,
                "samples": progress.samples,
                "best": progress.best.as_json() if progress.best else None,
                "rows": self._loop.rows.state(),
                "finished": self._loop.finished,
            }
        return state

    def facts(self) -> dict[str, Any]:
        best, course = self._loop.progress.best, self._loop.course
        return {
            "total_steps": course.total_steps,
            "steps_per_epoch": course.steps_per_epoch,
            "best": best.as_json() if best else None,
            **({"order": dict(course.order)} if course.order is not None else {}),
        }

    def used(self) -> Used | None:
        return self._loop.used_samples.total() if self._loop.course.knows_samples else None

    def must_be_finite(self, name: str) -> bool:
        return name.startswith("shared.") and self._loop.holds.must_be_finite(name[7:])

    def loss(self) -> Any:
        last = self._loop.rows.last
        # It may be NaN, which JSON has not.
        return spelled(last["loss"] if "loss" in last else self._loop.newest_loss())
