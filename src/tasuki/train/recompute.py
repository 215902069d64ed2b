"""Gradient checkpointing by policy: chosen modules keep their inputs only and compute anew.

The model's code stays as it is: the `forward` of the chosen modules is wrapped on the instance.
Numbers do not change: random numbers are drawn again as in the first pass, and running means (of
BatchNorm) move once. Called by assemble.py.
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

from tasuki.errors import RecipeError

Policy = bool | int | list[str]
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
    forward = module.forward
    has_buffers = any(True for _ in module.buffers())

    def contexts() -> tuple[Any, Any]:
        return contextlib.nullcontext(), _kept_buffers(module)

    more: dict[str, Any] = {"context_fn": contexts} if has_buffers else {}

    def recomputed(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, **more, **named)

    module.forward = recomputed


@contextlib.contextmanager
def _kept_buffers(module: nn.Module) -> Iterator[None]:
    """The second pass must not move running means a second time."""
    kept = [
        (owner, name, buffer, buffer.clone())
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, value in kept:
                buffer.copy_(value)
                owner._buffers[name] = buffer
