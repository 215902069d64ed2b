"""Why a run cannot begin: it starts from weights of another one, which are not coming.

Derived from the folders of both at each look, so that it is never out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasuki.runs.atomic import read_json
from tasuki.runs.control import Word, last_said
from tasuki.runs.find import latest_run
from tasuki.runs.runs import RunFolder

_WORDS = {Word.CANCEL: "was cancelled", Word.HOLD: "is held", Word.FAIL: "failed"}


def what_keeps(run: RunFolder) -> str:
    """In words; empty: nothing does, as far as other runs go."""
    for stage in read_json(run.spec).get("spec", {}).get("stages", ()):
        if (other := _awaited(run, stage)) is not None:
            return f"stage `{stage['name']}` starts from `{stage['init_from']}`, {_state(other)}"
    return ""


def is_cut_off(run: RunFolder, stage: Mapping[str, Any]) -> bool:
    """Was the run that a stage waits for stopped, by a person or by what happened in it?"""
    other = _awaited(run, stage)
    return other is not None and _stopped(other) is not None


def _awaited(run: RunFolder, stage: Mapping[str, Any]) -> RunFolder | None:
    """The run whose weights are to come before the stage can begin."""
    from tasuki.spec.resolved import start_of  # late: the start of a supervisor is measured

    word = str(stage.get("init_from") or "")
    if start_of(word) != "experiment" or run.stage(stage["name"]).metrics.exists():
        return None
    experiment, _, name = word.partition("/")
    other = latest_run(run.path.parent, experiment)
    return None if other.stage(name).metrics.exists() else other


def _state(run: RunFolder) -> str:
    word = _stopped(run)
    if word is None:
        return "which is not trained yet"
    return f"which {_WORDS[word]}: `tasuki resume {run.name}` goes on, then this one can begin"


def _stopped(run: RunFolder) -> Word | None:
    said = last_said(run)
    return said.word if said is not None and said.word in _WORDS else None
