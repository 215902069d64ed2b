"""What data are, in a few characters, so that data which change between attempts are noticed.

Two digests, either of which may be unknown:

`files`    of the files that `data:` names: their number, names, sizes and content, never their
           times. A file of up to 16 MiB is read whole; of a larger one the first, the last and 62
           further blocks of 64 KiB at fixed places, so that a small change inside a large file may
           stay unseen. Of more than 512 files the content of 512 is read; of more than 10,000
           nothing. In a folder that is no data set of HDF5 files, caches and hidden files are left
           out.
`samples`  of eight samples at fixed places of the first epoch, fetched as training fetches them.
           Sees what no file tells: data that are generated, downloaded or found elsewhere. Only
           comparable where code, parameters and versions are the same, which `made_by` tells.

The checkpoint keeps the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tasuki.data.fetch import Fetcher, Request
from tasuki.data.hdf5.files import find_files
from tasuki.data.order import Order, sample_seed
from tasuki.data.permutation import mix_word
from tasuki.errors import DataError
from tasuki.signals import deaf

Hash = Any
Fingerprint = dict[str, Any]
"""`plan`, `files`, `samples`, `made_by`: plain text or None, as a checkpoint keeps it."""

_WHOLE = 16 << 20
_BLOCK = 64 << 10
_BLOCKS = 64
_FILES_READ = 512
_MOST_FILES = 10_000
_SAMPLES = 8
_WITHIN_S = 5.0
"""Data so slow that a few samples take longer are not looked at: a start must not wait for them."""
_SIGNAL_ON_PARENT_DEATH = 1
"""Linux's PR_SET_PDEATHSIG."""


class Unhashable(Exception):
    """A sample holds something whose content is not known."""


# -- files ----------------------------------------------------------------------------------------


def fingerprint_files(source: object, split: str) -> str | None:
    """`3 files, 1234 bytes, <digest>`; None where `data:` names no files, or far too many."""
    named = [source] if isinstance(source, str) else source
    if not isinstance(named, Sequence) or not all(isinstance(one, str) and one for one in named):
        return None
    try:
        paths = [path for one in named for path in _files_of(Path(one), split)]
        return _of_files(paths) if 0 < len(paths) <= _MOST_FILES else None
    except OSError:
        return None  # whoever reads the data says what is wrong with them


def _files_of(source: Path, split: str) -> list[Path]:
    try:
        return [path for path in find_files(source, split) if path.is_file()]
    except DataError:
        return _below(source) if source.is_dir() else []


def _below(folder: Path) -> list[Path]:
    """All files of a folder but what is not data: hidden names, caches, and folders of runs."""
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        if ".jobs" in folders or "training_state.json" in names:
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not _is_passing(name))
        found += [Path(root, name) for name in sorted(names) if not _is_passing(name)]
        if len(found) > _MOST_FILES:
            break
    return found


def _is_passing(name: str) -> bool:
    """Comes and goes without a change of the data."""
    is_cache = name.startswith((".", "cache", "__pycache__"))
    return is_cache or name.endswith((".cache", ".lock", ".tmp", ".pyc", "~"))


def _of_files(paths: list[Path]) -> str:
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    sizes = [path.stat().st_size for path in paths]
    digest = hashlib.blake2b(digest_size=16)
    for path, size in zip(paths, sizes, strict=True):
        _add(digest, [os.path.relpath(path.absolute(), folder), size])
    for number in _spread(len(paths), _FILES_READ):
        _add_content(digest, paths[number], sizes[number])
    return f"{len(paths)} files, {sum(sizes)} bytes, {digest.hexdigest()}"


def _spread(num: int, most: int) -> list[int]:
    """Some of range(num), the first and the last among them; all where there are few."""
    if num <= most:
        return list(range(num))
    return sorted({number * (num - 1) // (most - 1) for number in range(most)})


def _add_content(digest: Hash, path: Path, size: int) -> None:
    with path.open("rb") as file:
        if size <= _WHOLE:
            while block := file.read(_WHOLE):
                digest.update(block)
            return
        for place in _places_in(size):
            file.seek(place)
            digest.update(file.read(_BLOCK))


def _places_in(size: int) -> list[int]:
    """Where blocks of a large file begin: a function of its size alone."""
    last = size - _BLOCK
    words = (size + number * 0x9E3779B97F4A7C15 & 2**64 - 1 for number in range(_BLOCKS - 2))
    return sorted({0, last, *(mix_word(word) % last for word in words)})


# -- samples --------------------------------------------------------------------------------------


class Looked(NamedTuple):
    """The digest of some samples, or why there is none."""

    digest: str | None
    reason: str = ""


def fingerprint_samples(fetcher: Fetcher, order: Order, *, within_s: float = _WITHIN_S) -> Looked:
    """In a child process: what reading leaves behind in the data set (open files, counters, random
    numbers) must not reach the training or its workers. It shares the place in open files with us,
    so we stand still meanwhile. Best asked before this process is large: a fork makes every page
    that is written next dearer."""
    requests = _requests(order)
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_look, args=(fetcher, requests, writer, os.getpid()))
    with deaf():  # a notice to the whole process group is for the rank
        child.start()
    writer.close()
    try:
        if not reader.poll(within_s):
            return Looked(None, f"reading {len(requests)} of them takes longer than {within_s:g} s")
        return Looked(*reader.recv())
    except EOFError:
        return Looked(None, "the process that read some of them died")
    finally:
        child.kill()
        child.join()
        reader.close()


def _requests(order: Order) -> list[Request]:
    """Each of one sample, with its own random numbers."""
    found = []
    for step in _spread(order.steps_per_epoch, _SAMPLES):
        samples = order.step(0, step)
        seed = sample_seed(order.seed, order.stage, 0, samples.first_position)
        found.append(Request(samples.indices[:1].tolist(), [seed]))
    return found


def _look(fetcher: Fetcher, requests: list[Request], writer: Connection, parent: int) -> None:
    ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    # What the user's code prints belongs to the training alone.
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (1, 2):
        os.dup2(sys.stdout.fileno(), stream)
    with contextlib.suppress(BaseException):
        writer.send(_digest_twice(fetcher, requests))
        writer.close()
    os._exit(0)


def _digest_twice(fetcher: Fetcher, requests: list[Request]) -> tuple[str | None, str]:
    try:
        first, second = (_digest(fetcher, requests) for _ in range(2))
    except Unhashable as error:
        return None, f"they hold a {error}, whose content is not known"
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    if first != second:
        return None, "they are not the same when they are read again under the same random numbers"
    return first, ""


def _digest(fetcher: Fetcher, requests: list[Request]) -> str:
    return digest_of(*(fetcher(request) for request in requests))


def digest_of(*values: Any) -> str:
    """Of their content alone; Unhashable where that is not known."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        _add(digest, value)
    return digest.hexdigest()


def _add(digest: Hash, value: Any) -> None:
    """By content alone: type, shape and bytes, however deep."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        digest.update(f"{kind.__name__}:{value!r};".encode(errors="surrogatepass"))
    elif isinstance(value, Tensor):
        _add_tensor(digest, value)
    elif isinstance(value, np.ndarray | np.generic):
        _add_array(digest, np.asarray(value))
    elif isinstance(value, Mapping):
        digest.update(f"map:{len(value)};".encode())
        for key, part in value.items():
            _add(digest, key)
            _add(digest, part)
    elif isinstance(value, list | tuple):
        digest.update(f"list:{len(value)};".encode())
        for part in value:
            _add(digest, part)
    else:
        _add(digest, _parts(value))


def _add_tensor(digest: Hash, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise Unhashable(f"{tensor.layout} tensor")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    digest.update(f"tensor:{tensor.dtype}:{tuple(tensor.shape)};".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")


def _add_array(digest: Hash, array: Any) -> None:
    if array.dtype.hasobject:
        digest.update(f"objects:{array.shape};".encode())
        _add(digest, array.ravel().tolist())
        return
    digest.update(f"array:{array.dtype.str}:{array.shape};".encode())
    digest.update(np.ascontiguousarray(array).tobytes())


def _parts(value: Any) -> Mapping[str, Any]:
    """An object taken apart: dataclasses, and what gives itself as a dict (graphs do)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(getattr(type(value), "to_dict", None)):
        found = value.to_dict()
        if isinstance(found, Mapping):
            return found
    raise Unhashable(type(value).__name__)


# -- before and now -------------------------------------------------------------------------------


def compare(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str | None:
    """What is not as it was, in words; None where nothing is known to have changed."""
    if before is None or now is None:
        return None
    files, samples = (_differs(before, now, key) for key in ("files", "samples"))
    if files:
        old, new = (str(told["files"]).rpartition(", ")[0] for told in (before, now))
        return "the content of its files" if old == new else f"its files: {old} before, {new} now"
    if samples and before.get("made_by") == now.get("made_by"):
        where = ", although the files that `data:` names are the same" if now.get("files") else ""
        return f"the content of its samples{where}"
    return None


def _differs(before: Mapping[str, Any], now: Mapping[str, Any], key: str) -> bool:
    """What is unknown on one side is not compared."""
    old, new = before.get(key), now.get(key)
    return old is not None and new is not None and old != new
