"""Everything a training step depends on, as one value; and back, exactly.

Shared by all ranks: model, optimizer, schedule, progress. Each rank's own: random states.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tasuki.checkpoint.codec import first_difference
from tasuki.errors import CheckpointError, StateNotStorable

State = dict[str, Any]


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Tracked:
    """What is captured and restored."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Stateful | None
    """None: the schedule is a pure function of the step."""
    num_groups: int = field(init=False)
    """Of the optimizer's parameters, when it was built."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_groups", len(self.optimizer.param_groups))


def capture(tracked: Tracked) -> State:
    """The shared state. Tensors are the live ones: write them before the next step."""
    if len(tracked.optimizer.param_groups) != tracked.num_groups:
        raise StateNotStorable(
            "the optimizer was given further parameter groups while it trained: a resume builds it "
            "without them, and could not put their state back",
            hint="give it all groups in build_optimizer (with `lr` 0 until they are wanted), or "
            "make two stages of it",
        )
    state: State = {
        "model": tracked.model.state_dict(),
        "buffers": unsaved_buffers(tracked.model),
        "optimizer": tracked.optimizer.state_dict(),
    }
    if tracked.schedule is not None:
        state["schedule"] = tracked.schedule.state_dict()
    return state


def restore(tracked: Tracked, state: State) -> None:
    """Put the shared state back, then capture it again and compare: nothing may be cast or lost."""
    restore_module(tracked.model, state["model"], state["buffers"])
    restore_optimizer(tracked.optimizer, state["optimizer"])
    if tracked.schedule is not None:
        restore_other(tracked.schedule, state["schedule"])
    expected = {key: state[key] for key in capture(tracked)}
    refuse_difference(expected, capture(tracked))


def restore_module(module: nn.Module, state: State, buffers: State) -> None:
    """`buffers`: those that its `state_dict` leaves out."""
    for name, value in [*state.items(), *buffers.items()]:
        _fit_buffer(module, name, value)
    module.load_state_dict(state, strict=True)
    held = unsaved_buffers(module)
    for name, value in buffers.items():
        held[name].copy_(value)


def restore_optimizer(optimizer: Optimizer, state: State) -> None:
    optimizer.load_state_dict(state)
    _undo_casts(optimizer, state)


def restore_other(thing: Stateful, state: State) -> None:
    # A copy: CyclicLR takes entries out of what it is given.
    thing.load_state_dict(copy.deepcopy(state))


def refuse_difference(expected: State, captured: State) -> None:
    difference = first_difference(expected, captured)
    if difference is not None:
        raise CheckpointError(
            f"the state does not come back as it was saved: {difference}",
            hint="its `load_state_dict` must take what its `state_dict` gave; mend that, and "
            "start it again",
        )


def _fit_buffer(model: nn.Module, name: str, value: object) -> None:
    """A buffer that grew, changed its dtype or was filled since the model was built takes the
    memory of what was saved: caches of rotary embeddings do all of that."""
    path, _, leaf = name.rpartition(".")
    try:
        module = model.get_submodule(path)
    except AttributeError:
        return
    if not isinstance(value, torch.Tensor) or leaf not in module._buffers:
        return
    held = module._buffers[leaf]
    is_same = held is not None and held.shape == value.shape and held.dtype == value.dtype
    if held is not None and is_same and (0 not in held.stride() or held.numel() < 2):
        return  # it can be copied into
    device = held.device if held is not None else next(model.parameters(), value).device
    module._buffers[leaf] = value.detach().clone().contiguous().to(device)


def _undo_casts(optimizer: Optimizer, state: State) -> None:
    """`Optimizer.load_state_dict` casts state to its parameter's dtype: set it as it was."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    for parameter, number in zip(parameters, numbers, strict=True):
        for key, value in state["state"].get(number, {}).items():
            held = optimizer.state[parameter].get(key)
            is_cast = isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor)
            if is_cast and held.dtype != value.dtype:
                optimizer.state[parameter][key] = value.to(held.device)


def unsaved_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that `state_dict` leaves out (persistent=False) but steps may change."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def capture_random() -> State:
    """This rank's random states, as plain values."""
    state: State = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random(state: State) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
