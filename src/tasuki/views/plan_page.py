"""A plan as one page to look at and to hand on: picture, figures, every piece, and the reasons.

Pure. One file without scripts and without anything from elsewhere: its content policy allows its
own style and nothing more. It holds no paths of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasuki.units import format_bytes, format_seconds
from tasuki.views.chart import is_packed, number_of
from tasuki.views.gantt import whole_name
from tasuki.views.marks import marked
from tasuki.views.page import page_around, table_of, text_in
from tasuki.views.pieces import batch_of, steps_of, time_of
from tasuki.views.plan_facts import facts_of, gpus_in_words, share
from tasuki.views.plan_picture import picture_of
from tasuki.views.text import money, number

_NUMBERS = ("starts", "limit", "time", "reserve", "useful time", "cost", "CPUs", "memory", "peak")
_KINDS = dict.fromkeys(_NUMBERS, "number") | dict.fromkeys(
    ("steps", "batch", "known from"), "plain"
)
_Values = Mapping[str, Any]


def page_of(plan: _Values, *, unit: str = "GPU") -> str:
    """The whole file."""
    return page_around(f"plan {plan['id']}", _body(plan, unit), styles=("plan_page.css",))


def _body(plan: _Values, unit: str) -> Iterator[str]:
    yield f"<main>\n<h1>plan {marked(plan['id'])}</h1>"
    if not plan["jobs"]:
        yield "<p>nothing left to do</p>"
    else:
        yield from _facts(plan, unit)
        yield from _figure(plan, unit)
        yield from _pieces(plan, unit)
        yield from _jobs(plan, unit)
    yield from _list("Reasons", plan["reasons"])
    yield from _list("Warnings", plan["warnings"])
    yield from _fits(plan["fits"])
    yield "</main>"


def _facts(plan: _Values, unit: str) -> Iterator[str]:
    yield '<dl class="facts">'
    for what, told in facts_of(plan, unit=unit):
        if what != "packing" or is_packed(plan):
            yield f"<div><dt>{marked(what)}</dt><dd>{text_in(told)}</dd></div>"
    yield "</dl>"


def _figure(plan: _Values, unit: str) -> Iterator[str]:
    picture = picture_of(plan, unit=unit)
    if picture is None:
        yield "<p>No picture: of none of these it is known how long it takes.</p>"
        return
    yield f"<figure>\n{picture}"
    yield (
        "<figcaption>Each row is one "
        f"{marked(unit)}, each colour an experiment; evaluations are hatched, idle time is grey, "
        "a thick line is the limit of a job. Point at a bar for more.</figcaption>\n</figure>"
    )


def _pieces(plan: _Values, unit: str) -> Iterator[str]:
    rows = []
    for job in plan["jobs"]:
        for lane in job["lanes"]:
            for piece in lane["stages"]:
                rows.append(_piece(job, lane, piece, unit))
    yield from _table("Pieces", "What each job does, lane by lane.", rows)


def _piece(job: _Values, lane: _Values, piece: _Values, unit: str) -> dict[str, str]:
    verb = "" if piece["kind"] == "evaluate" else f"{piece['kind']} "
    return {
        "work": f"{verb}{whole_name(piece, several=True)}",
        "job": number_of(job),
        f"{unit}s": gpus_in_words(lane["gpus"]),
        "starts": _moment(piece["start_s"]),
        "time": _seconds(piece["expected_s"]),
        "known from": piece["source"],
        "steps": steps_of(piece),
        "batch": batch_of(piece, len(lane["gpus"])),
        "CPUs": "all" if piece["cpus"] is None else str(piece["cpus"]),
        "peak": _bytes(piece["peak_bytes"]),
    }


def _jobs(plan: _Values, unit: str) -> Iterator[str]:
    rows = [
        {
            "job": job["name"],
            "after": ", ".join(name.rsplit("-", 1)[-1] for name in job["after"]),
            "starts": _moment(job["start_s"]),
            "time": _seconds(job["expected_s"]),
            "limit": "none" if job["limit_s"] is None else time_of(job["limit_s"]),
            "reserve": _seconds(job["reserve_s"]),
            f"{unit}s": str(job["gpus"]),
            "CPUs": str(job["cpus"]),
            "memory": _bytes(job["host_bytes"]),
            "useful time": share(job["useful"]),
            "cost": "unknown" if job["cost"] is None else money(job["cost"]),
        }
        for job in plan["jobs"]
    ]
    told = "Starts are counted from the beginning of the plan, as if no job waited in a queue."
    yield from _table("Jobs", told, rows)


def _list(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield f"<h2>{title}</h2>\n<ul>"
        yield from (f"<li>{text_in(text)}</li>" for text in texts)
        yield "</ul>"


# -- what was chosen at the same effective batch ---------------------------------------------------


def _fits(fits: Mapping[str, _Values]) -> Iterator[str]:
    """What was chosen, what lost, and why; whatever else is said of it as well."""
    if fits:
        yield "<h2>Batches that were weighed</h2>"
    for name, fit in fits.items():
        yield f"<h3>{text_in(name)}</h3>"
        rows = list(_choices(fit))
        plain = {key: value for key, value in fit.items() if not isinstance(value, list | dict)}
        if plain:
            told = "; ".join(f"{_words(key)}: {_value(key, value)}" for key, value in plain.items())
            yield f"<p>{text_in(told)}</p>"
        if rows:
            columns = dict.fromkeys(key for row in rows for key in row)
            yield from _rows(f"Of {name}", [{k: row.get(k, "") for k in columns} for row in rows])


def _choices(fit: _Values) -> Iterator[dict[str, str]]:
    for key, value in fit.items():
        many = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
        for one in many:
            own = one if isinstance(one, dict) else {"what": one}
            yield {"": _words(key), **{_words(k): _value(k, v) for k, v in own.items()}}


def _words(key: str) -> str:
    for ending in ("_s", "_bytes"):
        key = key.removesuffix(ending)
    return key.replace("_", " ")


def _value(key: str, value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_s"):
            return format_seconds(value)
        if key.endswith("_bytes"):
            return format_bytes(value)
        return number(value) if isinstance(value, float) else f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# -- tables ----------------------------------------------------------------------------------------


def _table(title: str, caption: str, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield f"<h2>{marked(title)}</h2>"
    yield from _rows(caption, rows)


def _rows(caption: str, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield from table_of(caption, rows, kinds=_KINDS, is_chosen=_is_chosen)


def _is_chosen(row: Mapping[str, str]) -> bool:
    return row.get("") == "chosen"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else format_seconds(value)


def _moment(value: float | None) -> str:
    return "0" if value == 0 else _seconds(value)


def _bytes(value: int | None) -> str:
    return "unknown" if value is None else format_bytes(value)
