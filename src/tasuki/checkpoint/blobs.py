"""Tensor memory as blobs: each stretch of memory once, however many tensors look at it.

Tied weights, views and the same tensor twice share one blob; what a tensor is (dtype, shape,
stride, offset) stands in the tree, so a blob is only bytes. Where that is possible it has the first
user's dtype and shape, so that people can open the file with plain safetensors.

Only what is used is stored: two slices of a giant base that do not overlap become two blobs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasuki.checkpoint.places import make_unique
from tasuki.errors import DamagedCheckpoint

Node = dict[str, Any]
NumpyArray = np.ndarray[Any, np.dtype[Any]]

# fmt: off
# What every safetensors since 0.4.5 reads into torch; all else is stored as uint8.
_READABLE_NAMES = [
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
]
_OTHER_NAMES = [
    "uint16", "uint32", "uint64", "complex32", "complex64", "complex128",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]
# fmt: on
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in _READABLE_NAMES + _OTHER_NAMES if hasattr(torch, name)
}
_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}

_READABLE = {DTYPES[name] for name in _READABLE_NAMES}
_ARRAY_DTYPE = re.compile(r"\|[biu]1|[<>](?:[iu][248]|f[248]|c8|c16)", re.ASCII)
_MAX_INT = 2**63 - 1


class NotABlob(Exception):
    """This tensor or array has no plain memory; the codec adds the place and what to do."""


@dataclass(slots=True)
class _Use:
    """One tensor's look at a storage. `start` and `stop` count bytes from the storage's first."""

    node: Node
    tag: str
    name: str
    tensor: Tensor
    storage: tuple[torch.device, int, int]
    """Device, address and bytes."""
    itemsize: int
    start: int
    stop: int


class BlobCollector:
    """Gathers the tensors of one state. The state must not change until `finish` returns."""

    def __init__(self) -> None:
        self._uses: list[_Use] = []

    def add_tensor(self, value: Tensor, name: str) -> Node:
        """The tensor's node in the tree; its blob's name is filled in by `finish`."""
        _refuse_unusual(value)
        # A lazily conjugated or negated view has memory that says something else.
        tensor = value.detach().resolve_conj().resolve_neg()
        shape = list(tensor.shape)
        node: Node = {"$tensor": None, "dtype": _NAME_OF[tensor.dtype], "shape": shape}
        if tensor.numel():
            if list(tensor.stride()) != _plain_stride(shape):
                node["stride"] = list(tensor.stride())
            self._use(node, "$tensor", name, tensor, tensor.itemsize)
        return node

    def add_array(self, value: NumpyArray, name: str) -> Node:
        """As `add_tensor`. Row-major and column-major order are kept, other strides are not."""
        refuse_unusual_dtype(value.dtype)
        is_column_major = value.flags.f_contiguous and not value.flags.c_contiguous
        node: Node = {"$array": None, "dtype": value.dtype.str, "shape": list(value.shape)}
        if is_column_major:
            node["order"] = "F"
        if value.size:
            flat = value.ravel(order="F" if is_column_major else "C")
            flat = flat if flat.flags.writeable else flat.copy()
            tensor = _as_tensor(flat)
            if not is_column_major and tensor.numel() == value.size:
                tensor = tensor.view(value.shape)
            self._use(node, "$array", name, tensor, value.dtype.itemsize)
        return node

    def _use(self, node: Node, tag: str, name: str, tensor: Tensor, itemsize: int) -> None:
        start = int(tensor.storage_offset()) * tensor.itemsize
        stop = start + _span(list(tensor.shape), list(tensor.stride())) * tensor.itemsize
        memory = tensor.untyped_storage()
        storage = (tensor.device, memory.data_ptr(), memory.nbytes())
        if stop > storage[2]:
            raise NotABlob("a tensor whose memory was freed or shrunk")
        self._uses.append(_Use(node, tag, name, tensor, storage, itemsize, start, stop))

    def finish(self, frozen: Collection[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The blobs by name, and apart from them those whose storages are frozen.

        They lie where the state lies, on its device, and may share its memory.
        """
        taken: set[str] = set()
        blobs: dict[str, Tensor] = {}
        frozen_blobs: dict[str, Tensor] = {}
        for group in _groups(self._uses):
            name = make_unique(group[0].name, taken)
            step = max(use.itemsize for use in group)
            low = min(use.start for use in group)
            # Aligned for the largest item, so that every user's offset is whole in its own items.
            low -= low % step
            into = frozen_blobs if group[0].storage[1] in frozen else blobs
            into[name] = _cut(group[0], low, max(use.stop for use in group))
            for use in group:
                use.node[use.tag] = name
                if use.start > low:
                    use.node["offset"] = (use.start - low) // use.itemsize
        return blobs, frozen_blobs


class BlobReader:
    """Gives the tensors of one state back, checked against the blobs there are.

    `frozen` may hold more than this state uses: other states share the file. With `is_own` the
    blobs are memory of this state alone and need not be copied.
    """

    def __init__(
        self, blobs: Mapping[str, Tensor], frozen: Mapping[str, Tensor], *, is_own: bool
    ) -> None:
        self._blobs = blobs
        self._all = {**frozen, **blobs}
        self._is_own = is_own
        self._memory: dict[str, Tensor] = {}

    def tensor(self, node: Node) -> Tensor:
        _expect_fields(node, {"$tensor", "dtype", "shape"}, {"stride", "offset"})
        dtype = DTYPES.get(node["dtype"])
        if dtype is None:
            raise DamagedCheckpoint(f"a tensor of unknown dtype {str(node['dtype'])[:40]!r}")
        shape = _sizes(node["shape"])
        if node["$tensor"] is None:
            _expect_empty(shape)
            return torch.empty(shape, dtype=dtype)
        stride = _sizes(node["stride"]) if "stride" in node else _plain_stride(shape)
        if len(stride) != len(shape):
            raise DamagedCheckpoint("a tensor whose stride does not belong to its shape")
        offset = _sizes([node.get("offset", 0)])[0]
        memory = self._items(node["$tensor"], dtype.itemsize, offset + _span(shape, stride))
        return memory.view(dtype).as_strided(shape, stride, offset)

    def array(self, node: Node) -> NumpyArray:
        _expect_fields(node, {"$array", "dtype", "shape"}, {"order", "offset"})
        dtype, shape, order = array_dtype(node["dtype"]), _sizes(node["shape"]), node.get("order")
        if order not in (None, "F"):
            raise DamagedCheckpoint("an array of unknown order")
        if node["$array"] is None:
            _expect_empty(shape)
            return np.empty(shape, dtype=dtype, order=order or "C")
        offset = _sizes([node.get("offset", 0)])[0]
        count = _span(shape, _plain_stride(shape))
        memory = self._items(node["$array"], dtype.itemsize, offset + count)
        items: NumpyArray = memory.numpy().view(dtype)[offset : offset + count]
        return items.reshape(shape, order=order or "C")

    def ensure_all_used(self) -> None:
        """A tensor that nobody refers to does not belong to this tree."""
        if foreign := sorted(set(self._blobs) - set(self._memory)):
            raise DamagedCheckpoint(f"{len(foreign)} foreign tensors, the first is `{foreign[0]}`")

    def _items(self, name: object, itemsize: int, num_items: int) -> Tensor:
        """The blob's bytes, cut to whole items; refused if it holds fewer than are asked for."""
        if not isinstance(name, str) or name not in self._all:
            raise DamagedCheckpoint(f"the tensor `{str(name)[:240]}` is missing")
        if name not in self._memory:
            blob = self._all[name]
            self._memory[name] = flat_bytes(blob) if self._is_own else _own_bytes(blob)
        memory = self._memory[name]
        available = memory.numel() // itemsize
        if num_items > available:
            raise DamagedCheckpoint(
                f"the tensor `{name}` holds {available} items, but {num_items} are asked for"
            )
        return memory[: available * itemsize]


def refuse_unusual_dtype(dtype: np.dtype[Any]) -> None:
    """Numbers and bools of fixed size, in either byte order; no objects, text, dates, records."""
    if not _ARRAY_DTYPE.fullmatch(dtype.str) or dtype.names is not None:
        raise NotABlob(f"numpy dtype {dtype}")


def array_dtype(text: object) -> np.dtype[Any]:
    """The numpy dtype that a tree names."""
    if not isinstance(text, str) or not _ARRAY_DTYPE.fullmatch(text):
        raise DamagedCheckpoint(f"an array of unknown dtype {str(text)[:40]!r}")
    return np.dtype(text)


def flat_bytes(tensor: Tensor) -> Tensor:
    """A tensor's values as bytes, row by row."""
    # A single item is contiguous with any stride, but only stride 1 can be viewed as bytes.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def view_bytes(tensor: Tensor) -> memoryview:
    """A CPU tensor's values as a buffer, without a copy where it is contiguous."""
    return memoryview(flat_bytes(tensor).numpy())  # type: ignore[arg-type]


def _refuse_unusual(value: Tensor) -> None:
    if type(value) not in (Tensor, torch.nn.Parameter):
        raise NotABlob("a tensor subclass")
    if value.is_quantized:
        raise NotABlob("a quantised tensor")
    if value.is_nested or value.layout is not torch.strided:
        raise NotABlob(f"a tensor of layout {str(value.layout).removeprefix('torch.')}")
    if value.is_meta:
        raise NotABlob("a tensor on the meta device, which has no values")
    if value.dtype not in _NAME_OF:
        raise NotABlob(f"a tensor of dtype {value.dtype}")


def _as_tensor(flat: NumpyArray) -> Tensor:
    """The array's memory as a tensor of its dtype, or of bytes where torch has no such dtype."""
    # Little-endian is what safetensors stores; a swapped array keeps its bytes and its dtype.
    return torch.from_numpy(flat if flat.dtype.str[0] in "<|" else flat.view(np.uint8))


def _groups(uses: list[_Use]) -> list[list[_Use]]:
    """Uses whose memory overlaps, each group and the groups in the order of the state."""
    storages: dict[tuple[torch.device, int, int], list[int]] = {}
    for index, use in enumerate(uses):
        storages.setdefault(use.storage, []).append(index)
    groups: list[list[int]] = []
    for members in storages.values():
        stop = -1
        for index in sorted(members, key=lambda i: uses[i].start):
            if uses[index].start >= stop:
                groups.append([])
            groups[-1].append(index)
            stop = max(stop, uses[index].stop)
    return [[uses[index] for index in sorted(group)] for group in sorted(groups, key=min)]


def _cut(first: _Use, low: int, high: int) -> Tensor:
    """Bytes [low, high) of a storage; in the first user's dtype and shape where they are that."""
    tensor = first.tensor
    is_whole = low == first.start and high == first.stop and tensor.is_contiguous()
    if is_whole and tensor.dtype in _READABLE:
        return tensor  # nearly all are so: nothing is to be cut
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    memory.set_(tensor.untyped_storage(), low, (high - low,), (1,))
    if tensor.dtype not in _READABLE or low % tensor.itemsize or (high - low) % tensor.itemsize:
        return memory
    items = memory.view(tensor.dtype)
    return items.view(tensor.shape) if _is_all_of(tensor, items.numel()) else items


def _is_all_of(tensor: Tensor, num_items: int) -> bool:
    return tensor.is_contiguous() and tensor.numel() == num_items


def _own_bytes(blob: Tensor) -> Tensor:
    """A copy in torch's own memory: aligned to 64 bytes, on which bitwise equal sums may hang."""
    source = flat_bytes(blob.detach())
    try:
        memory = torch.empty(source.numel(), dtype=torch.uint8)
    except RuntimeError as error:  # torch's word for "no memory", which is not damage
        raise MemoryError(str(error)) from error
    return memory.copy_(source)


def _plain_stride(shape: list[int]) -> list[int]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return stride[::-1]


def _span(shape: list[int], stride: list[int]) -> int:
    """Items from the first to the last one that a tensor reaches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _sizes(value: object) -> list[int]:
    if not isinstance(value, list) or not all(
        type(size) is int and 0 <= size <= _MAX_INT for size in value
    ):
        raise DamagedCheckpoint(f"{str(value)[:80]} are no sizes")
    return value


def _expect_empty(shape: list[int]) -> None:
    if 0 not in shape:
        raise DamagedCheckpoint(f"a tensor of shape {str(shape)[:80]} without memory")


def _expect_fields(node: Node, needed: set[str], allowed: set[str]) -> None:
    if not needed <= set(node) <= needed | allowed:
        raise DamagedCheckpoint(f"fields {', '.join(sorted(node))[:200]}")
