"""What torch does by other means, or not at all, when tensors are fake; put right.

Holds for every fake trace, whichever device is played.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp.grad_scaler import GradScaler
from torch.utils import _foreach_utils

OPTIMIZER: Any = importlib.import_module("torch.optim.optimizer")
"""torch.optim hides it under its own name."""


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute for a while."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def fake_ways() -> Iterator[None]:
    with (
        patched(nn.Module, "_apply", _convert_module),
        patched(GradScaler, "_maybe_opt_step", _step_always),
        patched(FakeTensor, "__deepcopy__", _copy_deeply),
        _foreach_takes_fakes(OPTIMIZER),
        _foreach_takes_fakes(_foreach_utils),
    ):
        yield


@contextlib.contextmanager
def library_ways() -> Iterator[None]:
    """transformers takes masks another way when it sees fake tensors, as it could not read them;
    here it can. To be entered when the model is built: only then is it known to be imported."""
    module = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    with patched(module, "is_fake_tensor", lambda _: False):
        yield


def _copy_deeply(tensor: Any, memo: dict[int, Any]) -> Any:
    """torch's own way leaves a copy whose views lie elsewhere than itself. Layers are copied so by
    `nn.TransformerEncoder` and by moving averages."""
    if id(tensor) not in memo:
        made: Any = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = made
    return memo[id(tensor)]


def _foreach_takes_fakes(module: Any) -> contextlib.AbstractContextManager[None]:
    """torch asks for the very type before it takes all parameters in one call."""
    types = [*module._foreach_supported_types, FakeTensor]
    return patched(module, "_foreach_supported_types", types)


def _convert_module(
    module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> nn.Module:
    """`Module.to` and its like: torch swaps the insides of fake parameters, which fails as soon as
    anybody holds a weak reference to one. Here a parameter that changes is replaced; tied ones
    stay tied."""
    made: dict[int, Tensor] = {}
    for part in module.modules() if recurse else [module]:
        for name, parameter in part._parameters.items():
            if parameter is not None:
                new = made.get(id(parameter))
                if new is None:
                    new = made[id(parameter)] = _converted(parameter, fn)
                part._parameters[name] = new  # type: ignore[assignment]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = fn(buffer)
    return module


def _converted(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor]) -> Tensor:
    new = fn(parameter.detach())
    if new.dtype == parameter.dtype and new.shape == parameter.shape:
        return parameter
    return nn.Parameter(new, requires_grad=parameter.requires_grad)


def _step_always(
    _scaler: GradScaler, optimizer: Any, _state: Any, *arguments: Any, **named: Any
) -> Any:
    """A number that is read is taken as 1, which here means that a gradient has overflowed: the
    step would be left out, and the optimizer would never have states."""
    return optimizer.step(*arguments, **named)
