"""What `plan` and `submit` take from predictions: times of stages that nobody can measure here, and
whether a batch fits the card.

A GPU that is named but not here is looked up, and the child is asked (outlook.py) where a time is
wanted; `submit` and stages whose time is known only look at what is kept. No real steps are taken
in here, since whoever plans for a GPU that is not here sits on a login node: what `estimate` has
measured counts. A prediction is never worth a plan: what fails in here is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasuki.commands.asking import Asking
from tasuki.commands.machine import Machine
from tasuki.commands.outlook import Outlook, Prospect, untraced_in_words
from tasuki.errors import TasukiError
from tasuki.estimation.times import StageTimes
from tasuki.spec.resolved import ResolvedSpec, ResolvedStage
from tasuki.spec.site import load_site
from tasuki.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """Of the stages of an experiment, by name."""

    outlooks: Mapping[str, Outlook] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def peak_bytes(self, stage: ResolvedStage) -> int | None:
        outlook = self.outlooks.get(stage.name)
        predicted = None if outlook is None else outlook.peak_bytes
        return stage.expect_peak_bytes or predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """How far a plan may look."""

    spec: ResolvedSpec
    machine: Machine
    ranks: int
    python: str
    environment: dict[str, str]
    history: Sequence[Mapping[str, Any]]
    may_ask: bool
    """A child; else only what is kept counts."""
    on_progress: Callable[[str], None] = lambda _: None


def foresee(
    stages: Sequence[ResolvedStage], unknown: Sequence[ResolvedStage], foresight: Foresight
) -> Foreseen:
    """`unknown`: those whose time is wanted. Only for a GPU that has a name: whoever has none, or
    has it here, measures."""
    name = foresight.spec.cluster.gpu
    traced = [stage for stage in stages if stage.recipe is not None]
    if name in (None, "cpu") or not traced:
        return Foreseen()
    wanted = [stage for stage in unknown if stage.recipe is not None]
    asks = bool(wanted) and foresight.may_ask and foresight.machine.gpus == 0
    try:
        prospect = Prospect(
            spec=foresight.spec,
            ranks=foresight.ranks,
            site=load_site(environ=foresight.environment),
            asking=_asking(wanted, foresight) if asks else None,
            history=foresight.history,
        )
        found = _look(prospect, wanted if asks else traced, name)
    except TasukiError as error:
        return Foreseen(warnings=(f"nothing is predicted: {error.message}",) if asks else ())
    untraced = untraced_in_words(found.values()) if asks else ()
    warnings = [*(prospect.notes if asks else ()), *untraced, *_doubts(found)]
    return Foreseen(outlooks=found, warnings=tuple(warnings))


def _asking(wanted: Sequence[ResolvedStage], foresight: Foresight) -> Asking:
    names = ", ".join(stage.name for stage in wanted)

    def say(_: object) -> None:
        """One word is enough: the child takes seconds."""

    foresight.on_progress(f"tracing a step of {names}")
    return Asking(python=foresight.python, environment=foresight.environment, on_progress=say)


def _look(prospect: Prospect, stages: Sequence[ResolvedStage], name: str) -> dict[str, Outlook]:
    [found] = prospect.look(stages, [prospect.card(name)])
    return {one.stage.name: one for one in found if one.foretold is not None}


def _doubts(found: Mapping[str, Outlook]) -> list[str]:
    return [
        f"stage `{name}` does not fit: {'; '.join(one.remedies)}"
        for name, one in found.items()
        if one.remedies
    ]


def predicted_in_words(stage: str, times: StageTimes, gpu: str) -> str:
    """An error bar for people; a plan's times have none."""
    assert times.wall_s is not None and times.error is not None
    return (
        f"stage `{stage}`: {format_seconds(times.wall_s)} ± {times.error:.0%} is predicted from "
        f"the data sheet of {gpu}, not measured; `tasuki estimate` tells more"
    )
