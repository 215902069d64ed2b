"""What is gone from a run's folder of which somebody deleted a part, and what can be done still.

Only what is surely missing is named: a run that was just begun has not made all of its files yet.
Nothing is mended here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.errors import RunError, StoreError
from tasuki.runs.atomic import read_json_or_none, shaped
from tasuki.runs.attempts import read_attempt_end
from tasuki.runs.claims import highest_claim
from tasuki.runs.find import is_remains, stage_names
from tasuki.runs.runs import RunFolder

_WITHOUT_SPEC = (
    "only a copy of `spec.json` makes it a run again; `tasuki why`, `tasuki logs` and "
    "`tasuki checkpoint show` tell what is left; to begin anew, move its folder away"
)
_STILL = {
    "spec.json": _WITHOUT_SPEC,
    "stages": "a copy brings weights and results back; another run computes them anew",
    "checkpoints": "weights and results in `stages` are not touched by it, but nothing can go on "
    "from a checkpoint: begin another run",
    "claims": "the order of its checkpoints is lost with it: `verify samples` has no records, and "
    "no attempt would resume from the newest; weights and results in `stages` are not touched",
    "events": "`why`, `report` and `verify samples` know only in part what happened; weights, "
    "results and checkpoints are not touched by it",
    "training_state.json": "the next attempt writes it again; until then plans do not know how far "
    "it came",
}
"""What each part is needed for; the first of those that are gone counts most."""


def missing_of(run: RunFolder) -> list[str]:
    """Names of what is gone, what matters most first; empty for a run that is whole. Of such a one
    little more than the names of its files is read: a thousand of them are asked at once."""
    is_over, has_committed, claim = run.is_complete(), _has_committed(run), highest_claim(run)
    gone = [] if run.spec.exists() else ["spec.json"]
    if is_over and not gone:
        gone += _untold_stages(run)
    if not has_committed and _told_of_a_checkpoint(run):
        gone.append("checkpoints")
    if claim == 0 and (is_over or has_committed):
        gone.append("claims")
    if not run.events.exists() and (
        is_over or (claim and read_attempt_end(run, claim) is not None)
    ):
        gone.append(run.events.name)
    if is_over and not run.training_state.exists():  # before its first save a run has none
        gone.append(run.training_state.name)
    return gone


@dataclass(frozen=True, slots=True)
class Gone:
    """Of a run that is whole, all is empty."""

    names: tuple[str, ...] = ()
    words: str = ""
    hint: str = ""
    """What can be done still."""


def what_is_gone(run: RunFolder) -> Gone:
    try:
        gone = missing_of(run)
    except (StoreError, OSError):
        return Gone()  # what cannot be read is told by whoever needs it
    return Gone(tuple(gone), _words(gone), _hint(gone)) if gone else Gone()


def refuse_remains(run: RunFolder) -> None:
    """For who would work on a run: without its spec nobody knows what it was."""
    if is_remains(run):
        raise RunError(
            f"{run.path} is what is left of a run: its spec.json is gone",
            hint=_WITHOUT_SPEC,
        )


def _words(gone: Sequence[str]) -> str:
    names = ", ".join(f"`{name}`" for name in gone)
    return f"{names} {'is' if len(gone) == 1 else 'are'} gone from its folder"


def _hint(gone: Sequence[str]) -> str:
    told = [_STILL[name.partition("/")[0]] for name in gone]
    return told[0] if "spec.json" in gone else "; ".join(dict.fromkeys(told))


def _untold_stages(run: RunFolder) -> list[str]:
    """Stages of a complete run of which nothing, or not all, is left."""
    gone = []
    for name in stage_names(run):
        folder = run.stage(name)
        if folder.metrics.exists() and folder.weights.exists():
            continue
        told = read_json_or_none(folder.metrics)
        with shaped(folder.metrics):
            if told is None:
                gone.append(f"stages/{name}/{folder.metrics.name}")
            elif told.get("sha256"):
                gone.append(f"stages/{name}/{folder.weights.name}")
    return gone


def _told_of_a_checkpoint(run: RunFolder) -> bool:
    return bool((read_json_or_none(run.training_state) or {}).get("last_checkpoint"))


def _has_committed(run: RunFolder) -> bool:
    try:
        return any(name.startswith("step-") for name in os.listdir(run.checkpoints))
    except OSError:
        return False
