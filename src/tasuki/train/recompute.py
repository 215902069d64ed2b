"""Gradient checkpointing by policy: chosen modules keep their inputs only and compute anew.

The model's code stays as it is: the `forward` of the chosen modules is wrapped on the instance.
Numbers do not change: the second pass has the random numbers (Python's, numpy's, torch's) and the
buffers of the first, and leaves both as they are now, so that running means (of BatchNorm) move
once.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tasuki.data.generators import NUMPY, PYTHON, Generator
from tasuki.errors import RecipeError
from tasuki.train.buffers import Kept, keep_buffers, keep_own_buffers

Policy = bool | int | list[str]
_HOST: tuple[Generator, ...] = (PYTHON, NUMPY)
"""torch's own generators are kept by torch."""
_NAMES_SHOWN = 5


def recompute(model: nn.Module, policy: Policy) -> list[str]:
    """Wrap the modules that `gradient_checkpointing` means; their names."""
    if policy is False:
        return []
    chosen = _named(model, policy) if isinstance(policy, list) else _every(model, int(policy))
    for name in chosen:
        _wrap(model.get_submodule(name))
    return chosen


def find_blocks(model: nn.Module) -> list[str]:
    """The repeated parts of a model, the outermost ones: layers of one kind in a list."""
    found: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(name == block or name.startswith(f"{block}.") for block in found)
        if is_inside or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        children = [(key, child) for key, child in module.named_children() if _is_worth(child)]
        kinds = [type(child) for _, child in children]
        prefix = f"{name}." if name else ""
        found += [f"{prefix}{key}" for key, child in children if kinds.count(type(child)) > 1]
    return found


def _is_worth(module: nn.Module) -> bool:
    """A single layer saves nothing: what it would compute anew is all it keeps."""
    has_weights = any(True for _ in module.parameters())
    return has_weights and any(True for _ in module.children())


def _every(model: nn.Module, period: int) -> list[str]:
    blocks = find_blocks(model)
    if not blocks:
        raise RecipeError(
            "`gradient_checkpointing`: the model has no repeated blocks (modules of one kind in a "
            "ModuleList or Sequential)",
            hint="name the modules, as `gradient_checkpointing: [encoder, decoder.*]`",
        )
    return blocks[::period]


def _named(model: nn.Module, patterns: list[str]) -> list[str]:
    names = [name for name, _ in model.named_modules() if name]
    chosen: list[str] = []
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, names, n=1)
            words = f"nearest is `{near[0]}`; " if near else ""
            raise RecipeError(
                f"`gradient_checkpointing` names `{pattern}`, but the model has no such module",
                hint=f"{words}the first are {', '.join(names[:_NAMES_SHOWN]) or 'none'}",
            )
        chosen += found
    # A module inside a chosen one would be computed twice for nothing.
    outer = [n for n in chosen if not any(n.startswith(f"{other}.") for other in chosen)]
    return list(dict.fromkeys(outer))


def _wrap(module: nn.Module) -> None:
    module.forward = Recomputed(module)


class Recomputed:
    """A module's `forward`, made again for the backward pass. An object, not a closure: it goes
    along when the model is copied, and then belongs to the copy."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own = module.__dict__.get("forward")
        """One that the module had of its own already."""
        self._moving: set[tuple[int, str]] | None = None
        """Buffers that a pass changes, as the first one of this process has shown."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*arguments, **named)
        # A compiler has its own way to make a pass again, and takes no contexts.
        more: dict[str, Any] = {}
        if not torch.compiler.is_compiling():
            more = {"context_fn": self._contexts}
        return checkpoint(self._forward, *arguments, use_reentrant=False, **more, **named)

    def _forward(self, *arguments: Any, **named: Any) -> Any:
        if self._own is not None:
            return self._own(*arguments, **named)
        return type(self._module).forward(self._module, *arguments, **named)

    def _contexts(self) -> tuple[Any, Any]:
        before = _Before()
        return self._first_pass(before), self._second_pass(before)

    @contextlib.contextmanager
    def _first_pass(self, before: _Before) -> Iterator[None]:
        before.random = (PYTHON.keep(), NUMPY.keep())
        kept = self._keep()
        yield
        if self._moving is None:
            kept = [one for one in kept if one.has_changed]
            self._moving = {(id(one.owner), one.name) for one in kept}
        before.buffers = kept

    @contextlib.contextmanager
    def _second_pass(self, before: _Before) -> Iterator[None]:
        """With buffers and random numbers of the first; those of now are put back afterwards."""
        random = (PYTHON.keep(), NUMPY.keep())
        buffers = [(one, one.owner._buffers.get(one.name)) for one in before.buffers]
        try:
            for one, _ in buffers:
                one.owner._buffers[one.name] = None if one.value is None else one.value.clone()
            for generator, state in zip(_HOST, before.random, strict=True):
                generator.put(state)
            yield
        finally:
            for one, now in buffers:
                one.owner._buffers[one.name] = now
            for generator, state in zip(_HOST, random, strict=True):
                generator.put(state)

    def _keep(self) -> list[Kept]:
        """All buffers in the first pass of a process; then those that have moved in it: masks and
        tables may be large, and never move."""
        if self._moving is None:
            return keep_buffers(self._module)
        if not self._moving:
            return []
        wanted = self._moving
        return [
            one
            for owner in self._module.modules()
            if any((id(owner), name) in wanted for name in owner._buffers)
            for one in keep_own_buffers(owner)
            if (id(owner), one.name) in wanted
        ]


class _Before:
    """What the first pass began with."""

    def __init__(self) -> None:
        self.random: tuple[Any, ...] = ()
        self.buffers: list[Kept] = []
