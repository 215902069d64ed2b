"""Batch fitting at a fixed effective batch: `gradient_checkpointing: auto` and `gpus: auto`.

Reads what a run was begun with, which stays; else asks for traces (outlook.py), lets
planning/fit.py choose, and says what lost and why. The micro-batch itself stays `auto` in a run: it
is found on the card at a stage's first start (memory/tuned.py), here it is foretold. Where nothing
can be foretold it falls back, in words. A choice is never worth a plan: what fails in here is a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from tasuki.commands.asking import Asking
from tasuki.commands.candidates import (
    CHECKPOINTING,
    Found,
    Kept,
    Question,
    find_candidates,
    in_one_piece,
    policy_of,
    with_policy,
)
from tasuki.commands.foreseen import Foresight
from tasuki.commands.freeze import NOT_KNOWN, THIS_RUN, as_begun
from tasuki.commands.machine import gpu_here
from tasuki.commands.outlook import Prospect
from tasuki.commands.predict import Foretold
from tasuki.errors import TasukiError
from tasuki.estimation.fitted import Card
from tasuki.planning.fit import Choice, Policy, choose
from tasuki.runs.history import look_at_history
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage
from tasuki.spec.site import load_site

Fit = dict[str, Any]
"""An entry of a plan's `fits`: {chosen, alternatives, gain, source, auto, gpu, capacity_bytes}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Experiments in which nothing is open any more, and how that came."""

    experiments: tuple[ResolvedExperiment, ...]
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """By `experiment/stage`."""
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    experiments: tuple[ResolvedExperiment, ...]
    runs: Mapping[str, RunFolder]
    """By experiment: runs that were begun."""
    foresight: Foresight
    """Its history is read here, if anybody wants it."""
    nodes: int = 1
    """Of a job."""
    gpu: str | None = None
    """The card that is asked about; None: the spec's, or what is here."""
    tells_all: bool = False
    """Stages of which everything is given too: what they could gain."""
    only: tuple[str, ...] = ()
    """With `tells_all`: these stages; empty: all."""


@dataclass(slots=True)
class _Case:
    """A stage and what is found out about it."""

    experiment: str
    stage: ResolvedStage
    numbers: tuple[int, ...]
    nodes: int
    foretold: dict[Policy, Foretold] = field(default_factory=dict)
    kept: Kept = field(default_factory=dict)
    trouble: str = ""

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.stage.name}"


def is_open(stage: ResolvedStage) -> bool:
    return stage.chooses_gpus or stage.gradient_checkpointing == "auto"


def fit_experiments(request: FitRequest) -> Fitted:
    """What is open is chosen; everything else stays as it is."""
    begun = [_begun(experiment, request) for experiment in request.experiments]
    found = [fit for _, fits in begun for fit in fits]
    cases = list(_cases([experiment for experiment, _ in begun], request))
    fits: dict[str, Fit] = dict(found)
    warnings = list(_shrink(fits, request))
    if cases:
        own, said = _fit(cases, request)
        fits |= own
        warnings += said
    return Fitted(
        experiments=tuple(apply_fits(request.experiments, fits)),
        fits=fits,
        reasons=tuple(_in_words(key, fit) for key, fit in fits.items()),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def apply_fits(
    experiments: Sequence[ResolvedExperiment], fits: Mapping[str, Fit]
) -> Iterator[ResolvedExperiment]:
    """The choices in place of what was open."""
    for experiment in experiments:
        stages = tuple(
            _with_choice(stage, fits.get(f"{experiment.name}/{stage.name}"))
            for stage in experiment.stages
        )
        yield msgspec.structs.replace(experiment, stages=stages)


def _with_choice(stage: ResolvedStage, fit: Fit | None) -> ResolvedStage:
    chosen = {} if fit is None else {key: fit["chosen"][key] for key in fit["auto"]}
    if "gpus" in chosen:
        chosen["chooses_gpus"] = False
    return msgspec.structs.replace(stage, **chosen)


# -- runs that were begun --------------------------------------------------------------------------


def _begun(
    experiment: ResolvedExperiment, request: FitRequest
) -> tuple[ResolvedExperiment, list[tuple[str, Fit]]]:
    run = request.runs.get(experiment.name)
    if run is None:
        return experiment, []
    settled = as_begun(run, experiment)
    fits = [
        (f"{experiment.name}/{before.name}", _of_run(before, after))
        for before, after in zip(experiment.stages, settled.stages, strict=True)
        if is_open(before) and not is_open(after)
    ]
    return settled, fits


def _of_run(before: ResolvedStage, after: ResolvedStage) -> Fit:
    chosen = {CHECKPOINTING: after.gradient_checkpointing, "gpus": after.gpus}
    return _entry(before, chosen, source=THIS_RUN, reason="as this run was begun")


def _shrink(fits: dict[str, Fit], request: FitRequest) -> Iterator[str]:
    """A run that was begun on more GPUs than there are now."""
    most = request.foresight.spec.cluster.gpus
    for key, fit in fits.items():
        gpus = fit["chosen"]["gpus"]
        if "gpus" in fit["auto"] and gpus is not None and gpus > most:
            fit["chosen"] = {**fit["chosen"], "gpus": most}
            yield f"stage `{key}` was begun on {gpus} GPUs, and `cluster.gpus` is {most} now"


def _entry(stage: ResolvedStage, chosen: Mapping[str, Any], *, source: str, reason: str) -> Fit:
    unknown = dict.fromkeys(
        ("micro_batch", "accumulation", "budget", "peak_bytes", "step_s", "wall_s", "fits")
    )
    return {
        "chosen": {**unknown, **chosen, "reason": reason},
        "alternatives": [],
        "gain": None,
        "source": source,
        "auto": _auto(stage),
        "gpu": None,
        "capacity_bytes": None,
    }


def _auto(stage: ResolvedStage) -> list[str]:
    chosen = [CHECKPOINTING] if stage.gradient_checkpointing == "auto" else []
    return [*chosen, *(["gpus"] if stage.chooses_gpus else [])]


# -- choosing --------------------------------------------------------------------------------------


def _cases(experiments: Sequence[ResolvedExperiment], request: FitRequest) -> Iterator[_Case]:
    for experiment in experiments:
        for stage in experiment.stages:
            told = request.tells_all and stage.recipe is not None
            told = told and (not request.only or stage.name in request.only)
            if is_open(stage) or told:
                numbers = tuple(_numbers(stage, request))
                yield _Case(experiment.name, stage, numbers, request.nodes)


def _numbers(stage: ResolvedStage, request: FitRequest) -> Iterator[int]:
    """Of GPUs that come into question: 1, 2, 4, …, no more than a step has samples."""
    cluster = request.foresight.spec.cluster
    if not stage.chooses_gpus or cluster.nodes > 1:  # ranks on several nodes are the whole job
        yield (stage.gpus or cluster.gpus) * request.nodes
        return
    number, most = 1, min(cluster.gpus, stage.effective_batch or cluster.gpus)
    while number <= most:
        yield number
        number *= 2


def _fit(cases: Sequence[_Case], request: FitRequest) -> tuple[dict[str, Fit], list[str]]:
    foresight, warnings = request.foresight, []
    name, trouble = _card_name(foresight, request.gpu)
    if name is None:
        return _fall_back(cases, trouble, tells_all=request.tells_all)
    history = look_at_history(Path(foresight.spec.runs)).facts
    foresight = replace(foresight, history=history)
    fits: dict[str, Fit] = {}
    for ranks in dict.fromkeys(_traced_ranks(case) for case in cases):
        own = [case for case in cases if _traced_ranks(case) == ranks]
        for found, said in _fit_alike(own, name, foresight, tells_all=request.tells_all):
            fits |= found
            warnings += said
    return fits, warnings


def _fit_alike(
    cases: Sequence[_Case], name: str, foresight: Foresight, *, tells_all: bool
) -> Iterator[tuple[dict[str, Fit], list[str]]]:
    """Traced at once; one that cannot be must not stand in the way of the others."""
    try:
        prospect = _prospect(cases, _traced_ranks(cases[0]), foresight)
        yield _choose(cases, prospect, prospect.card(name))
    except TasukiError as error:
        if len(cases) == 1:
            yield _fall_back(cases, error.message, tells_all=tells_all)
            return
        for case in cases:
            yield from _fit_alike([case], name, foresight, tells_all=tells_all)


def _traced_ranks(case: _Case) -> int:
    """One where the number is open: what several add follows from it."""
    return 1 if case.stage.chooses_gpus else case.numbers[0]


def _card_name(foresight: Foresight, asked: str | None) -> tuple[str | None, str]:
    """(the card to predict for, or why there is none)."""
    named = asked or foresight.spec.cluster.gpu
    if named == "cpu" or (named is None and not foresight.machine.gpus):
        return None, "there is no card to fit to (`gpu: cpu`, or no GPU here and none named)"
    found = named or gpu_here()
    return found, "" if found else "which GPU is meant is not known: name it as `cluster.gpu`"


def _prospect(cases: Sequence[_Case], ranks: int, foresight: Foresight) -> Prospect:
    names = ", ".join(dict.fromkeys(case.stage.name for case in cases))

    def say(_: object) -> None:
        """One word is enough: the child takes seconds."""

    asking = None
    if foresight.may_ask:
        foresight.on_progress(f"tracing steps of {names}")
        asking = Asking(python=foresight.python, environment=foresight.environment, on_progress=say)
    return Prospect(
        spec=foresight.spec,
        ranks=ranks,
        site=load_site(environ=foresight.environment),
        asking=asking,
        history=foresight.history,
    )


def _choose(
    cases: Sequence[_Case], prospect: Prospect, card: Card
) -> tuple[dict[str, Fit], list[str]]:
    traced = [case for case in cases if case.stage.recipe is not None]
    _ask(traced, [_first_policies(case) for case in traced], prospect, card)
    known = [case for case in traced if False in case.foretold]
    first = [(case, _found(case, prospect, card)) for case in known]
    more = [case for case, one in first if not in_one_piece(one.candidates, capacity=card.capacity)]
    _ask_one_by_one([case for case in more if True not in case.foretold], prospect, card)
    fits: dict[str, Fit] = {}
    warnings: list[str] = list(prospect.notes) if known else []
    unknown: dict[str, list[_Case]] = {}
    for case in cases:
        if case not in known:
            unknown.setdefault(_unknown(case, prospect), []).append(case)
            continue
        found, said = _chosen(case, prospect, card)
        fits |= found
        warnings += said
    for trouble, alike in unknown.items():  # told once for all
        found, said = _fall_back(alike, trouble, tells_all=False)
        fits |= found
        warnings += said
    return fits, warnings


def _first_policies(case: _Case) -> list[Policy]:
    given = policy_of(case.stage)
    return [False] if given is None or given is False else [given, False]


def _ask(
    cases: Sequence[_Case], policies: Sequence[Sequence[Policy]], prospect: Prospect, card: Card
) -> None:
    wanted = [(case, one) for case, own in zip(cases, policies, strict=True) for one in own]
    answers = prospect.foretell([with_policy(case.stage, one) for case, one in wanted], card)
    for (case, one), answer in zip(wanted, answers, strict=True):
        if answer is not None and answer.probe is not None:
            case.foretold[one] = answer
        elif answer is not None and answer.untraced is not None:
            case.trouble = f"`{answer.untraced['op']}` cannot be traced"


def _ask_one_by_one(cases: Sequence[_Case], prospect: Prospect, card: Card) -> None:
    """With recomputing: a model without blocks must not stand in the way of the others."""
    try:
        _ask(cases, [[True]] * len(cases), prospect, card)
    except TasukiError as error:
        if len(cases) == 1:
            cases[0].trouble = error.message
            return
        for case in cases:
            _ask_one_by_one([case], prospect, card)


def _unknown(case: _Case, prospect: Prospect) -> str:
    if case.stage.recipe is None:
        return "a command cannot be traced"
    if case.trouble:
        return case.trouble
    if prospect.asking is None:
        return "nothing is kept of it, and nobody may be asked; `tasuki plan` traces a step of it"
    return "nothing is known of it"


def _found(case: _Case, prospect: Prospect, card: Card) -> Found:
    question = Question(
        stage=case.stage,
        card=card,
        numbers=case.numbers,
        foretold=case.foretold,
        history=prospect.history,
    )
    return find_candidates(question, case.kept)


def _chosen(case: _Case, prospect: Prospect, card: Card) -> tuple[dict[str, Fit], list[str]]:
    found = _found(case, prospect, card)
    choice = choose(found.candidates, capacity=card.capacity, is_open=case.stage.chooses_gpus)
    way = choice.chosen.gradient_checkpointing, choice.chosen.gpus
    source = "history" if way in found.from_history else "predicted"
    told = choice.as_json(capacity=card.capacity)
    for row in (told["chosen"], *told["alternatives"]):
        row["gpus"] //= case.nodes
    fit = {
        **told,
        "source": source,
        "auto": _auto(case.stage),
        "gpu": card.called,
        "capacity_bytes": card.capacity,
    }
    return {case.key: fit}, list(_doubts(case, choice))


def _doubts(case: _Case, choice: Choice) -> Iterator[str]:
    if not is_open(case.stage):
        return
    if not choice.does_fit:
        yield f"stage `{case.key}`: {choice.chosen.in_words(names_gpus=True)} {choice.reason}"
    if case.trouble and True not in case.foretold:
        yield f"stage `{case.key}`: gradient checkpointing is left out: {case.trouble}"


def _fall_back(
    cases: Sequence[_Case], trouble: str, *, tells_all: bool
) -> tuple[dict[str, Fit], list[str]]:
    """Nothing is recomputed, on as few GPUs as may be: what works if it fits, and costs least."""
    fits = {}
    told: dict[str, list[str]] = {}
    for case in cases:
        chosen = {CHECKPOINTING: False, "gpus": case.numbers[0] // case.nodes}
        if auto := _auto(case.stage):
            fits[case.key] = _entry(case.stage, chosen, source=NOT_KNOWN, reason=trouble)
            values = ", ".join(f"`{key}: {str(chosen[key]).lower()}`" for key in auto)
            told.setdefault(f"`auto` falls back to {values}", []).append(f"`{case.key}`")
        elif tells_all:
            told.setdefault("other ways are not known", []).append(f"`{case.key}`")
    return fits, [f"{_stages(keys)}: {words}: {trouble}" for words, keys in told.items()]


def _stages(keys: Sequence[str]) -> str:
    """One warning for all stages that it is about."""
    return f"stage {keys[0]}" if len(keys) == 1 else f"stages {', '.join(keys)}"


def _in_words(key: str, fit: Fit) -> str:
    """A line of a plan's reasons."""
    chosen = fit["chosen"]
    if fit["gain"] is not None and not fit["auto"]:
        return f"{key}: {fit['gain']['words']} ({fit['source']})"
    told = [_policy_told(chosen[CHECKPOINTING])]
    if chosen["micro_batch"] is not None:
        told.insert(0, f"{chosen['micro_batch']} × {chosen['accumulation']}")
    if "gpus" in fit["auto"]:
        told.append(f"{chosen['gpus'] or 'all'} GPU{'' if chosen['gpus'] == 1 else 's'}")
    return f"{key}: {', '.join(told)}: {chosen['reason']} ({fit['source']})"


def _policy_told(policy: object) -> str:
    return "no checkpointing" if policy is False else "checkpointing"
