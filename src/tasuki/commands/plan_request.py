"""What a plan is asked for: a spec, some of its experiments and stages, a machine, a deadline.

Used by every verb that plans.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasuki.clock import SystemClock
from tasuki.commands.machine import Machine, cpus_for, device_for, look_around
from tasuki.commands.measure import Measurer
from tasuki.errors import PlanError, UsageError
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedCluster, ResolvedExperiment, ResolvedSpec, ResolvedStage
from tasuki.spec.values import parse_deadline

if TYPE_CHECKING:
    from tasuki.commands.back import GoingBack


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    spec: ResolvedSpec
    experiments: tuple[ResolvedExperiment, ...]
    stages: tuple[str, ...]
    """Only these; empty: all."""
    machine: Machine
    python: str
    environment: dict[str, str]
    measure: bool = True
    measured: dict[str, dict[str, dict[str, Any]]] | None = None
    """By experiment and stage: what was measured already."""
    is_new: bool = False
    """Plan as if nothing were done yet."""
    is_slurm: bool = False
    """Jobs are given to Slurm; else they run here."""
    is_here: bool = False
    """Jobs run here, whatever the spec means them for."""
    is_profiled: bool = False
    """Its jobs tell where a step's time goes."""
    deadline_s: float | None = None
    """From now; below 0: it is over."""
    deadline_at: float | None = None
    """The same, since 1970: what `status` and alerts hold the runs against from now on."""
    tells_fits: bool = False
    """Other ways to do the step of stages of which everything is given, too."""
    fits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What a plan has chosen that is carried out now: its `fits`."""
    folders: dict[str, RunFolder] = field(default_factory=dict)
    """Runs that are meant although their experiment has newer ones."""
    back: GoingBack | None = None
    """Of the only run: first to an earlier checkpoint."""
    on_progress: Callable[[str], None] = lambda _: None
    measurer: Measurer = field(default_factory=Measurer)
    """Measures the steps of stages whose times are not known."""


def request_plan(
    spec: ResolvedSpec,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    *,
    python: str,
    environment: dict[str, str],
    deadline: str | None = None,
) -> PlanRequest:
    """What is asked for, on the machine we are on. `deadline` goes before the spec's."""
    wanted = tuple(stages) or spec.only_stages
    told, now = deadline or spec.deadline, SystemClock.wall()
    deadline_s = None if told is None else parse_deadline(told).seconds_from(now)
    return PlanRequest(
        spec=spec,
        experiments=choose_experiments(spec, experiments, wanted),
        stages=wanted,
        machine=look_around(environment),
        python=python,
        environment=environment,
        deadline_s=deadline_s,
        deadline_at=None if deadline_s is None else now + deadline_s,
    )


def choose_experiments(
    spec: ResolvedSpec, names: Sequence[str], stages: Sequence[str]
) -> tuple[ResolvedExperiment, ...]:
    """Those named with --experiment, else all; unknown names are refused with the nearest."""
    known = [experiment.name for experiment in spec.experiments]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no experiment `{name}`", hint=_nearest(name, known))
    chosen = tuple(e for e in spec.experiments if not names or e.name in names)
    all_stages = [stage.name for experiment in chosen for stage in experiment.stages]
    for stage in stages:
        if stage not in all_stages:
            raise UsageError(f"there is no stage `{stage}`", hint=_nearest(stage, all_stages))
    return chosen


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(dict.fromkeys(known))}"


def gpus_of(stage: ResolvedStage, cluster: ResolvedCluster) -> int:
    """Of a job's GPUs on each node: the stage's own, else all of them."""
    own = stage.gpus if stage.gpus is not None else cluster.gpus
    if own > cluster.gpus:
        raise PlanError(
            f"stage `{stage.name}` asks for {own} GPUs, but a job has {cluster.gpus} on a node",
            hint=f"give the stage `gpus: {cluster.gpus}` at the most, or ask for more with "
            "`cluster.gpus`: a stage lies inside one node, or uses the whole job",
        )
    if cluster.nodes > 1 and own < cluster.gpus:
        raise PlanError(
            f"stage `{stage.name}` asks for {own} of {cluster.gpus} GPUs, but with "
            f"`cluster.nodes: {cluster.nodes}` a stage uses the whole job",
            hint="leave the stage's `gpus` out, or write `cluster.nodes: 1`: jobs of one node hold "
            "several stages side by side",
        )
    return own


def ranks_of(stage: ResolvedStage, request: PlanRequest) -> int:
    """Of a stage's training."""
    cluster = request.spec.cluster
    return gpus_of(stage, cluster) * (cluster.nodes if request.is_slurm else 1)


def is_for_slurm(request: PlanRequest) -> bool:
    """Its jobs are given to Slurm, or the spec says that they are meant to."""
    cluster = request.spec.cluster
    is_meant = cluster.backend == "slurm" or (cluster.backend == "auto" and cluster.partition)
    return request.is_slurm or (bool(is_meant) and not request.is_here)


def cpus_of_job(request: PlanRequest) -> int:
    return cpus_for(request.spec.cluster, request.machine)


def slots_here(request: PlanRequest) -> int:
    """How many GPUs (or CPU slots) of jobs run side by side on this machine."""
    cluster, machine = request.spec.cluster, request.machine
    if device_for(cluster, machine) == "cuda":
        return max(1, machine.gpus)
    return max(1, machine.cpus // cpus_for(cluster, machine)) * cluster.gpus


def choose_with_recipe(
    spec: ResolvedSpec, experiment: str | None, stage: str | None, *, why_not: str, hint: str
) -> tuple[ResolvedExperiment, ResolvedStage]:
    """The stage that is named, else the first that has a recipe, for verbs that try one stage."""
    names, stages = [experiment] if experiment else [], [stage] if stage else []
    chosen = choose_experiments(spec, names, stages)
    named = [(e, s) for e in chosen for s in e.stages if stage in (None, s.name)]
    for of, found in named:
        if found.recipe is not None:
            return of, found
    of, found = named[0]
    what = "runs a command of its own" if found.command else "has no recipe"
    raise UsageError(f"stage `{found.name}` of `{of.name}` {what}: {why_not}", hint=hint)
