"""What must hold after a storage fault, whatever it was and wherever it hit.

Old checkpoints are intact; what was acknowledged is there; nothing partial is visible; errors are
ours and name errno and path; the next try and the next attempt succeed; leftovers are swept.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.resume.storage.driver import KEEP, begin_attempt, load, save, state_at

from tasuki.checkpoint.lineage import find_latest, list_checkpoints
from tasuki.checkpoint.retention import prune
from tasuki.checkpoint.verify import verify
from tasuki.clock import SystemClock
from tasuki.errors import TasukiError
from tasuki.runs.claims import highest_claim, list_claims
from tasuki.runs.finish import finish_run
from tasuki.runs.runs import RunFolder

_ALL = ["step-000000005.c1", "step-000000010.c1", "step-000000015.c2", "step-000000020.c2"]
_NEWER = ["step-000000020.c2", "step-000000025.c3", "step-000000030.c3"]
_OLD = {  # what no phase may lose
    "first": [],
    "save": _ALL,
    "ranks": _ALL,
    "held": _ALL,
    "frozen": _ALL,
    "prune": _NEWER,
    "finish": _NEWER,
    "resume": _NEWER[1:],
    "fallback": _NEWER[:2],
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a phase said about itself."""

    phase: str
    status: int | None
    """Of the process, if it ended."""
    acknowledged: str | None
    again: str | None
    """What the second try acknowledged, after an error."""
    error: str | None
    bug: str | None
    leak: str | None
    errno: str | None
    must_be_told: bool
    must_succeed: bool
    is_killed: bool


def find_violations(run: RunFolder, outcome: Outcome) -> list[str]:
    """In words; empty when all is well."""
    try:
        found = [*_of_words(run, outcome), *_of_disk(run, outcome)]
        return found + _of_next_attempt(run, outcome)
    except TasukiError as error:
        return [f"afterwards: {type(error).__name__} {error}"]


def _of_words(run: RunFolder, outcome: Outcome) -> list[str]:
    """What was said, and how."""
    found = []
    if outcome.bug:
        found.append(f"an error that is not ours: {outcome.bug}")
    if outcome.leak:
        found.append(f"open descriptors {outcome.leak}")
    if outcome.is_killed:
        return found
    if outcome.status is not None:
        found.append(f"the process ended with {outcome.status}")
    if outcome.must_succeed and not outcome.acknowledged:
        found.append(f"noticed: {outcome.error}")
    if outcome.must_be_told and outcome.acknowledged:
        found.append("acknowledged all the same")
    if outcome.errno and outcome.error:
        if f"({outcome.errno})" not in outcome.error:
            found.append(f"the errno is not named: {outcome.error}")
        if str(run.path) not in outcome.error:
            found.append(f"no path is named: {outcome.error}")
    if outcome.error and not outcome.again:
        found.append(f"the next try failed too, after {outcome.error}")
    return found


def _of_disk(run: RunFolder, outcome: Outcome) -> list[str]:
    """What is there, as somebody else finds it."""
    found, damaged = [], []
    latest = find_latest(run, lambda name, error: damaged.append(f"{name}: {error}"))
    is_damage_planted = outcome.phase == "fallback"
    if damaged and not is_damage_planted:
        found.append(f"something partial is visible: {damaged[0]}")
    names = {str(parsed) for parsed in list_checkpoints(run)} | set(_OLD[outcome.phase])
    for name in sorted(names):
        if not (is_damage_planted and name == "step-000000030.c3"):
            found += _of_checkpoint(run.checkpoints / name)
    vouched = outcome.again or outcome.acknowledged
    if vouched is not None:
        found += _of_promise(run, outcome, vouched, latest.name if latest else None)
    if run.marker.exists():
        found += _of_marker(run)
    return found


def _of_checkpoint(path: Path) -> list[str]:
    try:
        manifest = verify(path)
    except TasukiError as error:
        return [f"{path.name} is not intact: {error}"]
    step = manifest.position.step
    size = manifest.files[1].size
    state = state_at(step, is_big=size > 1_000_000, is_held=size > 4_000_000)
    return [] if same(load(path), state) else [f"{path.name} is another state"]


def _of_promise(run: RunFolder, outcome: Outcome, vouched: str, latest: str | None) -> list[str]:
    """What was acknowledged."""
    match outcome.phase:
        case "save" | "first" | "ranks" | "frozen" | "held":
            return [] if latest == vouched else [f"acknowledged {vouched}, but found {latest}"]
        case "resume":
            newest = "step-000000030.c3"
            return [] if vouched == newest else [f"fell back to {vouched} behind a good checkpoint"]
        case "fallback":
            before = "step-000000025.c3"
            return [] if vouched == before else [f"went on from {vouched} instead of {before}"]
        case "prune":
            names = sorted(str(parsed) for parsed in list_checkpoints(run))
            return [] if names == sorted(_NEWER) else [f"pruned, but there are {names}"]
        case "finish":
            return [] if run.marker.exists() else ["acknowledged, but there is no marker"]
    raise AssertionError(outcome.phase)


def _of_marker(run: RunFolder) -> list[str]:
    """The marker comes last: everything else must be there, whole."""
    found = []
    for path in (run.marker, run.final_metrics, run.final_results, run.metrics_history):
        try:
            text = path.read_text()
            if not text.endswith("\n") or not all(json.loads(line) for line in text.splitlines()):
                found.append(f"there is a marker, but {path.name} is not whole")
        except (OSError, ValueError) as error:
            found.append(f"there is a marker, but {path.name}: {error}")
    return found


def _of_next_attempt(run: RunFolder, outcome: Outcome) -> list[str]:
    """The same again by somebody else, without faults."""
    before = find_latest(run, lambda *_: None)
    taken = list_claims(run)
    claim, latest = begin_attempt(run)
    found = []
    if claim != max(taken, default=0) + 1 or highest_claim(run) != claim:
        found.append(f"claim {claim} was taken after {taken}")
    if (latest and latest.name) != (before and before.name):
        found.append("the next attempt goes on from something else")
    name = save(run, 50, parent=latest.name if latest else None).name
    prune(run, claim=claim, keep=KEEP)
    if outcome.phase == "finish":
        finish_run(run, claim=claim, clock=SystemClock())
        found += _of_marker(run)
    newest = find_latest(run, lambda *_: None)
    if newest is None or newest.name != name:
        found.append(f"the next attempt saved {name}, but {newest and newest.name} is the latest")
    return found + [f"left behind: {path}" for path in leftovers(run)]


def leftovers(run: RunFolder) -> list[str]:
    """Whatever is half-way in or out."""
    found = []
    for folder, folders, files in os.walk(run.path):
        names = [n for n in folders + files if n.startswith((".draft-", ".trash-"))]
        names += [name for name in files if name.endswith(".tmp")]
        found += [os.path.relpath(os.path.join(folder, name), run.path) for name in names]  # noqa: PTH118
    return found


def same(one: Any, other: Any) -> bool:
    """Equal in type and bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
