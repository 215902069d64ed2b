"""`tasuki estimate`: what stages need and how long they take, before anything waits in a queue.

Reads the spec, looks at data and recipe in a child (outlook.py), puts beside it what is given and
what past runs taught, and says for each bucket of each stage what to ask for. Where a step cannot
be traced the child takes a few real ones, on what is here. Writes nothing but what `runs/.probes`
keeps of the child's results.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasuki.commands.asking import Asking
from tasuki.commands.fitting import Fitted
from tasuki.commands.killed import killed_for_memory
from tasuki.commands.machine import Machine
from tasuki.commands.on_cards import OnCards, all_fits
from tasuki.commands.outlook import Outlook, gpu_name
from tasuki.commands.own_steps import own_steps
from tasuki.commands.plan import choose_experiments, evaluates, gpus_of
from tasuki.data.tempo import share_cpus
from tasuki.estimation.fitted import GIVEN, PREDICTED, BucketFit, limit_to_ask_for
from tasuki.estimation.gpus import CPU, TABLE
from tasuki.estimation.host import (
    GIB,
    Asked,
    HostFacts,
    HostNeeds,
    host_needs,
    next_memory,
    to_ask_for,
)
from tasuki.estimation.times import StageTimes, estimate_stage
from tasuki.runs.atomic import FORMAT
from tasuki.runs.events import read_events
from tasuki.runs.find import latest_run
from tasuki.runs.history import look_at_history
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage
from tasuki.spec.site import Site
from tasuki.units import format_bytes, format_seconds

_CPUS_PER_GPU = 4
"""What `submit` asks for where the spec does not say."""
_LONGER = 1.1
"""What is asked for over what nine of ten runs take: nodes differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    spec: ResolvedSpec
    machine: Machine
    asking: Asking
    site: Site
    experiments: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    """Only these; empty: all."""
    gpus: tuple[str, ...] = ()
    """Empty: the spec's own, or with `compares` all that are known."""
    compares: bool = False
    alternatives: bool = False
    """Other ways to do each step, and why they are not chosen."""
    words: tuple[str, ...] = ()
    """Of the command line that chose the spec: `submit` needs them too."""


def estimate(request: EstimateRequest) -> dict[str, Any]:
    """The values of `--json`."""
    spec = request.spec
    wanted = request.stages or spec.only_stages
    experiments = choose_experiments(spec, request.experiments, wanted)
    pairs = [
        (experiment, stage)
        for experiment in experiments
        for stage in experiment.stages
        if not wanted or stage.name in wanted
    ]
    past = _Past(request)
    cards = OnCards(
        spec=spec,
        machine=request.machine,
        asking=request.asking,
        site=request.site,
        history=past.history,
    )
    fitted = {
        name: cards.fit(
            experiments,
            name,
            is_own=name == spec.cluster.gpu or not (request.gpus or request.compares),
            tells_all=request.alternatives,
            only=wanted,
        )
        for name in _names(request)
    }
    outlooks = _look(pairs, fitted, cards)
    found = [
        _Rows(request, experiment, on_card[number], past)
        for number, (experiment, _) in enumerate(pairs)
        for on_card in outlooks
    ]
    commands = _submit_commands(request, found, wanted)
    rows = [row for one in found for row in one.rows(commands[one.job])]
    said = [words for one in fitted.values() for words in one.warnings]
    return {
        "format": FORMAT,
        "spec": spec.file,
        "compares": request.compares,
        "stages": rows,
        "fits": all_fits(fitted),
        "notes": cards.notes,
        "warnings": list(dict.fromkeys([*spec.warnings, *past.left_out, *said])),
    }


def _stages(
    pairs: Sequence[tuple[ResolvedExperiment, ResolvedStage]], fitted: Fitted
) -> list[ResolvedStage]:
    chosen = {(e.name, stage.name): stage for e in fitted.experiments for stage in e.stages}
    return [chosen[experiment.name, stage.name] for experiment, stage in pairs]


def _look(
    pairs: Sequence[tuple[ResolvedExperiment, ResolvedStage]],
    fitted: Mapping[str, Fitted],
    cards: OnCards,
) -> list[list[Outlook]]:
    """At once, where nothing was chosen otherwise on one card than on another."""
    stages = {name: _stages(pairs, one) for name, one in fitted.items()}
    first = next(iter(stages.values()))
    if all(own == first for own in stages.values()):
        return cards.look(first, list(stages))
    return [cards.look(own, [name])[0] for name, own in stages.items()]


def _names(request: EstimateRequest) -> tuple[str, ...]:
    if request.gpus:
        return tuple(dict.fromkeys(request.gpus))
    if request.compares:
        own = [name for name, card in request.site.gpus.items() if card.memory_bytes is not None]
        return tuple(dict.fromkeys([*(name for name in TABLE if name != CPU), *own]))
    return (gpu_name(request.spec.cluster, request.machine),)


class _Past:
    """What this and earlier runs measured, read once."""

    def __init__(self, request: EstimateRequest) -> None:
        self._spec = request.spec
        self._runs = Path(request.spec.runs)
        looked = look_at_history(self._runs)
        self.history = looked.facts
        self.left_out = [f"history: {one.in_words()}, left out" for one in looked.left_out]
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._killed: dict[str, list[int | None]] = {}

    def times(self, experiment: str, outlook: Outlook, *, is_own_card: bool) -> StageTimes:
        """Of a card that is not the spec's own, this run has measured nothing."""
        cluster = self._spec.cluster
        # Not the spec's: on a machine without a GPU that would be a CPU, whatever `--gpu` says.
        device = "cpu" if outlook.card.gpu.is_cpu else "cuda"
        ranks = outlook.card.ranks
        own = own_steps(
            latest_run(self._runs, experiment),
            self._events_of(experiment) if is_own_card else (),
            outlook.stage,
            device=device,
            ranks=ranks,
            gpu=cluster.gpu,
        )
        return estimate_stage(
            outlook.stage,
            device=device,
            ranks=ranks,
            own_events=own,
            history=self.history,
            measured=None,
            shape=outlook.shape,
            predicted=outlook.predicted,
            gpu=cluster.gpu if is_own_card else outlook.card.called,
        )

    def killed(self, experiment: str) -> list[int | None]:
        if experiment not in self._killed:
            self._killed[experiment] = killed_for_memory(latest_run(self._runs, experiment))
        return self._killed[experiment]

    def _events_of(self, experiment: str) -> list[dict[str, Any]]:
        if experiment not in self._events:
            run = latest_run(self._runs, experiment)
            self._events[experiment] = list(read_events(run)) if run.spec.exists() else []
        return self._events[experiment]


class _Rows:
    """One stage on one card: a row for each of its buckets."""

    def __init__(
        self,
        request: EstimateRequest,
        experiment: ResolvedExperiment,
        outlook: Outlook,
        past: _Past,
    ) -> None:
        self._request, self._experiment, self._outlook = request, experiment, outlook
        self.stage, self.card = outlook.stage, outlook.card
        own = not request.gpus and not request.compares
        is_own = own or self.card.called == request.spec.cluster.gpu
        self._times = past.times(experiment.name, outlook, is_own_card=is_own)
        is_evaluated = evaluates(experiment, outlook.stage)
        reserve = outlook.stage.evaluate.reserve_s if outlook.stage.evaluate else None
        asked = self._times if reserve is None else replace(self._times, evaluate_s=reserve)
        self._to_hold = asked.whole_s(evaluates=is_evaluated)
        self._whole_p90 = asked.whole_s_p90(evaluates=is_evaluated)
        is_given = asked.source == GIVEN  # and is shown as it was given
        self._whole = asked.wall_s if is_given else self._to_hold
        self._host = _host(request, outlook)
        self._memory = next_memory(request.spec.cluster.memory_bytes, past.killed(experiment.name))

    @property
    def job(self) -> tuple[str, str]:
        """What is submitted together: the experiment's stages on a card."""
        return self._experiment.name, self.card.called

    def rows(self, submit_command: str) -> Iterator[dict[str, Any]]:
        fits = self._outlook.fits or (None,)
        shares = _shares(self._outlook.fits, self._times, self._whole)
        for fit, (step_s, wall_s) in zip(fits, shares, strict=True):
            yield {**self._row(fit, step_s, wall_s), "submit_command": submit_command}

    def _row(
        self, fit: BucketFit | None, step_s: float | None, wall_s: float | None
    ) -> dict[str, Any]:
        stage, times, card = self.stage, self._times, self.card
        needs = fit.needs if fit is not None else None
        peak = stage.expect_peak_bytes or (needs.peak_bytes if needs is not None else None)
        has_room = peak is not None and card.capacity is not None
        p90 = self._whole_p90
        share = wall_s / self._whole if wall_s is not None and self._whole else None
        foretold = self._outlook.foretold
        return {
            "experiment": self._experiment.name,
            "stage": stage.name,
            "bucket": fit.size if fit is not None else None,
            "gpu": card.gpu.name,
            "samples": fit.samples if fit is not None else None,
            "micro_batch": fit.micro_batch if fit is not None else None,
            "accumulation": fit.accumulation if fit is not None else None,
            "max_micro_batch": fit.max_micro_batch if fit is not None else None,
            "budget": fit.budget if fit is not None else None,
            "cost_budget": fit.max_budget if fit is not None else None,
            "tensor_peak_bytes": needs.tensors.bytes if needs is not None else None,
            "peak_bytes": peak,
            "capacity_bytes": card.capacity,
            "headroom_bytes": (card.capacity or 0) - (peak or 0) if has_room else None,
            "breakdown": {
                "device": needs.breakdown if needs is not None else {},
                "host": self._host.breakdown if self._host is not None else {},
            },
            "step_s": step_s,
            "wall_s": wall_s,
            "wall_s_p90": p90 * share if p90 is not None and share is not None else None,
            "train_s": times.wall_s,
            "stage_wall_s": self._whole,
            "stage_wall_s_p90": p90,
            "limit_s": self.limit_s(),
            "jobs": self._jobs(),
            "host_bytes": self.host_bytes(),
            "source": times.source,
            "error": times.error,
            "sources": self._sources(fit),
            "used": list(times.used),
            "untraced": foretold.untraced if foretold is not None else None,
            "unmeasured": foretold.unmeasured if foretold is not None else None,
            "no_data": foretold.facts["no_data"] if foretold is not None else None,
            "remedies": list(self._remedies()),
            "notes": list(self._notes()),
        }

    def _remedies(self) -> Sequence[str]:
        """A peak that was given wins over a traced one, whichever of them fits."""
        given, has = self.stage.expect_peak_bytes, self.card.capacity
        if given is None or has is None:
            return self._outlook.remedies
        if given <= has:
            return ()
        missing, gpu = format_bytes(given - has), self.card.gpu.name
        return (f"`expect.peak` is {format_bytes(given)}: {missing} more than a {gpu} has",)

    def _whole_s(self) -> float | None:
        """What nine of ten runs take from the start of their job to its end."""
        return self._whole_p90 or self._to_hold

    def limit_s(self) -> float | None:
        given = self._request.spec.cluster.time_limit_s
        whole = self._whole_s()
        if given is not None or whole is None:
            return given
        return limit_to_ask_for(_LONGER * whole)

    def _jobs(self) -> int | None:
        """How many jobs of that length it takes."""
        whole, limit = self._whole_s(), self.limit_s()
        return None if whole is None or not limit else max(1, -int(-whole // limit))

    def host_bytes(self) -> int | None:
        if self._memory.bytes is not None:
            return self._memory.bytes
        return None if self._host is None else to_ask_for(self._host.total)

    def _sources(self, fit: BucketFit | None) -> dict[str, str]:
        """Number → where it comes from."""
        cluster, stage = self._request.spec.cluster, self.stage
        told = {"wall": self._times.source}
        if fit is not None:
            told["micro_batch"] = _why(fit, stage)
            if fit.step is not None:
                is_predicted = self._times.source == PREDICTED or self._times.step_s is None
                told["step"] = fit.step.source if is_predicted else self._times.source
            if fit.needs is not None:
                told |= fit.needs.sources
        if stage.expect_peak_bytes is not None:
            told["peak"] = "given"
        told["limit"] = "given" if cluster.time_limit_s is not None else "recommended"
        told["host"] = _host_source(cluster.memory_bytes, self._memory)
        return {name: words for name, words in told.items() if words}

    def _assumed_cost(self) -> str:
        cost = self.stage.buckets.cost
        if all(fit.size for fit in self._outlook.fits):
            return f"assumed: what a sample costs ({cost}) is its size"
        return (
            f"what a sample costs ({cost}) is not known: the memory is that of a rank's whole "
            "share of a step, of samples as example_batch makes them"
        )

    def _notes(self) -> Iterator[str]:
        foretold, stage = self._outlook.foretold, self.stage
        if self._memory.reason:
            yield self._memory.reason
        given = self._request.spec.cluster.memory_bytes
        if given is not None and self._host is not None and given < self._host.total:
            needs = format_bytes(self._host.total)
            yield f"`cluster.memory` is {format_bytes(given)}, and the host needs about {needs}"
        if stage.recipe is None:
            yield "a command: nothing of it can be foretold; `expect` gives time and memory"
        if foretold is None:
            return
        if foretold.facts["no_data"] is not None:
            why = foretold.facts["no_data"].partition("; ")[0]
            yield f"how many samples there are is not known: {why}"
            if stage.buckets.kind == "cost":
                yield self._assumed_cost()
        if foretold.untraced is not None and foretold.probe is None:
            op, reason = foretold.untraced["op"], foretold.untraced["reason"]
            tried = f", nor measured here: {foretold.unmeasured}" if foretold.unmeasured else ""
            yield f"its memory cannot be traced (`{op}`: {reason}){tried}"
        if foretold.probe is not None:
            small = foretold.small.notes if foretold.small is not None else ()
            yield from dict.fromkeys([*foretold.probe.notes, *small])
        if self._host is not None and self._host.unknown:
            yield f"not in the host's memory, as nobody can know: {', '.join(self._host.unknown)}"


def _why(fit: BucketFit, stage: ResolvedStage) -> str:
    if fit.is_given:
        return GIVEN
    if fit.budget is not None and fit.max_budget is not None:
        if fit.budget < int(fit.max_budget * stage.safety_factor):
            return "a rank's whole share of a step, which fits"
        factor = f"safety_factor {stage.safety_factor:g}"
        return f"{fit.max_budget:,} × {factor}, in {stage.buckets.cost}"
    if fit.max_micro_batch is None:
        return "a rank's share of the effective batch"
    if fit.accumulation in (None, 1):
        return "a rank's share of the effective batch, which fits"
    return f"{fit.max_micro_batch} × safety_factor {stage.safety_factor:g}"


def _host_source(given: int | None, memory: Asked) -> str:
    if memory.reason:
        return memory.reason
    return "given" if given is not None else "measured in a child, recommended"


def _host(request: EstimateRequest, outlook: Outlook) -> HostNeeds | None:
    foretold, stage, cluster = outlook.foretold, outlook.stage, request.spec.cluster
    if foretold is None:
        return None
    is_gpu = not outlook.card.gpu.is_cpu
    cpus = cluster.cpus or (_CPUS_PER_GPU * cluster.gpus if is_gpu else request.machine.cpus)
    wanted = stage.loader.workers if isinstance(stage.loader.workers, int) else None
    _, workers = share_cpus(cpus // cluster.gpus, is_gpu=is_gpu, workers=wanted)
    facts, probe = foretold.facts, foretold.probe
    batches = [
        _samples(fit, bucket) * bucket["sample_bytes"]
        for fit, bucket in zip(outlook.fits, facts["buckets"], strict=True)
        if bucket["sample_bytes"] is not None
    ]
    state = None
    if probe is not None:
        kept = [probe.kept_of(kind, batch=1, size=0) for kind in ("weights", "optimizer")]
        state = sum(kept)
    return host_needs(
        HostFacts(
            import_bytes=facts["import_bytes"],
            data_bytes=facts["data_bytes"],
            batch_bytes=max(batches, default=None),
            state_bytes=state,
            workers=workers,
            prefetch=stage.loader.prefetch,
            is_spawned=stage.loader.context == "spawn",
            device_bytes=0 if is_gpu else _tensors(outlook.fits),
            is_gpu=is_gpu,
            ranks=gpus_of(stage, cluster),
        )
    )


def _samples(fit: BucketFit, bucket: Mapping[str, Any]) -> int:
    """Of a micro-batch; by cost: so many of the dearest."""
    if fit.budget is not None and bucket["cost"]:
        cost = min(fit.budget, int(bucket["whole_cost"]))
        return -(-cost // int(bucket["cost"]))
    return fit.micro_batch or 1


def _tensors(fits: Sequence[BucketFit]) -> int:
    return max((fit.needs.tensors.bytes for fit in fits if fit.needs is not None), default=0)


def _submit_commands(
    request: EstimateRequest, found: Sequence[_Rows], wanted: Sequence[str]
) -> dict[tuple[str, str], str]:
    """One for all stages of an experiment on a card: a run that is in the queue is not submitted a
    second time. It asks for what the largest stage needs; the plan cuts the work into such jobs."""
    jobs: dict[tuple[str, str], list[_Rows]] = {}
    for one in found:
        jobs.setdefault(one.job, []).append(one)
    return {job: _submit_command(request, job[0], own, wanted) for job, own in jobs.items()}


def _submit_command(
    request: EstimateRequest, experiment: str, stages: Sequence[_Rows], wanted: Sequence[str]
) -> str:
    words = ["tasuki", "submit", *request.words]
    if len(request.spec.experiments) > 1:
        words += ["--experiment", experiment]
    if wanted:
        words += ["--stages", *(one.stage.name for one in stages)]
    cluster, card = request.spec.cluster, stages[0].card
    # Where nothing was said of a card, what is here was meant; but Slurm would give GPUs.
    is_said = bool(cluster.gpu or request.gpus or request.compares)
    if card.called != cluster.gpu and (is_said or card.gpu.is_cpu):
        words += ["--set", f"cluster.gpu={card.called}"]
    limits = [one.limit_s() for one in stages]
    if cluster.time_limit_s is None and None not in limits:
        words += ["--time", format_seconds(max(filter(None, limits)))]
    memory = max((one.host_bytes() or 0 for one in stages), default=0)
    if memory and memory != cluster.memory_bytes:
        words += ["--memory", f"{-(-memory // GIB)}G"]
    return shlex.join(words)


def _shares(
    fits: Sequence[BucketFit], times: StageTimes, whole_s: float | None
) -> list[tuple[float | None, float | None]]:
    """(step, wall) of each bucket: as the steps are predicted to lie to each other, and together
    what is known of the stage; start, saves and evaluation are shared alike."""
    if len(fits) < 2:
        fit = fits[0] if fits else None
        predicted = fit.step.seconds if fit is not None and fit.step is not None else None
        return [(times.step_s or predicted, whole_s)]
    weights = [(fit.steps or 0) * (fit.step.seconds if fit.step else 1.0) for fit in fits]
    steps, weight = sum(fit.steps or 0 for fit in fits), sum(weights)
    found: list[tuple[float | None, float | None]] = []
    for fit, own in zip(fits, weights, strict=True):
        predicted = fit.step.seconds if fit.step is not None else None
        if times.wall_s and whole_s and own and times.total_steps and fit.steps:
            share = own / weight
            step_s = times.wall_s * share / (times.total_steps * fit.steps / steps)
            found.append((step_s, whole_s * share))
        else:
            found.append((predicted, None))
    return found


def does_fit(found: dict[str, Any]) -> bool:
    """Every stage on its card."""
    return not any(row["remedies"] for row in found["stages"])
