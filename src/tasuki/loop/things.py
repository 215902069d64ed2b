"""What a loop of one's own tracks, by name: captured together, put back exactly.

Modules, optimizers, anything with `state_dict` and `load_state_dict`, and dicts of plain values.
Wrappers (DDP, a compiled module) are looked through, so that a state fits however it is wrapped the
next time. Used by the integrations; a recipe's model and optimizer are in state.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tasuki.errors import CheckpointError, StateNotStorable, UsageError
from tasuki.loop.state import (
    State,
    refuse_difference,
    restore_module,
    restore_optimizer,
    restore_other,
    unsaved_buffers,
)

BUFFERS = "buffers"
"""Where a state holds what modules leave out of theirs; no thing may be called so."""


class Things:
    """Tracked objects, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}
        self._num_groups: dict[str, int] = {}
        self.wrapped: list[DistributedDataParallel] = []

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def names(self) -> set[str]:
        return set(self._by_name)

    def items(self) -> Iterator[tuple[str, Any]]:
        yield from self._by_name.items()

    def add(self, name: str, thing: Any) -> None:
        if name == BUFFERS:
            raise UsageError(f"nothing can be tracked as `{BUFFERS}`", hint="choose another name")
        if name in self._by_name and self._by_name[name] is not unwrapped(thing):
            raise UsageError(
                f"`{name}` is tracked already, and is another object",
                hint="track each object once, under a name of its own",
            )
        own = unwrapped(thing)
        if isinstance(thing, DistributedDataParallel):
            self.wrapped.append(thing)
        has_state = hasattr(own, "state_dict") and hasattr(own, "load_state_dict")
        if not has_state and not isinstance(own, dict):
            raise UsageError(
                f"`{name}` is a {type(thing).__name__}, of which no state can be taken",
                hint="track what has state_dict and load_state_dict, or a dict of plain values",
            )
        self._by_name[name] = own
        if isinstance(own, Optimizer):
            self._num_groups[name] = len(own.param_groups)

    @property
    def optimizers(self) -> list[Optimizer]:
        return [thing for thing in self._by_name.values() if isinstance(thing, Optimizer)]

    @property
    def model(self) -> nn.Module | None:
        """The one that is called so, else the first module."""
        named = self._by_name.get("model")
        modules = [thing for thing in self._by_name.values() if isinstance(thing, nn.Module)]
        return named if isinstance(named, nn.Module) else next(iter(modules), None)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are learnt, named as they are in a state."""
        for name, thing in self._by_name.items():
            if isinstance(thing, nn.Module):
                for leaf, parameter in thing.named_parameters():
                    if parameter.requires_grad:
                        yield f"{name}.{leaf}", parameter

    def capture(self) -> State:
        """Tensors are the live ones: copy them before the next step."""
        state: State = {name: self._capture(name) for name in self._by_name}
        modules = {n: thing for n, thing in self._by_name.items() if isinstance(thing, nn.Module)}
        found = {name: unsaved_buffers(module) for name, module in modules.items()}
        state[BUFFERS] = {name: buffers for name, buffers in found.items() if buffers}
        return state

    def _capture(self, name: str) -> Any:
        thing = self._by_name[name]
        if isinstance(thing, dict):
            return thing
        if len(getattr(thing, "param_groups", ())) != self._num_groups.get(
            name, len(getattr(thing, "param_groups", ()))
        ):
            raise StateNotStorable(
                f"`{name}` was given further parameter groups while it trained: a resume builds it "
                "without them, and could not put their state back",
                hint="give it all groups before `run.track` (with `lr` 0 until they are wanted)",
            )
        return thing.state_dict()

    def restore(self, state: Mapping[str, Any], *, only: set[str] | None = None) -> None:
        """Put it back, then capture it again and compare: nothing may be cast or lost."""
        names = self.names if only is None else self.names & only
        for name in names:
            self._restore(name, state[name], state[BUFFERS].get(name, {}))
        captured = self.capture()
        expected = {name: state[name] for name in names}
        refuse_difference(expected, {name: captured[name] for name in names})

    def _restore(self, name: str, state: Any, buffers: State) -> None:
        thing = self._by_name[name]
        try:
            if isinstance(thing, nn.Module):
                restore_module(thing, state, buffers)
            elif isinstance(thing, Optimizer):
                restore_optimizer(thing, state)
            elif isinstance(thing, dict):
                thing.clear()
                thing.update(copy.deepcopy(state))
            else:
                restore_other(thing, state)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"`{name}` does not take the state of the checkpoint: {str(error)[:500]}",
                hint="was it built otherwise than when the run began? Build it as before, or begin "
                "another run",
            ) from error

    def refuse_others(self, state: Mapping[str, Any]) -> None:
        """A state holds what was tracked when the run began: no more, no less."""
        before, now = set(state) - {BUFFERS}, self.names
        if before == now:
            return
        told = [
            *(f"`{name}` is in the checkpoint and is not tracked" for name in sorted(before - now)),
            *(f"`{name}` is tracked and not in the checkpoint" for name in sorted(now - before)),
        ]
        raise CheckpointError(
            f"not what was tracked when the run began: {'; '.join(told)}",
            hint="track the same names as before, or begin another run",
        )


def unwrapped(thing: Any) -> Any:
    """The module itself, without DDP and without a compiler around it."""
    while True:
        if isinstance(thing, DistributedDataParallel):
            thing = thing.module
        elif isinstance(thing, nn.Module) and isinstance(
            compiled := getattr(thing, "_orig_mod", None), nn.Module
        ):
            thing = compiled
        else:
            return thing
