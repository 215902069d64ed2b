"""How long a rank may be silent, and when it stops hoping for its step boundary. Pure."""

from __future__ import annotations

SILENCE_S = 600.0
"""No limit is shorter: an hour lost to a false alarm is worse than ten minutes to a real one."""
_TIMES = 20.0
_FEWEST_STEPS = 50
"""Before them, p99 says nothing: the first steps compile, allocate and open files."""
_SAVE_MARGIN = 1.5
_IN_FLIGHT = 0.7
"""Of a save more: one may be half written when the last begins."""
JITTER_S = 0.4
"""Our own reaction time and the scheduler's unevenness."""


def silence_limit_s(
    doing: str,
    *,
    shortest_s: float,
    num_steps: int,
    knows_every_bucket: bool,
    p99_step_s: float,
    longest_save_s: float | None,
) -> float | None:
    """How long the supervisor may wait for the next word; None: as long as the job lasts.

    A limit needs something to be measured by. Start, validation and evaluation may take any time
    that the user's code wants, and a first save any time that the disk wants.
    """
    match doing:
        case "train":
            if num_steps < _FEWEST_STEPS or not knows_every_bucket:
                return None
            return max(shortest_s, _TIMES * p99_step_s, _TIMES * (longest_save_s or 0.0))
        case "save" | "finish":
            return None if longest_save_s is None else max(shortest_s, _TIMES * longest_save_s)
        case _:
            return None


def time_for_saving_s(longest_save_s: float) -> float:
    """What must be left of a notice when a save begins."""
    return _SAVE_MARGIN * longest_save_s + JITTER_S


def time_for_leaving_s(longest_save_s: float) -> float:
    """What must be left of the job when its last step ends."""
    return (_SAVE_MARGIN + _IN_FLIGHT) * longest_save_s + JITTER_S


def should_publish(
    *,
    remaining_s: float | None,
    running_s: float | None,
    shortest_step_s: float,
    longest_save_s: float,
) -> bool:
    """A notice was given and the loop is not at a boundary: commit the last snapshot now?

    Waiting costs nothing while a save still fits, and the running step may end: so only at the last
    moment, or as soon as the step could not end in time even if it were the shortest one known.
    What runs may also be no step (a validation, a wait for data); then it has run longer than any.
    """
    if remaining_s is None:
        return False
    spare_s = remaining_s - time_for_saving_s(longest_save_s)
    if spare_s <= 0.0:
        return True
    return running_s is not None and shortest_step_s - running_s > spare_s
