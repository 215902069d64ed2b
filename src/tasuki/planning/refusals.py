"""What is refused before anything waits in a queue, and the nearest plan that works instead.

Pure. Alternatives are found by really planning again: with a longer limit, more GPUs, fewer epochs,
jobs that are filled up, a later deadline. Nothing is promised that was not laid out. Also which
jobs can progress at all, and what a notice is long enough for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tasuki.errors import PlanError
from tasuki.planning.cut import LEAD_S, step_seconds
from tasuki.planning.laid import Chains, Layout, Terms
from tasuki.planning.layout import lay_out, lay_out_freely
from tasuki.planning.values import StageWork
from tasuki.units import format_seconds

_LONGER = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 24, 48, 96)
_MORE_GPUS = (2, 4, 8)
_PARTS = 20
"""Epochs are tried in so many steps."""
_MOST_WORK = 400
"""Stages: with more, only what is quick is tried."""


# -- verdicts -------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """Of a stage in jobs of a limit, under notices of a grace."""

    FINE = "fine"
    HOLDS_COPIES = "holds copies"
    """A step and a save outlast the notice: a copy in host memory is saved instead."""
    LOSES_STEPS = "loses steps"
    """Not even a save fits the notice: what was done since the last one is done again."""
    REFUSED = "refused"
    """A job has no room for its start, a step and a save."""


def judge(
    *, limit_s: float | None, start_s: float, step_s: float, save_s: float, notice_s: float
) -> Verdict:
    """`notice_s`: what ranks have of the grace. A job ends by its own clock before its limit, so
    the grace only counts when it is preempted."""
    reserve_s = LEAD_S + 1.5 * save_s + step_s
    if limit_s is not None and start_s + step_s + save_s > limit_s - reserve_s:
        return Verdict.REFUSED
    if step_s + save_s < notice_s:
        return Verdict.FINE
    return Verdict.HOLDS_COPIES if save_s < notice_s else Verdict.LOSES_STEPS


def usable_notice_s(grace_s: float, *, is_slurm: bool) -> float:
    """What the supervisor leaves of a grace to the ranks."""
    own_s = max(1.0, min(5.0, grace_s / 6)) if is_slurm else 1.0
    return max(0.5, grace_s - own_s)


def doubts_about(work: StageWork, *, grace_s: float, is_slurm: bool) -> str:
    """Where a notice is too short: what happens then. Empty: it is not, or nobody knows."""
    step_s = step_seconds(work)
    if not work.trains or not step_s:
        return ""
    notice_s = usable_notice_s(grace_s, is_slurm=is_slurm)
    verdict = judge(
        limit_s=None, start_s=work.start_s, step_s=step_s, save_s=work.save_s, notice_s=notice_s
    )
    times = f"a step of {format_seconds(step_s)} and a save of {format_seconds(work.save_s)}"
    what = f"stage `{work.stage}`: {times} do not fit a notice of {format_seconds(notice_s)}"
    if verdict is Verdict.HOLDS_COPIES:
        return (
            f"{what} (`cluster.grace`): when preempted, a copy of the state in host memory is "
            "saved instead of the running step"
        )
    if verdict is Verdict.LOSES_STEPS:
        return (
            f"{what} (`cluster.grace`), nor does the save alone: when preempted, what was done "
            "since the last save is done again"
        )
    return ""


# -- the nearest that works -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    words: str
    layout: Layout

    def __str__(self) -> str:
        makespan_s, jobs = self.layout.makespan_s, len(self.layout.jobs)
        told = "" if makespan_s is None else f"{format_seconds(makespan_s)} in "
        return f"{self.words} ({told}{jobs} job{'s' if jobs != 1 else ''})"


def lay_out_or_refuse(chains: Chains, terms: Terms) -> Layout:
    """The layout, or the refusal together with what would work."""
    try:
        return lay_out(chains, terms)
    except PlanError as error:
        found = [str(choice) for choice in choices(chains, terms)]
        if not found:
            raise
        raise PlanError(error.message, hint=f"this would work: {'; or '.join(found)}") from error


def refuse_beyond_partition(
    chains: Chains, terms: Terms, *, partition: str, longest_s: float | None
) -> None:
    """A limit that the site does not give; with the plan in jobs that it does."""
    if terms.limit_s is None or longest_s is None or terms.limit_s <= longest_s:
        return
    most = format_seconds(longest_s)
    found = _tried(lay_out, chains, replace(terms, limit_s=longest_s))
    words = f"`cluster.time_limit: {most}`"
    raise PlanError(
        f"`cluster.time_limit` is {format_seconds(terms.limit_s)}, but a job on `{partition}` may "
        f"last {most}",
        hint=f"write {words}: a run goes on from job to job, nothing is lost"
        if found is None
        else f"this would work: {Choice(words, found)}; a run goes on from job to job",
    )


def choices(chains: Chains, terms: Terms) -> Iterator[Choice]:
    """One of each kind, the nearest of its kind."""
    num_stages = sum(len(chain) for chain in chains)
    if terms.cut == "stage" and terms.limit_s is not None:
        yield from _first([("`cut: fill`", chains, replace(terms, cut="fill"))])
    if terms.limit_s is not None:
        yield from _first(_longer_limits(chains, terms))
    if num_stages <= _MOST_WORK:
        yield from _first(_more_gpus(chains, terms))
        yield from _first(_fewer_epochs(chains, terms))
    yield from _first(_later(chains, terms))


def _first(tries: Iterator[Wish] | list[Wish]) -> Iterator[Choice]:
    for words, chains, terms in tries:
        layout = _tried(lay_out, chains, terms)
        if layout is not None:
            yield Choice(words, layout)
            return


Wish = tuple[str, Chains, Terms]


def _tried(how: Callable[[Chains, Terms], Layout], chains: Chains, terms: Terms) -> Layout | None:
    try:
        return how(chains, terms)
    except PlanError:
        return None


def _longer_limits(chains: Chains, terms: Terms) -> Iterator[Wish]:
    assert terms.limit_s is not None
    for factor in _LONGER:
        limit_s = _round_up(terms.limit_s * factor)
        told = f"`cluster.time_limit: {format_seconds(limit_s)}`"
        yield told, chains, replace(terms, limit_s=limit_s)


def _round_up(seconds: float) -> float:
    """To what people write: whole minutes, from ten hours on whole hours."""
    unit = 3600 if seconds >= 36_000 else 60 if seconds >= 60 else 1
    return float(-(-seconds // unit) * unit)


def _more_gpus(chains: Chains, terms: Terms) -> Iterator[Wish]:
    """Stages keep theirs, so that their times hold; more of them run side by side."""
    each = sorted({work.gpus for chain in chains for work in chain if work.trains})
    if len(chains) < 2 or not each:
        return
    for factor in _MORE_GPUS:
        more = replace(terms, gpus=terms.gpus * factor, cpus=terms.cpus * factor)
        told = f"`cluster.gpus: {more.gpus}`"
        if each == [terms.gpus]:
            told += f" and `gpus: {terms.gpus}` for each stage"
        yield told, chains, more


def _fewer_epochs(chains: Chains, terms: Terms) -> Iterator[Wish]:
    works = [work for chain in chains for work in chain if work.trains]
    if not works or any(w.epochs is None or w.from_step or w.wall_s is None for w in works):
        return
    for part in range(_PARTS - 1, 0, -1):
        fewer = [[_shortened(work, part / _PARTS) for work in chain] for chain in chains]
        told = list(_epochs_in_words(chains, fewer))
        if told:
            yield f"fewer epochs: {', '.join(told[:3])}{', …' if told[3:] else ''}", fewer, terms


def _shortened(work: StageWork, share: float) -> StageWork:
    if not work.trains or work.epochs is None or work.wall_s is None:
        return work
    epochs = max(1, int(work.epochs * share))
    steps = work.total_steps
    return replace(
        work,
        epochs=epochs,
        wall_s=work.wall_s * epochs / work.epochs,
        total_steps=None if steps is None else max(1, steps * epochs // work.epochs),
    )


def _epochs_in_words(chains: Chains, fewer: Chains) -> Iterator[str]:
    for old, new in zip(chains, fewer, strict=True):
        for before, after in zip(old, new, strict=True):
            if before.epochs != after.epochs:
                yield f"{after.epochs} of {before.epochs} in `{before.experiment}/{before.stage}`"


def _later(chains: Chains, terms: Terms) -> Iterator[Wish]:
    if terms.deadline_s is None:
        return
    free = _tried(lay_out_freely, chains, replace(terms, deadline_s=None))
    if free is not None and free.makespan_s is not None:
        deadline_s = _round_up(free.makespan_s)
        told = f"`deadline: {format_seconds(deadline_s)}`"
        yield told, chains, replace(terms, deadline_s=deadline_s)
