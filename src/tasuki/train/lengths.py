"""`python -m tasuki.train.lengths FD`: how many steps and samples stages have, and of which data.

A child process (answers.py) of `tasuki equiv --compare`, which leaves nothing behind. The order:
{"folder", "stages": [{"stage": plain values, "ranks"}]}; the answer: for each of them {"steps",
"samples", "data"}, or {"error"} where the data cannot be opened.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tasuki.answers import Told, answer
from tasuki.data.fingerprint import fingerprint_files
from tasuki.data.order import Order
from tasuki.errors import TasukiError
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.train.data import prepare_data
from tasuki.train.recipe import load_recipe


def work(order: dict[str, Any], told: Told) -> list[dict[str, Any]]:
    found = []
    for number, one in enumerate(order["stages"]):
        stage = stage_from_plain(one["stage"])
        told.progress(f"opening the data of {stage.name}", number, len(order["stages"]))
        found.append(_look(stage, Path(order["folder"]), one["ranks"]))
    return found


def _look(stage: ResolvedStage, folder: Path, ranks: int) -> dict[str, Any]:
    try:
        assert stage.recipe is not None
        recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
        order = prepare_data(recipe, stage, rank=0, world=ranks).order
        steps = order.total_steps(stage.length.unit, stage.length.count)
    except TasukiError as error:
        return {"error": error.message}
    if not isinstance(order, Order):
        return {"steps": steps}
    files = fingerprint_files(stage.data, stage.split)
    content = f"{order.plan.fingerprint()} {files}"
    return {
        "steps": steps,
        "samples": order.samples_before(steps),
        "data": hashlib.blake2b(content.encode(), digest_size=8).hexdigest(),
    }


if __name__ == "__main__":
    answer(work)
