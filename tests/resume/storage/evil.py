"""Evil checkpoints, each taken up as an attempt would: does anything of them execute?"""

from __future__ import annotations

import encodings.cp437  # noqa: F401 (zipfile imports it when it meets an old archive)
import pickle
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.harness.audit import Guard
from tests.resume.storage import forge
from tests.resume.storage.damage import make, memory
from tests.resume.storage.driver import begin_attempt, load, save

from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.weights import read_weights
from tasuki.errors import TasukiError
from tasuki.runs.runs import RunFolder

_TREES: dict[str, Any] = {
    "tag that imports": {"$import": "os"},
    "tag that evaluates": {"$eval": "__import__('os').system('true')"},
    "tag of another codec": {"$py/object": "os.system"},
    "reduce": {"$reduce": ["os.system", ["true"]]},
    "two tags": {"$int": "1", "$str": "00"},
    "dtype that is a function": {"$dtype": "load"},
    "dtype that is a module": {"$dtype": "hub"},
    "dtype with a dot": {"$dtype": "float32.__class__"},
    "dtype of builtins": {"$dtype": "__builtins__"},
    "device with code": {"$device": "cuda:0;import os"},
    "device that is a path": {"$device": "../../dev/sda"},
    "factory that evaluates": {"$defaultdict": {}, "factory": "eval"},
    "factory by name": {"$defaultdict": {}, "factory": "os.system"},
    "factory that is a list": {"$defaultdict": {}, "factory": ["list"]},
    "tensor by path": {"$tensor": "../../etc/passwd", "dtype": "float32", "shape": [1]},
    "tensor beyond its memory": {"$tensor": "shared.b", "dtype": "float32", "shape": [10**9]},
    "tensor at a negative place": {
        "$tensor": "shared.b",
        "dtype": "float32",
        "shape": [1],
        "offset": -1,
    },
    "tensor with a huge stride": {
        "$tensor": "shared.b",
        "dtype": "float32",
        "shape": [2],
        "stride": [2**62],
    },
    "array of objects": {"$array": "shared.b", "dtype": "|O", "shape": [1]},
    "array of records": {"$array": "shared.b", "dtype": "V8", "shape": [1]},
    "scalar of objects": {"$scalar": "|O8", "bytes": "00" * 8},
    "size that is no number": {"$size": ["a"]},
    "number that is code": {"$int": "__import__('os')"},
    "text that is none": {"$str": "zz"},
    "bytes that are none": {"$bytes": "!"},
    "key that is a list": {"$dict": [[{"$tuple": [[]]}, 1]]},
    "attributes": {"$ordered": {}, "__class__": "os.system"},
}
_RAW: dict[str, bytes] = {
    "200,000 brackets": b"[" * 200_000,
    "the same key twice": b'{"format":1,"part":0,"part":0,"state":1}\n',
    "not a number": b'{"format":1,"part":0,"state":NaN}\n',
    "UTF-16": '{"format":1,"part":0,"state":1}'.encode("utf-16"),
    "a number of 100,000 digits": b'{"format":1,"part":0,"state":' + b"9" * 100_000 + b"}",
    "YAML": b"!!python/object/apply:os.system ['true']\n",
}
_HEADERS: dict[str, tuple[bytes, int | None]] = {
    "no JSON": (b"not json", None),
    "longer than the file": (b"{}", 2**40),
    "longer than any file": (b"{}", 2**64 - 1),
    "a name that is a path": (
        b'{"../x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
        None,
    ),
    "an unknown dtype": (b'{"w":{"dtype":"PY","shape":[0],"data_offsets":[0,0]}}', None),
    "a shape that overflows": (
        b'{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
        None,
    ),
    "offsets backwards": (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', None),
    "brackets": (b"[" * 100_000, None),
}
_MANIFESTS: dict[str, dict[str, Any]] = {
    "a parent that is a path": {"parent": "../../../../etc"},
    "a million ranks": {"world": 10**9, "parts": 10**9},
    "no parts": {"parts": 0},
    "a format that is true": {"format": True},
    "a format that is text": {"format": "1"},
    "facts that are a list": {"facts": []},
    "a step below zero": {"step": -1},
    "frozen files that are text": {"frozen": "../../etc/passwd"},
}
_RECORDS: dict[str, dict[str, Any]] = {
    "a path upwards": {"name": "../../canary"},
    "an absolute path": {"name": "/etc/passwd"},
    "a path with a NUL": {"name": "part-00000.json\0"},
    "no name": {"name": ""},
    "chunks of no bytes": {"chunk_bytes": 0},
    "an exabyte": {"size": 2**60},
    "a negative size": {"size": -1},
}
_PLACES = ["NEWEST/part-00000.json", "NEWEST/part-00000.safetensors", "NEWEST/manifest.json"]
_THINGS = {
    "link": forge.to_link,
    "link to passwd": forge.to_passwd,
    "hard link": forge.to_hard_link,
    "pipe": forge.to_pipe,
    "device": forge.to_device,
    "socket": forge.to_socket,
    "folder": forge.to_folder,
}
_CLAIMS: dict[str, bytes] = {
    "a parent that is a path": b'{"format":1,"claim":1,"parent":"../../../etc/passwd"}\n',
    "a parent that is a number": b'{"format":1,"claim":1,"parent":7}\n',
    "a parent from the future": b'{"format":1,"claim":1,"parent":"step-000000099.c99"}\n',
    "a parent that is itself": b'{"format":1,"claim":1,"parent":"step-000000030.c1"}\n',
    "brackets": b"[" * 100_000,
    "a pickle": b"cos\nsystem\n(S'true'\ntR.",
}


def all_evil() -> Iterator[tuple[str, forge.Evil]]:
    """What was done → who does it."""
    for name, make_bytes in forge.pickles():
        yield f"tensors: {name}", forge.replace(forge.TENSORS, make_bytes)
        yield f"tree: {name}", forge.replace(forge.TREE, make_bytes)
    yield from ((f"tree: {name}", forge.tree(value)) for name, value in _TREES.items())
    yield from ((f"tree: {name}", forge.raw_tree(data)) for name, data in _RAW.items())
    for name, (text, length) in _HEADERS.items():
        yield f"header: {name}", forge.header(text, length=length)
    yield from ((f"manifest: {n}", forge.manifest(**changes)) for n, changes in _MANIFESTS.items())
    yield from ((f"record: {n}", forge.record(0, **changes)) for n, changes in _RECORDS.items())
    for name in ("../../x.safetensors", "/etc/passwd", "0" * 32 + ".safetensors/../../x"):
        yield f"frozen: {name}", forge.frozen(name)
    for place in [*_PLACES, "NEWEST", "frozen"]:
        for name, thing in _THINGS.items():
            yield f"{name} in place of {place}", forge.put(place, thing)
    yield "a link to a whole checkpoint", forge.put("NEWEST", forge.to_whole)
    yield from ((f"claim: {name}", forge.claim(text)) for name, text in _CLAIMS.items())


def take_up_all() -> dict[str, Any]:
    """Take up a run with each; what executed, was touched, was believed, or hung."""
    guard, problems, count = Guard(), [], 0
    signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        folder = Path(name).resolve()
        whole = make(folder / "whole" / "exp")
        canary = folder / "canary"
        _take_up(RunFolder(shutil.copytree(whole.path, folder / "warm" / "exp")))
        for what, evil in all_evil():
            run = RunFolder(folder / "now" / "exp")
            shutil.copytree(whole.path, run.path)
            try:
                evil(run, canary)
            except PermissionError:
                continue  # devices need root
            count += 1
            with guard.armed(run.path) as seen:
                told = _try(run)
            problems += [f"{what}: {text}" for text in [*told, *dict.fromkeys(seen)]]
            if canary.exists():
                problems.append(f"{what}: executed")
                canary.unlink()
            shutil.rmtree(folder / "now")
        problems += _read_evil_weights(guard, folder, canary)
    return {"count": count + len(list(forge.pickles())), "problems": problems}


def _try(run: RunFolder) -> list[str]:
    signal.alarm(60)
    try:
        latest = _take_up(run)
        return ["it was believed"] if latest == forge.newest(run).name else []
    except TasukiError:
        return []
    except TimeoutError:
        return ["it hangs"]
    except BaseException as error:
        return [f"{type(error).__name__}: {str(error)[:200]}"]
    finally:
        signal.alarm(0)


def _take_up(run: RunFolder) -> str | None:
    """As an attempt does: find, load, begin, save, prune."""
    latest = find_latest(run, lambda *_: None)
    if latest is not None:
        load(latest.path)
    begin_attempt(run)
    save(run, 50)
    return latest.name if latest else None


def _read_evil_weights(guard: Guard, folder: Path, canary: Path) -> list[str]:
    problems = []
    path = folder / "weights.pt"
    torch.save({"w": torch.zeros(2)}, path)
    read_weights(path)  # what is imported on the way, is now
    for name, make_bytes in forge.pickles():
        path.write_bytes(make_bytes(canary))
        with guard.armed(path.parent) as seen:
            try:
                read_weights(path)
                problems.append(f"weights: {name}: read")
            except TasukiError:
                pass
        problems += [f"weights: {name}: {text}" for text in dict.fromkeys(seen)]
        if canary.exists():
            problems.append(f"weights: {name}: executed")
            canary.unlink()
    return problems


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


def _hang(*_: object) -> None:
    raise TimeoutError
