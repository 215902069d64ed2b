"""State as a tagged JSON tree plus tensor blobs: a closed codec, no pickle.

What it knows comes back exactly: types, float bits, tuples, key types, dtypes, strides, aliases.
What it does not know is refused with its place at the first save, not met at the first restore.
Nothing is imported, looked up or executed while decoding, and damage is one documented exception.

A JSON object is a dict of the state unless one of its keys starts with `$`: that key is the tag. A
device is not part of it: tensors come back on the CPU, without gradient. Python objects that are
shared come back as copies; tensors that share memory still do.
"""

from __future__ import annotations

import base64
import enum
import math
import re
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasuki.checkpoint.blobs import (
    BlobCollector,
    BlobReader,
    Node,
    NotABlob,
    array_dtype,
    refuse_unusual_dtype,
)
from tasuki.checkpoint.difference import first_difference
from tasuki.checkpoint.places import describe_place, tensor_name
from tasuki.errors import DamagedCheckpoint, StateNotStorable

__all__ = ["MAX_DEPTH", "Encoded", "decode", "encode", "first_difference"]

Tree = Any
"""None, bool, int, float, str, list or dict, as `json` writes them."""

MAX_DEPTH = 200

_FACTORIES: dict[str, type | None] = {
    "list": list, "dict": dict, "int": int, "float": float, "str": str, "none": None,
}  # fmt: skip
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}
_DTYPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_DEVICE_NAME = re.compile(r"[a-z]{1,20}(:\d{1,5})?", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT_LIMIT = 2**63
_KEYS = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state in storable form."""

    tree: Tree
    tensors: dict[str, Tensor]
    frozen: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that no step changes: stored once, beside many states."""


def encode(state: object, *, frozen: Collection[int] = ()) -> Encoded:
    """The state in storable form. Tensors are not copied: write it before they change.

    `frozen` are the addresses of storages whose tensors go apart.
    """
    encoder = _Encoder()
    try:
        tree = encoder.value(state)
    except RecursionError as error:
        raise encoder.refusal("nested too deeply", "flatten it") from error
    return Encoded(tree, *encoder.blobs.finish(frozen))


def decode(
    tree: Tree,
    tensors: Mapping[str, Tensor],
    *,
    frozen: Mapping[str, Tensor] | None = None,
    is_own: bool = False,
) -> object:
    """The state again, in memory of its own. Anything unexpected is a DamagedCheckpoint.

    With `is_own` the tensors were read for this state alone: they become it, uncopied.
    """
    decoder = _Decoder(BlobReader(tensors, frozen or {}, is_own=is_own))
    try:
        state = decoder.value(tree)
        decoder.blobs.ensure_all_used()
    except MemoryError:
        raise
    except Exception as error:
        place = describe_place(decoder.path)
        raise DamagedCheckpoint(
            f"the state cannot be read at {place}: {error}", hint="use an older checkpoint"
        ) from error
    return state


class _Encoder:
    """Walks down one state. `path` is where it stands, `_open` what it stands in."""

    def __init__(self) -> None:
        self.blobs = BlobCollector()
        self.path: list[object] = []
        self._open: set[int] = set()

    def value(self, value: Any) -> Tree:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if (leaf := _LEAVES.get(kind)) is not None:
            return leaf(value)
        if (container := _CONTAINERS.get(kind)) is None:
            return self._blob(value)
        if id(value) in self._open:
            raise self.refusal("a container that contains itself", "break the cycle")
        if len(self._open) >= MAX_DEPTH:
            raise self.refusal(f"nested more than {MAX_DEPTH} deep", "flatten it")
        self._open.add(id(value))
        try:
            return container(self, value)
        finally:
            self._open.remove(id(value))

    def items(self, values: Iterable[object]) -> list[Tree]:
        nodes = []
        for index, value in enumerate(values):
            self.path.append(index)
            nodes.append(self.value(value))
            self.path.pop()
        return nodes

    def pairs(self, value: dict[Any, Any]) -> dict[str, Tree] | list[Tree]:
        """An object where all keys are plain strings, else a list of [key, value]."""
        is_plain = all(type(key) is str and _is_plain_key(key) for key in value)
        keys, nodes = [], []
        for key, item in value.items():
            self.path.append(key)
            keys.append(key if is_plain else self._key(key))
            nodes.append(self.value(item))
            self.path.pop()
        if is_plain:
            return dict(zip(keys, nodes, strict=True))
        return [[key, node] for key, node in zip(keys, nodes, strict=True)]

    def _key(self, key: Any) -> Tree:
        parts = key if type(key) is tuple else (key,)
        if not all(part is None or type(part) in _KEYS for part in parts):
            words = f"a dict key of type {_type_name(key)}"
            raise self.refusal(words, "use str, int, float, bool, None or a tuple of them as keys")
        return self.value(key)

    def dict(self, value: dict[Any, Any]) -> Tree:
        pairs = self.pairs(value)
        return pairs if isinstance(pairs, dict) else {"$dict": pairs}

    def ordered(self, value: OrderedDict[Any, Any]) -> Tree:
        node: Node = {"$ordered": self.pairs(value)}
        # Module.state_dict() hangs the modules' versions on the dict, for load_state_dict.
        attributes = dict(vars(value))
        if "_metadata" in attributes:
            self.path.append("_metadata")
            node["metadata"] = self.value(attributes.pop("_metadata"))
            self.path.pop()
        self._refuse_attributes(attributes)
        return node

    def defaultdict(self, value: defaultdict[Any, Any]) -> Tree:
        factory = _FACTORY_NAMES.get(value.default_factory)  # type: ignore[arg-type]
        if factory is None:
            raise self.refusal(
                f"a defaultdict with the factory {value.default_factory!r}",
                "use list, dict, int, float or str as its factory, or store dict(it)",
            )
        return {"$defaultdict": self.pairs(value), "factory": factory}

    def counter(self, value: Counter[Any]) -> Tree:
        self._refuse_attributes(vars(value))
        return {"$counter": self.pairs(value)}

    def _refuse_attributes(self, attributes: Mapping[str, object]) -> None:
        if attributes:
            name = next(iter(attributes))
            raise self.refusal(f"a dict with the attribute {name!r}", "store it as an item")

    def _blob(self, value: object) -> Tree:
        try:
            if isinstance(value, Tensor):
                return self.blobs.add_tensor(value, tensor_name(self.path))
            if type(value) is np.ndarray:
                return self.blobs.add_array(value, tensor_name(self.path))
            if isinstance(value, np.generic) and type(value) is value.dtype.type:
                refuse_unusual_dtype(value.dtype)
                return {"$scalar": value.dtype.str, "bytes": value.tobytes().hex()}
        except NotABlob as error:
            words = f"{error} ({_type_name(value)})"
            raise self.refusal(words, _hint_for(value)) from error
        except (RuntimeError, NotImplementedError) as error:
            words = f"a tensor without plain memory ({_type_name(value)})"
            raise self.refusal(words, _hint_for(value)) from error
        raise self.refusal(f"a {_type_name(value)}", _hint_for(value))

    def refusal(self, what: str, hint: str) -> StateNotStorable:
        place = describe_place(self.path)
        return StateNotStorable(
            f"the state holds {what} at {place}: it cannot be stored", hint=hint
        )


def _encode_int(value: int) -> Tree:
    # Python refuses decimals of more than 4300 digits; other readers stop at 64 bits.
    return value if -_INT_LIMIT <= value < _INT_LIMIT else {"$int": hex(value)}


def _encode_float(value: float) -> Tree:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def _encode_str(value: str) -> Tree:
    if not _SURROGATE.search(value):
        return value
    return {"$str": value.encode("utf-8", "surrogatepass").hex()}


_LEAVES: dict[type, Callable[[Any], Tree]] = {
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
    torch.Size: lambda value: {"$size": list(value)},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"$device": str(value)},
}
_CONTAINERS: dict[type, Callable[[_Encoder, Any], Tree]] = {
    list: _Encoder.items,
    tuple: lambda encoder, value: {"$tuple": encoder.items(value)},
    dict: _Encoder.dict,
    OrderedDict: _Encoder.ordered,
    defaultdict: _Encoder.defaultdict,
    Counter: _Encoder.counter,
}


class _Decoder:
    """Walks down one tree; knows its tags and nothing else."""

    def __init__(self, blobs: BlobReader) -> None:
        self.blobs = blobs
        self.path: list[object] = []

    def value(self, node: Tree) -> Any:
        kind = type(node)
        if node is None or kind is bool or kind is int:
            return node
        if kind is float:
            return _expect(node, is_good=math.isfinite(node))
        if kind is str:
            return _expect(node, is_good=not _SURROGATE.search(node))
        if len(self.path) > MAX_DEPTH:
            raise DamagedCheckpoint(f"nested more than {MAX_DEPTH} deep")
        if kind is list:
            return self.items(node)
        if kind is not dict:
            raise DamagedCheckpoint(f"a {_type_name(node)}")
        tags = [key for key in node if type(key) is not str or key.startswith("$")]
        if not tags:
            return self.pairs(node)
        if len(tags) > 1 or tags[0] not in _TAGS:
            raise DamagedCheckpoint(f"unknown tag {str(tags)[:80]}")
        return _TAGS[tags[0]](self, node)

    def items(self, nodes: list[Tree]) -> list[Any]:
        values = []
        for index, node in enumerate(nodes):
            self.path.append(index)
            values.append(self.value(node))
            self.path.pop()
        return values

    def pairs(self, node: Tree) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for key, item in node.items() if type(node) is dict else self._keys(node):
            self.path.append(key)
            values[key] = self.value(item)
            self.path.pop()
        if len(values) != len(node):
            raise DamagedCheckpoint("a dict with equal keys")
        return values

    def _keys(self, node: Tree) -> Iterable[tuple[Any, Tree]]:
        for pair in _expect(node, is_good=type(node) is list):
            key, item = pair
            yield self._key(key), item

    def _key(self, node: Tree) -> Any:
        key = self.value(node)
        parts = key if type(key) is tuple else (key,)
        return _expect(key, is_good=all(part is None or type(part) in _KEYS for part in parts))

    def ordered(self, node: Node) -> OrderedDict[Any, Any]:
        _only(node, "$ordered", "metadata")
        ordered = OrderedDict(self.pairs(node["$ordered"]))
        if "metadata" in node:
            self.path.append("_metadata")
            ordered._metadata = self.value(node["metadata"])  # type: ignore[attr-defined]
            self.path.pop()
        return ordered

    def defaultdict(self, node: Node) -> defaultdict[Any, Any]:
        _only(node, "$defaultdict", "factory")
        factory = _FACTORIES[node["factory"]]
        return defaultdict(factory, self.pairs(node["$defaultdict"]))

    def counter(self, node: Node) -> Counter[Any]:
        counter: Counter[Any] = Counter()
        dict.update(counter, self.pairs(_only(node, "$counter")))
        return counter


def _decode_int(node: Node) -> int:
    return int(_text(node, "$int"), 16)


def _decode_float(node: Node) -> float:
    raw = bytes.fromhex(_text(node, "$float"))
    (value,) = struct.unpack(">d", raw)
    return float(value)


def _decode_str(node: Node) -> str:
    return bytes.fromhex(_text(node, "$str")).decode("utf-8", "surrogatepass")


def _decode_bytes(node: Node) -> bytes:
    return base64.b64decode(_text(node, "$bytes"), validate=True)


def _decode_size(node: Node) -> torch.Size:
    sizes = _only(node, "$size")
    return torch.Size(_expect(sizes, is_good=all(type(size) is int for size in sizes)))


def _decode_dtype(node: Node) -> torch.dtype:
    name = _text(node, "$dtype")
    dtype = getattr(torch, name, None) if _DTYPE_NAME.fullmatch(name) else None
    if not isinstance(dtype, torch.dtype):
        raise DamagedCheckpoint(f"unknown dtype {name[:40]!r}")
    return dtype


def _decode_device(node: Node) -> torch.device:
    name = _text(node, "$device")
    return torch.device(_expect(name, is_good=_DEVICE_NAME.fullmatch(name) is not None))


def _decode_scalar(node: Node) -> np.generic:
    _only(node, "$scalar", "bytes")
    dtype, raw = array_dtype(node["$scalar"]), bytes.fromhex(node["bytes"])
    scalar: np.generic = np.frombuffer(_expect(raw, is_good=len(raw) == dtype.itemsize), dtype)[0]
    return scalar


_TAGS: dict[str, Callable[[_Decoder, Node], Any]] = {
    "$int": lambda _, node: _decode_int(node),
    "$float": lambda _, node: _decode_float(node),
    "$str": lambda _, node: _decode_str(node),
    "$bytes": lambda _, node: _decode_bytes(node),
    "$size": lambda _, node: _decode_size(node),
    "$dtype": lambda _, node: _decode_dtype(node),
    "$device": lambda _, node: _decode_device(node),
    "$scalar": lambda _, node: _decode_scalar(node),
    "$tensor": lambda decoder, node: decoder.blobs.tensor(node),
    "$array": lambda decoder, node: decoder.blobs.array(node),
    "$tuple": lambda decoder, node: tuple(decoder.items(_list(node, "$tuple"))),
    "$dict": lambda decoder, node: decoder.pairs(_list(node, "$dict")),
    "$ordered": _Decoder.ordered,
    "$defaultdict": _Decoder.defaultdict,
    "$counter": _Decoder.counter,
}


def _expect(value: Any, *, is_good: bool) -> Any:
    if not is_good:
        raise DamagedCheckpoint(f"unexpected {str(value)[:80]!r}")
    return value


def _only(node: Node, tag: str, *fields: str) -> Any:
    """The tagged content, in a node that has no other than the given fields."""
    _expect(list(node), is_good=set(node) <= {tag, *fields})
    return node[tag]


def _text(node: Node, tag: str) -> str:
    text: str = _expect(_only(node, tag), is_good=type(node[tag]) is str)
    return text


def _list(node: Node, tag: str) -> list[Tree]:
    nodes: list[Tree] = _expect(_only(node, tag), is_good=type(node[tag]) is list)
    return nodes


def _is_plain_key(key: str) -> bool:
    return not key.startswith("$") and not _SURROGATE.search(key)


def _type_name(value: object) -> str:
    kind = type(value)
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def _hint_for(value: object) -> str:
    if isinstance(value, Tensor):
        return "store a plain tensor: .to_dense(), .dequantize() or, for a DTensor, .to_local()"
    if isinstance(value, enum.Enum):
        return "store its value and make the enum of it again on restore"
    if isinstance(value, torch.Generator):
        return "store generator.get_state()"
    if isinstance(value, (set, frozenset)):
        return "store a sorted list of it"
    if isinstance(value, (list, tuple, dict, str, bytes, int, float, np.ndarray, np.generic)):
        return "store it as its plain base type: subclasses and unusual dtypes would be lost"
    if callable(value):
        return "leave functions and modules out of the state and make them again on restore"
    return "turn it into numbers, strings, lists, dicts or tensors in its state_dict()"
