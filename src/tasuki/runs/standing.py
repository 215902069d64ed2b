"""How far a run is, and what its plan expects of the rest: what planning/risk.py judges by.

Read from the run's folder and the plan it was last submitted with; decides nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import list_folder, read_json_or_none
from tasuki.runs.brief import read_last_of
from tasuki.runs.claims import highest_claim
from tasuki.runs.events import is_whole
from tasuki.runs.jobs import plan_path
from tasuki.runs.lines import read_last_lines, read_lines
from tasuki.runs.runs import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStanding:
    name: str
    is_trained: bool
    lacks_evaluation: bool
    """It is wanted, and not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A part of a stage, as the plan has it."""

    stage: str
    kind: str
    """train or evaluate."""
    expected_s: float | None
    start_s: float | None
    """From the plan's beginning."""
    steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of one run, now."""

    stages: tuple[StageStanding, ...] = ()
    progress: Mapping[str, Any] = field(default_factory=dict)
    """The last sign of life of its newest attempt; of its last commit where that has given none."""
    forecast: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, float] | None = None
    """The stage whose command runs, and since when: it counts no steps."""
    pieces: tuple[Planned, ...] = ()
    spread: float | None = None
    """Nine of ten such plans take at most so many times what is expected; None: no source tells."""
    planned_at: float | None = None
    has_begun: bool = False
    deadline_at: float | None = None


class PlanBook:
    """The plans of a folder of runs, each read once."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._spreads: dict[str, float | None] = {}
        self._pieces: dict[str, dict[str, list[Planned]]] = {}

    def pieces(self, plan: str, experiment: str) -> tuple[Planned, ...]:
        self._read(plan)
        return tuple(self._pieces[plan].get(experiment, ()))

    def spread(self, plan: str) -> float | None:
        self._read(plan)
        return self._spreads[plan]

    def _read(self, plan: str) -> None:
        if plan in self._pieces:
            return
        value: dict[str, Any] = {}
        with contextlib.suppress(StoreError):  # it is gone, or of a newer tasuki: nothing is known
            value = read_json_or_none(plan_path(self._runs, plan)) or {}
        try:
            self._pieces[plan] = _by_experiment(value)
        except (TypeError, AttributeError):
            self._pieces[plan] = {}
        whole, slow = number_in(value, "makespan_s"), number_in(value, "makespan_s_p90")
        self._spreads[plan] = max(1.0, slow / whole) if whole and slow else None


def _by_experiment(plan: Mapping[str, Any]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for job in plan.get("jobs") or ():
        for lane in job.get("lanes") or ():
            for piece in lane.get("stages") or ():
                begin, end = number_in(piece, "from_step"), number_in(piece, "to_step")
                planned = Planned(
                    stage=str(piece.get("stage")),
                    kind=str(piece.get("kind")),
                    expected_s=number_in(piece, "expected_s"),
                    start_s=number_in(piece, "start_s"),
                    steps=None if begin is None or end is None else int(end - begin),
                )
                found.setdefault(str(piece.get("experiment")), []).append(planned)
    return found


def read_standing(run: RunFolder, *, plans: PlanBook, spec: Mapping[str, Any]) -> Standing:
    """`spec`: the run's `spec.json`."""
    claim = highest_claim(run)
    progress = read_last_of(run, claim, "rank0", "progress") if claim else {}
    job, planned_at = _last_submission(run)
    plan, experiment = job.rpartition("-")[0], str(spec.get("experiment"))
    return Standing(
        stages=tuple(_stage(run, stage) for stage in spec["stages"]),
        progress=progress or read_json_or_none(run.training_state) or {},
        forecast=read_last_of(run, claim, "forecast", "forecast") if claim else {},
        command=_running_command(run, claim) if claim else None,
        pieces=plans.pieces(plan, experiment) if plan else (),
        spread=plans.spread(plan) if plan else None,
        planned_at=planned_at,
        has_begun=claim > 0,
        deadline_at=number_in(spec, "deadline_at"),
    )


def _stage(run: RunFolder, stage: Mapping[str, Any]) -> StageStanding:
    folder = run.stage(str(stage["name"]))
    wants = bool(stage.get("evaluates"))
    return StageStanding(
        name=str(stage["name"]),
        is_trained=folder.metrics.exists(),
        lacks_evaluation=wants and not folder.evaluation.exists(),
    )


def _running_command(run: RunFolder, claim: int) -> tuple[str, float] | None:
    for event in reversed(read_last_lines(run.events / f"{claim}.0.supervisor.jsonl")):
        if not is_whole(event) or event["kind"] in ("worker-ended", "attempt-ended"):
            return None
        if event["kind"] == "worker-started":
            is_training = event.get("is_command") and event.get("phase") == "train"
            return (str(event.get("stage")), float(event["t"])) if is_training else None
    return None


def _last_submission(run: RunFolder) -> tuple[str, float | None]:
    """(job, when) of the newest plan; by claim first, for clocks go backwards."""
    told = [
        (int(event["claim"]), float(event["t"]), str(event.get("job")))
        for path in list_folder(run.events, "*.run-*.jsonl")
        for event in read_lines(path)
        if is_whole(event) and event["kind"] == "submitted"
    ]
    _, at, job = max(told, default=(0, None, ""))
    return job, at


def number_in(value: Mapping[str, Any], key: str) -> float | None:
    """A finite number; None: there is none, or somebody wrote something else there."""
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if abs(found) <= sys.float_info.max else None
