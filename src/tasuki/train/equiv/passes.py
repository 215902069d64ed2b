"""The gradient of one step, as the real step engine makes it, from one and the same beginning.

All ranks are in one process: their micro-batches are passed one rank after another with the factors
that the engine gives a rank, and the sum is divided by their number, as DDP does it. Random
numbers, buffers and simple attributes are put back before each gradient, so that two of them differ
only by what they are meant to differ by.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import checkpoint as torch_checkpoint

from tasuki.data.fetch import seed_everything
from tasuki.data.generators import NUMPY, PYTHON
from tasuki.data.loader import MicroBatch
from tasuki.train.assemble import Assembled
from tasuki.train.buffers import keep_buffers, put_buffers_back
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.equiv.double import InDouble
from tasuki.train.losses import LossOutput, Weight

Cause = Literal["random", "statistics", "checkpointing", "data", "padding", "weights"]
ALL: frozenset[Cause] = frozenset(
    ("random", "statistics", "checkpointing", "data", "padding", "weights")
)
"""What may make a difference; what is not in a set of these is put to rest."""
NOTHING: frozenset[Cause] = frozenset()

_SEED = 0x7A5C
_FLOOR = 1e-6
"""A parameter whose gradient is nothing but rounding (the bias before a norm) is compared with this
share of the largest of all, not with itself."""
_SIMPLE = (bool, int, float, str, type(None))

Shares = Sequence[Sequence[MicroBatch]]
"""Of each rank."""
Gradient = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one step gave."""

    gradient: Gradient
    weights: tuple[float, ...]
    """Of the micro-batches that have samples: numbers of samples, or what the loss said."""
    is_mean: bool
    drawn: dict[str, str]
    low: dict[str, str]
    has_drawn_on_host: bool
    has_checkpoints: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of two gradients: relative, per parameter."""

    by_parameter: dict[str, float] = field(default_factory=dict)
    error: str = ""
    """Where the passes of one side could not be made at all."""

    @property
    def worst(self) -> float:
        if self.error:
            return float("inf")
        return max(self.by_parameter.values(), default=0.0)

    @property
    def parameter(self) -> str | None:
        found = self.by_parameter
        return max(found, key=lambda name: found[name]) if found else None


def compare(one: Gradient, other: Gradient) -> Difference:
    """Of each parameter max |one − other| / max |other|."""
    names = list(dict.fromkeys([*other, *one]))
    floor = _FLOOR * max((_most(gradient) for gradient in other.values()), default=0.0)
    found = {}
    for name in names:
        a, b = one.get(name), other.get(name)
        known = b if b is not None else a
        assert known is not None
        zero = torch.zeros_like(known)
        gap = _most((a if a is not None else zero) - (b if b is not None else zero))
        scale = max(_most(b) if b is not None else 0.0, floor)
        found[name] = gap / scale if scale else (0.0 if gap == 0 else float("inf"))
    return Difference(by_parameter=found)


def _most(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


class GradientEngine(StepEngine):
    """The step engine of all ranks at once, that keeps the gradient where it would step."""

    names: dict[int, str]
    """Of parameters."""
    host: tuple[Any, Any] | None = None
    """States that Python's and numpy's random numbers have before every micro-batch."""

    def take(self, shares: Shares, num_samples: int) -> None:
        """One step: `gradient` and `window` have what it gave."""
        self._shares = shares
        self.gradient: Gradient = {}
        self.window.entries.clear()
        self.step((), num_samples)

    def _accumulate(
        self,
        batches: Iterable[MicroBatch],  # noqa: ARG002
        num_samples: int,
    ) -> Weight | None:
        weights = [super(GradientEngine, self)._accumulate(s, num_samples) for s in self._shares]
        if self._world > 1:
            grads = [p.grad for p in self._parameters if p.grad is not None]
            if grads:
                torch._foreach_mul_(grads, 1.0 / self._world)
        known = [weight for weight in weights if weight is not None]
        return sum(known) if known else None

    def _forward(self, data: Any) -> LossOutput:
        if self.host is not None:
            PYTHON.put(self.host[0])
            NUMPY.put(self.host[1])
        return super()._forward(data)

    def _sum_over_ranks(self, weight: Weight) -> Weight:
        return weight

    def _apply(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                grad = parameter.grad.detach()
                grad = grad.to_dense() if grad.is_sparse else grad
                self.gradient[self.names[id(parameter)]] = grad.clone()
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._parameters:
            parameter.grad = None  # whatever the recipe's optimizer makes of it

    @property
    def is_mean(self) -> bool:
        return bool(self._is_mean)


class Bench:
    """A model with the state it begins with."""

    def __init__(self, recipe: Any, assembled: Assembled, *, world: int) -> None:
        self.recipe, self.model = recipe, assembled.model
        self._assembled, self._world = assembled, world
        self._names = {id(module): name for name, module in self.model.named_modules()}
        self._buffers = keep_buffers(self.model)
        self._simple = [(vars(m), _simple_of(m)) for m in self.model.modules()]
        self._generators = [(g, _state_of(g)) for g in _own_generators(recipe, self.model)]
        self.statistics: list[nn.Module] = []
        """Modules that mix the samples of a batch, and do not where they are evaluated."""

    def gradient(
        self,
        shares: Shares,
        num_samples: int,
        live: frozenset[Cause],
        *,
        world: int | None = None,
        draws: int = 0,
    ) -> Found:
        """Of a step. `live` has what is left as it is; `draws` numbers sets of random numbers."""
        engine = self._engine(self._world if world is None else world)
        with self.begun(live, draws=draws) as mode:
            states = (PYTHON.keep(), NUMPY.keep())
            engine.host = None if "random" in live else states
            with _counted() as counted, torch.enable_grad():
                engine.take(shares, num_samples)
            drawn = (PYTHON.keep(), NUMPY.keep())
        weights = tuple(float(weight) for _, weight, _ in engine.window.entries)
        return Found(
            gradient=engine.gradient,
            weights=weights,
            is_mean=engine.is_mean,
            drawn=mode.drawn,
            low=mode.low,
            has_drawn_on_host=not _are_same(states, drawn),
            has_checkpoints=bool(counted),
        )

    @contextlib.contextmanager
    def begun(self, live: frozenset[Cause], *, draws: int = 0) -> Iterator[InDouble]:
        """From the one beginning, in float64; as it was afterwards."""
        draws = draws if "random" in live else 0
        self._put_back(draws)
        seed_everything(_SEED + draws)
        mode = InDouble(self._names, is_random="random" in live)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_default_double())
            if "checkpointing" not in live:
                stack.enter_context(without_checkpointing())
            if "statistics" not in live:
                stack.enter_context(_evaluated(self.statistics))
            hooks = (
                register_module_forward_pre_hook(mode.enter),
                register_module_forward_hook(mode.leave, always_call=True),
            )
            for hook in hooks:
                stack.callback(hook.remove)
            stack.enter_context(mode)
            yield mode
        self._put_back()

    def _put_back(self, draws: int = 0) -> None:
        put_buffers_back(self._buffers)
        for attributes, kept in self._simple:
            attributes.update(kept)
        for generator, state in self._generators:
            _put_state(generator, state)
            if draws:
                _seed(generator, draws)

    def _engine(self, world: int) -> GradientEngine:
        engine = GradientEngine(
            LossModule(self.model, self.recipe.loss),
            self._assembled.stepper,
            device=torch.device("cpu"),
            clip=None,
            world=world,
        )
        engine.names = {id(p): name for name, p in self.model.named_parameters()}
        for number, parameter in enumerate(engine._parameters):
            engine.names.setdefault(id(parameter), f"parameter {number} of the optimizer")
        return engine

    def name_of(self, module: nn.Module) -> str:
        """As the model calls it."""
        name: str = self._names[id(module)]
        return name


def _are_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(repr(a) == repr(b) for a, b in zip(one, other, strict=True))


def _simple_of(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if type(value) in _SIMPLE and name != "training"
    }


def _own_generators(recipe: Any, model: nn.Module) -> list[Any]:
    """Random numbers that are not the global ones."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    found = [
        value
        for owner in (recipe, *model.modules())
        for value in getattr(owner, "__dict__", {}).values()
        if isinstance(value, kinds)
    ]
    return list({id(one): one for one in found}.values())


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _put_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


@contextlib.contextmanager
def _default_double() -> Iterator[None]:
    """Tensors that the user's code makes are double, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Direct:
    """Stands for torch's checkpointing of the older kind."""

    @staticmethod
    def apply(function: Any, _preserve: bool, *arguments: Any) -> Any:
        return function(*arguments)


def _as_it_is(*_: Any, **__: Any) -> Iterator[None]:
    """Stands for what torch does around a pass that it will make again."""
    yield


@contextlib.contextmanager
def without_checkpointing() -> Iterator[None]:
    """Nothing is computed anew: neither what the spec wants to be, nor what the model does itself.
    Both end in these two places of torch."""
    places: Any = torch_checkpoint
    before = places.CheckpointFunction, places._checkpoint_without_reentrant_generator
    places.CheckpointFunction = _Direct
    places._checkpoint_without_reentrant_generator = _as_it_is
    try:
        yield
    finally:
        places.CheckpointFunction, places._checkpoint_without_reentrant_generator = before


@contextlib.contextmanager
def _counted() -> Iterator[list[None]]:
    """One entry for each pass that will be made again."""
    places: Any = torch_checkpoint
    before = places.CheckpointFunction, places._checkpoint_without_reentrant_generator
    counted: list[None] = []
    if before[0] is _Direct:
        yield counted
        return

    class Counting:
        @staticmethod
        def apply(*arguments: Any) -> Any:
            counted.append(None)
            return before[0].apply(*arguments)

    def count(*arguments: Any, **named: Any) -> Any:
        counted.append(None)
        return before[1](*arguments, **named)

    places.CheckpointFunction, places._checkpoint_without_reentrant_generator = Counting, count
    try:
        yield counted
    finally:
        places.CheckpointFunction, places._checkpoint_without_reentrant_generator = before


@contextlib.contextmanager
def _evaluated(modules: Sequence[nn.Module]) -> Iterator[None]:
    """These alone, without their children, do as in an evaluation."""
    lent = [m for m in modules if isinstance(m, _BatchNorm) and m.running_mean is None]
    for norm in lent:
        norm.running_mean = torch.zeros(norm.num_features, dtype=torch.float64)
        norm.running_var = torch.ones(norm.num_features, dtype=torch.float64)
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, is_training in zip(modules, before, strict=True):
            module.training = is_training
        for norm in lent:
            norm.running_mean = norm.running_var = None
