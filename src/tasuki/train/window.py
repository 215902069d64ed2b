"""Which steps a profile measures, and which it traces. Pure; profile.py asks after each step."""

from __future__ import annotations

from dataclasses import dataclass

_WARM_UP_STEPS = 5
"""The first steps allocate, compile and open files."""
_SETTLES_WITHIN_S = 15.0
"""`workers: auto` may take so long to find its workers: what came before is not what will be."""
_ENOUGH_STEPS = 20
_ENOUGH_S = 1.0
_LONGEST_S = 20.0
_MOST_STEPS = 2000
_TRACED_STEPS = 3
_LONG_STEP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    num_left: int
    """Steps that the stage has left when the attempt begins."""
    num_warm_up: int
    num_traced: int

    def is_warm(self, done: int, seconds: float, *, is_settled: bool) -> bool:
        """Measure from here on? A short stage cannot wait for its loader."""
        if done < self.num_warm_up:
            return False
        return is_settled or seconds >= _SETTLES_WITHIN_S or 3 * done >= self.num_left

    def is_measured(self, done: int, begun: int, seconds: float) -> bool:
        """Has enough been seen, or is the rest kept for the trace?"""
        steps = done - begun
        is_enough = steps >= _ENOUGH_STEPS and seconds >= _ENOUGH_S
        is_long = seconds >= _LONGEST_S or steps >= _MOST_STEPS
        return is_enough or is_long or done >= self.num_left - self.num_traced

    def steps_to_trace(self, done: int, *, step_s: float) -> int:
        """From here on. Of steps that are long one must do."""
        most = 1 if step_s > _LONG_STEP_S else self.num_traced
        return max(0, min(most, self.num_traced, self.num_left - done))


def plan_window(num_left: int) -> Window:
    """For a stage with so many steps left; shorter ones get what they have room for."""
    traced = _TRACED_STEPS if num_left >= 4 * _TRACED_STEPS else int(num_left >= 3)
    warm_up = max(1, min(_WARM_UP_STEPS, num_left // 3))
    return Window(num_left=num_left, num_warm_up=warm_up, num_traced=traced)
