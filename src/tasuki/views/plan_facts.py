"""What there is to say of a plan as a whole, for the terminal. Pure.

What is not known is said to be unknown; it is never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tasuki.units import format_age, format_seconds
from tasuki.views.chart import number_of
from tasuki.views.text import money, number

_Plan = Mapping[str, Any]
_MOST_JOBS = 6


def facts_of(plan: _Plan, *, unit: str = "GPU") -> Iterator[tuple[str, str]]:
    """(what, how much) of each."""
    yield "makespan", _makespan(plan)
    yield "packing", _quality(plan)
    if plan["deadline_s"] is not None:
        yield "deadline", deadline_in_words(plan)
    hours = "unknown" if plan["gpu_hours"] is None else number(plan["gpu_hours"])
    yield f"{unit}-hours", hours
    yield "cost", _cost(plan)
    yield "useful time", _useful(plan)
    yield "times known from", sources_in_words(plan)
    if words := measured_in_words(plan):
        yield "steps", words


def spread_in_words(values: Mapping[str, Any]) -> str:
    """`2h22m (p10–p90: 2h12m – 2h36m)` of a plan."""
    if values["makespan_s"] is None:
        return "unknown"
    low, high = values["makespan_s_p10"], values["makespan_s_p90"]
    spread = ""
    if low is not None and high is not None:
        spread = f" (p10–p90: {format_seconds(low)} – {format_seconds(high)})"
    return f"{format_seconds(values['makespan_s'])}{spread}"


def _makespan(plan: _Plan) -> str:
    if plan["makespan_s"] is not None:
        spread = plan["makespan_s_p10"] is None or plan["makespan_s_p90"] is None
        return spread_in_words(plan) + (" (p10–p90 unknown)" if spread else "")
    unknown = [
        f"{piece['experiment']}/{piece['stage']}"
        for piece in pieces_of(plan)
        if piece["expected_s"] is None
    ]
    names = list(dict.fromkeys(unknown))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    told = f", as is the time of {', '.join(names[:3])}{more}" if names else ""
    return f"unknown{told}"


def _quality(plan: _Plan) -> str:
    bound, gap = plan["lower_bound_s"], plan["gap"]
    if plan["optimal"]:
        least = "" if bound is None else f": none can take less than {format_seconds(bound)}"
        return f"proved optimal{least}"
    if bound is None or gap is None:
        return "how far from the best is unknown"
    return f"at most {_percent(gap)} too long: none can take less than {format_seconds(bound)}"


def _percent(share: float) -> str:
    """Never 0 % of something that is not 0."""
    return f"{share:.1%}" if share >= 0.0005 or share == 0 else "0.1%"


def deadline_in_words(values: Mapping[str, Any]) -> str:
    deadline, makespan = values["deadline_s"], values["makespan_s"]
    whole = f"{format_seconds(deadline)}"
    if makespan is None:
        return f"{whole}; whether it is met is unknown"
    if makespan > deadline:
        return f"{whole}, missed by {format_seconds(makespan - deadline)}"
    told = f"{whole}, met with {format_seconds(deadline - makespan)} to spare"
    slow = values["makespan_s_p90"]
    if slow is None:
        return told
    if slow > deadline:
        return f"{told}, missed by {format_seconds(slow - deadline)} at p90"
    return f"{told} ({format_seconds(deadline - slow)} at p90)"


def _cost(plan: _Plan) -> str:
    if plan["cost"] is not None:
        return money(plan["cost"])
    has_times = plan["makespan_s"] is not None
    return "unknown: no `cluster.price_per_gpu_hour`" if has_times else "unknown"


def _useful(plan: _Plan) -> str:
    jobs = plan["jobs"]
    told = [f"job {number_of(job)} {share(job['useful'])}" for job in jobs[:_MOST_JOBS]]
    more = f", {len(jobs) - _MOST_JOBS} more jobs" if len(jobs) > _MOST_JOBS else ""
    return f"{', '.join(told)}{more}"


def share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def sources_in_words(plan: _Plan) -> str:
    """`given (8 pieces), history (5)`; and of how many nothing is known."""
    counts = Counter(
        piece["source"] if piece["expected_s"] is not None else "unknown"
        for piece in pieces_of(plan)
    )
    return ", ".join(f"{source} ({num})" for source, num in counts.items())


def measured_in_words(plan: _Plan) -> str:
    """When steps were measured whose times were kept; empty: all that was measured is of now."""
    ages = [p["measured_ago_s"] for p in pieces_of(plan) if p.get("measured_ago_s") is not None]
    if not ages:
        return ""
    first, last = (format_age(age) for age in (min(ages), max(ages)))
    when = f"{first} ago" if first == last else f"{first} to {last} ago"
    return f"measured here {when}; `tasuki plan --fresh` measures again"


def pieces_of(plan: _Plan) -> list[Mapping[str, Any]]:
    return [piece for job in plan["jobs"] for lane in job["lanes"] for piece in lane["stages"]]


def gpus_in_words(gpus: tuple[int, ...] | list[int]) -> str:
    """`0-3`, `0,2`."""
    runs: list[list[int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
