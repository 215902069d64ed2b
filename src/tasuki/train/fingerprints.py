"""Are data and code still what they were? Asked by rank 0 at every start, before anything is done.

A change that nobody announced is refused, because the run would quietly become another one; a
person may accept it (`--accept-change`), which is written down. Spec, ranks, threads and versions
are compared elsewhere (commands/freeze.py, exact.py).
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tasuki.data.fingerprint import (
    Fingerprint,
    compare,
    fingerprint_files,
)
from tasuki.errors import DataError, RecipeError
from tasuki.runs.accepted import DATA, is_accepted
from tasuki.runs.atomic import read_json, shaped
from tasuki.runs.runs import RunFolder
from tasuki.runs.sources import edited_hint, edited_words, find_edits
from tasuki.train.prepare import Setup
from tasuki.train.task import Task


def fingerprint_data(task: Task, setup: Setup) -> Fingerprint:
    """Of the stage's data as they are now."""
    stage, samples = task.stage, None
    if (looked := setup.looked) is not None:
        samples = looked.digest
        if looked.reason:
            task.say(
                f"Samples of stage {stage.name} cannot be compared between attempts: "
                f"{looked.reason}"
            )
    files = fingerprint_files(stage.data, stage.split)
    plan = setup.order.plan.fingerprint()
    return {"plan": plan, "files": files, "samples": samples, "made_by": _made_by(task)}


def _made_by(task: Task) -> str:
    """What decides how a sample is computed from the data; apart from what fetching evens out."""
    with shaped(task.run.spec):
        code = str(read_json(task.run.spec)["fingerprints"]["code"])
    facts = [
        torch.__version__,
        np.__version__,
        platform.python_version(),
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        code,
        task.stage.recipe,
        task.stage.params,
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def refuse_changed_data(
    task: Task, before: Mapping[str, Any] | None, now: Mapping[str, Any], *, written_by: int
) -> None:
    """`before` is what the checkpoint of claim `written_by` knows; None: nothing."""
    words = compare(before, now)
    if before is not None and before.get("plan") not in (None, now["plan"]):
        told = words or "other samples, or others of their sizes"
        raise DataError(
            f"the data of stage `{task.stage.name}` changed since the last checkpoint: {told}",
            hint="the order of samples cannot go on with them: put them back as they were, or "
            "start anew with `tasuki run --new`",
        )
    if words is None:
        return
    if is_accepted(task.run, DATA, written_by=written_by):
        task.say(f"WARNING: the data of stage {task.stage.name} changed, as accepted: {words}")
        task.event("data-changed", stage=task.stage.name, changed=words)
        return
    raise DataError(
        f"the data of stage `{task.stage.name}` changed since the last checkpoint: {words}",
        hint="put them back as they were, start anew with `tasuki run --new`, or go on with them: "
        f"`tasuki resume {task.run.name} --accept-change data`",
    )


def refuse_edited_code(run: RunFolder) -> None:
    if edits := find_edits(run):
        raise RecipeError(edited_words(run, edits), hint=edited_hint(run))
