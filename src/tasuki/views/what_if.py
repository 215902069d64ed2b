"""Plans under other settings side by side: what each takes, costs and meets; the best are marked.

Fed with the values of `tasuki plan --what-if … --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.units import format_seconds
from tasuki.views.plan_facts import share, spread_in_words
from tasuki.views.text import encodable, money, neutral, number, say

_NARROW = 70
_ANY_WIDTH = 1000
_DROP = ("useful", "known from", "p10–p90", "jobs", "GPU-hours")
"""What gives way first where the table is wider than the window."""
_LEFT = ("known from", "deadline", "verdict")
_SHORT = 28
_LONG = 64
"""Letters of a reason in the table; of the long one only where nothing gives way for it."""
_Case = Mapping[str, Any]


def show_what_if(found: Mapping[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    with encodable(console):
        cases = found["cases"]
        if console.width < _NARROW:
            for case in cases:
                _print_short(case, console)
        else:
            console.print(_fit(cases, console), highlight=False)
        for line in _below(found):
            say(console, line)


def _fit(cases: Sequence[_Case], console: Console) -> Table:
    """Columns are left out, not cut, until the others fit."""
    wide = console.options.update(max_width=_ANY_WIDTH)
    table = Table()
    for letters, gone in [(_LONG, ()), *((_SHORT, _DROP[:at]) for at in range(len(_DROP) + 1))]:
        table = _draw(cases, letters, gone)
        if table.__rich_measure__(console, wide).maximum <= console.width:
            break
    return table


def _draw(cases: Sequence[_Case], letters: int, gone: Sequence[str]) -> Table:
    rows = [_cells(case, letters) for case in cases]
    names = [name for name in rows[0] if name not in gone and any(cells[name] for cells in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for at, name in enumerate(names):
        is_left = at < len(cases[0]["settings"]) or name in _LEFT
        table.add_column(name, justify="left" if is_left else "right")
    for case, cells in zip(cases, rows, strict=True):
        style = "red" if case["error"] else "bold" if case["best"] else ""
        table.add_row(*(Text(cells[name]) for name in names), style=style)
    return table


def _cells(case: _Case, letters: int) -> dict[str, str]:
    settings = {_short_key(key): neutral(value) for key, value in case["settings"].items()}
    names = ("makespan", "p10–p90", "jobs", "GPU-hours", "cost", "useful", "deadline", "known from")
    if case["error"] is not None:
        return {**settings, **dict.fromkeys(names, ""), "verdict": _verdict(case, letters)}
    low, high = case["makespan_s_p10"], case["makespan_s_p90"]
    has_spread = low is not None and high is not None
    told = (
        _known(case["makespan_s"], format_seconds),
        f"{format_seconds(low)} – {format_seconds(high)}" if has_spread else "unknown",
        str(case["jobs"]),
        _known(case["gpu_hours"], number),
        _known(case["cost"], money),
        share(case["useful"]),
        _deadline(case),
        ", ".join(_source(source, case) for source in case["sources"]),
    )
    return {**settings, **dict(zip(names, told, strict=True)), "verdict": _verdict(case, letters)}


def _source(source: str, case: _Case) -> str:
    if source != "given" or not case["unchanged"]:
        return neutral(source)
    return f"given: does not change with {', '.join(map(neutral, case['unchanged']))}"


def _known(value: float | None, words: Any) -> str:
    return "unknown" if value is None else str(words(value))


def _short_key(key: str) -> str:
    return neutral(key.removeprefix("cluster."))


def _deadline(case: _Case) -> str:
    if case["deadline_s"] is None:
        return ""
    if case["meets_deadline"] is None:
        return "unknown"
    spare = case["deadline_s"] - case["makespan_s"]
    word = "met by" if case["meets_deadline"] else "missed by"
    return f"{word} {format_seconds(abs(spare))}"


def _verdict(case: _Case, letters: int = _SHORT) -> str:
    """In a few words; the whole of it stands below."""
    if case["error"] is not None:
        reason = " ".join(neutral(case["error"]).split())
        return f"refused: {reason if len(reason) <= letters else _cut(reason, letters)}"
    words = [*case["best"], *(["as in the spec"] if case["is_base"] else [])]
    return ", ".join(words)


def _cut(reason: str, letters: int) -> str:
    return f"{reason[:letters].rsplit(' ', 1)[0]} …"


def _print_short(case: _Case, console: Console) -> None:
    """For a narrow window."""
    verdict = _verdict(case)
    mark = f": {verdict}" if verdict else ""
    say(console, f"{_settings(case)}{mark}", "red" if case["error"] else "bold")
    if case["error"] is None:
        say(console, f"  {spread_in_words(case)}")
        jobs = f"{case['jobs']} job{'s' if case['jobs'] != 1 else ''}"
        hours, cost = _known(case["gpu_hours"], number), _known(case["cost"], money)
        say(console, f"  {jobs}, GPU-hours {hours}, cost {cost}, useful {share(case['useful'])}")
        if told := _deadline(case):
            say(console, f"  deadline {told}")


def _settings(case: _Case) -> str:
    pairs = case["settings"].items()
    return ", ".join(f"{_short_key(key)}={neutral(value)}" for key, value in pairs)


def _below(found: Mapping[str, Any]) -> Iterator[str]:
    """What the table has no room for: times that cannot follow, why cases are refused, notes."""
    cases = found["cases"]
    unmoved = dict.fromkeys(key for case in cases for key in case["unchanged"])
    if unmoved:
        keys = ", ".join(map(neutral, unmoved))
        yield (
            f"given: does not change with {keys}: `expect` says how long these stages take, "
            "for whatever they run on; without it times follow"
        )
    for case in cases:
        if case["error"] is not None:
            hint = f"; {case['hint']}" if case["hint"] else ""
            yield f"{_settings(case)}: refused: {case['error']}{hint}"
    if (base := found["base"])["error"] is None:
        yield f"the spec as it is: {spread_in_words(base)}"
    else:
        yield f"the spec as it is: refused: {base['error']}"
    yield from found["notes"]
