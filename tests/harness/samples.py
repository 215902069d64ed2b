"""The check behind `tasuki verify samples`, without the start of an interpreter each time."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from tasuki.runs.atomic import read_json
from tasuki.runs.runs import RunFolder
from tests.harness.errands import Errands, errands


def check_samples(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Check all stages of a run, by name, in a process of its own: it imports the recipe."""
    results = _server().do("tests.harness.samples:check", path=str(run.path))
    return {result["stage"]: result for result in results}


@cache
def _server() -> Errands:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(errands("tasuki.train.samples"))


def check(path: str) -> list[dict[str, Any]]:
    from tasuki.train.samples import check as check_stages

    run = RunFolder(Path(path))
    spec = read_json(run.spec)
    os.chdir(spec["folder"])
    names = [stage["name"] for stage in spec["spec"]["stages"]]
    return check_stages(run.path, names, lambda _: None)
