"""`buckets:` in a spec: which samples may share a step, and what bounds a micro-batch."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from tasuki.errors import UsageError
from tasuki.spec.values import LARGEST_COUNT

_HINT = (
    "write `exact`, `auto`, `[512, 1024]`, `{auto: 6}`, `{cost: nodes+edges, budget: 200000}`, or "
    "`budget: auto` in it"
)
_COST_HINT = "write names joined by +, as in `nodes+edges`, `2*edges` or `n^2`"
_TERM = re.compile(r"(?:(\d{1,9})\s*\*\s*)?([A-Za-z_]\w*)(?:\s*\^\s*([1-4]))?")


class Term(msgspec.Struct, frozen=True):
    """factor × name ^ power."""

    factor: int
    name: str
    power: int


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """How samples are put into buckets."""

    kind: Literal["default", "exact", "auto", "bounds", "cost"] = "default"
    """`default`: exact where there are few sizes, else auto."""
    uppers: tuple[int, ...] = ()
    """Of `bounds`: the largest size of each bucket."""
    count: int | None = None
    """Of `auto`: how many buckets; None: as many as needed."""
    power: int = 1
    """Of `auto`: how a sample's cost grows with its size."""
    cost: str | None = None
    budget: int | Literal["auto"] | None = None
    """Of `cost`: bounds one micro-batch; all samples share one bucket. `auto`: as much as fits."""

    @property
    def given_budget(self) -> int | None:
        """None: there is none, or it is to be found."""
        return self.budget if isinstance(self.budget, int) else None

    def label(self) -> object:
        """As people write it."""
        match self.kind:
            case "bounds":
                return list(self.uppers)
            case "cost":
                return {"cost": self.cost, "budget": self.budget}
            case "auto" if self.count is not None or self.power != 1:
                return {"auto": self.count or "auto", "power": self.power}
        return self.kind


def parse_buckets(written: object) -> Buckets:
    """Read what `buckets:` holds."""
    match written:
        case "exact" | "auto" | "default":
            return Buckets(kind=written)
        case list():
            return Buckets(kind="bounds", uppers=_uppers(written))
        case dict() if "cost" in written or "budget" in written:
            return _cost_of(written)
        case dict() if "auto" in written:
            return _auto_of(written)
    raise UsageError(f"`{written}` is no way to make buckets", hint=_HINT)


def check_buckets(written: object) -> object:
    """Read what one layer says: of a cost budget it may hold a part (`--set buckets.budget=N`)."""
    if not isinstance(written, dict) or not written or not written.keys() < {"cost", "budget"}:
        return parse_buckets(written)
    return _cost_of({"cost": "n", "budget": "auto", **written})


def parse_cost(text: str) -> tuple[Term, ...]:
    """The terms of `nodes+edges`, `2*edges`, `n^2`."""
    terms = []
    for part in text.split("+"):
        match = _TERM.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"`{part.strip()}` is no cost of a sample", hint=_COST_HINT)
        terms.append(Term(int(match[1] or 1), match[2], int(match[3] or 1)))
    return tuple(terms)


def _uppers(written: list[Any]) -> tuple[int, ...]:
    whole = [w for w in written if type(w) is int and 1 <= w <= LARGEST_COUNT]
    if not written or len(whole) != len(written) or sorted(set(whole)) != whole:
        raise UsageError(
            f"`{written}` are no bucket boundaries",
            hint="write the largest size of each bucket, ascending: `[512, 1024, 2048]`",
        )
    return tuple(whole)


def _cost_of(written: dict[str, Any]) -> Buckets:
    _refuse_other(written, {"cost", "budget"})
    cost, budget = written.get("cost"), written.get("budget")
    is_budget = budget == "auto" or (type(budget) is int and 1 <= budget <= LARGEST_COUNT)
    if not isinstance(cost, str) or not is_budget:
        raise UsageError(
            f"`{written}` needs `cost`, names joined by +, and `budget`, a whole number or `auto`",
            hint="write `{cost: nodes+edges, budget: 200000}`, or `budget: auto`: as much as fits",
        )
    parse_cost(cost)
    return Buckets(kind="cost", cost=cost, budget=budget)


def _auto_of(written: dict[str, Any]) -> Buckets:
    _refuse_other(written, {"auto", "power"})
    count, power = written["auto"], written.get("power", 1)
    is_count = count == "auto" or (type(count) is int and 1 <= count <= 1024)
    if not is_count or type(power) is not int or not 1 <= power <= 4:
        raise UsageError(
            f"`{written}` needs a number of buckets (1 to 1024), and a power of 1 to 4 if any",
            hint="write `{auto: 6}`, or `{auto: 6, power: 2}` where cost grows with size²",
        )
    return Buckets(kind="auto", count=None if count == "auto" else count, power=power)


def _refuse_other(written: dict[str, Any], known: set[str]) -> None:
    for key in written:
        if key not in known:
            raise UsageError(f"`buckets` has no key `{key}` beside {sorted(known)}", hint=_HINT)
