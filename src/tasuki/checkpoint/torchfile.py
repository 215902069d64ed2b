"""Weights in torch's own file (`.pt`): read without running code from it, written as plain tensors.

A `.pt` is a pickle, which may run anything; it is opened with torch's restricted reader only, and
what that refuses stays closed (promise 10). What is written is a dict of tensors; where it comes
from stands beside it in the same zip archive, where torch does not look.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tasuki.errors import WeightsError

_NESTED = ("state_dict", "model", "model_state_dict")
"""Where training scripts put the weights in what they save."""
_METADATA = "tasuki.json"
_GLOBAL = re.compile(r"GLOBAL (\S+)")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same weights give the same bytes."""
_SAVE_PLAIN = "save plain tensors: torch.save(model.state_dict(), 'weights.pt'), or use safetensors"


def read_torch_file(path: Path, data: bytes) -> dict[str, Tensor]:
    """The tensors by name, tied ones sharing memory, on the CPU."""
    _refuse_packed(path, data)
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = _GLOBAL.search(str(error))
        what = f" (`{named[1]}`)" if named else ""
        raise WeightsError(
            f"{path} holds more than tensors{what}: to load it would run code from it, which "
            "tasuki never does",
            hint=_SAVE_PLAIN,
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # a damaged file may raise anything
        words = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise WeightsError(f"{path} is no file of weights that can be read: {words}") from error
    return {name: tensor.detach() for name, tensor in _find_weights(path, value).items()}


def _refuse_packed(path: Path, data: bytes) -> None:
    """torch stores, it never packs: a packed member may become anything in memory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            is_packed = any(m.compress_type != zipfile.ZIP_STORED for m in archive.infolist())
    except Exception:  # no archive: torch says what it is
        return
    if is_packed:
        raise WeightsError(f"{path} is a packed archive, which torch does not write")


def _find_weights(path: Path, value: object) -> dict[str, Tensor]:
    if not isinstance(value, Mapping):
        raise WeightsError(f"{path} holds a {type(value).__name__}, no weights", hint=_SAVE_PLAIN)
    inner = next((value[key] for key in _NESTED if isinstance(value.get(key), Mapping)), value)
    tensors = {name: item for name, item in inner.items() if isinstance(item, Tensor)}
    if not tensors:
        keys = ", ".join(str(key) for key in list(inner)[:8]) or "nothing"
        raise WeightsError(
            f"{path} holds no weights: it has {keys}",
            hint=f"put them at the top, or under {', '.join(f'`{key}`' for key in _NESTED)}",
        )
    if len(tensors) < len(inner):
        other = next(name for name, item in inner.items() if not isinstance(item, Tensor))
        raise WeightsError(
            f"`{other}` in {path} is a {type(inner[other]).__name__}, not a tensor",
            hint=_SAVE_PLAIN,
        )
    return tensors


def to_torch_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a `.pt` that `torch.load(…, weights_only=True)` takes."""
    buffer = io.BytesIO()
    # Sorted: safetensors gives what it reads in any order (0.8.0).
    torch.save(dict(sorted(tensors.items())), buffer)
    with zipfile.ZipFile(buffer, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        text = json.dumps(dict(metadata), sort_keys=True)
        archive.writestr(zipfile.ZipInfo(f"{folder}/{_METADATA}", _EPOCH), text)
    return buffer.getvalue()


def read_torch_metadata(path: Path) -> dict[str, str]:
    """What `to_torch_file` was told; nothing for files of others."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(f"/{_METADATA}"))
            value = json.loads(archive.read(name))
    except (OSError, StopIteration, zipfile.BadZipFile, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
