"""From traces of a few small batches to the events of any batch.

The peak of a step is the largest of thousands of sums, each growing at its own rate, so that a line
through peaks errs, always too low. Every single storage, though, grows as a polynomial of batch and
size. So storages are fitted one by one, exactly (fractions), and a trace that was held back tells
whether it holds. Pure; called by child.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

from tasuki.memory.trace import KINDS, Event, Trace, peak_of

Term = tuple[int, int]
"""Powers of batch and size."""
Point = tuple[int, int]
"""A batch and a size; 0 where the data have no size."""
Number = int | float

BATCH_TERMS: tuple[Term, ...] = ((0, 0), (1, 0), (2, 0))
TWO_SIZE_TERMS: tuple[Term, ...] = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Where data have two sizes: nothing lies between or beyond them."""
SIZE_TERMS: tuple[Term, ...] = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))
LINE_TERMS: tuple[Term, ...] = ((0, 0), (1, 0))
"""By cost: samples of the same cost differ, so that no polynomial would go through all of them."""
_TOLERANCE = 1e-3
"""A held-back peak that is further off than this share says that the fit does not hold."""
_TOO_LOW, _TOO_HIGH = 0.02, 0.15
"""The same of a line by cost. A line that lies too high only takes room."""
_STRAIGHT = Fraction(1, 100)
"""Of the largest peak: what a bend must bring there to count."""
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Events whose bytes are polynomials; not exact: those of the largest trace, as it is."""

    terms: tuple[Term, ...]
    begin: int
    events: tuple[tuple[int, int, tuple[Fraction, ...]], ...]
    """(number, kind, coefficients); of frees the number alone counts."""
    probes: tuple[Point, ...]
    checked: tuple[tuple[int, int, int, int], ...]
    """(batch, size, predicted, traced)."""
    flops: tuple[Fraction, ...]
    moved: tuple[Fraction, ...]
    ops: int
    is_exact: bool
    secant: tuple[Fraction, ...] = ()
    """Where traces do not align: a polynomial through their peaks."""
    reason: str = ""

    def peak(self, batch: int, size: int = 0) -> int:
        """Of tensors, in bytes."""
        if not self.is_exact:
            return round(_evaluate(self.secant, self.terms, (batch, size)))
        return peak_of(self.events_at(batch, size))

    def events_at(self, batch: int, size: int = 0) -> list[Event]:
        @cache
        def bytes_of(coefficients: tuple[Fraction, ...]) -> int:
            return round(_evaluate(coefficients, self.terms, (batch, size)))

        sizes: dict[int, int] = {}
        found = []
        for number, _, coefficients in self.events:
            if number > 0:
                sizes[number] = bytes_of(coefficients)
            found.append(Event(number, sizes[abs(number)]))
        return found

    def to_plain(self) -> dict[str, Any]:
        """The part of a probe file that is fitted."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            "terms": [list(term) for term in self.terms],
            "kinds": list(KINDS),
            "events": [
                [number, kind, *map(_number, coefficients)] if number > 0 else [number]
                for number, kind, coefficients in self.events
            ],
            "begin": self.begin,
            "probes": [list(point) for point in self.probes],
            "checked": [list(one) for one in self.checked],
            "flops": list(map(_number, self.flops)),
            "moved": list(map(_number, self.moved)),
            "ops": self.ops,
            "is_exact": self.is_exact,
        }
        return plain if self.is_exact else {**plain, "secant": list(map(_number, self.secant))}


def fit(traces: Sequence[Trace], *, held_back: Trace, farther: Sequence[Trace] = ()) -> Fit:
    """As many traces as terms; the largest last. `held_back` is far beyond them; those that are
    `farther` still tell where peaks go if nothing finer does."""
    points = tuple((t.batch, t.size) for t in traces)
    terms = terms_for(len({size for _, size in points}))
    solve = _solver(points, terms)
    reason = next((r for t in (*traces[1:], held_back) if (r := _differs(traces[0], t))), "")
    if reason:
        return _without_events(traces, held_back, farther, terms, solve, reason)
    columns = zip(*(t.events for t in traces), strict=True)
    sizes = [tuple(event.num_bytes for event in column) for column in columns]
    found = Fit(
        terms=terms,
        events=_without_empty(traces[-1], sizes, solve),
        begin=_begin_without_empty(traces[-1], sizes),
        probes=points,
        checked=(),
        flops=solve(tuple(t.flops for t in traces)),
        moved=solve(tuple(t.moved for t in traces)),
        ops=traces[-1].ops,
        is_exact=True,
    )
    predicted = found.peak(held_back.batch, held_back.size)
    if abs(predicted - held_back.peak) > _TOLERANCE * held_back.peak:
        reason = (
            f"bytes are no polynomial of batch and size: at batch {held_back.batch}, size "
            f"{held_back.size} the fit says {predicted}, the trace {held_back.peak}"
        )
        return _without_events(traces, held_back, farther, terms, solve, reason)
    return _checked(found, held_back)


def fit_line(low: Trace, high: Trace, *, held_back: Sequence[Trace]) -> Fit:
    """By cost, exact at two traces. Where others lie elsewhere: the largest trace as it is, and a
    line that lies below none of the peaks."""
    traces = (low, high, *held_back)
    solve = _solver([(low.batch, 0), (high.batch, 0)], LINE_TERMS)
    plain = Fit(
        terms=LINE_TERMS,
        begin=high.begin,
        events=(),
        probes=((low.batch, 0), (high.batch, 0)),
        checked=(),
        flops=solve((low.flops, high.flops)),
        moved=solve((low.moved, high.moved)),
        ops=high.ops,
        is_exact=True,
    )
    reason = next((r for t in traces[1:] if (r := _differs(low, t))), "")
    if not reason:
        pairs = zip(low.events, high.events, strict=True)
        sizes: list[tuple[int, ...]] = [(one.num_bytes, other.num_bytes) for one, other in pairs]
        begin = _begin_without_empty(high, sizes)
        found = replace(plain, begin=begin, events=_without_empty(high, sizes, solve))
        found = replace(found, checked=_line_checks(found, held_back))
        reason = next((_off(*check) for check in found.checked if _off(*check)), "")
        if not reason:
            return found
    largest = max(traces, key=lambda trace: trace.peak)
    events = (
        (e.number, _kind(largest, e), (Fraction(e.num_bytes), Fraction(0))) for e in largest.events
    )
    over = replace(
        plain,
        begin=largest.begin,
        events=tuple(events),
        probes=tuple(sorted((trace.batch, 0) for trace in traces)),
        is_exact=False,
        secant=_line_over({trace.batch: trace.peak for trace in traces}),
        reason=reason,
    )
    return replace(over, checked=_line_checks(over, held_back))


def _line_checks(found: Fit, held_back: Sequence[Trace]) -> tuple[tuple[int, int, int, int], ...]:
    return tuple((t.batch, 0, found.peak(t.batch), t.peak) for t in held_back)


def _off(cost: int, _: int, predicted: int, traced: int) -> str:
    """In words, where a line does not hold."""
    if -_TOO_LOW * traced <= predicted - traced <= _TOO_HIGH * traced:
        return ""
    return f"at cost {cost:,} a line is off by {predicted / traced - 1:+.1%}"


def _line_over(peaks: Mapping[int, int]) -> tuple[Fraction, ...]:
    points = sorted(peaks.items())
    offset, slope = _line([points[0], points[-1]])
    below = max(peak - offset - slope * cost for cost, peak in points)
    return (offset + max(Fraction(0), below), slope)


def terms_for(num_sizes: int) -> tuple[Term, ...]:
    """What can be told from probes at so many sizes."""
    return {1: BATCH_TERMS, 2: TWO_SIZE_TERMS}.get(num_sizes, SIZE_TERMS)


def _checked(found: Fit, held_back: Trace) -> Fit:
    batch, size = held_back.batch, held_back.size
    return replace(found, checked=((batch, size, found.peak(batch, size), held_back.peak),))


def _differs(one: Trace, other: Trace) -> str:
    """Why two traces cannot be laid side by side; nothing if they can."""
    if one.begin != other.begin or len(one.events) != len(other.events):
        return (
            f"a step at batch {one.batch}, size {one.size} has {len(one.events)} events, at batch "
            f"{other.batch}, size {other.size} {len(other.events)}"
        )
    if one.kinds[: one.begin] != other.kinds[: one.begin]:
        return f"what lies there before a step at batch {one.batch} is not so at {other.batch}"
    for place, (a, b) in enumerate(zip(one.events, other.events, strict=True)):
        if a.number != b.number:
            return f"event {place} at batch {one.batch} is another one at batch {other.batch}"
    return ""


def _without_events(
    traces: Sequence[Trace],
    held_back: Trace,
    farther: Sequence[Trace],
    terms: tuple[Term, ...],
    solve: Callable[[tuple[int, ...]], tuple[Fraction, ...]],
    reason: str,
) -> Fit:
    """The largest trace as it is, and a polynomial through the peaks."""
    largest = max((*traces, held_back, *farther), key=lambda t: t.peak)
    has_sizes = len(terms) != len(BATCH_TERMS)
    secant = (
        solve(tuple(t.peak for t in traces))
        if has_sizes
        else through_peaks({t.batch: t.peak for t in (*traces, held_back, *farther)})
    )
    zeros = (Fraction(0),) * (len(terms) - 1)
    return _checked(
        Fit(
            terms=terms,
            begin=largest.begin,
            events=tuple(
                (e.number, _kind(largest, e), (Fraction(e.num_bytes), *zeros))
                for e in largest.events
            ),
            probes=tuple((t.batch, t.size) for t in (*traces, *farther)),
            checked=(),
            flops=solve(tuple(t.flops for t in traces)),
            moved=solve(tuple(t.moved for t in traces)),
            ops=largest.ops,
            is_exact=False,
            secant=secant,
            reason=reason,
        ),
        held_back,
    )


def through_peaks(peaks: Mapping[int, int]) -> tuple[Fraction, ...]:
    """By batch: through the three largest batches, or the two largest where that would bend
    downwards, or hardly: half a batch, rounded, bends a line a little, and beyond the probes that
    little grows with the square. Raised until it lies below none of them. Small batches tell little
    of large ones."""
    points = sorted(peaks.items())
    secant = _solve_batches(points[-3:])
    most, peak_there = points[-1]
    if secant[2] * most**2 <= _STRAIGHT * peak_there:
        secant = (*_line(points[-2:]), Fraction(0))
    below = max(peak - _evaluate(secant, BATCH_TERMS, (batch, 0)) for batch, peak in points)
    return (secant[0] + max(Fraction(0), below), *secant[1:])


def _solve_batches(points: Sequence[tuple[int, int]]) -> tuple[Fraction, ...]:
    solve = _solver([(batch, 0) for batch, _ in points], BATCH_TERMS)
    return solve(tuple(peak for _, peak in points))


def _line(points: Sequence[tuple[int, int]]) -> tuple[Fraction, Fraction]:
    (one, low), (other, high) = points
    slope = max(Fraction(0), Fraction(high - low, other - one))
    return Fraction(low) - slope * one, slope


def _without_empty(
    trace: Trace,
    sizes: list[tuple[int, ...]],
    solve: Callable[[tuple[int, ...]], tuple[Fraction, ...]],
) -> tuple[tuple[int, int, tuple[Fraction, ...]], ...]:
    """Storages of no bytes are needed to align traces, and for nothing else."""
    return tuple(
        (event.number, _kind(trace, event), solve(size) if event.number > 0 else ())
        for event, size in zip(trace.events, sizes, strict=True)
        if any(size)
    )


def _begin_without_empty(trace: Trace, sizes: list[tuple[int, ...]]) -> int:
    return sum(1 for size in sizes[: trace.begin] if any(size))


def _kind(trace: Trace, event: Event) -> int:
    return KINDS.index(trace.kinds[abs(event.number) - 1])


# -- polynomials ----------------------------------------------------------------------------------


def _evaluate(coefficients: Sequence[Fraction], terms: Sequence[Term], point: Point) -> Fraction:
    batch, size = point
    return sum(
        (c * batch**p * size**q for c, (p, q) in zip(coefficients, terms, strict=True)), Fraction(0)
    )


def _solver(
    points: Sequence[Point], terms: Sequence[Term]
) -> Callable[[tuple[int, ...]], tuple[Fraction, ...]]:
    """Values at the points → coefficients."""
    inverse = _invert([[Fraction(b**p * n**q) for p, q in terms] for b, n in points])

    @cache
    def solve(values: tuple[int, ...]) -> tuple[Fraction, ...]:
        pairs = [list(zip(row, values, strict=True)) for row in inverse]
        return tuple(sum((a * v for a, v in row), Fraction(0)) for row in pairs)

    return solve


def _invert(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss and Jordan. The points must be in general position, which who chose them sees to."""
    size = len(matrix)
    assert all(len(row) == size for row in matrix), "as many points as terms"
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(r for r in range(column, size) if rows[r][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        factor = rows[column][column]
        rows[column] = [value / factor for value in rows[column]]
        for r in range(size):
            if r != column and rows[r][column]:
                times = rows[r][column]
                rows[r] = [a - times * b for a, b in zip(rows[r], rows[column], strict=True)]
    return [row[size:] for row in rows]


def _number(value: Fraction) -> Number:
    return int(value) if value.denominator == 1 else float(value)
