"""Going back: a person's word that a run goes on from an earlier checkpoint.

It is a claim of its own, without an attempt. Its `parent.json` names the checkpoint, so the word is
as durable as any claim: lineage finds it whoever is killed, a forgotten attempt is fenced off, and
the attempts that follow hang on each other as always. What the word makes void (results of stages,
the completion marker) is put aside under the claim's number, never removed. What it tells all who
look (metrics, events, state) is written into the claim's folder before it, and moved from there.
Whoever begins next finishes what a kill has cut short here. Written by commands/back.py; read by
the supervisor, by retention and by who looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasuki.runs.atomic import (
    create_exclusive,
    fsync_folder,
    list_folder,
    make_folder,
    read_json_or_none,
    shaped,
    translated,
)
from tasuki.runs.attempts import read_holder
from tasuki.runs.claims import claim_folder, list_claims, record_parent
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.runs import RunFolder

_DONE = "metrics.json"
"""Of a stage: it goes aside first and comes back last, for with it the stage counts as trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    checkpoint: str
    """From which the run goes on."""
    void: tuple[str, ...] = ()
    """Stages whose results do not count any more."""
    returned: Mapping[str, int] = field(default_factory=dict)
    """Stages whose results come back, each with the claim under which they lie aside."""
    left: tuple[str, ...] = ()
    """All checkpoints that people have left behind so far: no attempt removes them."""


def told_folder(run: RunFolder, claim: int) -> RunFolder:
    """Files of the run as the word will have them, in the places that they have in a run."""
    return RunFolder(claim_folder(run, claim) / "told")


def record_back(run: RunFolder, claim: int, back: Back, *, parent: str | None, at: str) -> None:
    """From now on the run goes on from there; `settle_back` does the rest."""
    value = {
        "checkpoint": back.checkpoint,
        "void": list(back.void),
        "returned": dict(back.returned),
        "left": list(back.left),
    }
    record_parent(run, claim, parent=parent, facts={"at": at, "back": value})


def read_back(run: RunFolder, claim: int) -> Back | None:
    """None: that claim is an attempt's."""
    path = claim_folder(run, claim) / "parent.json"
    told = (read_json_or_none(path) or {}).get("back")
    if told is None:
        return None
    with shaped(path):
        return Back(
            checkpoint=str(told["checkpoint"]),
            void=tuple(map(str, told["void"])),
            returned={str(stage): int(claim) for stage, claim in told["returned"].items()},
            left=tuple(map(str, told["left"])),
        )


def left_behind(run: RunFolder) -> set[str]:
    """Checkpoints that people have left by going back: theirs to remove, nobody else's."""
    words = (read_back(run, claim) for claim in reversed(list_claims(run)))
    newest = next((back for back in words if back is not None), None)
    return set(newest.left) if newest is not None else set()


def settle_back(run: RunFolder) -> None:
    """Do what the last word says, unless that is done: put aside what it made void, tell it, lift a
    hold. Called before a run is begun."""
    for claim in reversed(list_claims(run)):
        back = read_back(run, claim)
        if back is not None:
            _settle(run, claim, back)
        if back is not None or read_holder(run, claim) is not None:
            return  # an attempt settles before it takes its claim


def put_results_aside(run: RunFolder, claim: int) -> None:
    """What tells that the run is complete. Before the word is written: without it the next attempt
    would only finish once more."""
    derived = (run.final_metrics, run.final_results, run.accounts, run.metrics_history)
    told = run.alerts / "complete.json"  # `on` is told again when it is done again
    for path in (run.marker, *derived, told):
        _move(path, run.aside_of(claim) / path.name)


def stages_aside(run: RunFolder, stage: str) -> dict[int, Path]:
    """Where results of a stage lie aside, by claim, the newest first."""
    numbers = [int(p.name) for p in list_folder(run.aside) if p.name.isdecimal()]
    found = {number: run.aside_of(number) / "stages" / stage for number in sorted(numbers)[::-1]}
    return {number: path for number, path in found.items() if path.is_dir()}


def results_of(folder: Path) -> list[Path]:
    """A stage's files without its best weights so far, which checkpoints name."""
    found = [p for p in list_folder(folder) if not p.name.startswith(("best-", "."))]
    return sorted(found, key=lambda path: path.name != _DONE)


def _settle(run: RunFolder, claim: int, back: Back) -> None:
    """A kill at any point is made good by the next call."""
    own = claim_folder(run, claim)
    if (own / "settled").exists() or not (run.checkpoints / back.checkpoint).is_dir():
        return
    # Two marks: what has come back must not be put aside as if it were what was there before.
    if not (own / "voided").exists():
        for stage in back.void:
            for path in results_of(run.stage(stage).path):
                _move(path, run.aside_of(claim) / "stages" / stage / path.name)
        create_exclusive(own / "voided", b"")
    for stage, number in back.returned.items():
        for path in reversed(results_of(run.aside_of(number) / "stages" / stage)):
            _move(path, run.stage(stage).path / path.name)
    told = told_folder(run, claim).path
    for path in sorted(path for path in told.rglob("*") if path.is_file()):
        _move(path, run.path / path.relative_to(told))
    said = last_said(run)
    if said is None or said.claim < claim:  # a later word, to cancel it perhaps, holds
        say(run, Word.LIFT, reason=f"a person went back to {back.checkpoint}", claim=claim)
    create_exclusive(own / "settled", b"")


def _move(path: Path, target: Path) -> None:
    with translated(path):
        if not path.exists():
            return
        make_folder(target.parent)
        path.rename(target)
        fsync_folder(target.parent)
        fsync_folder(path.parent)
