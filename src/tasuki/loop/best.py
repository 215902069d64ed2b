"""The best weights so far: kept as weights, named by step and content."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.checkpoint.manifest import check_best
from tasuki.checkpoint.verify import read_manifest
from tasuki.checkpoint.weights import write_weights
from tasuki.errors import CheckpointError
from tasuki.failpoints import failpoint
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import fsync_folder, list_folder, make_folder, translated
from tasuki.runs.claims import ensure_claim_holds
from tasuki.runs.runs import RunFolder


@dataclass(frozen=True, slots=True)
class Best:
    metric: str
    value: float
    step: int
    """In the stage."""
    file: str
    sha256: str = ""
    """Of that file: it is checked before it becomes the stage's weights."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Best:
        """As a checkpoint's state holds it: its file is refused unless it is one of ours."""
        check_best(value)
        return cls(**value)


def keep_if_better(
    worker: Worker,
    weights: Mapping[str, Tensor],
    best: Best | None,
    *,
    metric: str,
    value: float,
    mode: Literal["min", "max"],
    step: int,
) -> Best | None:
    """Write the weights down if this value is the best yet."""
    if not is_better(value, best, mode):
        return best
    folder = worker.run.stage(worker.stage.name)
    make_folder(folder.path)
    draft = folder.best(f"draft.c{worker.claim}")
    sha256 = write_weights(draft, weights, {"stage": worker.stage.name, "step": str(step)})
    # Named by content, not by claim: the state of an interrupted run must equal an undisturbed one.
    path = folder.best(f"{step:09d}-{sha256[:12]}")
    failpoint("loop.best")
    with translated(path):
        draft.replace(path)
        fsync_folder(folder.path)
    return Best(metric, value, step, path.name, sha256)


def is_better(value: float, best: Best | None, mode: Literal["min", "max"]) -> bool:
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    return value < best.value if mode == "min" else value > best.value


def sweep_best(run: RunFolder, stage: str, *, claim: int, keep: Best | None, until: int) -> None:
    """Remove best weights that neither the run nor a kept checkpoint refers to.

    Called beside the training: what came after step `until` may be on its way in.
    """
    found = list_folder(run.stage(stage).path, "best-*.safetensors")
    files = {path for path in found if _is_older(path.name, until=until, claim=claim)}
    if len(files) < 2:
        return
    named = named_best(run)
    if named is None:
        return
    needed = named | ({keep.file} if keep else set())
    for path in files:
        if path.name not in needed:
            ensure_claim_holds(run, claim)
            with translated(path):
                path.unlink(missing_ok=True)


def sweep_done(run: RunFolder, stage: str, *, best: Best | None = None) -> None:
    """Of a stage that is done: what no checkpoint names, from which a person might go on. The
    `best` became the stage's weights, byte by byte, and can be had from there again."""
    files = list_folder(run.stage(stage).path, "best-*.safetensors")
    named = named_best(run) if files else None
    for path in files:
        is_double = best is not None and path.name == best.file
        if is_double or (named is not None and path.name not in named):
            with translated(path):
                path.unlink(missing_ok=True)


def sweep_done_stages(run: RunFolder, *, but: str) -> None:
    """After checkpoints were pruned: of all stages but the one that is trained."""
    for folder in list_folder(run.stages, "*"):
        if folder.name != but:
            sweep_done(run, folder.name)


def named_best(run: RunFolder) -> set[str] | None:
    """Files that any checkpoint names; None: a damaged manifest may name whichever it likes."""
    found = set()
    for parsed in list_checkpoints(run):
        try:
            best = read_manifest(run.checkpoints / str(parsed)).facts.get("best")
        except CheckpointError:
            return None
        if best:
            found.add(str(best["file"]))
    return found


def _is_older(name: str, *, until: int, claim: int) -> bool:
    label = name.removeprefix("best-")
    if label.startswith("draft."):
        return not label.startswith(f"draft.c{claim}.")
    step = label.partition("-")[0]
    return not step.isdecimal() or int(step) <= until
