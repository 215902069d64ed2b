"""The stages of an estimate on each of its cards: what a spec leaves open is chosen card by card.

Stages that use fewer ranks than the others are looked at by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.commands.asking import Asking
from tasuki.commands.fitting import FitRequest, Fitted, fit_experiments
from tasuki.commands.foreseen import Foresight
from tasuki.commands.machine import Machine
from tasuki.commands.outlook import Outlook, Prospect
from tasuki.commands.plan_request import gpus_of
from tasuki.runs.find import latest_run
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage
from tasuki.spec.site import Site


@dataclass(slots=True, kw_only=True)
class OnCards:
    spec: ResolvedSpec
    machine: Machine
    asking: Asking
    site: Site
    history: Sequence[Mapping[str, Any]]
    notes: list[str] = field(default_factory=list)
    _prospects: dict[int, Prospect] = field(default_factory=dict)

    def fit(
        self,
        experiments: Sequence[ResolvedExperiment],
        gpu: str,
        *,
        is_own: bool,
        tells_all: bool,
        only: tuple[str, ...],
    ) -> Fitted:
        """`is_own`: it is the spec's card, on which a run that was begun stays as it is."""
        spec = self.spec
        runs = {one.name: latest_run(Path(spec.runs), one.name) for one in experiments}
        foresight = Foresight(
            spec=spec,
            machine=self.machine,
            ranks=spec.cluster.gpus * spec.cluster.nodes,
            python=self.asking.python,
            environment=dict(self.asking.environment),
            history=(),
            may_ask=True,
        )
        return fit_experiments(
            FitRequest(
                experiments=tuple(experiments),
                runs={key: run for key, run in runs.items() if is_own and run.spec.exists()},
                foresight=foresight,
                nodes=spec.cluster.nodes,
                gpu=gpu,
                tells_all=tells_all,
                only=only,
            )
        )

    def look(self, stages: Sequence[ResolvedStage], gpus: Sequence[str]) -> list[list[Outlook]]:
        """For each card the stages in their order."""
        cluster = self.spec.cluster
        ranks = [gpus_of(stage, cluster) * cluster.nodes for stage in stages]
        found: list[dict[int, Outlook]] = [{} for _ in gpus]
        for number in dict.fromkeys(ranks):
            places = [place for place, own in enumerate(ranks) if own == number]
            prospect = self._prospect(number)
            cards = [prospect.card(name) for name in gpus]
            looked = prospect.look([stages[place] for place in places], cards)
            for row, own in zip(found, looked, strict=True):
                row |= dict(zip(places, own, strict=True))
        return [[row[place] for place in range(len(stages))] for row in found]

    def _prospect(self, ranks: int) -> Prospect:
        if ranks not in self._prospects:
            self._prospects[ranks] = Prospect(
                spec=self.spec,
                ranks=ranks,
                site=self.site,
                asking=self.asking,
                history=self.history,
                measures_on="cuda" if self.machine.gpus else "cpu",
                notes=self.notes,
            )
        return self._prospects[ranks]


def all_fits(fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """By `experiment/stage`; of several cards with the card's name."""
    if len(fitted) == 1:
        return dict(next(iter(fitted.values())).fits)
    return {f"{key} on {gpu}": fit for gpu, one in fitted.items() for key, fit in one.fits.items()}
