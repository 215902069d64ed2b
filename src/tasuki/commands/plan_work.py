"""What is left to do of each experiment, with the times, batches and memory of its stages.

Reads runs, history and what is measured; asks children where nothing else tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from tasuki.commands.back import GoingBack
from tasuki.commands.commands import check_commands, what_is_left
from tasuki.commands.foreseen import Foreseen, Foresight, foresee, predicted_in_words
from tasuki.commands.freeze import has_committed
from tasuki.commands.machine import cpus_for, device_for
from tasuki.commands.measure import Bench
from tasuki.commands.outlook import Outlook
from tasuki.commands.own_steps import own_steps
from tasuki.commands.plan_request import PlanRequest, gpus_of, ranks_of
from tasuki.commands.planned_batch import Known, PlannedBatch, plan_batch
from tasuki.commands.recipes import check_stages, tell_absent, tell_misspelt
from tasuki.errors import TasukiError, UsageError
from tasuki.estimation.times import StageTimes, estimate_stage, needs_measuring
from tasuki.planning.values import StageWork
from tasuki.runs.atomic import read_json, read_json_or_none
from tasuki.runs.events import read_events
from tasuki.runs.find import latest_run
from tasuki.runs.remains import refuse_remains
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import (
    ResolvedExperiment,
    ResolvedStage,
    differences,
    start_of,
    to_plain,
)

History = Sequence[Mapping[str, Any]]
"""What past stages measured."""


def work_of(
    experiment: ResolvedExperiment, request: PlanRequest, past: History, warnings: list[str]
) -> list[StageWork]:
    """What is left of an experiment, with its times."""
    run = run_of(experiment, request)
    wanted = _wanted(experiment, request.stages)
    if run.spec.exists():
        warnings += _changes(experiment, run)
    back = request.back
    folders = [run.code, Path(request.spec.folder)]  # a run that has begun has its own copy
    if run.is_complete() and back is None:
        warnings += tell_misspelt(wanted, folders)
        return []
    left = [stage for stage in wanted if not _has(run.stage(stage.name).metrics, stage, back)]
    check_stages(left, folders)
    warnings += tell_absent(left, Path(request.spec.folder))
    warnings += check_commands(experiment, left, request)
    state = read_json_or_none(run.training_state) or {}
    if back is not None:
        state = {"stage": back.stage, "step": back.stage_step}
    for stage in left:
        if state.get("stage") != stage.name:
            _refuse_without_start(experiment, stage, request)
    times, foreseen, batches = _estimate(experiment, left, run, request, past, warnings)
    work = []
    for stage in wanted:
        if stage in left:
            done = int(state.get("step") or 0) if state.get("stage") == stage.name else 0
            if stage.command is not None:
                times[stage.name] = what_is_left(times[stage.name], run, stage)
            peak, outlook = foreseen.peak_bytes(stage), foreseen.outlooks.get(stage.name)
            own = _stage_work(experiment, stage, times[stage.name], done, batches[stage.name], peak)
            own = replace(own, gpus=gpus_of(stage, request.spec.cluster))
            work.append(replace(own, prediction=outlook.prediction if outlook else None))
        elif evaluates(experiment, stage) and not _has(
            run.stage(stage.name).evaluation, stage, back
        ):
            work.append(_evaluation_work(experiment, stage, request))
    if not work and len(wanted) == len(experiment.stages):
        work.append(_evaluation_work(experiment, wanted[-1], request))  # only the marker is missing
    return work


def _has(result: Path, stage: ResolvedStage, back: GoingBack | None) -> bool:
    """Is it there, and will it still count?"""
    if back is not None and stage.name in back.returned:
        return True
    return result.exists() and (back is None or stage.name not in back.void)


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


def run_of(experiment: ResolvedExperiment, request: PlanRequest) -> RunFolder:
    """The run that is gone on with; one that is not there, if a new one is begun."""
    run = request.folders.get(experiment.name) or latest_run(
        Path(request.spec.runs), experiment.name
    )
    if not request.is_new:
        refuse_remains(run)
    if request.is_new or not run.spec.exists():
        return RunFolder(Path(request.spec.runs) / ".none")
    return run


def _changes(experiment: ResolvedExperiment, run: RunFolder) -> Iterator[str]:
    changed = differences(read_json(run.spec)["spec"], to_plain(experiment))
    keys = [difference.key for difference in changed if not difference.harmless]
    if keys and has_committed(run):  # else `run` begins it anew, with what the spec says now
        yield (
            f"{run.path} was begun with another spec ({', '.join(keys)}), and the new one was not "
            "tried: `run` goes on only with `--accept-change KEY`; `--new` plans another run"
        )


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
    past: History,
    warnings: list[str],
) -> tuple[dict[str, StageTimes], Foreseen, dict[str, PlannedBatch]]:
    device = device_for(request.spec.cluster, request.machine)
    events = read_events(run)

    def estimate(
        stage: ResolvedStage, measured: dict[str, Any] | None, outlook: Outlook | None = None
    ) -> StageTimes:
        ranks, gpu = ranks_of(stage, request), request.spec.cluster.gpu
        own = own_steps(run, events, stage, device=device, ranks=ranks, gpu=gpu)
        return estimate_stage(
            stage,
            device=device,
            ranks=ranks,
            own_events=own,
            history=past,
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
    foreseen = _foresee(stages, unknown, request, past)
    warnings += foreseen.warnings
    for stage in unknown:
        outlook = foreseen.outlooks.get(stage.name)
        times[stage.name] = estimate(stage, measured.get(stage.name), outlook)
        warnings += _about_time(stage, times[stage.name], request)
    batches = {}
    for stage in stages:
        outlook = foreseen.outlooks.get(stage.name)
        known = replace(_known(stage, request), events=events, history=past, outlook=outlook)
        batches[stage.name] = plan_batch(stage, known)
        warnings += _about_batch(stage, batches[stage.name], known.ranks)
    return times, foreseen, batches


def _known(stage: ResolvedStage, request: PlanRequest) -> Known:
    cluster = request.spec.cluster
    device = device_for(cluster, request.machine)
    return Known(ranks=ranks_of(stage, request), device=device, gpu=cluster.gpu)


def _about_batch(stage: ResolvedStage, batch: PlannedBatch, ranks: int) -> Iterator[str]:
    """What is done with a batch that ranks cannot share evenly."""
    whole = batch.effective_batch
    if ranks == 1 or stage.recipe is None or whole % ranks == 0:
        return
    each = -(-whole // ranks)
    fewer = "none" if whole < ranks else f"{whole // ranks}"
    yield (
        f"stage `{stage.name}`: an effective batch of {whole} is shared unevenly by {ranks} ranks "
        f"(some take {each} samples, others {fewer}): every sample counts once, and the gradient "
        "is that of the whole batch"
    )


def _foresee(
    stages: Sequence[ResolvedStage],
    unknown: Sequence[ResolvedStage],
    request: PlanRequest,
    past: History,
) -> Foreseen:
    """Stages of as many ranks are looked at together."""
    outlooks: dict[str, Outlook] = {}
    warnings: list[str] = []
    for ranks in dict.fromkeys(ranks_of(stage, request) for stage in stages):
        own = [stage for stage in stages if ranks_of(stage, request) == ranks]
        found = foresee(own, [s for s in own if s in unknown], _foresight(request, past, ranks))
        outlooks |= found.outlooks
        warnings += [words for words in found.warnings if words not in warnings]
    return Foreseen(outlooks=outlooks, warnings=tuple(warnings))


def _foresight(request: PlanRequest, past: History, ranks: int) -> Foresight:
    return Foresight(
        spec=request.spec,
        machine=request.machine,
        ranks=ranks,
        python=request.python,
        environment=request.environment,
        history=past,
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
    if device == "cuda" and request.machine.gpus == 0:
        return {}  # predicted instead
    found: dict[str, dict[str, Any]] = {}
    for gpus in dict.fromkeys(gpus_of(stage, request.spec.cluster) for stage in stages):
        own = [stage for stage in stages if gpus_of(stage, request.spec.cluster) == gpus]
        found |= _measure_on(experiment, own, device, gpus, request)
    return found


def _measure_on(
    experiment: ResolvedExperiment,
    stages: Sequence[ResolvedStage],
    device: str,
    gpus: int,
    request: PlanRequest,
) -> dict[str, dict[str, Any]]:
    cluster = request.spec.cluster
    try:
        return request.measurer.measure(
            experiment,
            stages,
            Bench(
                runs=Path(request.spec.runs),
                folder=request.spec.folder,
                ranks=ranks_of(stages[0], request),
                cpus=max(1, cpus_for(cluster, request.machine) * gpus // cluster.gpus),
                device=device,
                python=request.python,
                environment=request.environment,
                on_progress=request.on_progress,
            ),
            may_ask=request.measure,
        )
    except TasukiError as error:
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
        starts_from=stage.init_from if start_of(stage.init_from) == "experiment" else None,
        error=_error(times),
        epochs=stage.length.count if stage.length.unit == "epochs" else None,
        facts={
            "micro_batch": batch.micro_batch,
            "accumulation": batch.accumulation,
            "effective_batch": None if is_command else batch.effective_batch,
            "budget": batch.budget,
            "batch_source": batch.source,
            "gradient_checkpointing": stage.gradient_checkpointing,
            "peak_bytes": peak_bytes,
            "measured_ago_s": times.measured_ago_s,
        },
    )


def _evaluation_work(
    experiment: ResolvedExperiment, stage: ResolvedStage, request: PlanRequest
) -> StageWork:
    """A trained stage that is not evaluated yet."""
    unknown = StageTimes(wall_s=0.0, step_s=None, total_steps=None, source="history")
    batch = plan_batch(stage, _known(stage, request))
    work = _stage_work(experiment, stage, unknown, 0, batch, stage.expect_peak_bytes)
    gpus = gpus_of(stage, request.spec.cluster)
    return replace(work, trains=False, evaluates=True, gpus=gpus)


def on_one_gpu(
    chains: Sequence[Sequence[StageWork]], request: PlanRequest, past: History
) -> list[list[StageWork]]:
    """The same work with one GPU for each stage, as far as history tells how long it takes there;
    else nothing."""
    stages = {(e.name, stage.name): stage for e in request.experiments for stage in e.stages}
    device = device_for(request.spec.cluster, request.machine)
    found = []
    for chain in chains:
        narrow = []
        for work in chain:
            times = estimate_stage(
                _without_expect(stages[work.experiment, work.stage]),
                device=device,
                ranks=1,
                own_events=(),
                history=past,
                measured=None,
                gpu=request.spec.cluster.gpu,
            )
            if times.wall_s is None or work.wall_s is None or work.from_step:
                return []
            narrow.append(replace(work, gpus=1, wall_s=times.wall_s if work.trains else 0.0))
        found.append(narrow)
    return found


def _without_expect(stage: ResolvedStage) -> ResolvedStage:
    """Without what the user expects of it: that was said of all GPUs."""
    return structs.replace(stage, expect_wall_s=None)


def _error(times: StageTimes) -> float | None:
    """How much longer nine of ten take; None: nobody knows."""
    if times.wall_s and times.wall_s_p90 is not None:
        return max(0.0, times.wall_s_p90 / times.wall_s - 1)
    return times.error
