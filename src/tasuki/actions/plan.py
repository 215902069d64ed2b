"""`tasuki plan`: what would be done, in which jobs, how long it takes and how that is known.

The dry run: writes nothing. Also used by `run`, which writes the plan it makes.
"""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasuki.actions.commands import check_commands, what_is_left
from tasuki.actions.foreseen import Foreseen, Foresight, foresee, predicted_in_words
from tasuki.actions.killed import killed_for_memory
from tasuki.actions.machine import Machine, cpus_for, device_for, look_around
from tasuki.actions.measure import measure_stages
from tasuki.actions.outlook import Outlook
from tasuki.actions.own_steps import own_steps
from tasuki.actions.planned_batch import Known, PlannedBatch, plan_batch
from tasuki.answers import ChildFailed
from tasuki.errors import UsageError
from tasuki.estimate.host import next_memory
from tasuki.estimate.times import StageTimes, estimate_stage, needs_measuring
from tasuki.plan.cut import JobDraft, cut_into_jobs
from tasuki.plan.values import Job, Lane, Plan, StageWork
from tasuki.spec.resolved import (
    ResolvedExperiment,
    ResolvedSpec,
    ResolvedStage,
    differences,
    start_of,
    to_plain,
)
from tasuki.store.atomic import read_json, read_json_or_none
from tasuki.store.find import latest_run
from tasuki.store.history import look_at_history
from tasuki.store.runs import RunFolder
from tasuki.telemetry.events import read_events

_MORE_IS_BETTER = ("acc", "auc", "f1", "score", "precision", "recall", "bleu", "iou", "r2")


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
    is_profiled: bool = False
    """Its jobs tell where a step's time goes."""
    folders: dict[str, RunFolder] = field(default_factory=dict)
    """Runs that are meant although their experiment has newer ones."""
    on_progress: Callable[[str], None] = lambda _: None


def request_plan(
    spec: ResolvedSpec,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    *,
    python: str,
    environment: dict[str, str],
) -> PlanRequest:
    """What is asked for, on the machine we are on."""
    wanted = tuple(stages) or spec.only_stages
    return PlanRequest(
        spec=spec,
        experiments=choose_experiments(spec, experiments, wanted),
        stages=wanted,
        machine=look_around(environment),
        python=python,
        environment=environment,
    )


def make_plan(request: PlanRequest) -> Plan:
    spec = request.spec
    jobs: list[Job] = []
    reasons: list[str] = []
    warnings = [*spec.warnings, *_without_effect(request)]
    project = re.sub(r"[^A-Za-z0-9_.-]+", "-", spec.project).strip("-.")[:40] or "tasuki"
    plan_id = f"{project}-{secrets.token_hex(3)}"
    last_job_of: dict[str, str] = {}
    predictions: dict[str, dict[str, Any]] = {}
    for experiment in _by_need(request.experiments):
        work = _work_of(experiment, request, warnings)
        predictions |= {f"{w.experiment}/{w.stage}": w.prediction for w in work if w.prediction}
        drafts = cut_into_jobs(work, limit_s=spec.cluster.time_limit_s, cut=spec.cut)
        after = _experiments_before(experiment, last_job_of)
        memory = next_memory(
            spec.cluster.memory_bytes, killed_for_memory(_run_of(experiment, request))
        )
        if drafts and memory.reason:
            warnings.append(f"run `{experiment.name}` was {memory.reason}")
        for draft in drafts:
            name = f"{plan_id}-{len(jobs) + 1:02d}"
            job = _make_job(name, after, draft, request, host_bytes=memory.bytes)
            jobs.append(job)
            reasons.append(f"{name}: {draft.reason.split(': ', 1)[1]}")
            after = (name,)
        if drafts:
            last_job_of[experiment.name] = after[-1]
    makespan = _add_up([job.expected_s for job in jobs])
    return Plan(
        id=plan_id,
        jobs=tuple(jobs),
        makespan_s=makespan,
        lower_bound_s=None,
        gap=None,
        optimal=None,
        cost=_add_up([job.cost for job in jobs]),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        predictions=predictions,
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
    return f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"


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
    for experiment in experiments:
        for validate in {s.validate for s in experiment.stages if s.validate is not None}:
            if validate.mode == "min" and any(word in validate.metric for word in _MORE_IS_BETTER):
                yield (
                    f"`validate.metric: {validate.metric}` is minimised; if more is better, "
                    "write `mode: max` beside it"
                )
    if any(stage.gpus for experiment in experiments for stage in experiment.stages):
        yield "a stage's own `gpus` do not work yet: `cluster.gpus` counts"


def ranks_of(request: PlanRequest) -> int:
    cluster = request.spec.cluster
    return cluster.gpus * (cluster.nodes if request.is_slurm else 1)


def _work_of(
    experiment: ResolvedExperiment, request: PlanRequest, warnings: list[str]
) -> list[StageWork]:
    """What is left of an experiment, with its times."""
    run = _run_of(experiment, request)
    wanted = _wanted(experiment, request.stages)
    if run.spec.exists():
        warnings += _changes(experiment, run)
    if run.is_complete():
        return []
    left = [stage for stage in wanted if not run.stage(stage.name).metrics.exists()]
    warnings += check_commands(experiment, left, request)
    state = read_json_or_none(run.training_state) or {}
    for stage in left:
        if state.get("stage") != stage.name:
            _refuse_without_start(experiment, stage, request)
    times, foreseen, batches = _estimate(experiment, left, run, request, warnings)
    work = []
    for stage in wanted:
        if stage in left:
            done = int(state.get("step") or 0) if state.get("stage") == stage.name else 0
            if stage.command is not None:
                times[stage.name] = what_is_left(times[stage.name], run, stage)
            peak, outlook = foreseen.peak_bytes(stage), foreseen.outlooks.get(stage.name)
            own = _stage_work(experiment, stage, times[stage.name], done, batches[stage.name], peak)
            work.append(replace(own, prediction=outlook.prediction if outlook else None))
        elif evaluates(experiment, stage) and not run.stage(stage.name).evaluation.exists():
            work.append(_evaluation_work(experiment, stage, request))
    if not work and len(wanted) == len(experiment.stages):
        work.append(_evaluation_work(experiment, wanted[-1], request))  # only the marker is missing
    return work


def _refuse_without_start(
    experiment: ResolvedExperiment, stage: ResolvedStage, request: PlanRequest
) -> None:
    """`init_from: EXPERIMENT/STAGE`, and nobody has begun with that experiment or is going to."""
    if start_of(stage.init_from) != "experiment":
        return
    name, _, source = stage.init_from.partition("/")
    if latest_run(Path(request.spec.runs), name).spec.exists():
        return
    wanted = {e.name: _wanted(e, request.stages) for e in request.experiments}
    if source in [one.name for one in wanted.get(name, ())]:
        return
    words = f"--experiment {name} {experiment.name}"
    if name in wanted:
        words = f"--stages {source} {stage.name}"
    raise UsageError(
        f"stage `{stage.name}` of `{experiment.name}` starts from the weights of "
        f"`{stage.init_from}`, which was never trained and is not asked for",
        hint=f"ask for both: {words}; or train `{name}` first",
    )


def _run_of(experiment: ResolvedExperiment, request: PlanRequest) -> RunFolder:
    """The run that is gone on with; one that is not there, if a new one is begun."""
    run = request.folders.get(experiment.name) or latest_run(
        Path(request.spec.runs), experiment.name
    )
    if request.is_new or not run.spec.exists():
        return RunFolder(Path(request.spec.runs) / ".none")
    return run


def _changes(experiment: ResolvedExperiment, run: RunFolder) -> Iterator[str]:
    changed = differences(read_json(run.spec)["spec"], to_plain(experiment))
    keys = [difference.key for difference in changed if not difference.harmless]
    if keys:
        yield f"{run.path} was begun with another spec ({', '.join(keys)}): `run` will ask about it"


def _wanted(experiment: ResolvedExperiment, stages: Sequence[str]) -> list[ResolvedStage]:
    """Up to and including the last stage that is wanted: the ones before it are needed."""
    if not stages:
        return list(experiment.stages)
    named = [index for index, stage in enumerate(experiment.stages) if stage.name in stages]
    return list(experiment.stages[: max(named) + 1]) if named else []


def evaluates(experiment: ResolvedExperiment, stage: ResolvedStage) -> bool:
    if stage.evaluate is None:
        return False
    return stage.evaluate.after == "each_stage" or stage is experiment.stages[-1]


def _estimate(
    experiment: ResolvedExperiment,
    stages: Sequence[ResolvedStage],
    run: RunFolder,
    request: PlanRequest,
    warnings: list[str],
) -> tuple[dict[str, StageTimes], Foreseen, dict[str, PlannedBatch]]:
    device = device_for(request.spec.cluster, request.machine)
    events = read_events(run)
    history = look_at_history(Path(request.spec.runs))
    left_out = [f"history: {one.in_words()}, left out" for one in history.left_out]
    warnings += [words for words in left_out if words not in warnings]

    def estimate(
        stage: ResolvedStage, measured: dict[str, Any] | None, outlook: Outlook | None = None
    ) -> StageTimes:
        ranks, gpu = ranks_of(request), request.spec.cluster.gpu
        own = own_steps(run, events, stage, device=device, ranks=ranks, gpu=gpu)
        return estimate_stage(
            stage,
            device=device,
            ranks=ranks,
            own_events=own,
            history=history.facts,
            measured=measured,
            gpu=gpu,
            shape=outlook.shape if outlook is not None else None,
            predicted=outlook.predicted if outlook is not None else None,
        )

    times = {stage.name: estimate(stage, None) for stage in stages}
    unknown = [stage for stage in stages if needs_measuring(times[stage.name])]
    measured = _measure(experiment, unknown, device, request)
    for stage in unknown:
        times[stage.name] = estimate(stage, measured.get(stage.name))
    unknown = [stage for stage in unknown if times[stage.name].wall_s is None]
    foreseen = foresee(stages, unknown, _foresight(request, history.facts))
    warnings += foreseen.warnings
    for stage in unknown:
        outlook = foreseen.outlooks.get(stage.name)
        times[stage.name] = estimate(stage, measured.get(stage.name), outlook)
        warnings += _about_time(stage, times[stage.name], request)
    known = replace(_known(request), events=events, history=history.facts)
    batches = {
        stage.name: plan_batch(stage, replace(known, outlook=foreseen.outlooks.get(stage.name)))
        for stage in stages
    }
    return times, foreseen, batches


def _known(request: PlanRequest) -> Known:
    cluster = request.spec.cluster
    device = device_for(cluster, request.machine)
    return Known(ranks=ranks_of(request), device=device, gpu=cluster.gpu)


def _foresight(request: PlanRequest, history: Sequence[Mapping[str, Any]]) -> Foresight:
    return Foresight(
        spec=request.spec,
        machine=request.machine,
        ranks=ranks_of(request),
        python=request.python,
        environment=request.environment,
        history=history,
        may_ask=request.measure,
        on_progress=request.on_progress,
    )


def _about_time(stage: ResolvedStage, times: StageTimes, request: PlanRequest) -> Iterator[str]:
    cluster = request.spec.cluster
    if times.wall_s is not None:
        yield predicted_in_words(stage.name, times, cluster.gpu or "")
    elif request.measure or cluster.time_limit_s:
        yield (
            f"how long stage `{stage.name}` takes is not known: it runs until it is done, "
            "from job to job; `expect: {wall: 4h}` would tell"
        )


def _measure(
    experiment: ResolvedExperiment,
    unknown: Sequence[ResolvedStage],
    device: str,
    request: PlanRequest,
) -> dict[str, dict[str, Any]]:
    if request.measured is not None:
        return request.measured.get(experiment.name, {})
    stages = [stage for stage in unknown if stage.recipe is not None]
    if not stages or not request.measure:
        return {}
    if device == "cuda" and request.machine.gpus == 0:
        return {}  # predicted instead
    request.on_progress(f"measuring some steps of {', '.join(s.name for s in stages)}")
    try:
        return measure_stages(
            experiment,
            [stage.name for stage in stages],
            folder=request.spec.folder,
            ranks=ranks_of(request),
            cpus=cpus_for(request.spec.cluster, request.machine),
            device=device,
            python=request.python,
            environment=request.environment,
        )
    except ChildFailed as error:
        error.message = f"experiment `{experiment.name}`: {error.message}"
        raise


def _stage_work(
    experiment: ResolvedExperiment,
    stage: ResolvedStage,
    times: StageTimes,
    done: int,
    batch: PlannedBatch,
    peak_bytes: int | None = None,
) -> StageWork:
    total = times.total_steps
    wall = times.wall_s
    is_command = stage.command is not None
    if wall is not None and total:
        wall *= (total - min(done, total)) / total
    evaluate = stage.evaluate
    reserve = evaluate.reserve_s if evaluate else None
    return StageWork(
        experiment=experiment.name,
        stage=stage.name,
        wall_s=wall,
        from_step=None if is_command else done,
        total_steps=total,
        start_s=times.start_s,
        save_s=times.save_s,
        evaluates=evaluates(experiment, stage),
        evaluate_s=reserve if reserve is not None else times.evaluate_s,
        source=times.source,
        facts={
            "micro_batch": batch.micro_batch,
            "accumulation": batch.accumulation,
            "effective_batch": None if is_command else batch.effective_batch,
            "budget": batch.budget,
            "batch_source": batch.source,
            "gradient_checkpointing": stage.gradient_checkpointing,
            "peak_bytes": peak_bytes,
        },
    )


def _evaluation_work(
    experiment: ResolvedExperiment, stage: ResolvedStage, request: PlanRequest
) -> StageWork:
    """A trained stage that is not evaluated yet."""
    unknown = StageTimes(wall_s=0.0, step_s=None, total_steps=None, source="history")
    batch = plan_batch(stage, _known(request))
    work = _stage_work(experiment, stage, unknown, 0, batch, stage.expect_peak_bytes)
    return replace(work, trains=False, evaluates=True)


def _make_job(
    name: str,
    after: tuple[str, ...],
    draft: JobDraft,
    request: PlanRequest,
    *,
    host_bytes: int | None,
) -> Job:
    cluster = request.spec.cluster
    return Job(
        name=name,
        after=after,
        limit_s=cluster.time_limit_s,
        expected_s=draft.expected_s,
        reserve_s=draft.reserve_s,
        gpus=cluster.gpus,
        cpus=cpus_for(cluster, request.machine),
        host_bytes=host_bytes,
        lanes=(Lane(gpus=tuple(range(cluster.gpus)), stages=draft.pieces),),
        cost=_cost(draft.expected_s, request),
    )


def _by_need(experiments: Sequence[ResolvedExperiment]) -> list[ResolvedExperiment]:
    """As written, but after the experiments whose weights they start from."""
    ordered: list[ResolvedExperiment] = []
    left = list(experiments)
    while left:
        waiting = {experiment.name for experiment in left}
        ready = next((e for e in left if not waiting & set(_needs(e)) - {e.name}), left[0])
        ordered.append(ready)
        left.remove(ready)
    return ordered


def _needs(experiment: ResolvedExperiment) -> list[str]:
    starts = [s.init_from for s in experiment.stages if start_of(s.init_from) == "experiment"]
    return [start.split("/")[0] for start in starts]


def _experiments_before(
    experiment: ResolvedExperiment, last_job_of: dict[str, str]
) -> tuple[str, ...]:
    """`init_from: EXPERIMENT/STAGE` waits for that experiment's last job."""
    needed = dict.fromkeys(_needs(experiment))
    return tuple(last_job_of[name] for name in needed if name in last_job_of)


def _add_up(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None


def _cost(expected_s: float | None, request: PlanRequest) -> float | None:
    """A slot of the CPU (`gpu: cpu`) counts as a GPU: the price is of whatever `gpus` counts."""
    price = request.spec.cluster.price_per_gpu_hour
    if expected_s is None or price is None:
        return None
    return expected_s / 3600 * price * ranks_of(request)
