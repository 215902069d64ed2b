"""The step engine: one optimizer step over one effective batch.

gradient = Σ sums / Σ weights over all micro-batches and ranks (promise 8). A bare tensor is a mean
whose weight is its number of samples, known beforehand; with one micro-batch on one rank it is
back-propagated as it is. A loss is read (a device synchronisation) only when it is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError
from tasuki.failpoints import failpoint
from tasuki.train.advice import is_out_of_memory, let_go
from tasuki.train.buffers import Kept, keep_buffers, put_buffers_back
from tasuki.train.compiled import Compiled
from tasuki.train.gradients import are_alike, clip_alike, drop, drops_plainly
from tasuki.train.losses import LossOutput, Weight, read_loss, refuse_loss
from tasuki.train.offload import OffloadedOptimizer
from tasuki.train.precision import autocast, make_scaling
from tasuki.train.together import (
    Groups,
    OutOfMemoryElsewhere,
    add_up,
    agree_on_any,
    can_be_added_up,
    find_groups,
)
from tasuki.train.undo import DoesNotFit, Undo
from tasuki.train.unused import refuse_unfinished

LossEntry = tuple[Tensor, Weight, float]
"""Loss × times is a sum of losses, on this rank, of samples with this weight."""

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

    def as_function(self) -> Callable[[Any], LossOutput]:
        """The same without a module's way of calling and looking up."""
        return partial(self._loss, self.model)


class LossWindow:
    """The losses since the last log line, unread."""

    def __init__(self) -> None:
        self.entries: list[LossEntry] = []

    def add(self, loss: Tensor, weight: Weight, times: float = 1.0) -> None:
        """`loss` × `times` is a sum of losses, for means of `times` samples."""
        self.entries.append((loss, weight, times))

    def begin_step(self) -> int:
        """A place in the window, for `drop_since`."""
        count = len(self.entries)
        if count < 256:
            return count
        self._fold()
        return len(self.entries)

    def drop_since(self, place: int) -> None:
        """Forget the losses of a step that does not count."""
        del self.entries[place:]

    def _fold(self) -> None:
        total, weight = self.sums()
        if not isinstance(total, Tensor):
            total = torch.tensor(total, dtype=torch.float64)
        self.entries = [(total, weight, 1.0)]

    def sums(self) -> tuple[Tensor | float, Weight]:
        """(Σ losses in double, Σ weights); there must be some. Where numbers may be read, that is
        ten times quicker than adding tensors up."""
        losses = [loss for loss, _, _ in self.entries]
        weight = sum(weight for _, weight, _ in self.entries)
        if losses[0].device.type == "cpu":
            return sum(loss.item() * times for loss, _, times in self.entries), weight
        if len({loss.dtype for loss in losses}) > 1:
            losses = [loss.double() for loss in losses]
        stacked = torch.stack(losses).double()
        times = stacked.new_tensor([times for _, _, times in self.entries])
        return (stacked * times).sum(), weight


class StepEngine:
    """Forward, backward, reduction, clipping and the optimizer's step."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | OffloadedOptimizer,
        *,
        device: torch.device,
        clip: float | None,
        world: int,
        precision: str = "fp32",
    ) -> None:
        self._module = module
        self._call: Callable[[Any], LossOutput] = module
        if isinstance(module, LossModule):  # ours: nobody hangs hooks on it
            self._call = module.as_function()
        self._optimizer = optimizer
        self._num_groups = len(optimizer.param_groups)
        self._parameters: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        self._clip_norm = clip_alike if are_alike(self._parameters) else nn.utils.clip_grad_norm_
        self._drops_plainly = drops_plainly(optimizer)
        self._device = device
        self._clip = clip
        self._world = world
        self._autocast = autocast(precision, device) if precision in ("bf16", "fp16") else None
        self.scaling = make_scaling(precision, device, self._parameters)
        """Of fp16's gradients."""
        self.reads_weights = device.type == "cpu"
        """Elsewhere a loss's weight that is a tensor stays where it is: reading it would wait."""
        self.window = LossWindow()
        self._is_mean: bool | None = None
        """Whether `loss` gives means; known after the first."""
        self.scalars: dict[str, Any] = {}
        """What the recipe's loss last gave to be logged."""
        self.undo: Undo | None = None
        """Where there is one, a step whose passes run out of memory is undone: DoesNotFit."""
        self.is_trying = False
        """With several ranks: this step may run out of memory, and is done so that all of them can
        undo it (together.py)."""
        self._groups: Groups | None = None
        self._flag: Tensor | None = None
        """For votes: who has no room cannot make one."""
        self.exchange_s: float | None = None
        """How long a step waits for the gradients of the other ranks, where it was measured."""

    def step(
        self, batches: Iterable[MicroBatch], num_samples: int, *, is_checked: bool = False
    ) -> bool:
        """One step. `num_samples` counts all ranks' samples.

        Checked, a step whose gradient or loss is not finite leaves everything but the random
        numbers as it was, and gives False; that costs a device synchronisation. In fp16 a gradient
        may overflow: then the step is left out and the scale halved, without a word here.
        """
        self.scalars = {}
        place = self.window.begin_step()
        undo = self.undo if self._world == 1 or self.is_trying else None
        if undo is not None:
            undo.begin()
        try:
            # A forward pass moves running means, and NaN in them would stay.
            kept = keep_buffers(self._module) if is_checked else []
            weight = self._accumulate(batches, num_samples)
        except Exception as error:
            if undo is None or not is_out_of_memory(error):
                raise
            let_go(error)
            raise DoesNotFit(error, is_undone=self._undo_step(undo, place)) from error
        if self.is_trying:
            self._add_up()
        if weight is not None:
            weight = self._sum_over_ranks(weight)
            if not isinstance(weight, Tensor) and weight == 0:
                self._optimizer.zero_grad(set_to_none=True)
                return True
        if is_checked and self.scaling is not None:
            self.scaling.may_skip = True
            if not self._is_finite(None, place):
                return self._throw_step_away(kept, place)
        norm = self._finish_gradients(weight)
        if is_checked and self.scaling is None and not self._is_finite(norm, place):
            return self._throw_step_away(kept, place)
        failpoint("step.optimizer")
        try:
            self._apply()
        except Exception as error:
            if self.undo is None or not is_out_of_memory(error):
                raise
            raise DoesNotFit(error, is_undone=False, is_in_passes=False) from error
        return True

    def read_losses(self) -> tuple[float, float]:
        """(Σ losses, Σ weights) of all ranks since the last reading: waits for the device."""
        total, weight = self.window.sums() if self.window.entries else (torch.zeros(()), 0.0)
        self.window.entries.clear()
        if self._world == 1:
            return float(total), float(weight)
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        sums[0], sums[1] = total, weight
        dist.all_reduce(sums)
        loss_sum, weight_sum = sums.tolist()
        return loss_sum, weight_sum

    @property
    def is_compiled(self) -> bool:
        compiled = self._compiled()
        return compiled is not None and compiled.is_compiled

    def _compiled(self) -> Compiled | None:
        module = self._module
        if isinstance(module, DistributedDataParallel):
            module = module.module
        return module if isinstance(module, Compiled) else None

    # -- the parts of a step; `run --profile` times these ---------------------------------------

    def _forward(self, data: Any) -> LossOutput:
        if self._device.type != "cpu":
            data = to_device(data, self._device)
        if self._autocast is None:
            return self._call(data)
        with self._autocast:
            return self._call(data)

    def _backward(self, loss: Tensor) -> None:
        try:
            (loss if self.scaling is None else self.scaling.scale(loss)).backward()
        except RuntimeError as error:
            refuse_loss(loss, error)
            raise

    def _finish_gradients(self, weight: Weight | None) -> Tensor | None:
        """Σ sums / Σ weights, clipped; their norm before, where it was taken."""
        if self.scaling is not None:
            self.scaling.unscale(self._optimizer)
        if weight is not None:
            grads = [p.grad for p in self._parameters if p.grad is not None]
            factor = self._world / weight  # DDP has averaged over the ranks
            if isinstance(factor, Tensor):  # unread: it may be 0, and then the gradient is
                factor = factor.nan_to_num(posinf=0.0)
            if grads:  # not where a loss used nothing that is trained
                torch._foreach_mul_(grads, factor)
        return None if self._clip is None else self._clip_gradients(self._clip)

    def _apply(self) -> None:
        if len(self._optimizer.param_groups) != self._num_groups:
            raise RecipeError(
                "the optimizer got other groups of parameters in the middle of a stage: gradients "
                "of theirs were not clipped, and no checkpoint could be resumed",
                hint="give `build_optimizer` all groups, some with an lr of 0 at first; or begin "
                "another stage with them",
            )
        if self.scaling is None:
            self._optimizer.step()
        else:
            self.scaling.step(self._optimizer)
        if self._drops_plainly:
            drop(self._parameters)
        else:
            self._optimizer.zero_grad(set_to_none=True)

    # -- steps that do not count ----------------------------------------------------------------

    def _throw_step_away(self, kept: list[Kept], place: int) -> bool:
        self._optimizer.zero_grad(set_to_none=True)
        self.window.drop_since(place)
        self.scalars = {}
        put_buffers_back(kept)
        return False

    def _undo_step(self, undo: Undo, place: int) -> bool:
        """Out of memory in a pass: whether all is as it was when the step began."""
        self.forget()
        self.window.drop_since(place)
        return undo.put_back()

    def _is_finite(self, norm: Tensor | None, place: int) -> bool:
        """All ranks see the same gradient, but each its own loss: they agree."""
        if norm is None and self.scaling is None:
            norm = self._clip_gradients(float("inf"))  # changes nothing
        is_finite = torch.ones((), dtype=torch.bool, device=self._device)
        for value in [*([] if norm is None else [norm]), *self._losses_since(place)]:
            is_finite = is_finite & value.isfinite()
        if self._world > 1:
            flag = is_finite.to(torch.int32)
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
            return bool(flag)
        return bool(is_finite)

    def _losses_since(self, place: int) -> list[Tensor]:
        return [loss for loss, _, _ in self.window.entries[place:]]

    def _clip_gradients(self, limit: float) -> Tensor:
        """Their norm before."""
        try:
            return self._clip_norm(self._parameters, limit)
        except (RuntimeError, NotImplementedError) as error:
            if any(p.grad is not None and p.grad.is_sparse for p in self._parameters):
                raise RecipeError(
                    "a gradient is sparse, as `nn.Embedding(sparse=True)` makes it: its norm "
                    "cannot be taken",
                    hint="write sparse=False; or `clip: 0` and `on_nan: stop`, which need no norm",
                ) from error
            raise

    def throw_away(self, batch: Any) -> None:
        """Forward, backward, forward: DDP settles its gradient buckets, and a compiler its kernels,
        now, not after a resume."""
        for _ in range(2):
            self.try_together(batch)
        self.forget()
        if self._world == 1:
            return
        kinds = torch.tensor([int(bool(self._is_mean))], device=self._device)
        dist.all_reduce(kinds)
        if int(kinds) not in (0, self._world):
            raise RecipeError(_TWO_KINDS, hint="give the same kind for every batch")

    def try_alone(self, batch: Any) -> None:
        """Forward and backward without the other ranks; the gradients stay."""
        with self._sync(is_last=False):
            self.try_together(batch)

    def forget(self) -> None:
        """The gradients of what was tried."""
        self._optimizer.zero_grad(set_to_none=True)
        if isinstance(self._module, DistributedDataParallel):
            # A rank that failed in between would else expect other buffers than its peers send.
            self._module.require_forward_param_sync = True

    def rewrap(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        """Let another DDP module add up the gradients."""
        assert isinstance(self._module, DistributedDataParallel)
        self._module = self._call = wrap(self._module.module)
        self._groups = None

    def try_together(self, batch: Any) -> None:
        """The same with the other ranks. A compiler that fails is done without."""
        try:
            self._pass_for_nothing(batch)
        except Exception as error:
            compiled = self._compiled()
            if compiled is None or not compiled.gives_up_after(error):
                raise
            self._pass_for_nothing(batch)

    def _pass_for_nothing(self, batch: Any) -> None:
        loss, weight, _scalars = self._read(self._forward(batch))
        self._check_kind(weight)
        try:
            (loss * 0).backward()
        except RuntimeError as error:
            refuse_loss(loss, error)
            raise

    # -- micro-batches --------------------------------------------------------------------------

    def _accumulate(self, batches: Iterable[MicroBatch], num_samples: int) -> Weight | None:
        """Back-propagate all micro-batches; the weight to divide by, or None for plain means."""
        weights: list[Weight] = []
        if self.is_trying:
            self._try_passes(batches, num_samples, weights)
        elif self._world > 1:
            for batch, is_last in list_ahead(batches):
                with self._sync(is_last):
                    self._pass(batch, num_samples, weights)
            if isinstance(self._module, DistributedDataParallel):
                refuse_unfinished(self._module)
        else:
            for batch in batches:
                self._pass(batch, num_samples, weights)
        return None if self._is_mean or not weights else sum(weights)

    def _try_passes(
        self, batches: Iterable[MicroBatch], num_samples: int, weights: list[Weight]
    ) -> None:
        """Without the other ranks; then all of them go on, or none."""
        try:
            for batch in batches:
                with self._sync(is_last=False):
                    self._pass(batch, num_samples, weights)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            let_go(error)
            self.forget()  # a vote needs room, too
            self.is_so_anywhere(True)
            raise
        if self.is_so_anywhere(False):
            raise OutOfMemoryElsewhere("another rank ran out of memory")

    def _add_up(self) -> None:
        assert isinstance(self._module, DistributedDataParallel)
        if self._groups is None:
            self._groups = find_groups(self._module)
        add_up(self._module, self._groups)

    def is_so_anywhere(self, is_so: bool) -> bool:
        """On whichever rank; all ask at the same time."""
        if self._world == 1:
            return is_so
        if self._flag is None:
            self._flag = torch.zeros((), dtype=torch.int32, device=self._device)
        return agree_on_any(is_so, self._flag)

    @property
    def can_try(self) -> bool:
        """Steps can be done so that all ranks may undo them."""
        return can_be_added_up(self._module)

    def _pass(self, batch: MicroBatch, num_samples: int, weights: list[Weight]) -> None:
        """One micro-batch, forward and backward; the weight that is still to be divided by.

        In few calls: between kernels each of Python's costs microseconds.
        """
        failpoint("step.forward")
        output = self._forward(batch.data)
        if isinstance(output, Tensor):
            loss, weight = output, None
        else:
            loss, weight, self.scalars = self._read(output)
        if failpoint("step.loss") == "nan":
            loss = loss * float("nan")
        if self._is_mean is not (weight is None):
            self._check_kind(weight)
        count = batch.num_samples
        is_whole = count == num_samples and self._world == 1
        if weight is None:
            self._backward(loss if is_whole else loss * (count * self._world / num_samples))
            if count:
                self.window.entries.append((loss.detach(), float(count), float(count)))
        elif not count:
            self._backward(loss * 0)
            weights.append(0.0)
        else:
            if is_whole and not isinstance(weight, Tensor) and weight:
                self._backward(loss / weight)
            else:
                self._backward(loss)
                weights.append(weight)
            self.window.add(loss.detach(), weight)

    def _read(self, output: LossOutput) -> tuple[Tensor, Weight | None, dict[str, Any]]:
        return read_loss(output, is_read=self.reads_weights)

    def _check_kind(self, weight: Weight | None) -> None:
        """Means and sums cannot be added to one gradient."""
        is_mean = weight is None
        if self._is_mean not in (None, is_mean):
            raise RecipeError(_TWO_KINDS, hint="give the same kind for every batch")
        self._is_mean = is_mean

    def _sum_over_ranks(self, weight: Weight) -> Weight:
        if self._world == 1:
            return weight
        total = torch.as_tensor(weight, dtype=torch.float64, device=self._device)
        dist.all_reduce(total)
        return float(total) if self.reads_weights else total

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
