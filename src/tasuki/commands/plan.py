"""`tasuki plan`: what would be done, in which jobs, how long it takes and how that is known.

The dry run: writes nothing but what was found out about stages (`runs/.probes`). Also used by `run`
and `submit`, which write the plan they make. From top to bottom: what is left of each experiment
(plan_work.py), laid out in jobs (tasuki.planning), named and priced.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tasuki.commands.fitting import FitRequest, Fitted, fit_experiments
from tasuki.commands.foreseen import Foresight
from tasuki.commands.killed import killed_for_memory
from tasuki.commands.machine import device_for
from tasuki.commands.plan_advice import about_deadline, about_lanes, about_spec, about_workers
from tasuki.commands.plan_request import (
    PlanRequest,
    choose_experiments,
    cpus_of_job,
    gpus_of,
    is_for_slurm,
    ranks_of,
    request_plan,
    slots_here,
)
from tasuki.commands.plan_work import evaluates, on_one_gpu, run_of, work_of
from tasuki.errors import PlanError
from tasuki.estimation.host import Asked, next_memory
from tasuki.planning.laid import LaidJob, Layout, Terms
from tasuki.planning.layout import is_packed
from tasuki.planning.refusals import doubts_about, lay_out_or_refuse, refuse_beyond_partition
from tasuki.planning.values import Job, Plan, StageWork
from tasuki.runs.history import History, look_at_history
from tasuki.spec.resolved import ResolvedExperiment, start_of
from tasuki.spec.site import load_site
from tasuki.units import format_seconds

__all__ = [
    "PlanRequest",
    "choose_experiments",
    "evaluates",
    "gpus_of",
    "make_plan",
    "ranks_of",
    "request_plan",
    "slots_here",
]


def make_plan(request: PlanRequest) -> Plan:
    fitted = _fit(request)
    request = replace(request, experiments=fitted.experiments)
    warnings = [*request.spec.warnings, *about_spec(request), *fitted.warnings]
    history = look_at_history(Path(request.spec.runs))
    chains = _chains(request, history, warnings)
    _refuse_past_deadline(chains, request)
    terms = _terms(chains, request)
    layout = lay_out_or_refuse(chains, terms)
    warnings += about_workers(layout, request)
    warnings += about_deadline(layout, terms)
    if _may_be_narrower(chains, layout, terms):
        narrow = on_one_gpu(chains, request, history.facts)
        warnings += about_lanes(chains, narrow, layout, terms)
    warnings += request.measurer.notes
    plan = _named(layout, chains, terms, request, warnings)
    return replace(plan, fits=dict(fitted.fits), reasons=(*fitted.reasons, *plan.reasons))


def _fit(request: PlanRequest) -> Fitted:
    """What the spec leaves open, chosen (fitting.py)."""
    begun = {one.name: run_of(one, request) for one in request.experiments}
    foresight = Foresight(
        spec=request.spec,
        machine=request.machine,
        ranks=request.spec.cluster.gpus,
        python=request.python,
        environment=request.environment,
        history=(),
        may_ask=request.measure,
        on_progress=request.on_progress,
    )
    return fit_experiments(
        FitRequest(
            experiments=request.experiments,
            runs={name: run for name, run in begun.items() if run.spec.exists()},
            foresight=foresight,
            nodes=request.spec.cluster.nodes if is_for_slurm(request) else 1,
            tells_all=request.tells_fits,
            only=request.stages,
        )
    )


# -- what is left to do ---------------------------------------------------------------------------


def _chains(request: PlanRequest, history: History, warnings: list[str]) -> list[list[StageWork]]:
    """By experiment, after those whose weights it starts from."""
    left_out = [f"history: {one.in_words()}, left out" for one in history.left_out]
    chains = []
    for experiment in _by_need(request.experiments):
        chain = work_of(experiment, request, history.facts, warnings)
        if chain:
            warnings += [words for words in left_out if words not in warnings]
            chains.append(chain)
    grace_s = request.spec.cluster.grace_s
    for work in (work for chain in chains for work in chain):
        doubt = doubts_about(work, grace_s=grace_s, is_slurm=is_for_slurm(request))
        warnings += [doubt] if doubt else []
    return chains


def _by_need(experiments: Sequence[ResolvedExperiment]) -> list[ResolvedExperiment]:
    """As written, but after the experiments whose weights they start from."""
    by_name = {experiment.name: experiment for experiment in experiments}
    ordered: dict[str, ResolvedExperiment] = {}
    open_names: set[str] = set()

    def add(experiment: ResolvedExperiment) -> None:
        if experiment.name in ordered or experiment.name in open_names:
            return
        open_names.add(experiment.name)
        for name in _needs(experiment):
            if name in by_name:
                add(by_name[name])
        ordered[experiment.name] = experiment

    for experiment in experiments:
        add(experiment)
    return list(ordered.values())


def _needs(experiment: ResolvedExperiment) -> list[str]:
    starts = [s.init_from for s in experiment.stages if start_of(s.init_from) == "experiment"]
    return [start.split("/")[0] for start in starts]


# -- under which terms ----------------------------------------------------------------------------


def _refuse_past_deadline(chains: Sequence[Sequence[StageWork]], request: PlanRequest) -> None:
    if chains and request.deadline_s is not None and request.deadline_s <= 0:
        raise PlanError(
            f"the deadline was {format_seconds(-request.deadline_s)} ago",
            hint="give a later `deadline`, or `--deadline 6h` from now",
        )


def _terms(chains: Sequence[Sequence[StageWork]], request: PlanRequest) -> Terms:
    cluster = request.spec.cluster
    terms = Terms(
        gpus=cluster.gpus,
        cpus=cpus_of_job(request),
        limit_s=cluster.time_limit_s,
        cut=request.spec.cut,
        deadline_s=request.deadline_s,
        at_once=None if is_for_slurm(request) else slots_here(request) // cluster.gpus or 1,
    )
    if is_packed(chains, terms) and device_for(cluster, request.machine) == "cpu":
        # A slot of the CPU is one at least, also where somebody asks for more than there are.
        terms = replace(terms, cpus=max(terms.cpus, cluster.gpus))
    if is_for_slurm(request) and chains:
        site = load_site(environ=request.environment)
        terms = replace(terms, max_jobs=site.max_jobs)
        name = cluster.partition or ""
        longest_s = site.partitions[name].longest_s if name in site.partitions else None
        refuse_beyond_partition(chains, terms, partition=name, longest_s=longest_s)
    return terms


def _may_be_narrower(chains: Sequence[Sequence[StageWork]], layout: Layout, terms: Terms) -> bool:
    """Several experiments take all GPUs in turn."""
    return not layout.is_packed and len(chains) > 1 and terms.gpus > 1 and terms.at_once == 1


# -- with names and prices ------------------------------------------------------------------------


def _named(
    layout: Layout,
    chains: Sequence[Sequence[StageWork]],
    terms: Terms,
    request: PlanRequest,
    warnings: list[str],
) -> Plan:
    project = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.spec.project).strip("-.")[:40] or "tasuki"
    plan_id = f"{project}-{secrets.token_hex(3)}"
    names = [f"{plan_id}-{number + 1:02d}" for number in range(len(layout.jobs))]
    memory = _memory(chains, request, warnings)
    jobs = []
    for name, laid in zip(names, layout.jobs, strict=True):
        after = tuple(names[number] for number in laid.after)
        jobs.append(_job(name, after, laid, terms, request, memory))
    works = [work for chain in chains for work in chain]
    return Plan(
        id=plan_id,
        jobs=tuple(jobs),
        makespan_s=layout.makespan_s,
        lower_bound_s=layout.lower_bound_s,
        gap=layout.gap,
        optimal=layout.is_optimal,
        cost=_add_up([job.cost for job in jobs]),
        reasons=(
            *(f"{name}: {job.reason}" for name, job in zip(names, layout.jobs, strict=True)),
            *layout.reasons,
        ),
        warnings=tuple(dict.fromkeys(warnings)),
        makespan_s_p10=layout.p10_s,
        makespan_s_p90=layout.p90_s,
        gpu_hours=_add_up([_gpu_hours(job.expected_s, job.gpus, request) for job in jobs]),
        deadline_s=request.deadline_s,
        predictions={f"{w.experiment}/{w.stage}": w.prediction for w in works if w.prediction},
    )


def _memory(
    chains: Sequence[Sequence[StageWork]], request: PlanRequest, warnings: list[str]
) -> dict[str, Asked]:
    """By experiment: what is asked for, more where it was killed for want of it."""
    found = {}
    wanted = {chain[0].experiment for chain in chains}
    for experiment in request.experiments:
        if experiment.name in wanted:
            killed = killed_for_memory(run_of(experiment, request))
            asked = next_memory(request.spec.cluster.memory_bytes, killed)
            found[experiment.name] = asked
            if asked.reason:
                warnings.append(f"run `{experiment.name}` was {asked.reason}")
    return found


def _job(
    name: str,
    after: tuple[str, ...],
    laid: LaidJob,
    terms: Terms,
    request: PlanRequest,
    memory: dict[str, Asked],
) -> Job:
    cluster = request.spec.cluster
    experiments = {piece.experiment for lane in laid.lanes for piece in lane.stages}
    host_bytes = [asked for name in experiments if (asked := memory[name].bytes) is not None]
    gpus, cpus = _used(laid, terms)
    hours = _gpu_hours(laid.expected_s, gpus, request)
    price = cluster.price_per_gpu_hour
    return Job(
        name=name,
        after=after,
        limit_s=terms.limit_s,
        expected_s=laid.expected_s,
        reserve_s=laid.reserve_s,
        gpus=gpus,
        cpus=cpus,
        host_bytes=max(host_bytes, default=None),
        lanes=laid.lanes,
        # A slot of the CPU (`gpu: cpu`) counts as a GPU: the price is of whatever `gpus` counts.
        cost=None if hours is None or price is None else hours * price,
        start_s=laid.start_s,
        useful=laid.useful,
    )


def _used(laid: LaidJob, terms: Terms) -> tuple[int, int]:
    """(GPUs, CPUs) to ask for: the last of several jobs may need fewer than the others."""
    gpus = 1 + max(gpu for lane in laid.lanes for gpu in lane.gpus)
    cpus = max(gpus, terms.cpus * gpus // terms.gpus)
    return gpus, min(terms.cpus, cpus)


def _gpu_hours(expected_s: float | None, gpus: int, request: PlanRequest) -> float | None:
    if expected_s is None:
        return None
    return expected_s / 3600 * gpus * (request.spec.cluster.nodes if request.is_slurm else 1)


def _add_up(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
