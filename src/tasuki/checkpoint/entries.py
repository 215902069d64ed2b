"""What a checkpoint holds, entry by entry, read from its trees and headers alone.

A tensor's dtype, shape and bytes stand in the tree, so nothing is decoded, no tensor is read, and
torch is not needed. `compare` names entries the same way. A list of plain values is one entry:
Python's random state alone has 625 numbers.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.checkpoint.manifest import Manifest, part_files
from tasuki.checkpoint.records import FileRecord, damage, opened, read_file
from tasuki.checkpoint.verify import frozen_folder

GROUPS = ("model", "buffers", "optimizer", "schedule", "random", "progress", "other")
"""In the order in which they are shown and compared."""

_MAX_DEPTH = 250
_MAX_HEADER = 100 * 2**20
_SHORT = 60
_SHOWN_ITEMS = 4
_ITEM_BYTES = {"bool": 1, "float4_e2m1fn_x2": 1}
_BITS = re.compile(r"[a-z]+(\d+)(?:_.*)?", re.ASCII)
_ARRAY = re.compile(r"([<>|])([biufc])(\d+)", re.ASCII)
_ARRAY_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_PLAIN_TAGS = ("$int", "$float", "$str", "$bytes", "$size", "$dtype", "$device", "$scalar")
_PAIR_TAGS = ("$dict", "$ordered", "$defaultdict", "$counter")

Place = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One value of a state."""

    name: str
    group: str
    part: int
    kind: str
    """tensor, array or value."""
    dtype: str
    """Of a tensor or array; of a value its type."""
    shape: tuple[int, ...] | None = None
    num_bytes: int = 0
    """Of the elements of a tensor or array."""
    value: str = ""
    """Of a plain value, in short."""
    file: str | None = None
    """Where its memory lies."""
    same_as: str | None = None
    """An entry before it that looks at the same memory: tied weights, views."""


@dataclass(frozen=True, slots=True)
class _Blob:
    file: str
    num_bytes: int


def name_entry(place: Sequence[object], part: int) -> str:
    """`model.layer1.weight`, `rank0.random.torch`: as people say it, whole however long."""
    first, rest = (place[0], place[1:]) if place else (None, ())
    if first == "shared" and rest and part == 0:
        words = rest
    elif first == "rank":
        words = (f"rank{part}", *rest)
    else:
        words = place if part == 0 else (f"part{part}", *place)
    name = ".".join(str(word) for word in words) or "state"
    return name.encode("utf-8", "backslashreplace").decode()  # half a character cannot be printed


def group_entry(place: Sequence[object]) -> str:
    """What an entry belongs to, one of GROUPS."""
    first, second = [*place, None, None][:2]
    if first == "rank":
        return "random" if second == "random" else "progress"
    word = second if first == "shared" else first
    return str(word) if word in GROUPS else "other"


def list_entries(path: Path, manifest: Manifest, part: int) -> list[Entry]:
    """The entries of one part, in the order of its tree. Damage is a DamagedCheckpoint."""
    known = {record.name: record for record in manifest.files}
    tree_name, tensors_name = part_files(part)
    tree = _read_tree(path / tree_name, known[tree_name])
    blobs: dict[str, _Blob] = {}
    for record in manifest.frozen if part == 0 else ():
        blobs |= _read_header(frozen_folder(path.parent) / record.name, f"frozen/{record.name}")
    blobs |= _read_header(path / tensors_name, tensors_name)
    walk = _Walk(path / tree_name, part, blobs)
    try:
        return list(walk.visit(tree, ()))
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        words = f"is no tree of a state: {type(error).__name__} {str(error)[:80]}"
        raise damage(path / tree_name, words) from error


class _Walk:
    """Down one tree of JSON; knows the codec's tags."""

    def __init__(self, file: Path, part: int, blobs: dict[str, _Blob]) -> None:
        self._file, self._part, self._blobs = file, part, blobs
        self._first_at: dict[str, str] = {}

    def visit(self, node: Any, place: Place) -> Iterator[Entry]:
        if len(place) > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        tag = _tag_of(node)
        if tag in ("$tensor", "$array"):
            yield self._memory(node, tag, place)
        elif _is_plain(node):
            yield self._value(place, _type_of(node), _words_of(node))
        elif isinstance(node, list) or tag == "$tuple":
            yield from self._items(node, place)
        elif tag is None or tag in _PAIR_TAGS:
            yield from self._pairs(node, tag, place)
        else:
            raise ValueError(f"unknown tag {tag[:40]}")

    def _items(self, node: Any, place: Place) -> Iterator[Entry]:
        kind, items = ("list", node) if isinstance(node, list) else ("tuple", node["$tuple"])
        if all(_is_plain(item) for item in items):
            yield self._value(place, f"{kind} of {len(items)}", _words_of_items(items))
            return
        for index, item in enumerate(items):
            yield from self.visit(item, (*place, index))

    def _pairs(self, node: Any, tag: str | None, place: Place) -> Iterator[Entry]:
        content = node if tag is None else node[tag]
        pairs = content.items() if isinstance(content, dict) else content
        if not content:
            yield self._value(place, "dict", "empty")
        for key, item in pairs:
            yield from self.visit(item, (*place, key if isinstance(key, str) else _plain(key)))
        if "metadata" in node and tag == "$ordered":
            # Versions of modules: one of each, of interest to nobody as long as they are alike.
            num = len(node["metadata"].get("$ordered", node["metadata"]))
            yield self._value((*place, "_metadata"), "dict", f"versions of {num} modules")

    def _memory(self, node: Any, tag: str, place: Place) -> Entry:
        name, shape = name_entry(place, self._part), tuple(int(size) for size in node["shape"])
        dtype, item_bytes = _dtype_of(node["dtype"], is_array=tag == "$array")
        num_bytes = math.prod(shape) * item_bytes
        blob = self._find(node[tag], num_bytes)
        first = self._first_at.setdefault(node[tag], name) if blob else name
        return Entry(
            name=name,
            group=group_entry(place),
            part=self._part,
            kind=tag[1:],
            dtype=dtype,
            shape=shape,
            num_bytes=num_bytes,
            file=blob.file if blob else None,
            same_as=first if first != name else None,
        )

    def _find(self, name: str | None, num_bytes: int) -> _Blob | None:
        if name is None and num_bytes == 0:
            return None
        if name not in self._blobs:
            raise damage(self._file, f"names the tensor `{str(name)[:80]}`, which is missing")
        return self._blobs[name]

    def _value(self, place: Place, kind: str, words: str) -> Entry:
        return Entry(
            name=name_entry(place, self._part),
            group=group_entry(place),
            part=self._part,
            kind="value",
            dtype=kind,
            value=words,
        )


def _read_tree(path: Path, record: FileRecord) -> Any:
    raw = read_file(path, record=record)
    try:
        return json.loads(raw)["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damage(path, f"is no tree of a state: {str(error)[:80]}") from error


def _read_header(path: Path, file: str) -> dict[str, _Blob]:
    """Names and sizes of the tensors in a safetensors file."""
    with opened(path) as fd:
        size = int.from_bytes(os.pread(fd, 8, 0), "little")
        if size > min(_MAX_HEADER, os.fstat(fd).st_size - 8):
            raise damage(path, f"is no safetensors file of ours: a header of {size} bytes")
        raw = os.pread(fd, size, 8)
    try:
        found = {}
        for name, entry in json.loads(raw).items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                found[name] = _Blob(file, int(stop) - int(start))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damage(path, f"is no safetensors file of ours: {str(error)[:80]}") from error
    return found


def _tag_of(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    return next((key for key in node if key.startswith("$")), None)


def _is_plain(node: Any) -> bool:
    return _tag_of(node) in _PLAIN_TAGS if isinstance(node, dict) else not isinstance(node, list)


def _plain(node: Any) -> object:
    """A plain value again. Bytes and numpy's scalars stay words."""
    tag = _tag_of(node)
    if tag is None:
        return node
    content = node[tag]
    match tag:
        case "$int":
            return int(content, 16)
        case "$float":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        case "$str":
            return bytes.fromhex(content).decode("utf-8", "surrogatepass")
        case "$tuple":
            return tuple(_plain(item) for item in content)
        case "$size":
            return content
        case _:
            return str(content)


def _type_of(node: Any) -> str:
    tag = _tag_of(node)
    if tag == "$scalar":
        return _dtype_of(node[tag], is_array=True)[0]
    if node is None:
        return "none"
    return type(node).__name__ if tag is None else tag[1:]


def _words_of(node: Any) -> str:
    tag = _tag_of(node)
    if tag == "$bytes":
        return f"{len(node[tag].rstrip('=')) * 3 // 4} bytes"
    if tag == "$scalar":
        return _scalar_words(node)
    if tag == "$int":  # thousands of digits may not be printed as a decimal
        return _short(str(node[tag]))
    return _short(repr(_plain(node)) if tag not in ("$dtype", "$device") else str(node[tag]))


def _words_of_items(items: Sequence[Any]) -> str:
    shown = ", ".join(_words_of(item) for item in items[:_SHOWN_ITEMS])
    return _short(shown if len(items) <= _SHOWN_ITEMS else f"{shown}, …")


def _scalar_words(node: Any) -> str:
    match = _ARRAY.fullmatch(node["$scalar"])
    codes = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "f2": "e", "f4": "f", "f8": "d"}
    codes |= {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
    code = codes.get(f"{match[2]}{match[3]}") if match else None
    if match is None or code is None:
        return f"0x{node['bytes'][:40]}"
    return repr(
        struct.unpack(f"{match[1].replace('|', '<')}{code}", bytes.fromhex(node["bytes"]))[0]
    )


def _dtype_of(text: str, *, is_array: bool) -> tuple[str, int]:
    """(its name, bytes of an item)."""
    if not is_array:
        if text in _ITEM_BYTES:
            return text, _ITEM_BYTES[text]
        match = _BITS.fullmatch(text)
        return text, int(match[1]) // 8 if match else 0
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise ValueError(f"unknown dtype {text[:40]}")
    order, kind, size = match[1], match[2], int(match[3])
    name = "bool" if kind == "b" else f"{_ARRAY_KINDS[kind]}{size * 8}"
    return (f"{name} (big-endian)" if order == ">" else name), size


def _short(words: str) -> str:
    return words if len(words) <= _SHORT else f"{words[: _SHORT - 1]}…"
