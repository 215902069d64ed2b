"""`tasuki plan --what-if`: the same work under other settings, one plan for each combination.

Every case is the spec read anew with its settings, as `--set` would, and planned; what was measured
for one case is not measured again for another. A case that cannot be planned is a result, not an
error. Writes nothing but what plans keep (`runs/.probes`), prints nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tasuki.commands.measure import Measurer
from tasuki.commands.plan import PlanRequest, make_plan
from tasuki.errors import TasukiError, UsageError
from tasuki.planning.values import FORMAT, Plan
from tasuki.spec.check import hints_of, nearest
from tasuki.spec.resolved import ResolvedSpec
from tasuki.spec.settings import read_settings
from tasuki.spec.written import Cluster
from tasuki.units import format_age

MOST_CASES = 64
_HARMLESS = ("time_limit", "grace", "price_per_gpu_hour", "partition", "account", "qos", "memory")
"""Keys of the cluster that change no step's time; nor do those of whole plans."""
_OF_PLANS = ("deadline", "cut", "project", "runs")
_WIDTHS = ("gpus", "nodes")
_VALUES = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])+""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A key and the values that are tried."""

    key: str
    """As it was written."""
    path: str
    """As `--set` wants it."""
    values: tuple[str, ...]

    @property
    def last(self) -> str:
        return self.path.rsplit(".", 1)[-1]

    @property
    def is_of_cluster(self) -> bool:
        return self.path.startswith("cluster.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRequest:
    knobs: tuple[Knob, ...]
    load: Callable[[tuple[str, ...]], ResolvedSpec]
    """The spec with further settings, `key=value`."""
    request: Callable[[ResolvedSpec], PlanRequest]
    on_progress: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class _Case:
    settings: dict[str, str]
    spec: ResolvedSpec | None = None
    plan: Plan | None = None
    error: TasukiError | None = None
    is_base: bool = False


# -- what is asked ---------------------------------------------------------------------------------


def read_knobs(texts: Sequence[str]) -> tuple[Knob, ...]:
    """`gpus=2,4,8` and so on; a bare key of the cluster is meant as such."""
    knobs = tuple(_read_knob(text) for text in texts)
    paths = [knob.path for knob in knobs]
    for knob in knobs:
        if paths.count(knob.path) > 1:
            raise UsageError(
                f"--what-if has `{knob.key}` twice",
                hint=f"give all its values at once: --what-if {knob.key}="
                + ",".join(v for one in knobs if one.path == knob.path for v in one.values),
            )
    num = math.prod(len(knob.values) for knob in knobs)
    if num > MOST_CASES:
        each = " × ".join(str(len(knob.values)) for knob in knobs)
        counted = f"{each} = {num}" if len(knobs) > 1 else str(num)
        raise UsageError(
            f"--what-if asks for {counted} plans, and {MOST_CASES} are the most",
            hint="leave out values, or ask for one key after another",
        )
    return knobs


def _read_knob(text: str) -> Knob:
    key, equals, written = (part.strip() for part in text.partition("="))
    values = tuple(dict.fromkeys(v for v in map(str.strip, _VALUES.findall(written)) if v))
    if not equals or not key or not values:
        raise UsageError(
            f"--what-if {text}: a key, `=` and values are wanted",
            hint="write for example --what-if gpus=2,4,8",
        )
    path = f"cluster.{key}" if key.split(".")[0] in hints_of(Cluster) else key
    first, _, rest = path.partition(".")
    if first == "cluster" and rest.split(".")[0] not in hints_of(Cluster):
        near = nearest(rest, hints_of(Cluster))
        hint = f"did you mean `{near}`?" if near else f"known: {' '.join(hints_of(Cluster))}"
        raise UsageError(f"--what-if {text}: unknown key `{rest}` in `cluster`", hint=hint)
    return Knob(key=key, path=path, values=values)


# -- plans -----------------------------------------------------------------------------------------


def what_if(request: WhatIfRequest) -> dict[str, Any]:
    """As `plan --what-if --json` prints it."""
    base = _Case({}, spec=request.load(()), is_base=True)
    cases = [
        _Case(dict(zip([knob.path for knob in request.knobs], values, strict=True)))
        for values in product(*(knob.values for knob in request.knobs))
    ]
    for case in cases:
        read_settings([f"{key}={value}" for key, value in case.settings.items()], environ={})
        _load(case, request)
    assert base.spec is not None
    measurer = request.request(base.spec).measurer
    for number, case in enumerate([base, *cases]):
        words = f"{number} of {len(cases)}: {_in_words(case)}" if number else "the spec as it is"
        request.on_progress(f"planning {words}")
        _plan(case, base, request, measurer)
    told = [_describe(case, request.knobs, [base, *cases]) for case in cases]
    _mark_best(told)
    return {
        "format": FORMAT,
        "base": _describe(base, (), ()),
        "cases": told,
        "notes": [*_notes(request.knobs, cases), *_about_measured(request.knobs, [base, *cases])],
    }


def _in_words(case: _Case) -> str:
    return ", ".join(f"{key}={value}" for key, value in case.settings.items())


def _load(case: _Case, request: WhatIfRequest) -> None:
    try:
        case.spec = request.load(tuple(f"{key}={value}" for key, value in case.settings.items()))
    except TasukiError as error:
        case.error = error


def _plan(case: _Case, base: _Case, request: WhatIfRequest, measurer: Measurer) -> None:
    if case.spec is None:
        return
    if case is not base and case.spec == base.spec:
        case.is_base, case.plan, case.error = True, base.plan, base.error
        return
    try:
        asked = replace(
            request.request(case.spec), on_progress=request.on_progress, measurer=measurer
        )
        case.plan = make_plan(asked)
    except TasukiError as error:
        case.error = error


# -- what came of it -------------------------------------------------------------------------------


def _describe(case: _Case, knobs: Sequence[Knob], cases: Sequence[_Case]) -> dict[str, Any]:
    plan = case.plan
    return {
        "settings": case.settings,
        "is_base": case.is_base,
        "makespan_s": plan and plan.makespan_s,
        "makespan_s_p10": plan and plan.makespan_s_p10,
        "makespan_s_p90": plan and plan.makespan_s_p90,
        "jobs": plan and len(plan.jobs),
        "gpu_hours": plan and plan.gpu_hours,
        "cost": plan and plan.cost,
        "useful": plan and _useful(plan),
        "deadline_s": plan and plan.deadline_s,
        "meets_deadline": plan and _meets(plan),
        "sources": sorted({piece.source for piece in _pieces(plan)}) if plan else [],
        "unchanged": [knob.key for knob in knobs if plan and _is_unmoved(plan, knob, cases)],
        "best": [],
        "error": _reason(case) if case.error else None,
        "hint": case.error.hint if case.error else None,
    }


def _reason(case: _Case) -> str:
    """The row names its settings already."""
    assert case.error is not None
    reason = case.error.message
    for key, value in case.settings.items():
        reason = reason.removeprefix(f"--set {key}={value}: ")
    return reason


def _pieces(plan: Plan) -> Iterator[Any]:
    return (piece for job in plan.jobs for lane in job.lanes for piece in lane.stages)


def _useful(plan: Plan) -> float | None:
    """Over all jobs, each for as long as it holds its GPUs."""
    shares = [(job.useful, job.expected_s, job.gpus) for job in plan.jobs]
    held = [seconds * gpus for _, seconds, gpus in shares if seconds is not None]
    used = [
        useful * seconds * gpus
        for useful, seconds, gpus in shares
        if useful is not None and seconds is not None
    ]
    return sum(used) / sum(held) if shares and len(used) == len(shares) and sum(held) else None


def _meets(plan: Plan) -> bool | None:
    if plan.deadline_s is None or plan.makespan_s is None:
        return None
    return plan.makespan_s <= plan.deadline_s


def _is_unmoved(plan: Plan, knob: Knob, cases: Sequence[_Case]) -> bool:
    """Is a time given (`expect`) that this key would change if it were not?"""
    given = {(p.experiment, p.stage) for p in _pieces(plan) if p.source == "given"}
    if not given or knob.path in _OF_PLANS:
        return False
    if not knob.is_of_cluster:
        return knob.last not in ("expect", "wall")
    if knob.last in _WIDTHS:
        return any(len(_widths(stage, cases)) > 1 for stage in given)
    return knob.last not in _HARMLESS


def _widths(stage: tuple[str, str], cases: Sequence[_Case]) -> set[int]:
    """On how many GPUs it would run."""
    return {
        len(lane.gpus) * (case.spec.cluster.nodes if case.spec else 1)
        for case in cases
        for job in (case.plan.jobs if case.plan else ())
        for lane in job.lanes
        for piece in lane.stages
        if (piece.experiment, piece.stage) == stage and piece.kind == "train"
    }


def _mark_best(told: Sequence[dict[str, Any]]) -> None:
    """The fastest and the cheapest of those that end in time; none where all are alike."""
    able = [case for case in told if case["error"] is None and case["meets_deadline"] is not False]
    money = "cost" if any(case["cost"] is not None for case in able) else "gpu_hours"
    for word, key in (("fastest", "makespan_s"), ("cheapest", money)):
        known = [case for case in able if case[key] is not None]
        least = min((case[key] for case in known), default=0.0)
        best = [case for case in known if case[key] <= least * (1 + 1e-9)]
        if len(known) == 1 or len(best) < len(known):
            for case in best:
                case["best"].append(word)


def _notes(knobs: Sequence[Knob], cases: Sequence[_Case]) -> Iterator[str]:
    """What a reader of the figures should know."""
    prices = {
        case.spec.cluster.price_per_gpu_hour
        for case in cases
        if case.spec is not None and case.plan is not None
    }
    are_cards = any(knob.path == "cluster.gpu" and len(knob.values) > 1 for knob in knobs)
    if are_cards and len(prices) == 1 and None not in prices:
        yield (
            "one price holds for every card here; `gpus: {NAME: {price_per_gpu_hour: 2.5}}` "
            "in a site file gives each its own"
        )


def _about_measured(knobs: Sequence[Knob], cases: Sequence[_Case]) -> Iterator[str]:
    pieces = [piece for case in cases if case.plan is not None for piece in _pieces(case.plan)]
    measured = [piece for piece in pieces if piece.source == "measured here"]
    if measured and any(knob.last in _WIDTHS for knob in knobs):
        yield (
            "measured here is what one rank does of a step, once for each share of it; how long "
            "ranks wait for each other is not in it"
        )
    ages = [p.measured_ago_s for p in measured if p.measured_ago_s is not None]
    if ages:
        oldest = format_age(max(ages))
        yield f"steps were measured here up to {oldest} ago; `--fresh` measures again"
