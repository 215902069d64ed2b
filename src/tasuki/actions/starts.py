"""Why a run cannot begin: it starts from weights of another one, which are not coming.

Derived from the folders of both at each look, so that it is never out of date. Called by status.
"""

from __future__ import annotations

from tasuki.spec.resolved import start_of
from tasuki.store.atomic import read_json
from tasuki.store.control import Word, last_said
from tasuki.store.find import latest_run
from tasuki.store.runs import RunFolder

_WORDS = {Word.CANCEL: "was cancelled", Word.HOLD: "is held", Word.FAIL: "failed"}


def what_keeps(run: RunFolder) -> str:
    """In words; empty: nothing does, as far as other runs go."""
    for stage in read_json(run.spec).get("spec", {}).get("stages", ()):
        word = str(stage.get("init_from") or "")
        if run.stage(stage["name"]).metrics.exists() or start_of(word) != "experiment":
            continue
        experiment, _, name = word.partition("/")
        other = latest_run(run.path.parent, experiment)
        if other.stage(name).metrics.exists():
            continue
        return f"stage `{stage['name']}` starts from `{word}`, {_state(other)}"
    return ""


def _state(run: RunFolder) -> str:
    said = last_said(run)
    if said is None or said.word not in _WORDS:
        return "which is not trained yet"
    return f"which {_WORDS[said.word]}: `tasuki resume {run.name}` goes on, then this one can begin"
