"""What the JSON of every verb looks like: which keys, of which types.

A shape is flat: `runs[].stages[].name: text`. It is taken from real output (`record.py`), kept in
`shapes.json`, shown in `docs/reference/json.md`, and held against real output again by the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "shapes.json"

Shape = dict[str, list[str]]
"""By place: the types that were seen there."""

MAPS = re.compile(
    r"(^|\.)(metrics|evaluation|sources|fits|predictions|settings|changes|keep|winners|values|params|"
    r"logs|stages|max_gpus|results)$"
)
"""Mappings whose keys are names of the user's or of a cluster's own: `metrics.NAME`."""


OPAQUE = re.compile(r"(^|\.)spec\.(all|cluster)$")
"""Told elsewhere: the keys of a spec."""


def shape_of(value: Any) -> Shape:
    found: dict[str, set[str]] = {}
    for place, kind in _leaves(value, ""):
        found.setdefault(place, set()).add(kind)
    return {place: sorted(kinds) for place, kinds in sorted(found.items())}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield place, "mapping"
        if OPAQUE.search(place):
            return
        is_map = bool(MAPS.search(place))
        for key, inner in value.items():
            name = "NAME" if is_map else key
            yield from _leaves(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        yield place, "list"
        for inner in value:
            yield from _leaves(inner, f"{place}[]")
    else:
        yield place, _kind(value)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return "text" if isinstance(value, str) else "number"


def merge(*shapes: Shape) -> Shape:
    found: dict[str, set[str]] = {}
    for shape in shapes:
        for place, kinds in shape.items():
            found.setdefault(place, set()).update(kinds)
    return {place: sorted(kinds) for place, kinds in sorted(found.items())}


def unknown(seen: Shape, told: Shape) -> list[str]:
    """What real output has and the page does not tell. A null may stand anywhere: not known."""
    faults = [f"`{place}` is not told" for place in seen if place not in told]
    for place, kinds in seen.items():
        if place in told and (more := set(kinds) - set(told[place]) - {"null"}):
            faults.append(f"`{place}` is told as {told[place]}, and is {sorted(more)}")
    return faults


def read_recorded() -> dict[str, Shape]:
    value: dict[str, Shape] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return value


def write_recorded(shapes: dict[str, Shape]) -> None:
    text = json.dumps(shapes, indent=1, ensure_ascii=False, sort_keys=True)
    RECORDED.write_text(text + "\n", encoding="utf-8")
