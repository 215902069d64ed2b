"""What is gone from a run's folder of which somebody deleted a part, and what can be done still.

Only what is surely missing is named: a run that was just begun has not made all of its files yet.
Called by whoever shows runs or looks for one by its name; nothing is mended here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tasuki.errors import RunError, StoreError
from tasuki.store.atomic import read_json_or_none, shaped
from tasuki.store.attempts import read_attempt_end
from tasuki.store.claims import highest_claim
from tasuki.store.find import is_remains, stage_names
from tasuki.store.runs import RunFolder

_STILL = {
    "spec.json": "only a copy of `spec.json` makes it a run again; `tasuki why`, `tasuki logs` and "
    "`tasuki checkpoint show` tell what is left; to begin anew, move its folder away",
    "stages": "a copy brings weights and results back, `tasuki run --new` computes them anew",
    "checkpoints": "weights and results in `stages` are not touched by it, but nothing can go on "
    "from a checkpoint: `--new` begins another run",
    "claims": "the order of its checkpoints is lost with it: `audit` proves nothing, and no "
    "checkpoint is gone on from; weights and results in `stages` are not touched by it",
    "events": "`why` and `report` tell only in part where its time went; nothing else hangs on it",
    "training_state.json": "it is only shown: the next attempt writes it again, and nothing else "
    "hangs on it",
}
"""What each part is needed for; the first of those that are gone counts most."""


def missing_of(run: RunFolder) -> list[str]:
    """Names of what is gone, what matters most first; empty for a run that is whole."""
    gone = [] if run.spec.exists() else ["spec.json"]
    if run.is_complete() and not gone:
        gone += _untold_stages(run)
    if _lost_checkpoints(run):
        gone.append("checkpoints")
    is_over = run.is_complete()
    has_claims = highest_claim(run) > 0
    if not has_claims and (is_over or _has_committed(run)):
        gone.append("claims")
    if is_over or (has_claims and read_attempt_end(run, highest_claim(run)) is not None):
        gone += [path.name for path in (run.events, run.training_state) if not path.exists()]
    return gone


def what_is_gone(run: RunFolder) -> tuple[str, str]:
    """(what is gone, what can be done still); both empty for a run that is whole."""
    try:
        gone = missing_of(run)
    except StoreError:
        return "", ""  # what cannot be read is told by whoever needs it
    return (_words(gone), _hint(gone)) if gone else ("", "")


def refuse_remains(run: RunFolder) -> None:
    """For who would work on a run: without its spec nobody knows what it was."""
    if is_remains(run):
        raise RunError(
            f"{run.path} is what is left of a run: its spec.json is gone",
            hint=_STILL["spec.json"],
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
        told = read_json_or_none(folder.metrics)
        with shaped(folder.metrics):
            if told is None:
                gone.append(f"stages/{name}/{folder.metrics.name}")
            elif told.get("sha256") and not folder.weights.exists():
                gone.append(f"stages/{name}/{folder.weights.name}")
    return gone


def _lost_checkpoints(run: RunFolder) -> bool:
    told = read_json_or_none(run.training_state) or {}
    return bool(told.get("last_checkpoint")) and not _has_committed(run)


def _has_committed(run: RunFolder) -> bool:
    try:
        return any(name.startswith("step-") for name in os.listdir(run.checkpoints))
    except OSError:
        return False
