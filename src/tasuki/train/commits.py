"""Every step that any attempt of a run committed, and what was written down about its samples.

From events (of all attempts, however old) and from the manifests that are still there. What is not
on the way from the highest claim down to the beginning is told apart: it was rolled back, or a
zombie committed it late. Reads only; called by audit.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tasuki.checkpoint.lineage import ancestry_of, list_checkpoints
from tasuki.checkpoint.manifest import ParsedName, parse_name
from tasuki.checkpoint.verify import read_manifest
from tasuki.data.used import Used
from tasuki.errors import DamagedCheckpoint, DataError
from tasuki.runs.atomic import read_json_or_none, shaped
from tasuki.runs.claims import list_claims, parent_of
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder

Place = Literal["lineage", "rolled back", "late"]


@dataclass(slots=True)
class Commit:
    """A checkpoint of a stage, there or pruned."""

    name: ParsedName
    step: int
    """Of the stage."""
    place: Place = "lineage"
    records: list[Used] = field(default_factory=list)
    """What event and manifest say it had used since the stage's step 0: once each."""

    def __str__(self) -> str:
        return str(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """What the attempts of a run wrote down about one stage."""

    commits: tuple[Commit, ...]
    """By attempt, then step."""
    before: Mapping[str, str | None]
    """The checkpoint from which each of them was reached."""
    attempts: int
    redone_steps: int
    """Steps that are known to have been done again, after a kill or a roll-back."""
    left_out_steps: int
    """Steps whose samples were looked at, but not learnt from (`on_nan`)."""
    worlds: tuple[int, ...]
    """Ranks of its attempts, in order."""
    unreadable: tuple[str, ...]
    """Records that cannot be read, in words."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of the newest manifest of the stage that is there."""

    @property
    def head(self) -> Commit | None:
        """The last one that counts."""
        own = [commit for commit in self.commits if commit.place == "lineage"]
        return max(own, key=lambda commit: (commit.name.claim, commit.name.order), default=None)


def read_records(run: RunFolder, stages: Sequence[str]) -> dict[str, StageRecord]:
    """By stage; stages that never committed anything are left out."""
    events = read_events(run)
    found = _Mentioned()
    for event in events:
        if event["kind"] in ("committed", "restored"):
            found.take_event(event)
    for name in list_checkpoints(run):
        found.take_manifest(run, name)
    parents = {claim: _parent(run, claim) for claim in list_claims(run)}
    for parent in parents.values():
        if parent is not None:
            found.records.setdefault(parent, [])
    by_stage = _sort(found, _first_steps(run, stages, found.records))
    every = [commit for commits in by_stage.values() for commit in commits]
    _place(every, dict(ancestry_of(run)), events)
    return {
        stages[number]: _record(stages[number], commits, found, parents, events)
        for number, commits in sorted(by_stage.items())
        if number < len(stages)
    }


class _Mentioned:
    """Checkpoints, from whoever mentions them."""

    def __init__(self) -> None:
        self.records: dict[ParsedName, list[Used]] = {}
        self.unreadable: list[str] = []
        self.facts: dict[ParsedName, Mapping[str, Any]] = {}

    def take_event(self, event: dict[str, Any]) -> None:
        name = parse_name(str(event.get("checkpoint")))
        if name is not None:
            self._take(name, event.get("used"), f"an event of attempt {event['claim']}")

    def take_manifest(self, run: RunFolder, name: ParsedName) -> None:
        try:
            facts = read_manifest(run.checkpoints / str(name)).facts
        except DamagedCheckpoint as error:
            self.unreadable.append(str(error))
            facts = {}
        self.facts[name] = facts
        self._take(name, facts.get("used"), f"the manifest of {name}")

    def _take(self, name: ParsedName, value: object, where: str) -> None:
        records = self.records.setdefault(name, [])
        if value is None:
            return  # of an earlier tasuki, of a start, or of a loader that the recipe brings
        try:
            used = Used.from_json(value if isinstance(value, Mapping) else {})
        except DataError as error:
            self.unreadable.append(f"{where}: {error}")
            return
        if used not in records:
            records.append(used)


def _first_steps(
    run: RunFolder, stages: Sequence[str], names: Iterable[ParsedName]
) -> dict[int, int]:
    """The run-wide step at which each stage starts that was begun: by the metrics of those before,
    and by its start's own name."""
    found, first = {0: 0}, 0
    for number, stage in enumerate(stages[:-1], start=1):
        path = run.stage(stage).metrics
        told = read_json_or_none(path)
        if told is None:
            break
        with shaped(path):
            first += int(told["steps"])
        found[number] = first
    starts = {name.start_of - 1: name.step for name in names if name.start_of is not None}
    return found | {number: step for number, step in starts.items() if number < len(stages)}


def _sort(found: _Mentioned, first_steps: Mapping[int, int]) -> dict[int, list[Commit]]:
    """By number of stage, in the order of attempts and steps."""
    sorted_names = sorted(found.records, key=lambda name: (name.claim, name.order))
    by_stage: dict[int, list[Commit]] = {}
    for name in sorted_names:
        if name.start_of is not None:
            number = name.start_of - 1
        else:
            # The end of a stage has the run-wide step of the next one's start.
            number = max(n for n, first in first_steps.items() if first < max(1, name.step))
        step = name.step - first_steps.get(number, name.step)
        by_stage.setdefault(number, []).append(Commit(name, step, records=found.records[name]))
    return by_stage


def _parent(run: RunFolder, claim: int) -> ParsedName | None:
    parent = parent_of(run, claim)[1]
    return parse_name(parent) if parent is not None else None


def _place(
    commits: Sequence[Commit],
    ancestry: Mapping[int, ParsedName | None],
    events: Sequence[dict[str, Any]],
) -> None:
    """Tell apart what later attempts did not build on."""
    passed_over = {str(e.get("checkpoint")) for e in events if e["kind"] == "fell-back"}
    restored_at = [(e["claim"], e["t"]) for e in events if e["kind"] == "restored"]
    committed_at = {str(e.get("checkpoint")): e["t"] for e in events if e["kind"] == "committed"}
    for commit in commits:
        claim, newest = commit.name.claim, ancestry.get(commit.name.claim)
        if claim in ancestry and (newest is None or commit.name.order <= newest.order):
            continue
        later = [at for other, at in restored_at if other > claim]
        is_late = later and committed_at.get(str(commit), 0.0) > min(later)
        commit.place = "late" if is_late and str(commit) not in passed_over else "rolled back"


def _record(
    stage: str,
    commits: Sequence[Commit],
    found: _Mentioned,
    parents: Mapping[int, ParsedName | None],
    events: Sequence[dict[str, Any]],
) -> StageRecord:
    before: dict[str, str | None] = {}
    last: dict[int, str] = {}
    for commit in commits:
        claim, parent = commit.name.claim, parents.get(commit.name.claim)
        before[str(commit)] = last.get(claim, str(parent) if parent is not None else None)
        last[claim] = str(commit)
    own = [event for event in events if event.get("stage") == stage]
    attempts, redone = _count_attempts(own)
    left_out = {event.get("step") for event in own if event["kind"] == "skipped"}
    worlds = [
        int(event["ranks"])
        for event in own
        if (event["kind"], event.get("phase")) == ("worker-started", "train")
        and isinstance(event.get("ranks"), int)
    ]
    return StageRecord(
        commits=tuple(commits),
        before=before,
        attempts=attempts,
        redone_steps=redone,
        left_out_steps=len(left_out),
        worlds=tuple(worlds),
        unreadable=tuple(found.unreadable),
        facts=next((found.facts[c.name] for c in reversed(commits) if c.name in found.facts), {}),
    )


def _count_attempts(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many attempts worked on a stage, and how many steps they are known to have repeated."""
    claims, redone, reached = set(), 0, 0
    for event in events:
        kind, step = event["kind"], event.get("step")
        if not isinstance(step, int):
            continue
        if kind == "restored":
            claims.add(event["claim"])
            redone += max(0, reached - step)
            reached = step
        elif kind == "rolled-back":
            back = int(event.get("to_step", step))
            redone += max(0, step - back)
            reached = back
        elif kind in ("progress", "committed"):
            reached = max(reached, step)
    return len(claims), redone
