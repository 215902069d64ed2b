"""Durations and byte counts as people write them: `8h`, `1-12:00:00`, `96G`, `2.5GiB`.

Pure. Bare numbers are refused as durations: Slurm would read minutes, most people mean seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasuki.errors import UsageError

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", re.ASCII)
_DAYS_HOURS = re.compile(r"(\d+)-(\d+)", re.ASCII)
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?b?)", re.ASCII | re.IGNORECASE)
_LONGEST = 40
"""Characters; nobody means a longer one, and numbers of thousands of digits overflow."""
_DURATION_HINT = "write for example 8h, 90m, 45s, 1h30m, 12:00:00 or 1-12:00:00"


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time that prints the way people say it."""

    seconds: float

    @classmethod
    def parse(cls, text: object) -> Duration:
        """Read `8h`, `90m`, `1h30m`, `12:00:00`, `1-12:00:00`."""
        if isinstance(text, Duration):
            return text
        if text == 0 and not isinstance(text, bool):
            return cls(0.0)
        if not isinstance(text, str):
            raise UsageError(
                f"`{text}` is not a duration: its unit is missing", hint=_DURATION_HINT
            )
        word = text.strip().lower()
        if len(word) > _LONGEST:
            raise UsageError(f"`{word[:20]}…` is not a duration", hint=_DURATION_HINT)
        if clock := _CLOCK.fullmatch(word):
            days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
            return cls(float(((days * 24 + hours) * 60 + minutes) * 60 + seconds))
        if days_hours := _DAYS_HOURS.fullmatch(word):
            return cls((int(days_hours[1]) * 24 + int(days_hours[2])) * 3600.0)
        parts = _PART.findall(word)
        if not parts or _PART.sub("", word).strip():
            raise UsageError(f"`{text}` is not a duration", hint=_DURATION_HINT)
        return cls(sum(float(number) * _UNIT_S[unit] for number, unit in parts))

    def __str__(self) -> str:
        return format_seconds(self.seconds)


def format_seconds(seconds: float) -> str:
    """`9h40m`, `3m20s`, `4.2s`, `85ms`: two parts at most."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s".replace(".0s", "s")
    total = round(seconds)
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (secs, "s")]
    first = next(i for i, (number, _) in enumerate(parts) if number)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number)


def format_age(seconds: float) -> str:
    """`12s`, `3m`, `5h`, `2d`: nobody wants to know the seconds of yesterday."""
    for unit_s in (86400, 3600, 60):
        if seconds >= unit_s:
            return format_seconds(seconds // unit_s * unit_s)
    return format_seconds(max(1.0, float(round(seconds))))


def format_step(seconds: float) -> str:
    """`2.35 ms`: of what may be short; from a second on as any other time."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else format_seconds(seconds)


def parse_bytes(text: object) -> int:
    """Read `96G`, `2.5GiB`, `500M`. K, M, G, T are powers of 1024, as Slurm counts; `GB` is 10⁹."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    is_text = isinstance(text, str) and len(text) <= _LONGEST
    match = _BYTES.fullmatch(str(text).strip()) if is_text else None
    if match is None:
        raise UsageError(
            f"`{str(text)[:20]}` is not a number of bytes", hint="write for example 96G or 2.5GiB"
        )
    number, prefix, suffix = match.groups()
    power = " kmgtp".index(prefix.lower() or " ")
    base = 1000 if suffix.lower() == "b" else 1024
    return round(float(number) * float(base**power))


def format_bytes(count: float) -> str:
    """`1.8 GB`, `14 kB`: decimal, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:,.0f} TB"
