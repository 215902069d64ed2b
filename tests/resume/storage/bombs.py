"""Files that are small to write and huge to read: each must be an error, soon and in little memory.

Every bomb goes off in a process of its own, whose peak memory is read from the kernel.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.resume.storage import forge
from tests.resume.storage.damage import make, memory
from tests.resume.storage.driver import load

from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.weights import read_weights
from tasuki.errors import TasukiError
from tasuki.runs.control import last_said
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

MB = 10**6
_CPU_S, _WAIT_S = 10, 60
"""After so much work, or such a wait, it is ended: it hangs."""
Bomb = Callable[[RunFolder], Callable[[], object]]
"""Puts something into a run, and says who falls over it."""


def sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def _checkpoint(evil: forge.Evil) -> Bomb:
    def lay(run: RunFolder) -> Callable[[], object]:
        evil(run, run.path / "canary")
        return lambda: _take(run)

    return lay


def _take(run: RunFolder) -> None:
    reports: list[str] = []
    latest = find_latest(run, lambda name, _: reports.append(name))
    assert latest is not None
    load(latest.path)
    if not reports:
        raise AssertionError("it was believed")


def _in(name: str, lay: Callable[[Path], object]) -> Bomb:
    """A file of the run that `find_latest` or the words are read from."""

    def act(run: RunFolder) -> Callable[[], object]:
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        lay(path)
        if name.startswith("control"):
            return lambda: last_said(run)
        return lambda: _take(run)

    return act


def _spec(text: str | None, lay: Callable[[Path], object] | None = None) -> Bomb:
    def act(run: RunFolder) -> Callable[[], object]:
        path = run.path / "tasuki.yaml"
        if text is not None:
            path.write_text(text)
        elif lay is not None:
            lay(path)
        return lambda: load_spec(str(path), environ={})

    return act


def _weights(name: str, lay: Callable[[Path], object]) -> Bomb:
    def act(run: RunFolder) -> Callable[[], object]:
        lay(run.path / name)
        return lambda: read_weights(run.path / name)

    return act


def _many_claims(run: RunFolder) -> Callable[[], object]:
    (run.claims / str(10**15)).mkdir()
    return lambda: find_latest(run, lambda *_: None)


def _zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(400 * MB))
        archive.writestr("archive/version", "3\n")


def _sparse_tree(run: RunFolder, _: Path) -> None:
    """Right size and checksums, 3 GB of nothing."""
    size, chunk = 3000 * MB, 16 * 2**20
    sparse(forge.newest(run) / forge.TREE, size)
    crc, whole = zlib.crc32(bytes(chunk)), size // chunk
    sums = [crc] * whole + [zlib.crc32(bytes(size - whole * chunk))]
    record = {"size": size, "chunk_bytes": chunk, "crc32": sums}
    _seal_as(run, record)


def _seal_as(run: RunFolder, record: dict[str, Any]) -> None:
    path = forge.newest(run) / forge.TREE
    aside = run.path / "aside"
    path.rename(aside)
    path.write_bytes(b"{}")
    forge.seal(run, lambda value: value["files"][0].update(record))
    aside.replace(path)


def _many_chunks(run: RunFolder, canary: Path) -> None:
    """A checksum for each byte."""
    data = forge.with_header(b'{"w":{"dtype":"U8","shape":[600000],"data_offsets":[0,600000]}}')
    (forge.newest(run) / forge.TENSORS).write_bytes(data + bytes(600_000))
    size, zero = len(data) + 600_000, zlib.crc32(b"\0")
    sums = [zlib.crc32(bytes([byte])) for byte in data] + [zero] * 600_000
    record = {"size": size, "chunk_bytes": 1, "crc32": sums}
    forge.seal(run, lambda value: value["files"][1].update(record))


def _laughs() -> str:
    """Each line ten times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return "\n".join(lines) + "\nexperiments: {e: {stages: [{name: s, data: *a8}]}}\n"


def _entries(count: int) -> bytes:
    one = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return ("{" + ",".join(one.format(n) for n in range(count)) + "}").encode()


BOMBS: dict[str, Bomb] = {
    "manifest of 10 GB": _checkpoint(
        forge.put("NEWEST/manifest.json", lambda path, _: sparse(path, 10_000 * MB))
    ),
    "manifest of 60 MB of numbers": _checkpoint(
        forge.put(
            "NEWEST/manifest.json",
            lambda path, _: path.write_bytes(b'{"a":[' + b"0," * 30_000_000 + b"0]}"),
        )
    ),
    "manifest of brackets": _checkpoint(
        forge.put("NEWEST/manifest.json", lambda path, _: path.write_bytes(b"[" * 1_000_000))
    ),
    "manifest with a billion parts": _checkpoint(forge.manifest(world=10**9, parts=10**9)),
    "record of an exabyte": _checkpoint(forge.record(1, size=10**18)),
    "tree of 3 GB": _checkpoint(_sparse_tree),
    "tree of 100,000 brackets": _checkpoint(forge.raw_tree(b"[" * 100_000)),
    "tree of a number with a million digits": _checkpoint(
        forge.raw_tree(b'{"format":1,"part":0,"state":' + b"9" * 1_000_000 + b"}")
    ),
    "tree of a tensor with 2^60 items": _checkpoint(
        forge.tree({"$tensor": "shared.b", "dtype": "float32", "shape": [2**30, 2**30]})
    ),
    "tree of a huge tensor without memory": _checkpoint(
        forge.tree({"$tensor": None, "dtype": "float32", "shape": [2**62, 2**62]})
    ),
    "a million chunks": _checkpoint(_many_chunks),
    "header of an exabyte": _checkpoint(forge.header(b"{}", length=10**18)),
    "header of 90 MB of blanks": _checkpoint(forge.header(b" " * 90 * MB)),
    "header with 300,000 tensors": _checkpoint(forge.header(_entries(300_000))),
    "parent of 5 GB": _in("claims/1/parent.json", lambda path: sparse(path, 5000 * MB)),
    "parent that never ends": _in("claims/1/parent.json", lambda p: p.symlink_to("/dev/zero")),
    "parent that is a pipe": _in("claims/1/parent.json", os.mkfifo),
    "claim 1,000,000,000,000,000": _many_claims,
    "word of 5 GB": _in("control/000001.json", lambda path: sparse(path, 5000 * MB)),
    "word that is a pipe": _in("control/000001.json", os.mkfifo),
    "spec of a billion laughs": _spec(_laughs()),
    "spec of 50,000 brackets": _spec("a: " + "[" * 50_000),
    "spec of 2 GB": _spec(None, lambda path: sparse(path, 2000 * MB)),
    "spec that is a pipe": _spec(None, os.mkfifo),
    "weights with a header of an exabyte": _weights(
        "w.safetensors", lambda path: path.write_bytes(struct.pack("<Q", 10**18) + b"{}")
    ),
    "weights that are a zip bomb": _weights("w.pt", _zip_bomb),
    "weights that are a pipe": _weights("w.safetensors", os.mkfifo),
}


def explode_all() -> list[dict[str, Any]]:
    """Each bomb's name, seconds of CPU time, megabytes, and what became of it."""
    told = []
    for name, lay in BOMBS.items():
        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            run = make(Path(folder) / "exp")
            act = lay(run)
            told.append({"name": name, **_explode(act)})
    return told


def _explode(act: Callable[[], object]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(act, writer)
    os.close(writer)
    with os.fdopen(reader) as lines:
        text = lines.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else {"end": f"died: {status}", "seconds": -1.0, "mb": -1.0}


def _child(act: Callable[[], object], writer: int) -> None:
    """Does not return."""
    resource.setrlimit(resource.RLIMIT_AS, (_now("VmSize") + 3000 * MB,) * 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S,) * 2)
    signal.alarm(_WAIT_S)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, began = _now("VmRSS"), time.process_time()
    try:
        act()
        end = "error"  # it fell back: somebody said that it is damaged
    except TasukiError:
        end = "error"
    except BaseException as error:
        end = f"{type(error).__name__}: {str(error)[:100]}"
    taken = {"seconds": time.process_time() - began, "mb": (_now("VmHWM") - before) / MB}
    os.write(writer, json.dumps({"end": end, **taken}).encode())
    os._exit(0)


def _now(what: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{what}:")[1].split()[0]) * 1024
