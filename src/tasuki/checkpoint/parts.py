"""A part: one rank's share of a checkpoint, as a JSON tree and a safetensors file.

Files are written once and durably; the records that come back go into the manifest, without which
none of them counts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from tasuki.checkpoint.codec import decode, encode
from tasuki.checkpoint.host import HostImage
from tasuki.checkpoint.manifest import part_files
from tasuki.checkpoint.records import (
    CHUNK_BYTES,
    FileRecord,
    damage,
    read_file,
    write_file,
    write_image,
)
from tasuki.checkpoint.tensorfile import read_tensors, write_tensors
from tasuki.checkpoint.verify import frozen_folder
from tasuki.errors import StateNotStorable
from tasuki.runs.atomic import FORMAT
from tasuki.units import format_bytes

MAX_TREE_BYTES = 32 * 2**20
"""Of a part beside its tensors. A larger file is not one of ours."""

__all__ = ["CHUNK_BYTES", "FileRecord", "read_part", "write_held", "write_part"]


def write_part(folder: Path, part: int, state: object) -> list[FileRecord]:
    """Write one rank's state into a draft. Nothing stays behind if it fails."""
    encoded = encode(state)
    return _write(folder, part, encoded.tree, lambda path: write_tensors(path, encoded.tensors))


def write_held(folder: Path, part: int, image: HostImage) -> list[FileRecord]:
    """As `write_part`, of a state that was copied to host memory before."""
    return _write(folder, part, image.tree, lambda path: write_image(path, image.data))


def _write(
    folder: Path, part: int, tree: object, write: Callable[[Path], FileRecord]
) -> list[FileRecord]:
    tree_name, tensors_name = part_files(part)
    text = _to_json({"format": FORMAT, "part": part, "state": tree})
    written = [write_file(folder / tree_name, text)]
    try:
        written.append(write(folder / tensors_name))
    except BaseException:
        with contextlib.suppress(OSError):
            (folder / tree_name).unlink()
        raise
    return written


def read_part(
    folder: Path,
    part: int,
    *,
    records: Iterable[FileRecord] = (),
    frozen: Iterable[FileRecord] = (),
    taken: set[int] | None = None,
) -> object:
    """One rank's state, in memory of its own.

    With the manifest's `files` as `records` every byte is checked on the way: what another host
    verified, this one may still read wrongly. `frozen` are the manifest's too; into `taken` go the
    addresses of the memory that comes from those files.
    """
    known = {record.name: record for record in records}
    tree_name, tensors_name = part_files(part)
    tree = _read_tree(folder / tree_name, part, known.get(tree_name))
    shared: dict[str, Tensor] = {}
    for record in frozen if part == 0 else ():
        shared |= read_tensors(frozen_folder(folder.parent) / record.name, record=record)
    if taken is not None:
        taken |= {tensor.untyped_storage().data_ptr() for tensor in shared.values()}
    tensors = read_tensors(folder / tensors_name, record=known.get(tensors_name))
    return decode(tree, tensors, frozen=shared, is_own=True)


def _to_json(value: object) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError as error:
        raise StateNotStorable("the state is nested too deeply", hint="flatten it") from error
    data = text.encode() + b"\n"
    if len(data) > MAX_TREE_BYTES:
        raise StateNotStorable(
            f"the state has {format_bytes(len(data))} beside its tensors, at most "
            f"{format_bytes(MAX_TREE_BYTES)} can be stored",
            hint="keep long lists and texts as tensors or arrays",
        )
    return data


def _read_tree(path: Path, part: int, record: FileRecord | None) -> Any:
    raw = read_file(path, record=record, limit=MAX_TREE_BYTES)
    try:
        value = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise damage(path, f"is no tree of a state: {error}") from error
    if not isinstance(value, dict) or set(value) != {"format", "part", "state"}:
        raise damage(path, "is no tree of a state")
    if value["format"] != FORMAT:
        raise damage(path, f"has format {str(value['format'])[:40]}; known is {FORMAT}")
    if value["part"] != part:
        raise damage(path, f"is part {str(value['part'])[:40]}, not part {part}")
    return value["state"]


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not written by tasuki")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value
