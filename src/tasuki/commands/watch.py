"""`tasuki watch`: runs as they go, for whoever keeps looking.

Looks often and reads little: of a run that stands still nothing but the sizes of its files, of one
that goes on what was added. What takes longer (ETA and goodput by describe_run, the small curve) is
asked at most every few seconds, and so seldom that it takes little of a core. Draws nothing:
views/watch.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.curves import CurveReader
from tasuki.commands.queued import Known, is_gone
from tasuki.commands.status import at_work, describe_run, state_of
from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT
from tasuki.runs.find import list_shown
from tasuki.runs.follow import EventFollower
from tasuki.runs.lines import read_last_lines
from tasuki.runs.metrics import metric_files
from tasuki.runs.remains import what_is_gone
from tasuki.runs.runs import RunFolder
from tasuki.runs.series import as_number
from tasuki.runs.story import is_step
from tasuki.runs.words import event_words

EVERY_S = 1.0
_SELDOM_S = 5.0
"""How often new runs, runs that stand still, and what takes longer are looked at."""
_QUEUE_EVERY_S = 15.0
"""What Slurm said is kept for as long anyway."""
_AT_A_TIME_S = 0.3
"""So long new runs, and others more closely, are looked at before keys are heard again: there may
be a thousand."""
_SHARE = 0.01
"""Of the time at most goes into longer looks, however long they take and however many runs work."""
_LONGEST_S = 120.0
"""Older than this nothing on the screen is, whatever it costs."""
_FEW_BYTES = 16 << 20
"""Metrics of a run that are read whole; of more than that only the end is drawn."""
_SPARK_POINTS = 240
_MOST_EVENTS = 50


class Watched:
    """One run, followed."""

    def __init__(self, run: RunFolder, clock: Clock) -> None:
        self.run = run
        self._clock = clock
        self.events = EventFollower(run)
        self._curves: CurveReader | None = None
        self._losses: list[float | None] = []
        self._drawn: dict[str, Any] = {}
        """The newest of them, with its attempt, stage and step."""
        self._draw_at = float("-inf")
        self.value: dict[str, Any] = _unknown(run)
        self.is_described = False
        self._state: str | None = None
        """As the folder alone said it, when it was described: Slurm may say more, `waiting`."""
        self._known: Known | None = None
        self._queued: tuple[Any, ...] = ()
        """And what Slurm said of it then."""
        self.is_put_off = False
        """A longer look at it is due, and had no time."""
        self._describe_at = float("-inf")
        self._looked_at = float("-inf")
        self._is_stale = True
        self._machine: dict[str, Any] = {}

    def is_due(self) -> bool:
        """Runs that work are looked at each time, the others seldom, finished ones once."""
        if not self.is_described:
            return True
        if self.value["state"] == "complete":
            return False
        is_time = self._clock.monotonic() - self._looked_at >= _SELDOM_S
        return self.value["state"] == "running" or self.is_put_off or is_time

    def look(
        self, known: Known | None, *, share: float = _SHARE, until: float = float("inf")
    ) -> bool:
        """Has anything changed? `share`: this run's of the time for longer looks. Later than
        `until`, on the monotonic clock, none is begun."""
        at, now = self._clock.monotonic(), self._clock.wall()
        self._looked_at = at
        before = self.value
        try:
            has_grown = self.events.look()
        except StoreError as error:  # one that cannot be read ends no watching of the others
            self.is_described = True
            self.value = {**_unknown(self.run), "reason": f"cannot be read: {error.message}"}
            return self.value != before
        state = self._read_state(now)
        is_another = self.is_described and state != self._state
        self._is_stale |= self._is_queued_anew(known) or has_grown or is_another
        is_due = self._is_stale and (at >= self._describe_at or is_another)
        self.is_put_off = is_due and at >= until
        if is_due and not self.is_put_off:
            self._state = state
            self._describe(now, known)
            has_grown |= self._look_again()
            took_s = self._clock.monotonic() - at
            pause_s = min(max(_SELDOM_S, took_s / share), _LONGEST_S)
            self._describe_at, self._is_stale = at + pause_s, False
        if has_grown or self.value is not before:
            self.value = {**self.value, **self._lately(now)}
        elif self.value["doing"]:
            self.value = {**self.value, "doing": self._doing(now)}
        return self.value != before

    def _look_again(self) -> bool:
        """What was described comes from newer files than the events that were read before."""
        try:
            return self.events.look()
        except StoreError:  # the next look tells of it
            return False

    def _is_queued_anew(self, known: Known | None) -> bool:
        """Does Slurm say another thing of it than before? It is asked now and then."""
        if known is None or known is self._known:
            return False
        before, self._known = self._queued, known
        job, _ = last = known.last.get(self.run.name, (None, ""))
        try:
            gone = job is not None and is_gone(known, job)
        except OSError:  # somebody deletes the job's folder
            gone = False
        self._queued = (known.of(self.run), last, gone)
        return self._queued != before

    def _read_state(self, now: float) -> str | None:
        try:
            return state_of(self.run, now=now)[0]
        except StoreError:
            return None

    def _describe(self, now: float, known: Known | None) -> None:
        self.is_described = True
        try:
            self.value = {**_unknown(self.run), **describe_run(self.run, now=now, known=known)}
            if self.value["state"] == "running":  # what it is at, `doing` tells anew at each look
                self.value["reason"] = what_is_gone(self.run).words
        except StoreError as error:
            reason = f"cannot be read: {error.message}"
            self.value = {**_unknown(self.run), "reason": reason, "hint": error.hint}

    def _lately(self, now: float) -> dict[str, Any]:
        """What the newest events say, between two longer looks."""
        events = self.events.events
        while self.events.machine:
            self._machine = self.events.machine.popleft()
        told: dict[str, Any] = {"machine": self._machine, "events": _last_words(events)}
        totals = {
            e["stage"]: e.get("total_steps") for e in events if isinstance(e.get("stage"), str)
        }
        told["totals"] = {name: total for name, total in totals.items() if total}
        if self.value["state"] != "running":
            return {**told, "doing": None}
        told["attempt"] = claim = max((int(event["claim"]) for event in events), default=0)
        own = [event for event in events if event["claim"] == claim]
        progress: dict[str, Any] = next((e for e in reversed(own) if e["kind"] == "progress"), {})
        fresh = {key: progress[key] for key in _FRESH if key in progress}
        return {**told, **self._at_least(claim, fresh), "doing": self._doing(now)}

    def _at_least(self, claim: int, fresh: dict[str, Any]) -> dict[str, Any]:
        """Steps are told of now and then: the curve may have read of later ones."""
        drawn, step = self._drawn, fresh.get("step")
        if drawn.get("attempt") != claim or drawn.get("stage") != fresh.get("stage"):
            return fresh
        is_later = isinstance(step, int) and is_step(drawn.get("step")) and drawn["step"] >= step
        return {**fresh, "step": drawn["step"], "loss": drawn["loss"]} if is_later else fresh

    def _doing(self, now: float) -> list[Any] | None:
        """(what it is at where there are no steps, for how long)."""
        if self.value["state"] != "running":
            return None
        found = at_work(self.events.events)
        return [found[0], max(0, round(now - found[1]))] if found else None

    def losses(self) -> list[float | None]:
        """For the small curve: of the whole run, or of its end where that is long."""
        at = self._clock.monotonic()
        if at >= self._draw_at:
            try:
                self._losses = self._read_losses()
            except (StoreError, OSError):  # somebody deletes the run meanwhile
                self._losses = []
            self._draw_at = at + max(_SELDOM_S, (self._clock.monotonic() - at) / _SHARE)
            if self.value["state"] == "running":
                fresh = {key: self.value[key] for key in _FRESH}
                self.value = {**self.value, **self._at_least(self.value["attempt"], fresh)}
        return self._losses

    def _read_losses(self) -> list[float | None]:
        if self._curves is None:
            files = list(metric_files(self.run).values())
            if sum(path.stat().st_size for path in files) > _FEW_BYTES:
                lines = read_last_lines(files[-1])
                rows = [row for row in lines if row.get("split") == "train" and "loss" in row]
                self._drawn = rows[-1] if rows else {}
                return [as_number(row["loss"]) for row in rows]
            self._curves = CurveReader(self.run)
        self._curves.look()
        self._drawn = self._curves.newest("loss", "train")
        return self._curves.values("loss", "train", points=_SPARK_POINTS)


_FRESH = ("stage", "epoch", "step", "total_steps", "samples", "loss")


def _unknown(run: RunFolder) -> dict[str, Any]:
    keys = (*_FRESH, "state", "eta_s", "eta_s_p90", "goodput", "doing")
    return {
        "experiment": run.name,
        **dict.fromkeys(keys),
        "reason": "",
        "hint": "",
        **dict.fromkeys(("attempt", "attempts", "preemptions"), 0),
        **{key: [] for key in ("stages", "jobs", "events")},
        "machine": {},
        "totals": {},
    }


def _last_words(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest things that happened, the newest first."""
    found = []
    for event in sorted(events, key=lambda e: float(e["t"]), reverse=True):
        words = event_words(event)
        if words is not None:
            found.append({"t": event["t"], "words": words})
            if len(found) == _MOST_EVENTS:
                break
    return found


class Watch:
    """Several runs: those that were named, or all that are there, and those that come."""

    def __init__(
        self,
        chosen: Sequence[RunFolder],
        runs: Path,
        *,
        clock: Clock,
        ask_queue: Callable[[], Known | None] = lambda: None,
    ) -> None:
        self._clock = clock
        self.watched = [Watched(run, clock) for run in chosen]
        self._runs = None if chosen else runs
        self._ask_queue = ask_queue
        self._known: Known | None = None
        self._listed_at = self._asked_at = float("-inf")

    def look(self, *, first: Sequence[str] = ()) -> bool:
        """Look at what is due; those named `first` before others. Has anything changed?"""
        has_changed = self._list()
        due = [one for one in self.watched if one.is_due()]
        due.sort(key=lambda one: (one.run.name not in first, not one.is_put_off))
        until = self._clock.monotonic() + _AT_A_TIME_S
        share = _SHARE / max(1, sum(one.value["state"] == "running" for one in due))
        for number, one in enumerate(due):
            own = until if number else float("inf")
            if one.is_described or self._clock.monotonic() < own:
                has_changed |= one.look(self._known, share=share, until=own)
        return has_changed

    @property
    def is_settled(self) -> bool:
        """Has every run been looked at?"""
        return all(one.is_described for one in self.watched)

    def _list(self) -> bool:
        at = self._clock.monotonic()
        if at - self._listed_at < _SELDOM_S:
            return False
        self._listed_at = at
        if at - self._asked_at >= _QUEUE_EVERY_S:
            self._asked_at, self._known = at, self._ask_queue()
        if self._runs is None:
            return False
        names = {one.run.name for one in self.watched}
        try:
            found = list_shown(self._runs)
        except OSError:  # the folder is moved away just now
            return False
        there = {run.name for run in found}
        new = [Watched(run, self._clock) for run in found if run.name not in names]
        kept = [one for one in self.watched if one.run.name in there]
        has_changed = bool(new) or len(kept) != len(self.watched)
        self.watched = sorted([*kept, *new], key=lambda one: one.run.name)
        return has_changed


def snapshot(
    chosen: Sequence[RunFolder], runs: Path, *, clock: Clock, known: Known | None = None
) -> dict[str, Any]:
    """One look at all of them, as values."""
    watch = Watch(chosen, runs, clock=clock, ask_queue=lambda: known)
    watch.look()
    while not watch.is_settled:
        watch.look()
    losses = [one.losses() for one in watch.watched]  # which may have read of later steps
    found = zip(watch.watched, losses, strict=True)
    return {"format": FORMAT, "runs": [{**one.value, "losses": own} for one, own in found]}
