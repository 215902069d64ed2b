"""Weights as files for others: `tasuki export` calls `work` in a child process.

The trainer calls `pack` itself at a stage's end. The weights are those of the run bit for bit, tied
ones tied, with a note of where they come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.torchfile import read_torch_metadata, to_torch_file
from tasuki.checkpoint.weights import (
    plain_tensors,
    read_metadata,
    read_weights,
    to_safetensors,
)
from tasuki.errors import UsageError, WeightsError
from tasuki.runs.atomic import make_folder, read_json, shaped, translated, write_bytes
from tasuki.runs.runs import RunFolder
from tasuki.spec.export import FileFormat

_FROM = "tasuki.run"
"""In the metadata of every file that was exported."""


def pack(
    path: Path,
    weights: Mapping[str, Tensor],
    file_format: FileFormat,
    *,
    run: str,
    stage: str,
    step: int,
) -> bytes:
    """The bytes to write; the same weights give the same bytes. `path` is for words only."""
    metadata = {_FROM: run, "stage": stage, "step": str(step)}
    if file_format == "safetensors":
        return to_safetensors(path, weights, metadata)
    return to_torch_file(plain_tensors(weights), metadata)


def is_exported(path: Path) -> bool:
    """Was this file written by `pack`? Others' files are not ours to replace."""
    return _FROM in read_metadata(path) or _FROM in read_torch_metadata(path)


def work(order: dict[str, Any]) -> dict[str, Any]:
    run, path = RunFolder(Path(order["run"])), Path(order["to"])
    weights, step = _find_weights(run, order["stage"], order["source"])
    data = pack(path, weights, order["file_format"], run=run.name, stage=order["stage"], step=step)
    _refuse_another(path, data, is_forced=order["force"])
    make_folder(path.parent)
    write_bytes(path, data)
    return {"step": step, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def export_last_weights(run: RunFolder, stage: str, path: Path) -> None:
    """Write the weights of a stage's newest checkpoint as safetensors."""
    weights, step = _last_weights(run, stage)
    write_bytes(path, pack(path, weights, "safetensors", run=run.name, stage=stage, step=step))


def _find_weights(run: RunFolder, stage: str, source: str) -> tuple[Mapping[str, Tensor], int]:
    if source == "last":
        return _last_weights(run, stage)
    folder = run.stage(stage)
    told = read_json(folder.metrics)
    with shaped(folder.metrics):
        step = int(told["best"]["step"] if told["best"] else told["steps"])
        return read_weights(folder.weights, sha256=told["sha256"]), step


def _last_weights(run: RunFolder, stage: str) -> tuple[Mapping[str, Tensor], int]:
    """Of the stage's newest checkpoint that verifies."""
    newest = find_latest(run, lambda _name, _error: None, stage=stage)
    if newest is None:
        raise WeightsError(
            f"there is no checkpoint of stage `{stage}` in {run.checkpoints}",
            hint="only the newest are kept (`save.keep`); `--from best` takes the stage's weights",
        )
    manifest = newest.manifest
    state: Any = read_part(newest.path, 0, records=manifest.files, frozen=manifest.frozen)
    return state["shared"]["model"], manifest.position.stage_step


def _refuse_another(path: Path, data: bytes, *, is_forced: bool) -> None:
    with translated(path):
        if is_forced or not path.exists() or path.read_bytes() == data:
            return
    raise UsageError(
        f"{path} exists, and holds something else",
        hint="give another name with `-o`, or replace it with `--force`",
    )
