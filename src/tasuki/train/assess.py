"""Any weights on any data: the child process of `tasuki evaluate`, which writes nothing.

It evaluates as the evaluation phase of a run does
(evaluate.py), under the same settings: the same weights on the same data give the same numbers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch

from tasuki.data.foreign import is_loader
from tasuki.errors import RecipeError, TasukiError
from tasuki.loop.exact import apply_settings, frozen_threads
from tasuki.runs.lines import spelled
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.spec.values import Sizes
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.advice import evaluation_advice, setup_advice
from tasuki.train.benchmark import benchmark_model
from tasuki.train.evaluate import Subject, evaluate_model, set_up
from tasuki.train.recipe import build_dataset, where
from tasuki.train.roomier import NOTHING_LESS, evaluate_in_room

_FIT_HINT = (
    "evaluate them with the model they were trained with: `--experiment`, `--stage`, or "
    "`--set params.KEY=VALUE` for what `build_model` depends on"
)


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    stage = stage_from_plain(order["stage"])
    weights = Path(order["weights"])
    apply_settings(threads=_threads(stage, order), exact=stage.exact)
    is_gpu = order["device"] == "cuda" and torch.cuda.is_available()
    device = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
    progress(Progress("importing the recipe, loading the weights"))
    paths = [Path(path) for path in order["paths"]]
    with setup_advice(stage):
        subject = set_up(stage, weights, paths=paths, device=device, hint=_FIT_HINT)
    progress(Progress("opening the data"))
    dataset = build_dataset(subject.recipe, order["data"], order["split"])
    try:
        with evaluation_advice(stage, subject.batch, then="evaluate again"):
            found = _evaluate(
                subject,
                dataset,
                stage,
                device,
                progress,
                sizes=msgspec.convert(order["sizes"], Sizes | None),
                benchmark=order["benchmark"],
            )
    except TasukiError:
        raise
    except Exception as error:
        raise RecipeError(f"the evaluation failed: {where(error)}") from error
    return {"sha256": _sha256(weights), "device": device.type, **found}


def _evaluate(
    subject: Subject,
    dataset: Any,
    stage: ResolvedStage,
    device: torch.device,
    progress: ProgressCallback,
    *,
    sizes: Sizes | None,
    benchmark: bool,
) -> dict[str, Any]:
    progress(Progress("evaluating", 0, None if is_loader(dataset) else len(dataset)))
    metrics = evaluate_in_room(
        lambda most: evaluate_model(
            subject.recipe,
            subject.model,
            dataset,
            stage=stage,
            device=device,
            sizes=sizes,
            most=most,
            on_progress=lambda done, total: progress(Progress("evaluating", done, total)),
        ),
        stage=stage,
        most=NOTHING_LESS,
        decide=lambda _: None,
    )
    if not benchmark:
        return {"metrics": spelled(metrics)}
    progress(Progress("benchmarking"))
    measured = benchmark_model(
        subject.recipe,
        subject.model,
        dataset,
        stage=stage,
        device=device,
        on_progress=lambda done, total: progress(Progress("benchmarking", done, total)),
    )
    return {"metrics": spelled(metrics), "benchmark": spelled(measured)}


def _threads(stage: ResolvedStage, order: dict[str, Any]) -> int:
    """Those of the run's own evaluation, where there is a run that has frozen them."""
    frozen = frozen_threads(RunFolder(Path(order["run"]))) if order["run"] else None
    return (frozen if stage.exact else None) or int(order["threads"])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
