"""A probe file's value: the allocations of one training step, for any batch and size.

A probe (memory, in a child) traces a step at a few small batches and sizes and fits every
allocation as a polynomial of both; from it the bytes that are alive at each moment of a step follow
for any batch, without a GPU and without torch. Pure; the file is read elsewhere. What is not whole
or not ours is refused. Used by memory.py and roofline.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tasuki.errors import NewerFormat, StoreError

FORMAT = 1
_FIXED = ("weights", "gradients", "optimizer")
"""Kinds that do not grow with the batch."""
_HIGHEST_POWER = 6
_LARGEST = 1e24
"""Of a coefficient: no step has that many bytes or operations per sample."""

Number = int | float
Coefficients = tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One step's allocations. Sizes are 0 where the data have none."""

    key: str
    torch: str
    terms: tuple[tuple[int, int], ...]
    """Powers of (batch, size) of each coefficient."""
    kinds: tuple[str, ...]
    polynomials: tuple[tuple[int, Coefficients], ...]
    """(kind, coefficients of bytes) of allocations; each pair once."""
    events: tuple[tuple[int, int], ...]
    """In order: (id, which polynomial), and (-id, the same) for the free of that allocation."""
    begin: int
    """So many events come before the step: weights, optimizer, batch."""
    flops: Coefficients
    moved: Coefficients
    ops: int
    probes: tuple[tuple[int, int], ...]
    checked: tuple[tuple[int, int, int, int], ...]
    """(batch, size, predicted, traced) of probes that were held back."""
    notes: tuple[str, ...]
    micro_batches: int = 1
    """That the traced step has: flops, moved and ops are of all of them."""
    unit: str = "batch"
    """What `batch` counts: samples, or what they `cost` together."""
    measured_on: str | None = None
    """`cpu` or `cuda`, by real steps; None: it was traced."""
    secant: Coefficients | None = None
    """Where the traces of the probes did not align: a polynomial through their peaks; the events
    are those of the largest probe."""

    @property
    def is_exact(self) -> bool:
        return self.secant is None

    @property
    def error(self) -> float:
        """How far off the fit was where it was checked, relative."""
        return max((abs(p - t) / t for _, _, p, t in self.checked if t), default=0.0)

    def evaluate(self, coefficients: Coefficients, *, batch: float, size: int) -> Number:
        """Such as `flops` and `moved`."""
        return self._values([coefficients], batch=batch, size=size)[0]

    def trace(self, *, batch: int, size: int) -> list[tuple[int, int]]:
        """(id, bytes) of each allocation and (-id, bytes) of each free, in order."""
        table = self._bytes(batch=batch, size=size)
        return [(number, table[which]) for number, which in self.events]

    def curve(self, *, batch: int, size: int) -> list[int]:
        """Bytes of live tensors after each event."""
        return self._curve(self._bytes(batch=batch, size=size))

    def peak(self, *, batch: int, size: int) -> int:
        """The most bytes of live tensors."""
        return max(self.curve(batch=batch, size=size), default=0)

    def breakdown(self, *, batch: int, size: int) -> dict[str, int]:
        """What is alive at the first moment of the peak, by kind; kinds with nothing are left
        out."""
        table = self._bytes(batch=batch, size=size)
        found = dict.fromkeys(self.kinds, 0)
        for number, which in self.events[: _until_peak(self._curve(table))]:
            kind = self.kinds[self.polynomials[which][0]]
            found[kind] += table[which] if number > 0 else -table[which]
        return {kind: count for kind, count in found.items() if count}

    def most_of(self, kind: str, *, batch: int, size: int) -> int:
        """The most bytes of one kind that are ever alive together."""
        table = self._bytes(batch=batch, size=size)
        only = [
            count if self.kinds[of] == kind else 0
            for count, (of, _) in zip(table, self.polynomials, strict=True)
        ]
        return max(self._curve(only), default=0)

    def kept_of(self, kind: str, *, batch: int, size: int) -> int:
        """Bytes of one kind that lie there before the step, all through it and after it."""
        table = self._bytes(batch=batch, size=size)
        freed = {-number for number, _ in self.events if number < 0}
        return sum(
            table[which]
            for number, which in self.events[: self.begin]
            if number > 0 and number not in freed and self.kinds[self.polynomials[which][0]] == kind
        )

    @property
    def is_closed(self) -> bool:
        """A step leaves what it found: the next one can follow on the same trace."""
        before = {number for number, _ in self.events[: self.begin]}
        during = [number for number, _ in self.events[self.begin :]]
        return sum(during) == 0 and not any(-number in before for number in during)

    def _curve(self, table: Sequence[int]) -> list[int]:
        steps = (table[which] if number > 0 else -table[which] for number, which in self.events)
        return list(accumulate(steps))

    def _bytes(self, *, batch: int, size: int) -> list[int]:
        """Of each polynomial; a fit that falls below 0 outside its probes means nothing there."""
        rows = [coefficients for _, coefficients in self.polynomials]
        values = self._values(rows, batch=batch, size=size)
        table = [max(0, round(value)) for value in values]
        if self.secant is None:
            return table
        return self._scaled(table, round(self.evaluate(self.secant, batch=batch, size=size)))

    def _values(self, rows: Sequence[Coefficients], *, batch: float, size: int) -> list[Number]:
        powers = [batch**p * size**q for p, q in self.terms]
        return [sum(c * power for c, power in zip(row, powers, strict=True) if c) for row in rows]

    def _scaled(self, table: list[int], peak: int) -> list[int]:
        """The traced step with all that grows made as much larger (or smaller) as the peak is."""
        is_fixed = [self.kinds[kind] in _FIXED for kind, _ in self.polynomials]
        fixed = [count if f else 0 for count, f in zip(table, is_fixed, strict=True)]
        curve = self._curve(table)
        at = _until_peak(curve) - 1
        if at < 0 or curve[at] == (still := self._curve(fixed)[at]):
            return table
        grown, was = max(0, peak - still), curve[at] - still
        return [
            count if f else -(-count * grown // was)
            for count, f in zip(table, is_fixed, strict=True)
        ]


def _until_peak(curve: Sequence[int]) -> int:
    """How many events there are up to the first one after which most is alive."""
    return curve.index(max(curve)) + 1 if curve else 0


def read_probe(value: object, *, source: str = "the probe file") -> Probe:
    """From what the file holds, already parsed. `source` names it in errors."""
    try:
        return _read(value, source)
    except (_Torn, KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"{source} is not a whole probe file: {what}",
            hint="delete it: it is made anew when it is missing",
        ) from None


class _Torn(Exception):
    """What is wrong with the value."""


def _read(value: object, source: str) -> Probe:
    if not isinstance(value, dict):
        raise _Torn("it is no JSON object")
    number = _count(value["format"], "format")
    if number > FORMAT:
        raise NewerFormat(
            f"{source} has format {number}; this tasuki knows up to {FORMAT}",
            hint="use the tasuki that made it, or delete it",
        )
    terms = tuple(_powers(one) for one in _list(value["terms"], "terms"))
    kinds = tuple(_text(one, "kinds") for one in _list(value["kinds"], "kinds"))
    polynomials, events = _events(value["events"], width=len(terms), num_kinds=len(kinds))
    begin = _count(value["begin"], "begin")
    if begin > len(events):
        raise _Torn(f"`begin` is {begin}, but there are {len(events)} events")
    is_exact = value["is_exact"]
    if not isinstance(is_exact, bool):
        raise _Torn("`is_exact` is neither true nor false")
    return Probe(
        key=_text(value["key"], "key"),
        torch=_text(value["torch"], "torch"),
        terms=terms,
        kinds=kinds,
        polynomials=polynomials,
        events=events,
        begin=begin,
        flops=_coefficients(value["flops"], "flops", width=len(terms)),
        moved=_coefficients(value["moved"], "moved", width=len(terms)),
        ops=_count(value["ops"], "ops"),
        probes=tuple(_row(one, "probes", width=2) for one in _list(value["probes"], "probes")),  # type: ignore[misc]
        checked=tuple(_row(one, "checked", width=4) for one in _list(value["checked"], "checked")),  # type: ignore[misc]
        notes=tuple(_text(one, "notes") for one in _list(value.get("notes", []), "notes")),
        micro_batches=max(1, _count(value.get("micro_batches", 1), "micro_batches")),
        unit=_text(value.get("unit", "batch"), "unit"),
        measured_on=_device(value.get("measured_on")),
        secant=None if is_exact else _coefficients(value["secant"], "secant", width=len(terms)),
    )


def _events(
    written: object, *, width: int, num_kinds: int
) -> tuple[tuple[tuple[int, Coefficients], ...], tuple[tuple[int, int], ...]]:
    which: dict[tuple[int, Coefficients], int] = {}
    live: dict[int, int] = {}
    seen: set[int] = set()
    events = []
    for place, one in enumerate(_list(written, "events")):
        where = f"event {place}"
        row = _list(one, where)
        number = row[0] if row else None
        if type(number) is not int or number == 0:
            raise _Torn(f"{where} has no id")
        if number < 0:
            if -number not in live or len(row) != 1:
                raise _Torn(f"{where} frees {-number}, which is not alive")
            events.append((number, live.pop(-number)))
            continue
        if number in seen:
            raise _Torn(f"{where} allocates {number} a second time")
        if len(row) != width + 2 or type(row[1]) is not int or not 0 <= row[1] < num_kinds:
            raise _Torn(f"{where} is not [id, kind, {width} coefficients]")
        coefficients = _coefficients(row[2:], where, width=width)
        seen.add(number)
        live[number] = which.setdefault((row[1], coefficients), len(which))
        events.append((number, live[number]))
    return tuple(which), tuple(events)


def _list(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise _Torn(f"`{what}` is no list")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _Torn(f"`{what}` is no text")
    return value


def _device(value: object) -> str | None:
    if value not in (None, "cpu", "cuda"):
        raise _Torn("`measured_on` is no device")
    return None if value is None else str(value)


def _count(value: object, what: str) -> int:
    if type(value) is not int or value < 0:
        raise _Torn(f"`{what}` is no count")
    return value


def _coefficients(value: object, what: str, *, width: int) -> Coefficients:
    row = _list(value, what)
    if len(row) != width:
        raise _Torn(f"`{what}` has {len(row)} coefficients, but there are {width} terms")
    for one in row:
        if type(one) not in (int, float) or not -_LARGEST < one < _LARGEST:
            raise _Torn(f"`{what}` holds `{str(one)[:20]}`, which is no number")
    return tuple(row)


def _row(value: object, what: str, *, width: int) -> tuple[int, ...]:
    row = tuple(_count(one, what) for one in _list(value, what))
    if len(row) != width:
        raise _Torn(f"`{what}` holds {len(row)} numbers instead of {width}")
    return row


def _powers(value: object) -> tuple[int, int]:
    batch, size = _row(value, "terms", width=2)
    if max(batch, size) > _HIGHEST_POWER:
        raise _Torn(f"`terms` holds the power {max(batch, size)}")
    return batch, size
