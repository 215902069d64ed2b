"""Evil checkpoints, and files that are small to write and huge to read: nothing of them executes or
leads out of the run, and each is an error, soon and in little memory.

Every attack is carried out on a copy of a run, in a process of its own whose peak memory is read
from the kernel. Trees, headers and manifests that are merely wrong are in `unit/checkpoint`.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401 (zipfile imports it when it meets an old archive)
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.harness.audit import Guard
from tests.resume.storage import forge
from tests.resume.storage.driver import begin_attempt, load, make_small, memory, save

from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.weights import read_weights
from tasuki.errors import TasukiError
from tasuki.runs.control import last_said
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

MB = 10**6
_CPU_S, _WAIT_S = 10, 60
"""After so much work, or such a wait, it is ended: it hangs."""


def _take_up(run: RunFolder) -> None:
    """As an attempt does: find, load, begin, save, prune."""
    latest = find_latest(run, lambda *_: None)
    if latest is not None:
        load(latest.path)
    begin_attempt(run)
    save(run, 50)
    assert latest is None or latest.name != forge.newest(run).name, "it was believed"


def _load_spec(run: RunFolder) -> None:
    load_spec(str(run.path / "tasuki.yaml"), environ={})
    raise AssertionError("it was believed")


def _read_weights(run: RunFolder) -> None:
    for path in run.path.glob("w.*"):
        read_weights(path)
        raise AssertionError("it was believed")


@dataclass(frozen=True)
class Attack:
    lay: forge.Evil
    fall_over: Callable[[RunFolder], object] = _take_up
    is_guarded: bool = True
    """Loading a spec asks git, and reads what lies outside."""


# -- what would execute, or lead elsewhere ---------------------------------------------------------

_RECORDS: dict[str, dict[str, Any]] = {
    "a path upwards": {"name": "../../canary"},
    "an absolute path": {"name": "/etc/passwd"},
    "a path with a NUL": {"name": "part-00000.json\0"},
    "an exabyte": {"size": 2**60},
}
_PLACES = ["NEWEST/part-00000.json", "NEWEST/part-00000.safetensors", "NEWEST/manifest.json"]
_THINGS = {
    "link": forge.to_link,
    "hard link": forge.to_hard_link,
    "pipe": forge.to_pipe,
    "device": forge.to_device,
    "folder": forge.to_folder,
}
_CLAIMS: dict[str, bytes] = {
    "a parent that is a path": b'{"format":1,"claim":1,"parent":"../../../etc/passwd"}\n',
    "a parent that is itself": b'{"format":1,"claim":1,"parent":"step-000000030.c1"}\n',
    "a pickle": b"cos\nsystem\n(S'true'\ntR.",
}


def _evil() -> Iterator[tuple[str, Attack]]:
    for name, make_bytes in forge.pickles():
        yield f"tensors: {name}", Attack(forge.replace(forge.TENSORS, make_bytes))
        yield f"tree: {name}", Attack(forge.replace(forge.TREE, make_bytes))
        yield f"weights: {name}", Attack(forge.weights(make_bytes), _read_weights)
    for name, changes in _RECORDS.items():
        yield f"record: {name}", Attack(forge.record(0, **changes))
    for name in ("../../x.safetensors", "/etc/passwd", "0" * 32 + ".safetensors/../../x"):
        yield f"frozen: {name}", Attack(forge.frozen(name))
    for place in [*_PLACES, "NEWEST", "frozen"]:
        for name, thing in _THINGS.items():
            yield f"{name} in place of {place}", Attack(forge.put(place, thing))
    yield "a link to a whole checkpoint", Attack(forge.put("NEWEST", forge.to_whole))
    for name, text in _CLAIMS.items():
        yield f"claim: {name}", Attack(forge.in_file("claims/1/parent.json", text))


# -- what would take all memory, or never end ------------------------------------------------------


def _sparse(size: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def _zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(400 * MB))
        archive.writestr("archive/version", "3\n")


def _sparse_tree(run: RunFolder, _: Path) -> None:
    """Right size and checksums, 3 GB of nothing."""
    size, chunk = 3000 * MB, 16 * 2**20
    path, aside = forge.newest(run) / forge.TREE, run.path / "aside"
    crc, whole = zlib.crc32(bytes(chunk)), size // chunk
    sums = [crc] * whole + [zlib.crc32(bytes(size - whole * chunk))]
    record = {"size": size, "chunk_bytes": chunk, "crc32": sums}
    _sparse(size)(aside)
    path.write_bytes(b"{}")
    forge.seal(run, lambda value: value["files"][0].update(record))
    aside.replace(path)


def _laughs() -> str:
    """Each line ten times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return "\n".join(lines) + "\nexperiments: {e: {stages: [{name: s, data: *a8}]}}\n"


def _spec(text: str | Callable[[Path], object]) -> Attack:
    data = text.encode() if isinstance(text, str) else text
    return Attack(forge.in_file("tasuki.yaml", data), _load_spec, is_guarded=False)


def _word(data: Callable[[Path], object]) -> Attack:
    return Attack(forge.in_file("control/000001.json", data), last_said)


BOMBS: dict[str, Attack] = {
    "manifest of 10 GB": Attack(
        forge.put("NEWEST/manifest.json", lambda path, _: _sparse(10_000 * MB)(path))
    ),
    "manifest with a billion parts": Attack(forge.manifest(world=10**9, parts=10**9)),
    "tree of 3 GB": Attack(_sparse_tree),
    "tree of 100,000 brackets": Attack(forge.raw_tree(b"[" * 100_000)),
    "tree of a huge tensor without memory": Attack(
        forge.tree({"$tensor": None, "dtype": "float32", "shape": [2**62, 2**62]})
    ),
    "header of an exabyte": Attack(forge.header(b"{}", length=10**18)),
    "header of 90 MB of blanks": Attack(forge.header(b" " * 90 * MB)),
    "parent that never ends": Attack(
        forge.in_file("claims/1/parent.json", lambda path: path.symlink_to("/dev/zero"))
    ),
    "claim 1,000,000,000,000,000": Attack(
        lambda run, _: (run.claims / str(10**15)).mkdir(),
        lambda run: find_latest(run, lambda *_: None),
    ),
    "word of 5 GB": _word(_sparse(5000 * MB)),
    "word that is a pipe": _word(os.mkfifo),
    "spec of a billion laughs": _spec(_laughs()),
    "spec of 2 GB": _spec(_sparse(2000 * MB)),
    "weights with a header of an exabyte": Attack(
        forge.in_file("w.safetensors", struct.pack("<Q", 10**18) + b"{}"), _read_weights
    ),
    "weights that are a zip bomb": Attack(forge.in_file("w.pt", _zip_bomb), _read_weights),
}


# -- carried out -----------------------------------------------------------------------------------


def carry_out_all(*, every: int) -> list[dict[str, Any]]:
    """Of every so many its name, problems, seconds of CPU time and megabytes."""
    told = []
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        folder = Path(name).resolve()
        whole = make_small(folder / "whole" / "exp")
        _import_all(RunFolder(shutil.copytree(whole.path, folder / "first" / "exp")))
        for what, attack in list({**dict(_evil()), **BOMBS}.items())[::every]:
            run, canary = RunFolder(folder / "now" / "exp"), folder / "canary"
            shutil.copytree(whole.path, run.path)
            with suppress(PermissionError):  # devices need root
                attack.lay(run, canary)
                told.append({"name": what, **_in_a_child(attack, run, canary)})
            shutil.rmtree(folder / "now")
    return told


def _import_all(run: RunFolder) -> None:
    """What is imported on the way is no attack."""
    load(forge.newest(run))
    begin_attempt(run)
    save(run, 50)
    torch.save({"w": torch.zeros(2)}, run.path / "w.pt")
    read_weights(run.path / "w.pt")


def _in_a_child(attack: Attack, run: RunFolder, canary: Path) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(attack, run, writer)
    os.close(writer)
    with os.fdopen(reader) as lines:
        text = lines.read()
    _, status = os.waitpid(pid, 0)
    died = {"problems": [f"died: {status}"], "seconds": -1.0, "mb": -1.0}
    told: dict[str, Any] = json.loads(text) if text else died
    if canary.exists():
        told["problems"].append("executed")
        canary.unlink()
    return told


def _child(attack: Attack, run: RunFolder, writer: int) -> None:
    """Does not return."""
    resource.setrlimit(resource.RLIMIT_AS, (_now("VmSize") + 3000 * MB,) * 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S,) * 2)
    signal.alarm(_WAIT_S)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, began = _now("VmRSS"), time.process_time()
    problems = []
    with Guard().armed(*([run.path] if attack.is_guarded else [])) as seen:
        try:
            attack.fall_over(run)
        except TasukiError:
            pass
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {str(error)[:100]}")
    problems += dict.fromkeys(seen)
    taken = {"seconds": time.process_time() - began, "mb": (_now("VmHWM") - before) / MB}
    os.write(writer, json.dumps({"problems": problems, **taken}).encode())
    os._exit(0)


def _now(what: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{what}:")[1].split()[0]) * 1024


def be_careless() -> list[str]:
    """What the guard says about somebody who does everything that may not be done."""
    with tempfile.TemporaryDirectory() as name:
        inside, canary = Path(name) / "inside", Path(name) / "canary"
        inside.mkdir()
        pickled = pickle.dumps(forge.Payload(canary))
        with Guard().armed(inside) as seen:
            pickle.loads(pickled)
            exec("1 + 1")
            (Path(name) / "outside").write_bytes(b"")
            (inside / "a").write_bytes(b"")
        assert canary.exists()
    return [event.split()[0] for event in seen]
