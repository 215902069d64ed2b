"""Compare the gradient of one effective batch with that of the same batch in micro-batches.

`tasuki verify gradients` calls `check_gradients` in a child process. Everything is computed in
float64 on the CPU. The step engine of a run makes both gradients, so its own errors show, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from tasuki.data.fetch import seed_everything
from tasuki.data.loader import MicroBatch
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit, share_of_step
from tasuki.data.split import resolve_batch
from tasuki.errors import DataError, RecipeError, TasukiError, place_of
from tasuki.spec.resolved import ResolvedStage
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.train.buffers import keep_buffers, put_buffers_back
from tasuki.train.data import prepare_data
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import build_model, load_recipe

# Another order of additions changes less than 1e-11, a wrong weight more than 1e-5.
_TOLERANCE = 1e-9
# The gradient of a bias before a norm is only rounding: small ones are compared with the largest.
_NOISE = 1e-6
_MAX_SAMPLES = 64
_LOW_PRECISION = (torch.float16, torch.bfloat16, torch.float32)

Gradient = dict[str, Tensor]


class _Step(NamedTuple):
    gradient: Gradient
    loss: float
    weight: float


def check_gradients(
    stage: ResolvedStage,
    folder: Path,
    ranks: int,
    max_samples: int | None,
    progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Return the fields of `GradientsReport`, except the experiment.

    The model is fresh. The micro-batches of all ranks pass one after another.
    """
    assert stage.recipe is not None
    recipe = load_recipe(stage.recipe, stage.params, paths=[folder])
    whole, pieces = _read_batches(recipe, stage, ranks, max_samples)
    seed_everything(start_seed(stage, "model", 0))
    # `.double()` alone does not reach tensors that are plain attributes of a module.
    torch.set_default_dtype(torch.float64)
    model = build_model(recipe).double().train()
    for name, p in model.named_parameters():
        # Without this, bitsandbytes gives meaningless numbers for inputs in float64.
        if not (p.is_floating_point() or p.is_complex()):
            message = f"parameter '{name}' is {p.dtype}: quantized layers have no float64 form"
            hint = "switch quantization off, for example with `--set params.NAME=VALUE`"
            raise RecipeError(message, hint=hint)
    progress(Progress("comparing gradients"))
    try:
        one, accumulated = _run_step(recipe, model, [whole]), _run_step(recipe, model, pieces)
        difference, parameter = _compare(one.gradient, accumulated.gradient)
        is_equal = difference <= _TOLERANCE
        causes = [] if is_equal else _find_causes(recipe, model, whole, pieces)
    except TasukiError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RecipeError(
            f"the gradient cannot be computed in float64 on the CPU: {cause}{place_of(error)}",
            hint="leave out what needs a GPU; if memory is short, use `--samples 8`",
        ) from error
    return {
        "stage": stage.name,
        "equal": is_equal,
        "max_relative_difference": difference,
        "parameter": parameter,
        "loss_whole": one.loss,
        "loss_in_pieces": accumulated.loss,
        "samples": whole.num_samples,
        "micro_batch_size": max(piece.num_samples for piece in pieces),
        "gradient_accumulation": len(pieces),
        "causes": causes,
    }


def _read_batches(
    recipe: Any, stage: ResolvedStage, ranks: int, max_samples: int | None
) -> tuple[MicroBatch, list[MicroBatch]]:
    """Return the first full step, whole and in micro-batches."""
    given = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, given, stage.accumulation, ranks)
    samples = min(batch.effective_batch, max_samples or _MAX_SAMPLES)
    micro_batch = max(1, batch.micro_batch * samples // batch.effective_batch)
    sizes = {"effective_batch": samples, "micro_batch": micro_batch, "accumulation": None}
    data = prepare_data(recipe, msgspec.structs.replace(stage, **sizes), rank=0, world=1)
    order, fetcher = data.order, data.fetcher
    if not isinstance(order, Order):
        message = f"stage '{stage.name}' has a custom loader, whose batches cannot be joined"
        raise DataError(message, hint="return a map-style data set from build_dataset")
    partial = set(order.partial_steps(0))
    number = next((n for n in range(order.steps_per_epoch) if n not in partial), 0)

    def read(split: StepSplit) -> list[MicroBatch]:
        share = share_of_step(order, number, split, is_seeded=fetcher.is_seeded)
        with _Float64():  # a `collate` may mask tokens at random
            batches = [_to_float64(fetcher(request)) for request in share.requests]
        return list(map(MicroBatch, batches, share.counts))

    pieces = read(data.split)
    count = sum(piece.num_samples for piece in pieces)
    if count < 2:
        raise DataError("a batch of one sample cannot be split", hint="compare at least 2 samples")
    if len(pieces) == 1:  # about two halves, but of unequal sizes where that is possible
        half = -(-count // 2)
        size = next((m for m in range(half, 1, -1) if count % -(-count // m)), half)
        pieces = read(StepSplit(micro_batch=size))
    return read(StepSplit(micro_batch=count))[0], pieces


def _to_float64(batch: Any) -> Any:
    """Convert the floating-point tensors of a batch. Indices and masks stay as they are."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.dtype in _LOW_PRECISION else batch
    kind: Any = type(batch)
    if isinstance(batch, Mapping):
        return kind({key: _to_float64(value) for key, value in batch.items()})
    if isinstance(batch, list | tuple):
        items = map(_to_float64, batch)
        return kind(*items) if hasattr(batch, "_fields") else kind(items)
    if dataclasses.is_dataclass(batch):
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return kind(**_to_float64(fields))
    # Graphs of torch_geometric: their `to` takes devices only.
    return batch.apply(_to_float64) if hasattr(batch, "apply") else batch


class _Float64(TorchDispatchMode):
    """Answer casts to fewer bits with float64, and random numbers with a constant.

    Dropout draws another mask for a piece than for the same rows of the whole batch. With a
    constant it treats every sample alike, while the model stays in train mode.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in _LOW_PRECISION:  # also `logits.float()`
            kwargs["dtype"] = torch.float64
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        # Attention without dropout has the tag, too, and its result must stay.
        is_random = kwargs.get("generator") or not torch.equal(before, torch.get_rng_state())
        return result.fill_(0.5) if is_random and isinstance(result, Tensor) else result


def _run_step(recipe: Any, model: nn.Module, batches: Sequence[MicroBatch]) -> _Step:
    """Run one step of the engine of a run, and leave the model as it was."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradient: Gradient = {}

    def seeded_loss(model: nn.Module, batch: Any) -> Any:
        seed_everything(0)  # for random numbers of Python and numpy
        return recipe.loss(model, batch)

    def keep_gradient(*_: Any) -> None:
        for name, p in parameters.items():
            gradient[name] = torch.zeros_like(p) if p.grad is None else p.grad.to_dense()

    optimizer = torch.optim.SGD(parameters.values(), lr=0.0)
    optimizer.register_step_pre_hook(keep_gradient)
    module = LossModule(model, seeded_loss)
    engine = StepEngine(module, optimizer, device=torch.device("cpu"), clip=None, world=1)
    buffers = keep_buffers(model)
    with _Float64():
        engine.step(batches, sum(batch.num_samples for batch in batches))
    put_buffers_back(buffers)
    if not gradient or not all(bool(grad.isfinite().all()) for grad in gradient.values()):
        hint = "look for a division by 0, the logarithm of 0, and weights that are all 0"
        raise RecipeError("the loss has no finite gradient", hint=hint)
    total, weight = engine.read_losses()
    return _Step(gradient, total / weight, weight)


def _compare(whole: Gradient, pieces: Gradient) -> tuple[float, str]:
    """Return the largest relative difference, and the parameter that has it."""
    sizes = {name: _max_abs(grad) for name, grad in whole.items()}
    floor = _NOISE * max(sizes.values()) or 1.0
    found = {n: _max_abs(pieces[n] - grad) / max(sizes[n], floor) for n, grad in whole.items()}
    return max((difference, name) for name, difference in found.items())


def _max_abs(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _find_causes(
    recipe: Any, model: nn.Module, whole: MicroBatch, pieces: Sequence[MicroBatch]
) -> list[dict[str, str]]:
    """Name BatchNorm and means of unequal pieces. Empty: neither explains the difference."""
    causes = []
    # A loss may have set BatchNorm to eval mode, so this looks after the first passes.
    norms = {n: m for n, m in model.named_modules() if isinstance(m, _BatchNorm) and m.training}
    if norms:
        shown = ", ".join(list(norms)[:3]) + (", …" if len(norms) > 3 else "")
        message = f"BatchNorm ({shown}) takes its statistics from one micro-batch"
        hint = "use GroupNorm or LayerNorm, or set `micro_batch` to `effective_batch`"
        causes.append({"name": "batch_statistics", "message": message, "hint": hint})
        for norm in norms.values():
            norm.eval()  # what still differs has another cause
    one, accumulated = _run_step(recipe, model, [whole]), _run_step(recipe, model, pieces)
    if _compare(one.gradient, accumulated.gradient)[0] <= _TOLERANCE:
        return causes
    parts = [_run_step(recipe, model, [piece]) for piece in pieces]
    given = torch.tensor([part.weight / sum(p.weight for p in parts) for part in parts])
    right = _fit_weights(one.gradient, [part.gradient for part in parts])
    # The same weights mean that the engine adds up wrongly: not the fault of the loss.
    if right is not None and not torch.allclose(given, right, atol=1e-6):
        message = "`loss` is a mean over tokens or nodes, of which the pieces have unequal numbers"
        hint = "return (sum, weight): the sum over all entries, and their number"
        causes.append({"name": "unequal_pieces", "message": message, "hint": hint})
    return causes


def _fit_weights(whole: Gradient, parts: Sequence[Gradient]) -> Tensor | None:
    """Return the weights with which the parts add up to the whole. None: no weights do.

    A mean over anything has such weights. Some entries of each parameter are enough to find them.
    """
    flat = [torch.cat([grad.flatten()[:1000] for grad in g.values()]) for g in (whole, *parts)]
    target, columns = flat[0], torch.stack(flat[1:], dim=1)
    weights = torch.linalg.lstsq(columns, target[:, None]).solution[:, 0]
    is_exact = _max_abs(columns @ weights - target) <= 1e-7 * _max_abs(target)
    return weights if is_exact and len(target) > len(parts) else None
