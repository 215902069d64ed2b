"""`torch.compile`, with a way back: what cannot be compiled runs as it is written, aloud.

Sizes are never made "dynamic" on the way: which kernel computes a batch would then hang on the
batches before it, and a resumed run, which has seen others, would compute with other ones. Either
each shape has its kernel, or one kernel serves all from the first batch on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_MANY_SHAPES = 8
_LONGEST_REASON = 300
Say = Callable[[str], None]


class Compiled(nn.Module):
    """A module that is compiled at its first call for each shape, or is not."""

    def __init__(self, module: nn.Module, *, mode: str, num_shapes: int | None, say: Say) -> None:
        super().__init__()
        logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # what matters is said by us
        self.module = module
        self._say = say
        is_dynamic = num_shapes is None or num_shapes > _MANY_SHAPES
        if not is_dynamic:
            # Partial batches double the shapes; beyond its limit dynamo gives up in silence.
            torch._dynamo.config.recompile_limit = max(16, 4 * (num_shapes or 1))
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        chosen = None if mode == "default" else mode
        self._compiled: Any = torch.compile(module, mode=chosen, dynamic=is_dynamic)

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def forward(self, batch: Any) -> Any:
        if self._compiled is None:
            return self.module(batch)
        random = torch.get_rng_state()
        try:
            return self._compiled(batch)
        except Exception as error:
            if not self.gives_up_after(error):
                raise
            torch.set_rng_state(random)  # parts of the pass may have run already
            return self.module(batch)

    def gives_up_after(self, error: BaseException) -> bool:
        """From now on as it is written, if the error is the compiler's: it may come in a backward
        pass too."""
        if self._compiled is None or not _is_of_the_compiler(error):
            return False
        self._compiled = None
        self._say(f"WARNING: `compile` failed, the model runs as it is written: {_reason(error)}")
        return True


def is_timed(mode: str) -> bool:
    """Whether the compiler picks kernels by their speed, which differs from start to start."""
    return mode.startswith("max-autotune")


def _is_of_the_compiler(error: BaseException) -> bool:
    """Errors of the user's own code pass through dynamo as they are."""
    kinds = ("torch._dynamo.", "torch._inductor.", "torch._functorch.")
    return type(error).__module__.startswith(kinds)


def _reason(error: BaseException) -> str:
    """The compiler wraps what went wrong, and adds pages of advice."""
    inner = getattr(error, "inner_exception", None) or error
    words = " ".join(str(inner).split())
    return f"{type(inner).__name__}: {words}"[:_LONGEST_REASON]
