"""Weights: a model's tensors alone, in a safetensors file that any tool can open.

What a stage starts from, and what people take home; not a checkpoint. Tied tensors are stored once,
their other names in the metadata under `tasuki.aliases`. The same weights give the same bytes, so
that their sha256 can be compared between runs. Others' files may be `.pt` too (torchfile.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from tasuki.checkpoint.torchfile import read_torch_file
from tasuki.errors import WeightsError
from tasuki.runs.atomic import read_plain, write_bytes

ALIASES = "tasuki.aliases"
_SHOWN = 4
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_MAX_HEADER = 100_000_000
_MAX_WEIGHTS = 1 << 43
"""Of safetensors itself."""
_ZIP = b"PK\x03\x04"


def write_weights(path: Path, state_dict: Mapping[str, Tensor], metadata: dict[str, str]) -> str:
    """Write a model's `state_dict()`, durably; the file's sha256."""
    data = to_safetensors(path, state_dict, metadata)
    write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def to_safetensors(path: Path, state_dict: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """The bytes that `write_weights` writes; `path` is for words only."""
    if ALIASES in metadata:
        raise WeightsError(f"metadata may not hold `{ALIASES}`", hint="it is written by tasuki")
    tensors, aliases = _split_aliases(state_dict)
    if aliases:
        metadata = {**metadata, ALIASES: json.dumps(aliases, sort_keys=True)}
    try:
        return _sort_header(save_safetensors(tensors, metadata))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise WeightsError(
            f"{path} cannot be written as safetensors: {error}",
            hint="weights are real or complex64 numbers; keep other state in the checkpoint only",
        ) from error


def plain_tensors(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As they are stored: on the CPU, row by row; tied ones share memory, others do not."""
    tensors, aliases = _split_aliases(state_dict)
    return {name: tensors[aliases.get(name, name)] for name in state_dict}


def read_weights(path: Path, *, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors by name, tied ones sharing memory; checked if the sha256 is known.

    Safetensors, ours or others', or torch's own files of plain tensors.
    """
    data = read_plain(path, limit=_MAX_WEIGHTS)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise WeightsError(
            f"{path} is not what was written: its sha256 is another",
            hint="restore it from a copy, or write it again from a checkpoint",
        )
    if _is_torch_file(path, data):
        weights = read_torch_file(path, data)
        check_weights(weights)
        return weights
    try:
        stored: dict[str, Tensor] = load_safetensors(data)
        aliases = json.loads(_read_header(data)[0].get("__metadata__", {}).get(ALIASES, "{}"))
        # Into torch's own aligned memory: safetensors' buffers start at any multiple of 16.
        tensors = {name: tensor.clone() for name, tensor in stored.items()}
        return tensors | {alias: tensors[name] for alias, name in aliases.items()}
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path} is no safetensors file that can be read: {error}",
            hint="give a file written by tasuki, or by safetensors' save_file",
        ) from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; nothing where there are none, or it is no such file."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            text = file.read(min(size, _MAX_HEADER))
        return dict(json.loads(text).get("__metadata__", {}))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _is_torch_file(path: Path, data: bytes) -> bool:
    """By content; names decide only about pickles of old, which begin like nothing else."""
    is_header = data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data)
    return not is_header and (data.startswith(_ZIP) or path.suffix in _TORCH_SUFFIXES)


def explain_mismatch(
    model_state: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> str | None:
    """In words, why weights do not fit a model; None if they do."""
    missing = [name for name in model_state if name not in weights]
    unexpected = sorted(name for name in weights if name not in model_state)
    other = [
        f"{name} ({_shape(weights[name])}, the model has {_shape(tensor)})"
        for name, tensor in model_state.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    sentences = [
        f"{len(names)} {words}: {_first_few(names)}"
        for names, words in (
            (missing, "missing in the weights"),
            (unexpected, "unknown to the model"),
            (other, "of another shape"),
        )
        if names
    ]
    return "; ".join(sentences) or None


def check_weights(state_dict: Mapping[str, object]) -> None:
    """Refuse what `write_weights` could not write."""
    for name, value in state_dict.items():
        _refuse_unusual(name, value)


def _split_aliases(state_dict: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors to store, and the other names of those that are the same memory."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[object, str] = {}
    taken: set[int] = set()
    for name, value in state_dict.items():
        _refuse_unusual(name, value)
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and key in names:
            aliases[name] = names[key]
            continue
        names[key] = name
        tensors[name] = _plain(value, taken)
    return tensors, aliases


def _refuse_unusual(name: object, value: object) -> None:
    if not isinstance(name, str) or name == "__metadata__":
        raise WeightsError(f"{name!r} cannot be the name of a weight")
    if type(value) not in (Tensor, torch.nn.Parameter):
        raise WeightsError(
            f"`{name}` is a {type(value).__name__}, not a plain tensor",
            hint="weights hold tensors only; a module's extra state belongs in the checkpoint",
        )
    assert isinstance(value, Tensor)
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise WeightsError(
            f"`{name}` has no plain values (layout {value.layout}, device {value.device})",
            hint="make it dense and real first",
        )


def _plain(value: Tensor, taken: set[int]) -> Tensor:
    """On the CPU, row by row, sharing memory with no other tensor of the file."""
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    is_whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    if not is_whole or tensor.data_ptr() in taken:
        tensor = tensor.clone()
    taken.add(tensor.data_ptr())
    return tensor


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), size


def _sort_header(data: bytes) -> bytes:
    """safetensors writes metadata in a random order (0.8.0): put it in one, in the same room."""
    header, size = _read_header(data)
    if "__metadata__" in header:
        header = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size)
    # Another safetensors may spell its header differently: then its own order stays.
    return data[:8] + text + data[8 + size :] if len(text) == size else data


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape) or "a single number"


def _first_few(names: Iterable[str]) -> str:
    names = list(names)
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
