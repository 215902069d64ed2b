"""What a person should hear about a plan beside its jobs: settings without effect, work that is
left out, workers that are cut, deadlines that are close, GPUs that could be shared.

Each is one line, and none changes the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasuki.commands.commands import check_alerts
from tasuki.commands.machine import device_for
from tasuki.commands.plan_request import PlanRequest, is_for_slurm
from tasuki.data.tempo import share_cpus
from tasuki.errors import PlanError
from tasuki.planning.laid import Chains, Layout, Terms
from tasuki.planning.layout import lay_out_freely
from tasuki.spec.resolved import ResolvedStage
from tasuki.units import format_seconds

_MORE_IS_BETTER = ("acc", "auc", "f1", "score", "precision", "recall", "bleu", "iou", "r2")
_NAMED = 5


def about_spec(request: PlanRequest) -> Iterator[str]:
    yield from _without_effect(request)
    yield from _left_out(request)
    yield from check_alerts(request)


def _without_effect(request: PlanRequest) -> Iterator[str]:
    """A setting without effect warns."""
    cluster, experiments = request.spec.cluster, request.experiments
    if not request.is_slurm:
        if cluster.backend == "slurm":
            yield "`cluster.backend: slurm` is for `tasuki submit`: jobs run here"
        if cluster.nodes > 1:
            yield "`cluster.nodes` is for `tasuki submit`: a job that runs here has one"
        if cluster.setup:
            yield "`cluster.setup` has no effect on jobs that run here"
        if cluster.mail and not is_for_slurm(request):
            yield "`cluster.mail` is Slurm's: nobody gets mail of jobs that run here (`on` tells)"
    for experiment in experiments:
        for validate in {s.validate for s in experiment.stages if s.validate is not None}:
            if validate.mode == "min" and any(word in validate.metric for word in _MORE_IS_BETTER):
                yield (
                    f"`validate.metric: {validate.metric}` is minimised; if more is better, "
                    "write `mode: max` beside it"
                )


def _left_out(request: PlanRequest) -> Iterator[str]:
    """What the spec lists and nobody asked for."""
    chosen = {experiment.name for experiment in request.experiments}
    experiments = [e.name for e in request.spec.experiments if e.name not in chosen]
    if experiments:
        yield f"not in this plan: experiment {_listed(experiments)}"
    if not request.stages:
        return
    stages = []
    for experiment in request.experiments:
        named = [n for n, stage in enumerate(experiment.stages) if stage.name in request.stages]
        behind = experiment.stages[max(named, default=-1) + 1 :]
        stages += [f"{experiment.name}/{stage.name}" for stage in behind]
    if stages:
        yield f"not in this plan: stage {_listed(stages)}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def about_workers(layout: Layout, request: PlanRequest) -> Iterator[str]:
    """Loader workers that were asked for and do not fit their lane's share of the CPUs."""
    if not layout.is_packed:
        return
    shares = {
        (piece.experiment, piece.stage): (piece.cpus or 1) // len(lane.gpus)
        for job in layout.jobs
        for lane in job.lanes
        for piece in lane.stages
        if piece.kind == "train"
    }
    is_gpu = device_for(request.spec.cluster, request.machine) == "cuda"
    for experiment in request.experiments:
        for stage in experiment.stages:
            cpus = shares.get((experiment.name, stage.name))
            if cpus is not None:
                yield from _cut_workers(experiment.name, stage, max(1, cpus), is_gpu=is_gpu)


def _cut_workers(
    experiment: str, stage: ResolvedStage, cpus: int, *, is_gpu: bool
) -> Iterator[str]:
    wanted = stage.loader.workers
    if not isinstance(wanted, int):
        return
    _, workers = share_cpus(cpus, is_gpu=is_gpu, workers=wanted)
    if workers < wanted:
        yield (
            f"`loader.workers: {wanted}` of `{experiment}/{stage.name}` are cut to {workers}: in "
            f"its lane a rank has {cpus} CPU{'s' if cpus > 1 else ''} (`cluster.cpus` gives more)"
        )


def about_deadline(layout: Layout, terms: Terms) -> Iterator[str]:
    deadline_s = terms.deadline_s
    if deadline_s is None or not layout.jobs:
        return
    if layout.makespan_s is None:
        yield (
            f"whether the deadline of {format_seconds(deadline_s)} is met is not known: how long "
            "some stages take is not; `expect: {wall: 4h}` would tell"
        )
    elif layout.p90_s is not None and layout.p90_s > deadline_s:
        yield (
            f"the deadline of {format_seconds(deadline_s)} may be missed: one of ten such plans "
            f"takes longer than {format_seconds(layout.p90_s)}"
        )


def about_lanes(chains: Chains, narrow: Chains, layout: Layout, terms: Terms) -> Iterator[str]:
    """Several experiments that take all GPUs in turn, and would be done sooner side by side.
    `narrow`: the same on one GPU each; empty: how long they take there is not known."""
    now_s = layout.makespan_s
    if now_s is None or not narrow:
        return
    try:
        side_by_side_s = lay_out_freely(narrow, terms).makespan_s
    except PlanError:
        return
    if side_by_side_s is not None and side_by_side_s < now_s:
        yield (
            f"{len(chains)} experiments take all {terms.gpus} GPUs one after another: "
            f"{format_seconds(now_s)}; side by side, with `gpus: 1` each, "
            f"{format_seconds(side_by_side_s)}"
        )
