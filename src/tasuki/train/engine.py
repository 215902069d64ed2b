"""The step engine: one optimizer step over one effective batch.

gradient = Σ sums / Σ weights over all micro-batches and ranks (promise 8). A bare tensor is a mean
whose weight is its number of samples, known beforehand; with one micro-batch on one rank it is
back-propagated as it is. A loss is read (a device synchronisation) only when it is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError
from tasuki.failpoints import failpoint

LossOutput = Tensor | tuple[Tensor, Any] | tuple[Tensor, Any, dict[str, Any]]


_TWO_KINDS = "loss gives a mean for one batch and (sum, weight) for another"


class LossModule(nn.Module):
    """Model and loss as one module, so that DDP sees the forward pass and `model` in the recipe's
    `loss` is the user's own."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], LossOutput]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> LossOutput:
        return self._loss(self.model, batch)


class LossWindow:
    """The losses since the last log line, unread."""

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor, float]] = []
        """(sum of losses, weight) on this rank."""

    def add(self, loss_sum: Tensor, weight: float) -> None:
        self.entries.append((loss_sum, weight))

    def begin_step(self) -> int:
        """A place in the window, for `drop_since`."""
        if len(self.entries) >= 256:
            self._fold()
        return len(self.entries)

    def drop_since(self, place: int) -> None:
        """Forget the losses of a step that does not count."""
        del self.entries[place:]

    def _fold(self) -> None:
        total = torch.stack([entry for entry, _ in self.entries]).sum()
        self.entries = [(total, sum(weight for _, weight in self.entries))]

    def sums(self, device: torch.device) -> Tensor:
        """[Σ sums, Σ weights], in double."""
        if not self.entries:
            return torch.zeros(2, dtype=torch.float64, device=device)
        losses = torch.stack([entry.double() for entry, _ in self.entries]).sum()
        weight = sum(weight for _, weight in self.entries)
        return torch.stack([losses, losses.new_tensor(weight)])


class StepEngine:
    """Forward, backward, reduction, clipping and the optimizer's step."""

    def __init__(
        self,
        module: LossModule | DistributedDataParallel,
        optimizer: Optimizer,
        *,
        device: torch.device,
        clip: float | None,
        world: int,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = device
        self._clip = clip
        self._world = world
        self.window = LossWindow()
        self._is_mean: bool | None = None
        """Whether `loss` gives means; known after the first."""
        self.scalars: dict[str, Any] = {}
        """What the recipe's loss last gave to be logged."""

    def step(
        self, batches: Iterable[MicroBatch], num_samples: int, *, is_checked: bool = False
    ) -> bool:
        """One step. `num_samples` counts all ranks' samples.

        Checked, a step whose gradient or loss is not finite leaves everything but the random
        numbers as it was, and gives False; that costs a device synchronisation.
        """
        self.scalars = {}
        place = self.window.begin_step()
        kept = self._keep_buffers() if is_checked else []
        weight = self._accumulate(list_ahead(batches), num_samples)
        if weight is not None and not self._divide(weight):
            self._optimizer.zero_grad(set_to_none=True)
            return True
        norm = None
        if self._clip is not None:
            norm = self._clip_gradients(self._clip)
        if is_checked and not self._is_finite(norm, place):
            self._optimizer.zero_grad(set_to_none=True)
            self.window.drop_since(place)
            for module, name, buffer, value in kept:
                buffer.copy_(value)
                module._buffers[name] = buffer  # a forward pass may have put another in its place
            return False
        failpoint("step.optimizer")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return True

    def _keep_buffers(self) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
        """A forward pass moves running means, and NaN in them would stay."""
        return [
            (module, name, buffer, buffer.clone())
            for module in self._module.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def _is_finite(self, norm: Tensor | None, place: int) -> bool:
        """All ranks see the same gradient, but each its own loss: they agree."""
        if norm is None:
            norm = self._clip_gradients(float("inf"))  # changes nothing
        is_finite = norm.isfinite()
        for loss, _ in self.window.entries[place:]:
            is_finite = is_finite & loss.isfinite()
        if self._world > 1:
            flag = is_finite.to(torch.int32)
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
            return bool(flag)
        return bool(is_finite)

    def _clip_gradients(self, limit: float) -> Tensor:
        """Their norm before."""
        try:
            return nn.utils.clip_grad_norm_(self._parameters, limit)
        except (RuntimeError, NotImplementedError) as error:
            if any(p.grad is not None and p.grad.is_sparse for p in self._parameters):
                raise RecipeError(
                    "a gradient is sparse, as `nn.Embedding(sparse=True)` makes it: its norm "
                    "cannot be taken",
                    hint="write sparse=False; or `clip: 0` and `on_nan: stop`, which need no norm",
                ) from error
            raise

    def throw_away(self, batch: Any) -> None:
        """Forward, backward, forward: DDP settles its gradient buckets now, not after a resume."""
        for _ in range(2):
            loss, weight, _scalars = read_loss(self._module(to_device(batch, self._device)))
            self._check_kind(weight)
            (loss * 0).backward()
        self._optimizer.zero_grad(set_to_none=True)
        kinds = torch.tensor([int(bool(self._is_mean))], device=self._device)
        dist.all_reduce(kinds)
        if int(kinds) not in (0, self._world):
            raise RecipeError(_TWO_KINDS, hint="give the same kind for every batch")

    def _accumulate(
        self, batches: Iterable[tuple[MicroBatch, bool]], num_samples: int
    ) -> float | None:
        """Back-propagate all micro-batches; the weight to divide by, or None for plain means."""
        weights: list[float] = []
        for batch, is_last in batches:
            with self._sync(is_last):
                failpoint("step.forward")
                output = self._module(to_device(batch.data, self._device))
                loss, weight, scalars = read_loss(output)
                if failpoint("step.loss") == "nan":
                    loss = loss * float("nan")
                if scalars:
                    self.scalars = scalars
                self._check_kind(weight)
                if weight is None:
                    self._backward_mean(loss, batch.num_samples, num_samples)
                else:
                    weights.append(weight if batch.num_samples else 0.0)
                    is_lone = is_last and len(weights) == 1
                    self._backward_sum(loss, weight, batch.num_samples, is_lone=is_lone)
        if self._is_mean:
            return None
        if len(weights) == 1 and self._world == 1 and weights[0]:
            return None  # divided before the backward pass
        return sum(weights)

    def _check_kind(self, weight: float | None) -> None:
        """Means and sums cannot be added to one gradient."""
        is_mean = weight is None
        if self._is_mean not in (None, is_mean):
            raise RecipeError(_TWO_KINDS, hint="give the same kind for every batch")
        self._is_mean = is_mean

    def _backward_mean(self, loss: Tensor, count: int, num_samples: int) -> None:
        if count == num_samples and self._world == 1:
            loss.backward()
        else:
            (loss * (count * self._world / num_samples)).backward()
        if count:
            detached = loss.detach()
            self.window.add(detached if count == 1 else detached * count, float(count))

    def _backward_sum(self, loss: Tensor, weight: float, count: int, *, is_lone: bool) -> None:
        if not count:
            (loss * 0).backward()
            return
        if is_lone and self._world == 1 and weight:
            (loss / weight).backward()
        else:
            loss.backward()
        self.window.add(loss.detach(), weight)

    def _divide(self, weight: float) -> bool:
        """Σ sums → Σ sums / Σ weights. False when the step's whole weight is 0."""
        if self._world > 1:
            total = torch.tensor(weight, dtype=torch.float64, device=self._device)
            dist.all_reduce(total)
            weight = float(total)
        if weight == 0:
            return False
        grads = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_mul_(grads, self._world / weight)  # DDP has averaged over the ranks
        return True

    def _sync(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        if isinstance(self._module, DistributedDataParallel) and not is_last:
            return self._module.no_sync()
        return contextlib.nullcontext()


def list_ahead(batches: Iterable[MicroBatch]) -> Iterable[tuple[MicroBatch, bool]]:
    """Each micro-batch with whether it is the step's last."""
    iterator = iter(batches)
    current = next(iterator)
    for following in iterator:
        yield current, False
        current = following
    yield current, True


def read_loss(output: LossOutput) -> tuple[Tensor, float | None, dict[str, Any]]:
    """(loss, weight, scalars); the weight is None for a bare mean."""
    if isinstance(output, Tensor):
        return output, None, {}
    if isinstance(output, tuple) and len(output) in (2, 3) and isinstance(output[0], Tensor):
        scalars = output[2] if len(output) == 3 else {}
        return output[0], float(output[1]), scalars
    raise RecipeError(
        f"loss gave {type(output).__name__}",
        hint="return a mean, or (sum, weight), or (sum, weight, {name: scalar})",
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Move whatever can move, however nested. On the CPU there is nothing to do."""
    if device.type == "cpu":
        return batch
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)((key, to_device(value, device)) for key, value in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
