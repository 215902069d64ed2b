"""Buckets and stages to begin with, as YAML to paste: what `inspect` suggests for sizes it found.

Pure. Names are those that `stages: auto` would give (spec/discover.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from tasuki.data.buckets import FEW_SIZES as EXACT_SIZES
from tasuki.data.summary import FEW_SIZES
from tasuki.spec.discover import name_stages

MOST_STAGES = 24
"""More than so many stages by file are stages over all files instead."""
_PLAIN = re.compile(r"\d+\.\.\d+|(?:\.{0,2}/|[A-Za-z])[\w./*-]*", re.ASCII)
_NOT_TEXT = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
"""Words that YAML, or an older YAML, takes for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Data that a stage could name, and the sizes in it."""

    data: str | list[str] | None
    """None: the recipe needs no `data`."""
    path: str
    """What stages are named after."""
    sizes: Sequence[int]


def propose(slices: Sequence[Slice], together: Slice, uppers: Sequence[int]) -> dict[str, Any]:
    """One stage per file and size, small sizes first; for many sizes, one per range of a bucket.

    `together` is all of the slices as one source: used where there would be too many stages.
    `uppers` end the buckets of many sizes; they may reach beyond the sizes of the slices.
    """
    is_few = len(together.sizes) <= FEW_SIZES
    if not is_few or sum(len(one.sizes) for one in slices) > MOST_STAGES:
        slices = [together]
    stages = _by_size(slices) if is_few else _by_range(together, uppers)
    is_exact = len(together.sizes) <= EXACT_SIZES
    buckets: str | list[int] = "exact" if is_exact else list(uppers)
    return {"buckets": buckets, "stages": stages, "yaml": _as_yaml(buckets, stages)}


def _by_size(slices: Sequence[Slice]) -> list[dict[str, Any]]:
    pairs = sorted((size, place) for place, one in enumerate(slices) for size in one.sizes)
    names = name_stages([(size, slices[place].path) for size, place in pairs])
    return [
        {"name": name, "data": slices[place].data, "size": size}
        for name, (size, place) in zip(names, pairs, strict=True)
    ]


def _by_range(one: Slice, uppers: Sequence[int]) -> list[dict[str, Any]]:
    lows = [min(one.sizes[0], uppers[0]), *(upper + 1 for upper in uppers[:-1])]
    ranges = [
        (low, high)
        for low, high in zip(lows, uppers, strict=True)
        if any(low <= size <= high for size in one.sizes)
    ]
    names = name_stages([(high, one.path) for _, high in ranges])
    return [
        {"name": name, "data": one.data, "size": low if low == high else f"{low}..{high}"}
        for name, (low, high) in zip(names, ranges, strict=True)
    ]


def _as_yaml(buckets: str | list[int], stages: Sequence[dict[str, Any]]) -> str:
    lines = [
        "experiments:",
        "  progressive:",
        *wrap(f"    buckets: {_written(buckets)}", width=78, subsequent_indent=" " * 14),
        "    stages:  # each trains for one epoch unless `epochs:` says more",
    ]
    for stage in stages:
        given = {key: value for key, value in stage.items() if value is not None}
        pairs = ", ".join(f"{key}: {_written(value)}" for key, value in given.items())
        lines.append(f"      - {{{pairs}}}")
    return "\n".join(lines) + "\n"


def _written(value: object) -> str:
    """JSON is YAML, too; people leave the quotes out where they can."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)
