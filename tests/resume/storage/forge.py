"""Checkpoints as an attacker would write them: everything that can be recomputed is right.

Sizes, checksums and the manifest's own digest fit, so that what is evil reaches the parsers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tasuki.runs.runs import RunFolder

TREE, TENSORS, MANIFEST = "part-00000.json", "part-00000.safetensors", "manifest.json"
Evil = Callable[[RunFolder, Path], None]
"""Makes the newest checkpoint of a run evil; gets a path that nobody may touch."""


class Payload:
    """Whoever unpickles it executes it."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def newest(run: RunFolder) -> Path:
    return run.checkpoints / "step-000000030.c1"


def seal(run: RunFolder, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Make the manifest fit the files that are there; then let `change` have its way."""
    folder = newest(run)
    value = json.loads((folder / MANIFEST).read_bytes())
    for record in value["files"]:
        record.update(_record((folder / record["name"]).read_bytes()))
    for record in value.get("frozen", []):
        record.update(_record((run.checkpoints / "frozen" / record["name"]).read_bytes()))
    change(value)
    value.pop("sha256", None)
    value["sha256"] = hashlib.sha256(_canonical(value)).hexdigest()
    (folder / MANIFEST).write_bytes(_canonical(value))


def _record(data: bytes) -> dict[str, Any]:
    chunk = 16 * 2**20
    starts = range(0, len(data), chunk)
    sums = [zlib.crc32(data[start : start + chunk]) for start in starts]
    return {"size": len(data), "chunk_bytes": chunk, "crc32": sums}


def _canonical(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode() + b"\n"


# -- kinds of evil --------------------------------------------------------------------------------


def replace(name: str, make: Callable[[Path], bytes]) -> Evil:
    def act(run: RunFolder, canary: Path) -> None:
        (newest(run) / name).write_bytes(make(canary))
        seal(run)

    return act


def tree(value: Any) -> Evil:
    """Something evil in a state that is good but for it."""

    def act(run: RunFolder, _: Path) -> None:
        path = newest(run) / TREE
        good = json.loads(path.read_bytes())
        good["state"]["evil"] = value
        path.write_bytes(json.dumps(good, separators=(",", ":")).encode() + b"\n")
        seal(run)

    return act


def raw_tree(data: bytes) -> Evil:
    return replace(TREE, lambda _: data)


def header(text: bytes, data: bytes = b"", *, length: int | None = None) -> Evil:
    """A safetensors file with this header."""
    return replace(TENSORS, lambda _: with_header(text, length=length) + data)


def with_header(text: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def manifest(**changes: Any) -> Evil:
    return lambda run, _: seal(run, lambda value: value.update(changes))


def record(index: int, **changes: Any) -> Evil:
    return lambda run, _: seal(run, lambda value: value["files"][index].update(changes))


def frozen(name: str) -> Evil:
    def change(value: dict[str, Any]) -> None:
        value["frozen"] = [{"name": name, **_record(b"x")}]

    return lambda run, _: seal(run, change)


def put(where: str, make: Callable[[Path, Path], None]) -> Evil:
    """Something else in a file's place; `where` is relative to the run's checkpoints."""

    def act(run: RunFolder, canary: Path) -> None:
        path = run.checkpoints / where.replace("NEWEST", newest(run).name)
        if path.is_dir() and not path.is_symlink():
            path.rename(run.path / "aside")
        else:
            path.unlink(missing_ok=True)
        make(path, canary)

    return act


def in_file(name: str, data: bytes | Callable[[Path], object]) -> Evil:
    """These bytes, or whatever is made there, in the place of a file of the run."""

    def act(run: RunFolder, _: Path) -> None:
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data) if isinstance(data, bytes) else data(path)

    return act


def weights(make: Callable[[Path], bytes]) -> Evil:
    return lambda run, canary: _write(run.path / "w.pt", make(canary))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def to_link(path: Path, canary: Path) -> None:
    path.symlink_to(canary)


def to_hard_link(path: Path, canary: Path) -> None:
    """Of a file that is not ours."""
    other = canary.with_name("other")
    other.write_bytes(b"other")
    path.hardlink_to(other)


def to_whole(path: Path, canary: Path) -> None:
    """The checkpoint itself, but it lies outside, where others may change it."""
    shutil.copytree(path.parent.parent / "aside", canary.with_name("outside"), dirs_exist_ok=True)
    path.symlink_to(canary.with_name("outside"))


def to_pipe(path: Path, canary: Path) -> None:
    os.mkfifo(path)


def to_device(path: Path, canary: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


def to_folder(path: Path, canary: Path) -> None:
    path.mkdir()


def pickles() -> Iterator[tuple[str, Callable[[Path], bytes]]]:
    """Pickles of every protocol and wrapping."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield f"pickle {protocol}", lambda c, p=protocol: pickle.dumps(Payload(c), p)
    yield "torch zip", lambda c: _torch(Payload(c), zipped=True)
    yield "torch legacy", lambda c: _torch(Payload(c), zipped=False)
    yield "numpy object", _numpy
    yield "zip of a pickle", _zip


def _torch(value: object, *, zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def _numpy(canary: Path) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(canary)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _zip(canary: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(canary)))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()
