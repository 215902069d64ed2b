"""Probe files as a probe writes them, made by hand or at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KINDS = ["weights", "gradients", "optimizer", "activations", "messages", "batch", "other"]
TERMS = [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]


def probe_value(events: list[list[Any]], *, begin: int = 0, **others: Any) -> dict[str, Any]:
    """Coefficients may be left out at the end: they are 0."""
    terms = others.get("terms", TERMS)
    width = 2 + len(terms)
    whole = [row if row[0] < 0 else [*row, *[0] * (width - len(row))] for row in events]
    zeros = [0] * len(terms)
    return {
        "format": 1,
        "key": "abc",
        "torch": "2.13.0",
        "terms": terms,
        "kinds": KINDS,
        "events": whole,
        "begin": begin,
        "probes": [[2, 0], [3, 0]],
        "checked": [[5, 0, 1000, 1000]],
        "flops": zeros,
        "moved": zeros,
        "ops": 0,
        "notes": [],
        "is_exact": True,
        **others,
    }


def small_value(*, scale: int = 1, **others: Any) -> dict[str, Any]:
    """Weights 1000, batch 10 B, activations 100 B + B n, gradients 1000, and a 700 for the
    optimizer when the activations are gone; times `scale`."""
    k = scale
    events = [
        [1, 0, 1000 * k],
        [2, 5, 0, 10 * k],
        [3, 3, 0, 100 * k, 0, k],
        [4, 1, 1000 * k],
        [-3],
        [5, 2, 700 * k],
        [-5],
        [-4],
    ]
    return probe_value(events, begin=2, **others)


@st.composite
def probe_values(draw: Any, *, scale: int = 1) -> dict[str, Any]:
    """A closed step over what lies there before it; nothing shrinks with batch or size."""
    coefficients = st.lists(st.integers(0, 50), min_size=6, max_size=6)
    events: list[list[Any]] = []
    live: list[int] = []
    begin = draw(st.integers(0, 3))
    for number in range(1, draw(st.integers(max(1, begin), 14)) + 1):
        row = [scale * c for c in draw(coefficients)]
        events.append([number, draw(st.integers(0, 6)), *row])
        if number > begin:
            live.append(number)
            while live and draw(st.booleans()):
                events.append([-live.pop(draw(st.integers(0, len(live) - 1)))])
    events += [[-number] for number in live]
    return probe_value(events, begin=begin)
