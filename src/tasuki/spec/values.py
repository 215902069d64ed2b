"""The small values of a spec: `500 steps`, `512..2048`, `30 epochs`, and what a key may hold.

Pure. Written text becomes a value here and nowhere else; `rules.py` says which key holds which.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from tasuki.errors import UsageError
from tasuki.units import Duration, format_seconds, parse_bytes

LARGEST_COUNT = 2**53
"""Counts stay exact in every JSON reader."""

_STEPS_OR_EPOCHS = re.compile(r"(\d{1,15})\s*(steps?|epochs?)", re.ASCII)
_RANGE = re.compile(r"(\d{1,15})\s*\.\.\s*(\d{1,15})", re.ASCII)
_EVERY_HINT = "write `auto`, `500 steps`, `1 epoch` or `10m`"
_SIZE_HINT = "write `512`, `[512, 1024]` or `512..2048`"


class Every(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happens."""

    unit: Literal["auto", "steps", "epochs", "seconds"]
    count: float

    def label(self) -> str:
        """As people write it."""
        if self.unit == "auto":
            return "auto"
        if self.unit == "seconds":
            text = format_seconds(self.count)
            return text if Duration.parse(text).seconds == self.count else f"{self.count}s"
        word = self.unit if self.count != 1 else self.unit.removesuffix("s")
        return f"{self.count:.0f} {word}"


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """How long a stage trains."""

    unit: Literal["epochs", "steps", "samples"]
    count: int


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Which sample sizes a stage takes: those listed, or those of a range (both ends included)."""

    values: tuple[int, ...] = ()
    low: int | None = None
    high: int | None = None

    def contains(self, size: int) -> bool:
        """Does a sample of this size belong to the stage?"""
        if self.low is not None and self.high is not None:
            return self.low <= size <= self.high
        return size in self.values

    def label(self) -> str:
        """`512`, `512,1024`, `512..2048`."""
        if self.low is not None:
            return f"{self.low}..{self.high}"
        return ",".join(str(value) for value in self.values)


def parse_every(text: object) -> Every:
    """Read `auto`, `500 steps`, `1 epoch`, `10m`."""
    if not isinstance(text, str):
        raise UsageError(f"`{text}` does not say every how many of what", hint=_EVERY_HINT)
    word = " ".join(text.lower().split())
    if word == "auto":
        return Every(unit="auto", count=0.0)
    if match := _STEPS_OR_EPOCHS.fullmatch(word):
        if int(match[1]) == 0:
            raise UsageError(f"`{text}` is not often, but never", hint=_EVERY_HINT)
        unit: Literal["steps", "epochs"] = "steps" if match[2].startswith("s") else "epochs"
        return Every(unit=unit, count=float(match[1]))
    try:
        seconds = read_positive_duration(text)
    except UsageError:
        raise UsageError(
            f"`{text}` does not say every how many of what", hint=_EVERY_HINT
        ) from None
    return Every(unit="seconds", count=seconds)


def parse_every_steps_or_epochs(text: object) -> Every:
    """Read `500 steps`, `1 epoch`: what must not depend on the speed of the machine."""
    return _in_units(text, units=("steps", "epochs"), hint="write `500 steps` or `1 epoch`")


def parse_every_steps(text: object) -> Every:
    """Read `10 steps`."""
    return _in_units(text, units=("steps",), hint="write `10 steps`")


def _in_units(text: object, *, units: tuple[str, ...], hint: str) -> Every:
    try:
        every = parse_every(text)
    except UsageError as error:
        raise UsageError(error.message, hint=hint) from None
    if every.unit not in units:
        raise UsageError(f"`{text}` is not counted in {' or '.join(units)}", hint=hint)
    return every


def parse_sizes(written: object) -> Sizes:
    """Read `512`, `[512, 1024]`, `512..2048`."""
    if isinstance(written, str) and (match := _RANGE.fullmatch(written.strip())):
        low, high = int(match[1]), int(match[2])
        if low > high or low == 0:
            raise UsageError(f"`{written}` is an empty range of sizes", hint=_SIZE_HINT)
        return Sizes(low=low, high=high)
    listed: list[object] = written if isinstance(written, list) else [written]
    sizes = {size for size in listed if isinstance(size, int) and 1 <= size <= LARGEST_COUNT}
    if not listed or not sizes.issuperset(listed):
        raise UsageError(f"`{written}` is not a size of samples", hint=_SIZE_HINT)
    return Sizes(values=tuple(sorted(sizes)))


def parse_epochs(written: object) -> int | dict[int, int]:
    """Read `20`, `{512: 30, 1024: 20}`."""
    if not isinstance(written, dict):
        assert isinstance(written, int)
        return written
    bad = [key for key in written if not (str(key).isascii() and str(key).isdecimal())]
    if bad or not written:
        raise UsageError(
            f"`{bad[0]}` is not a size of samples" if bad else "there is no size in it",
            hint="write `{512: 30, 1024: 20}`: epochs by size",
        )
    return {int(key): int(count) for key, count in written.items()}


def read_duration(text: object) -> float:
    """Seconds of `8h`, `12:00:00`."""
    seconds = Duration.parse(text).seconds
    if not math.isfinite(seconds):
        raise UsageError("the duration is too long to count", hint="write for example 8h")
    return seconds


def read_positive_duration(text: object) -> float:
    """Seconds of `8h`; nothing that is over before it began."""
    seconds = read_duration(text)
    if seconds <= 0:
        raise UsageError(f"`{text}` is no time at all", hint="write for example 8h, 90m or 45s")
    return seconds


def read_bytes(text: object) -> int:
    """Bytes of `96G`."""
    try:
        count = parse_bytes(text)
    except OverflowError:
        count = 0
    if not 1 <= count <= LARGEST_COUNT:
        raise UsageError(
            f"`{str(text)[:40]}` cannot be a size of memory", hint="write for example 96G or 2.5GiB"
        )
    return count


def read_card_bytes(text: object) -> int:
    """The memory of a GPU: `40GB`, `39.4GiB`. A bare `40` was meant as more than 40 bytes."""
    return _at_least(text, read_bytes(text), least=2**28, hint="write for example 40GB or 39.4GiB")


def read_bandwidth(text: object) -> int:
    """Bytes that a GPU moves in a second: `1555GB/s`, or `1555GB`."""
    hint = "write for example 1555GB/s"
    word = re.sub(r"\s*/\s*s$", "", text.strip()) if isinstance(text, str) else text
    try:
        count = read_bytes(word)
    except UsageError:
        raise UsageError(f"`{str(text)[:40]}` is not a bandwidth", hint=hint) from None
    return _at_least(text, count, least=10**9, hint=hint)


def _at_least(text: object, count: int, *, least: int, hint: str) -> int:
    if count < least:
        raise UsageError(f"`{text}` is {count} bytes, too few for a GPU", hint=hint)
    return count


@dataclass(frozen=True, slots=True)
class Deadline:
    """When everything is to be done: so long from now, or at a time."""

    in_s: float | None = None
    at: float | None = None
    """Seconds since 1970."""

    def seconds_from(self, now: float) -> float:
        """Below 0: it is over."""
        return self.in_s if self.in_s is not None else (self.at or 0.0) - now


def parse_deadline(text: object) -> Deadline:
    """Read `6h`, `2026-11-18 06:00` (of the clock here) or `2026-11-18T06:00+01:00`."""
    with contextlib.suppress(UsageError):
        return Deadline(in_s=read_positive_duration(text))
    try:
        return Deadline(at=datetime.fromisoformat(str(text).strip()).timestamp())
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"`{str(text)[:40]}` is neither a duration nor a date with a time",
            hint="write for example `deadline: 6h` or `deadline: 2026-11-18 06:00`",
        ) from None
