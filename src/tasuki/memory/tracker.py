"""Watches every operation of a step and writes down which storages come and go, and what they hold.

Works on fake and on real tensors alike, which is how the first are proved by the second. A storage
is known by its place in memory and is gone when Python's weak reference to it says so; so garbage
collection must be off meanwhile, or cycles go at moments of its own choosing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tasuki.memory.bounded import Bounds
from tasuki.memory.mended import mended
from tasuki.memory.trace import Event, Kind, Trace, sort_frees

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_DEVICE_OF = torch.ops.prim.device.default


class _Held:
    """A storage that is there."""

    __slots__ = ("kind", "num_bytes", "number", "reference")

    def __init__(self, number: int, num_bytes: int, kind: Kind) -> None:
        self.number, self.num_bytes, self.kind = number, num_bytes, kind
        self.reference: Any = None


class Tracker(TorchDispatchMode):
    """From `begin` to `end` lies one trace; what came before and is still there opens it."""

    def __init__(self, *, bounds: Bounds | None = None) -> None:
        """`bounds` answers operations whose result depends on numbers, which fake tensors lack."""
        super().__init__()
        self._bounds = bounds
        self._live: dict[int, _Held] = {}
        self._events: list[Event] = []
        self._kinds: dict[int, _Held] = {}
        self._count = 0
        self._begin = 0
        self._flops = self._moved = self._ops = 0
        self.kind: Kind = "other"
        """Of what comes now."""
        self.edges: set[int] = set()
        """How many edges the batch's graphs have: rows of messages."""
        self._places_host = False
        self.last_op: Any = None
        self.is_inside = False
        """An operation is under way, or has failed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch wraps every call, so that no compiler looks inside; none does here."""
        return False

    # -- storages -------------------------------------------------------------------------------

    def note(self, tensor: object, *, kind: Kind | None = None, is_host: bool = False) -> None:
        """A tensor is there; its storage may be known already."""
        if not isinstance(tensor, Tensor):
            return
        for part in _dense(tensor):
            storage = part.untyped_storage()
            held = self._live.get(storage._cdata)
            if held is not None and held.num_bytes == storage.nbytes():
                continue
            if held is not None:  # resized
                self._drop(storage._cdata, held)
            self._hold(storage, kind or self._kind_of(tensor), is_host=is_host)

    def _hold(self, storage: Any, kind: Kind, *, is_host: bool) -> None:
        key = storage._cdata
        if not is_host:
            self._count += 1
        held = _Held(0 if is_host else self._count, storage.nbytes(), kind)
        held.reference = weakref.ref(storage, lambda _: self._drop(key, held))
        self._live[key] = held
        if self._bounds is not None:
            self._bounds.forget(key)
        if held.number:
            self._kinds[held.number] = held
            self._events.append(Event(held.number, held.num_bytes))

    def _drop(self, key: int, held: _Held) -> None:
        if self._live.get(key) is not held:
            return
        del self._live[key]
        if held.number:
            self._events.append(Event(-held.number, held.num_bytes))

    def _kind_of(self, tensor: Tensor) -> Kind:
        is_row_per_edge = tensor.dim() > 0 and tensor.shape[0] in self.edges
        return "messages" if is_row_per_edge and self.kind == "activations" else self.kind

    def mark(self, tensors: Iterable[object], kind: Kind) -> None:
        """What these hold is known only now; storages that were not seen are noted."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self.note(tensor, kind=kind)
                for part in _dense(tensor):
                    self._live[part.untyped_storage()._cdata].kind = kind

    def learn(self, fake: Tensor, real: Tensor) -> None:
        """The numbers of a tensor of the batch."""
        if self._bounds is not None:
            self._bounds.numbers.learn(fake, real)

    # -- host and device ------------------------------------------------------------------------

    def is_on_host(self, tensor: Tensor) -> bool:
        """Where CUDA is played, some CPU tensors stand for the device's and some for themselves."""
        held = [self._live.get(part.untyped_storage()._cdata) for part in _dense(tensor)]
        return bool(held) and all(one is not None and one.number == 0 for one in held)

    def put_on_host(self, tensors: Iterable[object]) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self.note(tensor, is_host=True)
                for part in _dense(tensor):
                    held = self._live[part.untyped_storage()._cdata]
                    if held.number:
                        self._events.append(Event(-held.number, held.num_bytes))
                        held.number = 0

    @contextlib.contextmanager
    def placing(self, *, on_host: bool) -> Iterator[None]:
        """Copies made inside lie there, wherever their originals do."""
        before, self._places_host = self._places_host, on_host
        self._places_device = not on_host
        try:
            yield
        finally:
            self._places_host, self._places_device = before, False

    _places_device = False

    def _goes_to_host(self, arguments: list[Any]) -> bool:
        if self._places_host or self._places_device:
            return self._places_host
        tensors = [a for a in arguments if isinstance(a, Tensor) and a.dim()]
        return bool(tensors) and all(self.is_on_host(t) for t in tensors)

    # -- operations -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _DEVICE_OF:
            return _device_of(func, args[0])
        kwargs = kwargs or {}
        self.last_op, self.is_inside = func, True
        out = NotImplemented
        if self._bounds is not None:
            out = self._bounds.answer(func, args, kwargs, note=self.note)
        if out is NotImplemented:
            out = mended(func, args, func(*args, **kwargs), is_fake=self._bounds is not None)
        self.is_inside = False
        arguments, results = tree_leaves((args, kwargs)), tree_leaves(out)
        is_host = self._goes_to_host(arguments)
        for result in results:
            self.note(result, is_host=is_host)
        if self._bounds is not None:
            self._bounds.saw(func, args, kwargs, out)
        if self.edges:
            self._learn_edges(func, args)
        self._add_cost(func, args, kwargs, out, [*arguments, *results])
        return out

    def _learn_edges(self, func: Any, args: tuple[Any, ...]) -> None:
        """Layers add edges of their own (loops): what gathers at least as many rows as there are
        edges goes along them."""
        if func is torch.ops.aten.index_select.default and args[2].numel() >= min(self.edges):
            self.edges.add(args[2].numel())

    def _add_cost(self, func: Any, args: Any, kwargs: Any, out: Any, leaves: list[Any]) -> None:
        if getattr(func, "is_view", False):
            return
        self._ops += 1
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            with contextlib.suppress(Exception):  # a formula that does not know these arguments
                self._flops += int(count(*args, **kwargs, out_val=out))
        self._moved += sum(
            leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, Tensor)
        )

    # -- one trace ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what has gone; number what is there anew."""
        there = sorted((h for h in self._live.values() if h.number), key=lambda h: h.number)
        for number, held in enumerate(there, 1):
            held.number = number
        self._events = [Event(held.number, held.num_bytes) for held in there]
        self._kinds = {held.number: held for held in there}
        self._count = self._begin = len(there)
        self._flops = self._moved = self._ops = 0

    def end(self, *, batch: int, size: int) -> Trace:
        return Trace(
            batch=batch,
            size=size,
            begin=self._begin,
            events=sort_frees(self._events),
            kinds=tuple(self._kinds[n].kind for n in range(1, self._count + 1)),
            flops=self._flops,
            moved=self._moved,
            ops=self._ops,
        )


def _device_of(func: Any, tensor: Any) -> Any:
    """No operation, but asked for so often that the answers took most of a trace's time (27,500 of
    36,500 calls in five steps of a GPT). As a fake tensor itself answers."""
    if isinstance(tensor, FakeTensor) and not tensor.fake_mode.in_kernel_invocation:
        return tensor.fake_device
    return func(tensor)


def _dense(tensor: Tensor) -> list[Tensor]:
    """The tensors that hold its numbers."""
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _SPARSE:
        return [tensor.values()]
    return []
