"""`python -m tasuki.train.precheck FD`: can recipes be imported, and are their data there?

A child process (answers.py) of `tasuki rehearse`: one for all stages, before any of them runs.
Builds no model. Each split that a stage will use is opened; a size that no sample has is found here
and not after the stages before it. What fails is an answer, not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tasuki.answers import Told, answer
from tasuki.data.fetch import Request, seed_everything
from tasuki.data.foreign import is_loader
from tasuki.data.order import Order
from tasuki.errors import TasukiError
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.train.data import StageData, prepare_data
from tasuki.train.evaluate import members_by_bucket, source_of
from tasuki.train.optim import warmup_steps
from tasuki.train.recipe import build_dataset, load_recipe, optional
from tasuki.train.rehearsed import be_offline, in_words

_WORDS = {"imports": "importing the recipe", "data": "opening data"}


def work(order: dict[str, Any], told: Told) -> list[dict[str, Any]]:
    """Of each stage: what failed, by column, and facts."""
    torch.set_num_threads(1)
    if order["offline"]:
        be_offline()
    folder, found = Path(order["folder"]), []
    for number, plain in enumerate(order["stages"]):
        stage, at = stage_from_plain(plain), (number, len(order["stages"]))
        opens = order["opens"][number]
        tell = partial(_tell, told, at)
        found.append(_look(stage, folder, ranks=order["ranks"], opens=opens, tell=tell))
    return found


def _tell(told: Told, at: tuple[int, int], column: str) -> None:
    """If nothing comes after it, this is where it hangs: read by commands/rehearse.py."""
    told.progress(_WORDS[column], *at)


def _look(
    stage: ResolvedStage, folder: Path, *, ranks: int, opens: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """`opens`: what its evaluation uses, too."""
    facts: dict[str, Any] = {"failed": None, "warnings": []}
    column = "imports"
    tell(column)
    try:
        seed_everything(0)
        assert stage.recipe is not None
        recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
        column = "data"
        tell(column)
        data = prepare_data(recipe, stage, rank=0, world=ranks)
        facts |= _describe(data, stage, facts["warnings"])
        _open_others(recipe, stage, opens=opens)
    except (Exception, SystemExit) as error:
        words, hint = in_words(error)
        facts["failed"] = {"column": column, "message": words, "hint": hint}
    return facts


def _describe(data: StageData, stage: ResolvedStage, warnings: list[str]) -> dict[str, Any]:
    order = data.order
    total = order.total_steps(stage.length.unit, stage.length.count)
    if isinstance(order, Order):
        first = order.step(0, 0).indices[:1].tolist()
        data.fetcher(Request(first, [0] if data.fetcher.is_seeded else None))
    warmup_steps(stage.warmup, total, say=lambda text: warnings.append(_plain(text)))
    warnings += data.warnings
    if not isinstance(order, Order):
        return {"total_steps": total, "samples": None, "largest": None}
    plan = order.plan
    samples, largest = plan.num_samples, plan.buckets[-1].size
    return {"total_steps": total, "samples": samples, "largest": largest}


def _plain(text: str) -> str:
    return text.removeprefix("WARNING: ")


def _open_others(recipe: Any, stage: ResolvedStage, *, opens: bool) -> None:
    """Validation and evaluation data: with samples of the stage's sizes, where those count."""
    wanted = []
    if stage.validate is not None:
        validate = stage.validate
        source = validate.data if validate.data is not None else stage.data
        wanted.append((source, validate.split, stage.size if validate.data is None else None))
    if stage.evaluate is not None and opens:
        sizes = stage.size if stage.evaluate.data is None else None
        wanted.append((source_of(stage), stage.evaluate.split, sizes))
    for source, split, sizes in wanted:
        dataset = build_dataset(recipe, source, split)
        if is_loader(dataset) or optional(recipe, "evaluate"):
            continue
        try:
            members_by_bucket(recipe, dataset, stage, sizes)
        except TasukiError as error:
            error.message = f"data `{source}` (split {split}): {error.message}"
            raise


if __name__ == "__main__":
    answer(work)
