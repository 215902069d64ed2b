"""Tensors as a safetensors file that is streamed: from memory to disk and back without a copy of
the whole in between.

The library writes a file at once, from bytes it gathers first, and reads into memory that is copied
again; it knows no checksums on the way. Here the header is laid out, the tensors' bytes follow as
they lie, and each is read into memory of its own while its checksum is taken. Any safetensors
reader opens the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasuki.checkpoint.blobs import view_bytes
from tasuki.checkpoint.records import FileRecord, Piece, damage, fill, opened, write_pieces

_CODES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_MAX_HEADER = 16 * 2**20
"""About 100,000 tensors."""
_ALIGN = 64
"""Data begin on such a boundary: copies into and out of the file are aligned."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor lies behind the header."""

    header: bytes
    places: tuple[tuple[str, int, int], ...]
    """(name, first byte, end), counted from the end of the header, without gaps."""
    dtypes: Mapping[str, torch.dtype]

    @property
    def size(self) -> int:
        """Of the data, without the header."""
        return self.places[-1][2] if self.places else 0


def lay_out(tensors: Mapping[str, Tensor]) -> Layout:
    """Widest items first, so that every tensor is aligned for its dtype; then by name."""
    entries: dict[str, Any] = {}
    places, at = [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):
        tensor = tensors[name]
        stop = at + tensor.numel() * tensor.itemsize
        entries[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, stop],
        }
        places.append((name, at, stop))
        at = stop
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    return Layout(struct.pack("<Q", len(text)) + text, tuple(places), dtypes)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write live tensors; they must not change until this returns."""
    layout = lay_out(tensors)
    pieces: list[Piece] = [layout.header]
    pieces += [
        view_bytes(tensors[name].detach().cpu())
        for name, start, stop in layout.places
        if stop > start
    ]
    return write_pieces(path, pieces)


def read_tensors(path: Path, *, record: FileRecord | None = None) -> dict[str, Tensor]:
    """Every tensor in memory of its own, checked against the record on the way."""
    with opened(path) as fd:
        header = _read_header(path, fd)
        available = os.fstat(fd).st_size - len(header)
        entries = _parse(path, header[8:], available)
        with _unfilled():
            memory = [_memory(size) for *_, size in entries]
        # The header is read again with the rest: what was parsed is what the checksums cover.
        again = bytearray(len(header))
        fill(path, fd, [memoryview(again), *(view_bytes(m) for m in memory if m.numel())], record)
        if again != header:
            raise damage(path, "changes while it is read")
    return {
        name: tensor.view(dtype).view(shape)
        for (name, dtype, shape, _), tensor in zip(entries, memory, strict=True)
    }


def _read_header(path: Path, fd: int) -> bytes:
    """With its length in front."""
    size = os.fstat(fd).st_size
    prefix = _read_up_to(fd, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(_MAX_HEADER, size - 8):
        raise damage(path, f"is no safetensors file of ours: a header of {length} bytes")
    return _read_up_to(fd, 8 + length)


def _read_up_to(fd: int, count: int) -> bytes:
    """From the start; a single read may be short."""
    data, at = bytearray(count), 0
    while at < count and (more := os.preadv(fd, [memoryview(data)[at:]], at)):
        at += more
    return bytes(data[:at])


@contextlib.contextmanager
def _unfilled() -> Iterator[None]:
    """Where only deterministic algorithms are allowed torch fills new memory, to be sure that
    nobody reads what was there. Here every byte is read from a file, or an error is raised."""
    switch: Any = torch.utils.deterministic
    before = switch.fill_uninitialized_memory
    switch.fill_uninitialized_memory = False
    try:
        yield
    finally:
        switch.fill_uninitialized_memory = before


def _memory(size: int) -> Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8)
    except RuntimeError as error:  # torch's word for "no memory", which is not damage
        raise MemoryError(str(error)) from error


Entry = tuple[str, torch.dtype, list[int], int]


def _parse(path: Path, header: bytes, available: int) -> list[Entry]:
    """The tensors in the order of their bytes, which must fill the file exactly."""
    try:
        value = json.loads(header, object_pairs_hook=_unique)
        found = [_entry(name, entry) for name, entry in value.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        words = f"is no safetensors file of ours: {str(error)[:200]}"
        raise damage(path, words) from error
    found.sort(key=lambda pair: pair[0])
    at = 0
    for (start, stop), _ in found:
        if start != at:
            raise damage(path, "is no safetensors file of ours: its tensors leave gaps")
        at = stop
    if at != available:
        raise damage(path, f"holds {available} bytes of tensors, but its header names {at}")
    return [entry for _, entry in found]


def _entry(name: str, value: Any) -> tuple[tuple[int, int], Entry]:
    dtype, shape = _DTYPES[value["dtype"]], value["shape"]
    start, stop = value["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in [*shape, start, stop]):
        raise ValueError(f"sizes of `{name[:80]}`")
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the bytes of `{name[:80]}` are not those of its shape")
    return (start, stop), (name, dtype, shape, stop - start)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("the same name twice")
    return value
