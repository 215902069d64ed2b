"""A run's numbers over its steps, ready to be drawn: metrics of all attempts, and machine figures.

What an attempt wrote beyond the step from which a later one went on is void, as everywhere
(runs/metrics.py). Thinned here, so that a browser gets thousands of points and not millions. A
`CurveReader` reads only what was added since its last look, so a live page costs little.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tasuki.commands.why import read_stories
from tasuki.runs.atomic import FORMAT
from tasuki.runs.follow import EventFollower, GrowingFolder
from tasuki.runs.runs import RunFolder
from tasuki.runs.series import Series, as_number, spelled
from tasuki.runs.story import AttemptStory, StageSpan, is_step

POINTS = 2000
_NOT_DRAWN = frozenset({"t", "attempt", "stage", "epoch", "step", "samples", "split", "format"})
_MOST_SERIES = 500
"""Of one run; a recipe that logs under ever new names would fill the memory of who looks."""
_DECODER = msgspec.json.Decoder()
_MACHINE = {
    "samples_per_sec": "1/s",
    "cpu_percent": "%",
    "rss_bytes": "bytes",
}
_GPU = {"util": "%", "used_bytes": "bytes"}


def read_curves(
    run: RunFolder, *, points: int = POINTS, since: int | None = None
) -> dict[str, Any]:
    """All curves of a run, once; `since` leaves out steps up to it."""
    reader = CurveReader(run)
    reader.look()
    return reader.read(points=points, since=since)


class CurveReader:
    """Follows the metrics and machine figures of one run."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.events = EventFollower(run)
        self.dropped = 0
        """Values that are no finite numbers, and lines that tell no step."""
        self.voided = 0
        """How often rows were taken back: who draws on must then begin anew."""
        self._files = GrowingFolder(run.metrics)
        self._newest = ""
        self._stages: dict[str, dict[str, dict[str, Series]]] = {}
        """Stage → split → name → values by step of the stage."""
        self._num_series = 0
        self._machine: dict[tuple[str, str], Series] = {}
        self._live: dict[str, tuple[int, float, float]] = {}
        self._machine_claim = 0
        self._story: tuple[list[StageSpan], list[AttemptStory]] | None = None
        self._beginnings = 0

    # -- reading --------------------------------------------------------------------------------

    def look(self) -> bool:
        """Read what was added. Was there anything?"""
        is_new = self.events.look()
        if is_new:
            self._story = None
            self._take_machine()
        grown = self._files.grown()
        if grown is None or any(_number(name) < _number(self._newest) for name, _ in grown):
            # An attempt that was taken for dead has written once more: its lines come before those
            # of later attempts, wherever they are in time.
            self._begin_anew()
            grown = self._files.grown() or []
        for name, reader in grown:
            self._newest = name
            for part in reader.read_parts():
                is_new = True
                self._take(_parse(part))
        return is_new

    def _begin_anew(self) -> None:
        self._files = GrowingFolder(self.run.metrics)
        self._newest = ""
        self._stages.clear()
        self._num_series = self.dropped = 0
        self.voided += 1

    def _take(self, lines: Iterable[dict[str, Any]]) -> None:
        """Lines that are alike together: a million of them one by one would take half a minute."""
        alike: list[dict[str, Any]] = []
        kind: tuple[Any, ...] | None = None
        for line in lines:
            own = (line.get("stage"), line.get("split"), *line)
            if own != kind:
                self._take_alike(alike)
                alike, kind = [], own
            alike.append(line)
        self._take_alike(alike)

    def _take_alike(self, lines: list[dict[str, Any]]) -> None:
        """Of one stage and split, with the same names."""
        if not lines or "resume" in lines[0]:
            for line in lines:
                self._resume(line["resume"])
            return
        told = [line for line in lines if is_step(line.get("step"))]
        self.dropped += len(lines) - len(told)
        if not told:
            return
        stage, split = str(told[0].get("stage")), str(told[0].get("split"))
        series = self._stages.setdefault(stage, {}).setdefault(split, {})
        steps = [line["step"] for line in told]
        t, _ = _numbers([line.get("t") for line in told])
        for name in told[0]:
            if name in _NOT_DRAWN:
                continue
            values, bad = _numbers([line[name] for line in told])
            self.dropped += bad
            own = series.get(name) or self._begin_series(series, name)
            if own is not None:
                own.extend(steps, t, values)

    def _begin_series(self, series: dict[str, Series], name: str) -> Series | None:
        if name in series:
            return series[name]  # an empty one, which is false
        if self._num_series >= _MOST_SERIES:
            self.dropped += 1
            return None
        self._num_series += 1
        series[name] = Series()
        return series[name]

    def _resume(self, told: object) -> None:
        """What earlier attempts wrote beyond this step, and of later stages, is void."""
        told = told if isinstance(told, dict) else {}
        stage, step = str(told.get("stage")), told.get("step")
        # -1 takes back everything: a person went back to a checkpoint of another way.
        if stage not in self._stages or not (is_step(step) or step == -1):
            return
        names = list(self._stages)
        void = 0
        for later in names[names.index(stage) + 1 :]:
            gone = self._stages.pop(later)
            void += sum(len(own) for series in gone.values() for own in series.values())
            self._num_series -= sum(len(series) for series in gone.values())
        for series in self._stages[stage].values():
            for own in series.values():
                void += own.drop_beyond(step)
        self.voided += bool(void)

    def _take_machine(self) -> None:
        if self.events.beginnings != self._beginnings:
            self._beginnings = self.events.beginnings
            self._machine.clear()
            self._live.clear()
        while self.events.machine:
            event = self.events.machine.popleft()
            is_another = event["claim"] != self._machine_claim
            self._machine_claim = event["claim"]
            ms = int(event["t"] * 1000)
            if is_another:  # nobody drew a line through the time between two attempts
                for own in self._machine.values():
                    if own.steps and own.steps[-1] < ms - 1:
                        own.add(ms - 1, event["t"], math.nan)
            for name, unit, value in _figures(event):
                if abs(ms) < 1 << 53:
                    self._machine.setdefault((name, unit), Series()).add(ms, event["t"], value)
                    rows, *_ = self._live.get(name, (0,))
                    self._live[name] = (rows + 1, event["t"], value)

    # -- telling --------------------------------------------------------------------------------

    def story(self) -> tuple[list[StageSpan], list[AttemptStory]]:
        """Stages and attempts, read again only when something happened."""
        if self._story is None:
            self._story = read_stories(self.run, self.events.events)
        return self._story

    def read(
        self,
        *,
        points: int = POINTS,
        since: int | None = None,
        until: int | None = None,
        beyond: Mapping[tuple[str, str], int] | None = None,
    ) -> dict[str, Any]:
        """`since` and `until`: only what lies beyond this step, up to that one; `beyond` is the
        `since` of single curves (name, split)."""
        stages, attempts = self.story()
        return {
            "format": FORMAT,
            "experiment": self.run.name,
            "stages": [stage.as_json() for stage in stages],
            "series": self._series(self._firsts(stages), points, since, until, beyond or {}),
            "machine": [
                _machine_json(name, unit, own, points)
                for (name, unit), own in sorted(self._machine.items())
                if not own.is_empty
            ],
            "marks": [_mark(attempt) for attempt in attempts if _is_marked(attempt)],
            "dropped": self.dropped,
            "voided": self.voided,
        }

    def values(self, key: str, split: str, *, points: int) -> list[float | None]:
        """Of one curve alone, in order of steps: for a small picture."""
        own = [s[split][key] for s in self._stages.values() if key in s.get(split, {})]
        total = max(1, sum(len(series) for series in own))
        found: list[float | None] = []
        for series in own:
            share = points if total <= points else points * len(series) // total
            found += spelled(series.values, series.thin(share))
        return found

    def live(self) -> dict[str, dict[str, Any]]:
        """Of each machine figure what was told last, whatever its time is, and how many there were:
        where a clock was set back it is not the newest."""
        return {
            name: {"rows": rows, "t": t, "value": None if math.isnan(value) else value}
            for name, (rows, t, value) in self._live.items()
        }

    def newest(self, key: str, split: str) -> dict[str, Any]:
        """The last number of one curve, with its attempt, stage and step in it; empty: none."""
        for stage, splits in reversed(self._stages.items()):
            own = splits.get(split, {}).get(key)
            if own is not None and (places := own.thin(1)):
                (value,), step = spelled(own.values, places), own.steps[places[0]]
                return {"attempt": _number(self._newest), "stage": stage, "step": step, key: value}
        return {}

    def _firsts(self, stages: list[StageSpan]) -> dict[str, int]:
        """The run-wide step at which each begins; where nobody told, it follows the one before."""
        known = {stage.name: stage.first_step for stage in stages}
        firsts, reached = {}, 0
        for stage, splits in self._stages.items():
            first = known.get(stage)
            firsts[stage] = reached if first is None else first
            lasts = [own.steps[-1] for s in splits.values() for own in s.values() if own.steps]
            reached = firsts[stage] + max(lasts, default=0)
        return firsts

    def _series(
        self,
        firsts: dict[str, int],
        points: int,
        since: int | None,
        until: int | None,
        beyond: Mapping[tuple[str, str], int],
    ) -> list[dict[str, Any]]:
        parts: dict[tuple[str, str], list[tuple[int, Series]]] = {}
        for stage, splits in self._stages.items():
            for split, series in splits.items():
                for name, own in series.items():
                    parts.setdefault((name, split), []).append((firsts[stage], own))
        found = []
        for (name, split), pieces in parts.items():
            if all(own.is_empty for _, own in pieces):
                continue
            told: dict[str, Any] = {"key": name, "split": split, "steps": [], "t": [], "values": []}
            own_since = beyond.get((name, split), since)
            bounds = [_shifted(first, own_since, until) for first, _ in pieces]
            lengths = [
                last - begin
                for (_, own), bound in zip(pieces, bounds, strict=True)
                for begin, last in [own.between(*bound)]
            ]
            total = sum(lengths)
            for (first, own), (after, to), long in zip(pieces, bounds, lengths, strict=True):
                share = points if total <= points else points * long // total
                places = own.thin(share, since=after, until=to)
                told["steps"] += [first + own.steps[at] for at in places]
                told["t"] += spelled(own.t, places)
                told["values"] += spelled(own.values, places)
            found.append(told)
        return found


def _shifted(first: int, since: int | None, until: int | None) -> tuple[int | None, int | None]:
    """Steps of the run as steps of a stage."""
    return None if since is None else since - first, None if until is None else until - first


def _parse(part: bytes) -> Iterator[dict[str, Any]]:
    """Many lines at once; where one of them is no JSON, line by line."""
    values: Iterable[Any]
    try:
        values = _DECODER.decode_lines(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        values = _parse_each(part)
    for value in values:
        if isinstance(value, dict):
            yield value


def _parse_each(part: bytes) -> Iterator[Any]:
    for line in part.split(b"\n"):
        try:
            yield json.loads(line)  # takes a bare NaN, which others write
        except (ValueError, RecursionError):
            continue


def _numbers(values: list[Any]) -> tuple[list[float], int]:
    """All as numbers, NaN for what is none, and how many those are."""
    if set(map(type, values)) == {float} and math.isfinite(sum(values)):
        return values, 0
    found = [as_number(value) for value in values]
    return [math.nan if value is None else value for value in found], found.count(None)


def _number(name: str) -> int:
    first = name.split(".", 1)[0]
    return int(first) if first.isdecimal() else 0


def _figures(event: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(name, unit, value) of one reading; NaN where it tells none."""
    for name, unit in _MACHINE.items():
        if name in event:
            value = as_number(event[name])
            yield name, unit, math.nan if value is None else value
    gpus = event.get("gpus")
    for number, gpu in enumerate(gpus if isinstance(gpus, list) else ()):
        for name, unit in _GPU.items():
            value = as_number(gpu.get(name)) if isinstance(gpu, dict) else None
            yield f"gpu{number}_{name}", unit, math.nan if value is None else value


def _machine_json(name: str, unit: str, own: Series, points: int) -> dict[str, Any]:
    places = own.thin(points)
    values = spelled(own.values, places)
    return {"key": name, "unit": unit, "t": spelled(own.t, places), "values": values}


def _is_marked(attempt: AttemptStory) -> bool:
    return not attempt.is_running and attempt.ending != "done"


def _mark(attempt: AttemptStory) -> dict[str, Any]:
    """Where an attempt was cut off: what a curve shows as a line."""
    cause = attempt.cause if attempt.cause not in (None, "none") else attempt.ending
    return {
        "step": attempt.to_step,
        "t": attempt.ended_at,
        "attempt": attempt.attempt,
        "cause": cause or "died",
        "ending": attempt.ending,
    }
