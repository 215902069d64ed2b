"""The check behind `tasuki verify samples`, without the start of an interpreter."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from tasuki.runs.atomic import read_json
from tasuki.runs.runs import RunFolder


def check_samples(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Check all stages of a run, by name, in a fork: a recipe must not stay imported here."""
    import tasuki.train.samples  # noqa: F401  # once, and not in each fork

    with multiprocessing.get_context("fork").Pool(1) as pool:
        results = pool.apply(_check, (run,))
    return {result["stage"]: result for result in results}


def _check(run: RunFolder) -> list[dict[str, Any]]:
    from tasuki.train.samples import check

    spec = read_json(run.spec)
    os.chdir(spec["folder"])
    return check(run.path, [stage["name"] for stage in spec["spec"]["stages"]], lambda _: None)
