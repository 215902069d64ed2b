"""`next_action`: what an attempt does next. `settle`: what becomes of its job.

Never counts attempts itself: what happened before is in the RunView.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME
from tasuki.runs.values import (
    Action,
    Cause,
    Ending,
    Evaluate,
    Event,
    Fail,
    Finish,
    HandOver,
    Hold,
    LaneEnd,
    Leave,
    PhaseEnded,
    Retry,
    RunView,
    Settlement,
    Started,
    Train,
    Verdict,
)

MAX_FAILURES = 3
"""Attempts in a row without a new checkpoint after which a person must look."""

_EXCUSES = (Cause.PREEMPTED, Cause.INTERRUPTED, Cause.CANCELLED)
"""An attempt ended by these before its first step is nobody's fault; our own clock is no excuse."""
_FRUITLESS = {
    Cause.LIMIT: (
        "reached the time limit",
        "ask for a longer `cluster.time_limit`: start-up, one step and one save must fit",
    ),
    Cause.LOST: (
        "lost a part of their job",
        "the job's own logs tell more; another `cluster.constraint` may avoid a sick node",
    ),
    Cause.NONE: (
        "asked to be resumed, soon after their start and without a notice,",
        "exit code 75 means: resume me; a script that is done ends with 0",
    ),
}
"""Handovers that count as failures where they brought nothing."""
_MEND = (
    "`tasuki logs RUN --err` shows more; mend the cause, then `tasuki resume RUN` "
    "(with `--code current` if you changed code)"
)
_STATE_OF_WORD = {"cancel": "cancelled", "hold": "held", "fail": "failed"}


def next_action(run: RunView, event: Event) -> Action:
    """Decide from what is known; the caller acts."""
    if run.is_complete:
        return Leave("complete")
    if run.word in _STATE_OF_WORD:
        return Leave(_STATE_OF_WORD[run.word])
    if isinstance(event, Started):
        return _next_work(run, event.cause)
    match event.ending:
        case Ending.SUPERSEDED:
            return Leave("superseded")
        case Ending.MISTAKE:
            return Fail(event.message, event.hint)
        case Ending.STUCK:
            return Hold(event.message, event.hint)
        case Ending.DONE:
            return _next_work(run, event.cause)
        case Ending.HANDED_OVER:
            return _after_handover(run, event)
        case Ending.FAILED:
            return _after_failure(run, event)


def _next_work(run: RunView, cause: Cause) -> Action:
    work = _first_work(run)
    if work is None or cause is Cause.NONE or isinstance(work, Finish | Leave):
        return work or Leave("done")
    return _hand_over(run, cause)


def _first_work(run: RunView) -> Train | Evaluate | Finish | Leave | None:
    for stage in run.stages:
        if not stage.is_trained:
            return Leave("blocked") if stage.is_cut_off else Train(stage.name)
        if stage.name == run.until and run.trains_only:
            return None
        if stage.wants_evaluation and not stage.is_evaluated:
            return Evaluate(stage.name)
        if stage.name == run.until and stage is not run.stages[-1]:
            return None
    return Finish()


def _hand_over(run: RunView, cause: Cause) -> Action:
    match cause:
        case Cause.CANCELLED:
            return Leave("cancelled")
        case Cause.INTERRUPTED:
            return HandOver(cause, is_resumed=False)
        case Cause.PREEMPTED:
            return HandOver(cause, is_resumed=_may_requeue(run))
        case _:
            # A planned handover and a lost node never count against the cap; `requeue: false`
            # stops them, saved.
            return HandOver(cause, is_resumed=run.requeue is not False)


def _after_handover(run: RunView, event: PhaseEnded) -> Action:
    is_in_vain = event.cause in _FRUITLESS and not event.has_progressed
    if is_in_vain and run.failures + 1 >= MAX_FAILURES:
        words, hint = _FRUITLESS[event.cause]
        return Hold(f"{run.failures + 1} attempts in a row {words} without a new checkpoint", hint)
    if event.cause is Cause.NONE:
        return Retry(event.message)  # a command that wants to begin anew, and has all the time
    return _hand_over(run, event.cause)


def _may_requeue(run: RunView) -> bool:
    if isinstance(run.requeue, bool):
        return run.requeue
    return run.preemptions < run.requeue


def _after_failure(run: RunView, event: PhaseEnded) -> Action:
    if event.cause in _EXCUSES and not event.has_stepped:
        return _hand_over(run, event.cause)  # ended from outside before it could do anything
    failures = 0 if event.has_progressed else run.failures + 1
    if failures >= MAX_FAILURES:
        return Hold(
            f"{failures} attempts in a row failed without a new checkpoint; the last one: "
            f"{event.message or 'no word'}",
            event.hint or _MEND,
        )
    if event.cause is not Cause.NONE:
        return _hand_over(run, event.cause)
    return Retry(event.message)


def counts_as_failure(end: PhaseEnded) -> bool:
    """Does this end of an attempt count towards `RunView.failures`?"""
    if end.has_progressed:
        return False
    if end.ending is Ending.HANDED_OVER:
        return end.cause in _FRUITLESS
    return end.ending is Ending.FAILED and (end.cause not in _EXCUSES or end.has_stepped)


def settle(lanes: Sequence[LaneEnd], *, gpus: int | None = None) -> Settlement:
    """Requeue while what is left could use at least half of the GPUs, else a smaller job. `gpus`:
    of the job, where its lanes overlap."""
    again = [lane for lane in lanes if _comes_back(lane)]
    if not again:
        return Settlement(Verdict.END, _exit_code([lane.action for lane in lanes]))
    usable = usable_gpus(again)
    total = sum(lane.gpus for lane in lanes) if gpus is None else gpus
    # A later job of the plan waits for the end of this one: it must not begin with these runs.
    is_awaited = any(lane.is_continued for lane in again)
    if 2 * usable >= total or is_awaited:
        return Settlement(Verdict.REQUEUE, EXIT_RESUME_ME)
    return Settlement(Verdict.SUCCESSOR, EXIT_RESUME_ME, gpus=usable)


def usable_gpus(lanes: Sequence[LaneEnd]) -> int:
    """How many GPUs these could use side by side: those with equally many others before them never
    wait for each other."""
    after = {lane.number: lane.after for lane in lanes if lane.number is not None}
    depths: dict[int, int] = {}

    def depth(number: int) -> int:
        if number not in depths:
            before = [depth(other) + 1 for other in after[number] if other in after]
            depths[number] = max(before, default=0)
        return depths[number]

    widths: dict[int, int] = {}
    for lane in lanes:
        level = 0 if lane.number is None else depth(lane.number)
        widths[level] = widths.get(level, 0) + lane.gpus
    return max(widths.values(), default=0)


def _comes_back(lane: LaneEnd) -> bool:
    """A planned end is the next job's business; a preempted job comes back, the next one waits."""
    action = lane.action
    if not isinstance(action, HandOver) or not action.is_resumed:
        return False
    return action.cause in (Cause.PREEMPTED, Cause.LOST) or not lane.is_continued


def after_stillbirth(deaths: int, *, hint: str) -> Action:
    """A start of a job died before it took a run, for the `deaths`-th time in a row."""
    if deaths < MAX_FAILURES:
        return Retry(f"the supervisor died before it could begin ({deaths} of {MAX_FAILURES})")
    return Hold(f"its supervisor died {deaths} times before it could begin", hint)


def stays_away(words: Sequence[str | None], *, is_first: bool, is_stopped: bool) -> bool:
    """Must a job of a plan not start? `words` were last said about its runs; the first job of a
    plan was asked for by a person just now; `is_stopped`: a job before it lets none follow."""
    is_unwanted = bool(words) and all(word in _STATE_OF_WORD for word in words)
    return is_stopped or (is_unwanted and not is_first)


def stops_successors(action: Action) -> bool:
    """`requeue: false`, or its cap: after such a preemption the plan's later jobs stay away too."""
    if not isinstance(action, HandOver):
        return False
    return action.cause is Cause.PREEMPTED and not action.is_resumed


def _exit_code(actions: Sequence[Action]) -> int:
    states = [action.state if isinstance(action, Leave) else "" for action in actions]
    if any(isinstance(action, Hold | Fail) for action in actions) or {"held", "failed"} & set(
        states
    ):
        return EXIT_FAILED
    left = {"cancelled", "superseded", "blocked"} & set(states)
    if left or any(isinstance(action, HandOver) for action in actions):
        return EXIT_RESUME_ME
    return EXIT_DONE
