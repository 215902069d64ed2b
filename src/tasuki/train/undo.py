"""Undo what the passes of a step have done, where they ran out of memory.

Random numbers and the model's buffers are kept when a step begins, and put back; gradients and
losses the engine drops itself. In a step where nothing happens that costs 2.5 µs (more with cold
caches): buffers that a first step does not move are looked at again only when a step is undone, and
the others are copied byte by byte. A frozen parameter that moves all the same (a teacher that
follows its student) is seen by samples of some of them, and then nothing is called undone. What the
user's own code remembers elsewhere, and what a pass does to parameters that are trained, beside
giving them gradients, is not undone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tasuki.data.watched import WATCHED
from tasuki.train.buffers import Kept, keep_buffer, keep_buffers, put_buffers_back

_MOST_BYTES = 64 << 20
"""Of buffers; a model with more of them goes back to its last checkpoint instead."""
_WITNESSES = 8
_WITNESSED = 4096
"""Numbers at the beginning of each of so many frozen parameters: a moving average moves all."""

_View = tuple[dict[str, Tensor | None], str, Tensor, memoryview, memoryview]
"""(the buffers of a module, a name, the buffer, the bytes of its copy, its own bytes)."""


class DoesNotFit(Exception):
    """A micro-batch ran out of memory, here or on another rank."""

    def __init__(
        self, error: BaseException | None, *, is_undone: bool, is_in_passes: bool = True
    ) -> None:
        super().__init__(str(error))
        self.error = error
        """None: this rank had room."""
        self.is_undone = is_undone
        """The step is as if it had never begun."""
        self.is_in_passes = is_in_passes
        """Else it was in the optimizer's step, whose memory does not hang on the micro-batch."""


class Undo:
    """What a step began with."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        self._on_gpu: torch.Generator | None = None
        if device.type == "cuda":
            self._on_gpu = torch.cuda.default_generators[device.index or 0]
        self._moving: list[Kept] = []
        """Kept anew for every step."""
        self._still: list[Kept] = []
        """Did not change in the first step: kept once."""
        self._others: list[Kept] = []
        """On a GPU, or not there yet."""
        self._copies: list[Tensor] = []
        self._sources: list[Tensor] = []
        self._views: list[_View] = []
        """Of those on the host: twenty times quicker than torch's way."""
        self._addresses: list[int] = []
        self._frozen = _witnesses(module)
        self._witnessed: list[Tensor] = []
        """What they began with."""
        self._num_begun = 0
        """As often as it was looked which buffers move."""
        size = sum(buffer.numel() * buffer.itemsize for buffer in module.buffers())
        self._is_possible = size <= _MOST_BYTES

    def begin(self) -> None:
        """A step begins."""
        self._random = WATCHED.keep()
        if self._on_gpu is not None:
            self._gpu_state = self._on_gpu.get_state()
        if self._num_begun < 2:
            self._look()
        elif self._moving:
            for owned, name, buffer, copy, now in self._views:
                if owned.get(name) is not buffer:
                    self._keep_moving()
                    return
                copy[:] = now
            if self._others:
                self._copy_others()

    def put_back(self) -> bool:
        """False: that cannot be done, and what is there now is of no use."""
        WATCHED.put(self._random)
        if self._on_gpu is not None:
            self._on_gpu.set_state(self._gpu_state)
        if not self._is_possible or any(one.has_changed for one in self._still):
            return False
        if not all(map(torch.equal, self._witnessed, map(_beginning, self._frozen))):
            return False  # by this step or by an earlier one, nobody knows
        if self._addresses != _addresses(self._moving):
            return False  # `.data` was set: what was copied is not what the buffer is now
        if _count(self._module) != len(self._moving) + len(self._still):
            return False  # there are new ones
        put_buffers_back(self._moving)
        if self._num_begun == 1:  # the step did not end: it has not shown which of them move
            self._num_begun, self._moving = 0, []
        return True

    def _copy_others(self) -> None:
        if any(one.is_replaced for one in self._others):
            self._keep_moving()
        elif self._copies:
            torch._foreach_copy_(self._copies, self._sources)

    def _look(self) -> None:
        """In the first two steps: find out which buffers move."""
        self._num_begun += 1
        self._witnessed = [_beginning(parameter).clone() for parameter in self._frozen]
        if not self._is_possible:
            return
        still = {_key(one) for one in self._moving if not one.has_changed}
        kept = keep_buffers(self._module)
        self._still = [one for one in kept if _key(one) in still]
        self._moving = [one for one in kept if _key(one) not in still]
        self._keep_moving()

    def _keep_moving(self) -> None:
        """Some of them are other tensors now."""
        self._moving = [keep_buffer(one.owner, one.name) for one in self._moving]
        self._addresses = _addresses(self._moving)
        self._views, self._others = [], []
        for one in self._moving:
            view = _view(one)
            if view is None:
                self._others.append(one)
            else:
                self._views.append(view)
        self._copies = [one.value for one in self._others if one.value is not None]
        self._sources = [one.buffer.detach() for one in self._others if one.buffer is not None]


def _key(one: Kept) -> tuple[int, str]:
    return id(one.owner), one.name


def _witnesses(module: nn.Module) -> list[Tensor]:
    """Some of the frozen parameters, from the first to the last."""
    frozen = [p for p in module.parameters() if not p.requires_grad and p.device.type != "meta"]
    return [*frozen[:: -(-len(frozen) // _WITNESSES) or 1]]


def _beginning(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:_WITNESSED]


def _count(module: nn.Module) -> int:
    return sum(len(owner._buffers) for owner in module.modules())


def _view(one: Kept) -> _View | None:
    buffer, value = one.buffer, one.value
    if buffer is None or value is None or buffer.device.type != "cpu":
        return None
    if not buffer.is_contiguous():
        return None
    return one.owner._buffers, one.name, buffer, _bytes_of(value), _bytes_of(buffer)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _addresses(kept: list[Kept]) -> list[int]:
    return [0 if one.buffer is None else one.buffer.data_ptr() for one in kept]
