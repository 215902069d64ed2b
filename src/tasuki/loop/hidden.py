"""State that no checkpoint holds: what objects of the user's carry beside their `state_dict`.

For the trace of a drill (trace.py): each number, tensor and random generator within reach becomes
one entry, a name and a short text that is equal only where the value is. Looks, and changes
nothing; what it does not know it leaves out.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_DEPTH = 5
_MOST_ENTRIES = 3000
_MOST_ITEMS = 16
_PLAIN_ITEMS = 4096
_WHOLE = 1 << 20
_SHOWN = 40
_LONG = 1 << 16
_OURS = ("tasuki",)
_LIBRARIES = ("torch", "torchdata", "numpy", "h5py")
_ROOTS = {*sys.stdlib_module_names, *_OURS, *_LIBRARIES}


def leaf(value: Any) -> str | None:
    """`int 3`, `Tensor(2, 3) 8c1f…`; None for what has an inside, or is no state at all."""
    match value:
        case str() | bytes() if len(value) > _LONG:
            return _told(type(value).__name__, f"{len(value)} {value[:_LONG]!r}")
        case None | bool() | int() | float() | complex() | str() | bytes() | Enum():
            return _told(type(value).__name__, repr(value))
        case PurePath() | torch.dtype() | torch.device() | torch.Size():
            return _told(type(value).__name__, str(value))
        case Tensor():
            return f"Tensor{tuple(value.shape)} {_tensor_digest(value, most=_WHOLE)}"
        case np.ndarray() | np.generic():
            return f"array{np.shape(value)} {_digest(_bytes_of_array(np.asanyarray(value)))}"
        case itertools.count():
            return _told("itertools.count", repr(value))
    return _generator(value)


def _generator(value: Any) -> str | None:
    """Random generators by their state."""
    match value:
        case torch.Generator():
            return f"torch.Generator {tensor_digest(value.get_state())}"
        case np.random.Generator():
            return f"numpy.random.Generator {digest_of(value.bit_generator.state)}"
        case np.random.RandomState():
            return f"numpy.random.RandomState {digest_of(value.get_state(legacy=False))}"
        case random.SystemRandom():
            return "random.SystemRandom"
        case random.Random():
            return f"random.Random {digest_of(value.getstate())}"
    return None


def _told(kind: str, text: str) -> str:
    return f"{kind} {text if len(text) <= _SHOWN else _digest(text.encode())}"


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _bytes_of_array(array: Any) -> bytes:
    if array.dtype.hasobject or isinstance(array, np.memmap):  # a file need not be read for it
        return repr((array.shape, array.dtype)).encode()
    flat = array.reshape(-1)
    if flat.size > _WHOLE:
        flat = flat[:: flat.size >> 16]
    content: bytes = flat.tobytes()
    return f"{array.dtype} {array.shape} ".encode() + content


def tensor_digest(tensor: Tensor) -> str:
    """Of every bit, however many."""
    return _tensor_digest(tensor, most=None)


def _tensor_digest(tensor: Tensor, *, most: int | None) -> str:
    """Of a larger tensor than `most`, which steps seldom change in one place alone, a part."""
    hasher = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)} ".encode(), digest_size=8)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        hasher.update(repr(tensor).encode())
    elif tensor.numel():
        flat = tensor.detach().reshape(-1)
        if most is not None and flat.numel() > most:
            flat = flat[:: flat.numel() >> 16]
        plain = flat.resolve_conj().resolve_neg().cpu().contiguous()
        hasher.update(plain.view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def digest_of(value: Any) -> str:
    """One digest of a nested value, such as a batch; every bit of its tensors counts."""
    hasher = hashlib.blake2b(digest_size=8)
    for piece in _pieces(value, 0):
        hasher.update(piece.encode() + b"\0")
    return hasher.hexdigest()


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Tensor):
        yield tensor_digest(value)
    elif isinstance(value, list | tuple) and all(type(item) is int for item in value):
        yield repr(value)  # such as the 625 words of Python's random state, twice a step
    elif (told := leaf(value)) is not None:
        yield told
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{key}:"
            yield from _pieces(item, depth + 1)
    elif isinstance(value, list | tuple | deque):
        yield f"{len(value)}["
        for item in value:
            yield from _pieces(item, depth + 1)
    elif depth <= _DEPTH and hasattr(value, "__dict__"):
        yield type(value).__name__
        yield from _pieces(vars(value), depth + 1)


class Walk:
    """Gathers entries from the objects it is sent into; each object once."""

    def __init__(self, known: Iterable[object] = ()) -> None:
        self.entries: dict[str, str] = {}
        self._met: dict[int, object] = {id(value): value for value in known}
        """By id, and kept alive: an id may be given again."""

    def know(self, value: object) -> None:
        """It is looked at elsewhere, or in a checkpoint."""
        self._met[id(value)] = value

    def into(self, name: str, value: Any, depth: int = 0) -> None:
        if len(self.entries) >= _MOST_ENTRIES:
            return
        told = leaf(value)
        if told is not None:
            self.entries[name] = told
        elif depth <= _DEPTH and id(value) not in self._met:
            self._met[id(value)] = value
            try:
                self._inside(name, value, depth)
            except Exception as error:  # the user's objects may do anything when looked at
                self.entries[name] = f"{type(value).__name__} {type(error).__name__}"

    def _inside(self, name: str, value: Any, depth: int) -> None:
        match value:
            case nn.Module():
                self.module(name, value, with_tensors=True)
            case Optimizer():
                self.into(f"{name}.state", value.state_dict(), depth + 1)
                self.attributes(name, value, depth)
            case Mapping():
                self._items(name, value.items(), len(value), depth)
            case list() | tuple() | deque():
                self._items(name, enumerate(value), len(value), depth)
            case set() | frozenset() if len(value) <= _PLAIN_ITEMS:
                self.entries[name] = _told("set", repr(sorted(map(repr, value))))
            case _ if _has_inside(value):
                self.attributes(name, value, depth)

    def _items(
        self, name: str, items: Iterable[tuple[object, Any]], count: int, depth: int
    ) -> None:
        """Plain items as one entry, others one by one; of many, the first."""
        first = list(itertools.islice(items, _PLAIN_ITEMS))
        if count > _MOST_ITEMS:
            told = [leaf(item) for _, item in first]
            plain = "\n".join(text or "" for text in told)
            is_plain = all(text is not None for text in told)
            self.entries[name] = f"{count} items {_digest(plain.encode()) if is_plain else ''}"
            if is_plain:
                return
        for place, item in first[:_MOST_ITEMS]:
            self.into(f"{name}[{place!r}]", item, depth + 1)

    def module(self, name: str, module: nn.Module, *, with_tensors: bool = False) -> None:
        """What modules carry beside parameters and buffers; with these too, if they are in no
        checkpoint."""
        for path, part in module.named_modules():
            self._met[id(part)] = part
            own = f"{name}.{path}" if path else name
            self.attributes(own, part, 1)
        for path, parameter in module.named_parameters():
            self.entries[f"{name}.{path}.requires_grad"] = f"bool {parameter.requires_grad}"
        if with_tensors:
            for path, tensor in (*module.named_parameters(), *module.named_buffers()):
                self.into(f"{name}.{path}", tensor)

    def attributes(
        self, name: str, value: Any, depth: int = 0, *, without: Iterable[str] = ()
    ) -> None:
        self._met[id(value)] = value
        own = _attributes_of(value)
        if _is_users(type(value)):  # counters are also kept on the class
            own = {k: v for k, v in vars(type(value)).items() if _is_state(k, v)} | own
        left_out = set(without)
        for key, item in own.items():
            if key not in left_out:
                self.into(f"{name}.{key}", item, depth + 1)

    def globals_of(
        self, name: str, module_name: str, *, only: Container[str] | None = None
    ) -> None:
        """Values at the top of a module of the user's: counters and generators live there too."""
        module = sys.modules.get(module_name)
        if module is None or module_name.partition(".")[0] in _ROOTS:
            return
        own = {k: v for k, v in vars(module).items() if only is None or k in only}
        self.values_of(name, own, module_name)

    def values_of(self, name: str, values: Mapping[str, Any], module_name: str = "") -> None:
        """Of a module, or of a function that is under way."""
        for key, item in values.items():
            is_of_it = type(item).__module__ == module_name
            is_plain = isinstance(item, list | dict | set | deque) or leaf(item) is not None
            if not key.startswith("__") and (is_plain or is_of_it):
                self.into(f"{name}.{key}", item, _DEPTH - 1)


def _has_inside(value: Any) -> bool:
    """Objects worth a look: not code, not a module or class, nothing of Python's own."""
    kind = type(value)
    if isinstance(value, type | FunctionType | CodeType) or kind.__module__ == "builtins":
        return False
    root = kind.__module__.partition(".")[0]
    return root not in sys.stdlib_module_names or isinstance(value, SimpleNamespace)


def _is_state(name: str, value: Any) -> bool:
    return not name.startswith("__") and leaf(value) is not None


def _is_users(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _ROOTS


def _attributes_of(value: Any) -> dict[str, Any]:
    """Those that are the user's. What begins with `_` in a class of torch's is torch's own, unless
    the user's code in it says that name."""
    kind = type(value)
    found = dict(getattr(value, "__dict__", {}))
    for slot in _slots(kind):
        if hasattr(value, slot):
            found[slot] = getattr(value, slot)
    if isinstance(value, Optimizer):
        for key in ("state", "param_groups", "defaults"):
            found.pop(key, None)
    root = kind.__module__.partition(".")[0]
    if root in _OURS:
        return {key: item for key, item in found.items() if _is_users(type(item))}
    own_classes = [part for part in kind.__mro__ if _is_users(part)]
    has_library = any(part.__module__.partition(".")[0] in _LIBRARIES for part in kind.__mro__)
    if not has_library:
        return {key: item for key, item in found.items() if not key.startswith("__")}
    said = {name for part in own_classes for name in _names_said(part)}
    return {key: item for key, item in found.items() if not key.startswith("_") or key in said}


def _slots(kind: type) -> Iterator[str]:
    for part in kind.__mro__:
        if _is_users(part):
            slots = part.__dict__.get("__slots__", ())
            yield from (slots,) if isinstance(slots, str) else slots


def _names_said(kind: type) -> Iterator[str]:
    """Every name that the methods of a class use."""
    for item in vars(kind).values():
        if isinstance(item, FunctionType):
            yield from item.__code__.co_names
