"""Builds a stage as a worker does, and traces steps of its engine, batch by batch.

Assembled once: the first step is thrown away (it makes the optimizer's states and fills caches), a
step at each further point is a trace. Fake, nothing is computed and no memory is taken; real, on a
CPU, the same code proves the fake. What a batch is, is batches.py's business.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError, TasukiError
from tasuki.loop.ranks import ALONE
from tasuki.memory.bounded import Bounds, Untraceable
from tasuki.memory.cuda_semantics import playing_cuda
from tasuki.memory.fake_ways import fake_ways, library_ways
from tasuki.memory.stand_ins import drawn_edges, packed
from tasuki.memory.trace import Kind, Trace
from tasuki.memory.tracker import Tracker
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.assemble import Assembled, assemble, make_engine
from tasuki.train.engine import StepEngine
from tasuki.train.footprint import tensors_in
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.recipe import build_model, where

Device = Literal["cuda", "cpu"]
"""The data of a micro-batch of so many samples of that size: real tensors, on the host."""
Say = Callable[[str], None]
Learn = Callable[[Tensor, Tensor], None]
_TOTAL_STEPS = 1000
"""Of a schedule: no memory hangs on it."""
_MOST_ACCUMULATED = 2
"""Micro-batches of a step that are traced: the third takes what the second takes."""
_KINDS_OF_PARTS: dict[str, Kind] = {
    "_forward": "activations",
    "_backward": "activations",
    "_finish_gradients": "other",
    "_apply": "optimizer",
}
"""Of what comes while a part of the engine works."""


class TracedStage:
    """A stage's engine under observation. To be used inside `opened`."""

    def __init__(
        self,
        recipe: Any,
        stage: ResolvedStage,
        *,
        device: Device,
        tracker: Tracker,
        fake: FakeTensorMode | None,
        ranks: int,
        say: Say,
    ) -> None:
        self._tracker, self._fake, self._device = tracker, fake, torch.device(device)
        beside: list[Tensor] = []
        self._assembled = _assembled(recipe, stage, self._device, say=say, fake=fake, held=beside)
        self._engine = make_engine(
            recipe,
            stage,
            self._assembled,
            ranks=ALONE,
            device=self._device,
            num_shapes=1,
            say=say,
        )
        model = self._assembled.model
        tracker.mark([*model.parameters(), *model.buffers()], "weights")
        tracker.mark(beside, "weights")
        self._buckets = self._make_buckets(ranks)
        self._watch_parts(self._engine)

    def _make_buckets(self, ranks: int) -> Tensor | None:
        """With several ranks DDP has a second copy of all gradients."""
        if ranks == 1:
            return None
        trained = [p for p in self._assembled.model.parameters() if p.requires_grad]
        num_bytes = sum(p.numel() * p.element_size() for p in trained)
        buckets = torch.empty(num_bytes, dtype=torch.uint8)
        self._tracker.mark([buckets], "gradients")
        return buckets

    @property
    def model(self) -> nn.Module:
        return self._assembled.model

    def trace(self, data: Any, *, batch: int, size: int = 0, accumulation: int = 1) -> Trace:
        """One step. The first is not to be used: the optimizer's states come in it."""
        if self._fake is not None:
            data = faked(data, self._fake, learn=self._tracker.learn)
        self._place_batch(data)
        engine, tracker = self._engine, self._tracker
        engine.window.entries.clear()
        engine.scalars = {}
        self._mark_states()
        with _no_garbage_collection(), _named_trouble(tracker):
            tracker.begin()
            num = min(accumulation, _MOST_ACCUMULATED)
            engine.step(iter([MicroBatch(data, batch)] * num), batch * num)
            return tracker.end(batch=batch, size=size)

    def _place_batch(self, data: Any) -> None:
        tensors = list(tensors_in(data))
        self._tracker.edges = edges_of(data)
        if self._device.type == "cuda":
            self._tracker.put_on_host(tensors)
        else:
            self._tracker.mark(tensors, "batch")

    def _mark_states(self) -> None:
        """Known after a step. What torch keeps on the host is on the host here too: the step count
        of Adam, unless its step is fused on the device."""
        optimizer = self._assembled.tracked.optimizer
        is_offloaded = isinstance(self._assembled.stepper, OffloadedOptimizer)
        for group in getattr(optimizer, "param_groups", ()):
            is_on_device = group.get("fused") or group.get("capturable")
            is_count_on_device = is_on_device and not is_offloaded
            for parameter in group["params"]:
                states = list(tensors_in(optimizer.state.get(parameter, {})))
                counts = [s for s in states if not s.dim()]
                if self._device.type == "cuda" and not is_count_on_device:
                    self._tracker.put_on_host(counts)
                there = [s for s in states if not self._tracker.is_on_host(s)]
                self._tracker.mark(there, "optimizer")

    def _watch_parts(self, engine: StepEngine) -> None:
        for name, kind in _KINDS_OF_PARTS.items():
            setattr(engine, name, self._watched(getattr(engine, name), kind, name == "_backward"))

    def _watched(self, part: Callable[..., Any], kind: Kind, is_backward: bool) -> Any:
        tracker, parameters = self._tracker, self._engine._parameters

        @functools.wraps(part)
        def watched(*arguments: Any) -> Any:
            before, tracker.kind = tracker.kind, kind
            try:
                return part(*arguments)
            finally:
                tracker.kind = before
                if is_backward:
                    tracker.mark([p.grad for p in parameters if p.grad is not None], "gradients")

        return watched


@contextlib.contextmanager
def opened(
    recipe: Any,
    stage: ResolvedStage,
    *,
    device: Device,
    is_fake: bool = True,
    bounds: Bounds | None = None,
    ranks: int = 1,
    say: Say = lambda _: None,
) -> Iterator[TracedStage]:
    """Real (`is_fake` false) steps are a CPU's: whoever has a GPU need not predict."""
    assert is_fake or device == "cpu"
    fake = FakeTensorMode(allow_non_fake_inputs=True) if is_fake else None
    tracker = Tracker(bounds=(bounds or Bounds()) if is_fake else None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_random_state())
        if fake is not None:
            stack.enter_context(fake_ways())
            stack.enter_context(fake)
        if device == "cuda":
            stack.enter_context(playing_cuda(tracker))
        stack.enter_context(tracker)
        stack.enter_context(_frozen_garbage())
        traced = TracedStage(
            recipe, stage, device=device, tracker=tracker, fake=fake, ranks=ranks, say=say
        )
        if fake is not None:
            stack.enter_context(library_ways())
            stack.enter_context(drawn_edges())
        yield traced


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _assembled(
    recipe: Any,
    stage: ResolvedStage,
    device: torch.device,
    *,
    say: Say,
    fake: FakeTensorMode | None,
    held: list[Tensor],
) -> Assembled:
    """As a worker does. A model that cannot be built of fake tensors is built of real ones. `held`
    gets what layers hold beside their parameters and buffers."""
    build = functools.partial(
        assemble, stage=stage, device=device, total_steps=_TOTAL_STEPS, say=say
    )
    if fake is None:
        return build(recipe)
    try:
        model = build_model(recipe)
        held[:] = packed(model)
        return build(_Built(recipe, model))
    except RecipeError:
        with _disable_current_modes():
            model = build_model(recipe)
        held[:] = packed(model)
        return build(_Built(recipe, faked_model(model, fake)))


class _Built:
    """A recipe whose model is there already."""

    def __init__(self, recipe: Any, model: nn.Module) -> None:
        self._recipe, self._model = recipe, model

    def build_model(self) -> nn.Module:
        return self._model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recipe, name)


@contextlib.contextmanager
def _named_trouble(tracker: Tracker) -> Iterator[None]:
    """What cannot be traced, by the operation that stands in the way."""
    try:
        yield
    except TasukiError:
        raise
    except Exception as error:
        func = getattr(error, "func", None)
        last = getattr(tracker.last_op, "__name__", "nothing")
        if func is not None:
            name = getattr(func, "__name__", str(func))
        else:
            name = last if tracker.is_inside else f"what follows {last}"
        raise Untraceable(name, where(error)) from error


@contextlib.contextmanager
def _frozen_garbage() -> Iterator[None]:
    """All that torch's import made is left alone: looking through it takes longer than a step."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def faked(data: Any, fake: FakeTensorMode, *, learn: Learn = lambda _, __: None) -> Any:
    """The same batch of fake tensors, however nested; no numbers, but shapes and dtypes. `learn`
    gets each fake tensor with the real one."""
    again = functools.partial(faked, fake=fake, learn=learn)
    if isinstance(data, Tensor):
        made = fake.from_tensor(data.detach(), static_shapes=True)
        learn(made, data)
        return made
    if isinstance(data, Mapping):
        found = {key: again(value) for key, value in data.items()}
        return found if type(data) is dict else _like(data, found)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(again, data))
    if isinstance(data, list | tuple):
        return type(data)(map(again, data))
    if hasattr(data, "apply") and not isinstance(data, nn.Module):  # as torch_geometric's batches
        return copy.copy(data).apply(again)
    return data


def _like(mapping: Any, found: dict[Any, Any]) -> Any:
    """As transformers' BatchEncoding: a mapping of its own kind."""
    other = copy.copy(mapping)
    for key, value in found.items():
        other[key] = value
    return other


def faked_model(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """Its parameters and buffers, without their numbers; tied ones stay tied."""
    made: dict[int, Any] = {}

    def convert(tensor: Tensor) -> Any:
        if id(tensor) not in made:
            new = faked(tensor, fake)
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = (
                nn.Parameter(new, requires_grad=tensor.requires_grad) if is_parameter else new
            )
        return made[id(tensor)]

    for part in model.modules():
        for store in (part._parameters, part._buffers):
            for name, tensor in store.items():
                if tensor is not None and not isinstance(tensor, FakeTensor):
                    store[name] = convert(tensor)
    return model


def edges_of(data: Any) -> set[int]:
    """How many edges the graphs of a batch have: by its `edge_index`, as everybody names it."""
    named = data.get("edge_index") if isinstance(data, dict) else getattr(data, "edge_index", None)
    if isinstance(named, Tensor) and named.dim() == 2 and named.shape[0] == 2:
        return {named.shape[1]}
    return set()
