"""Several ranks, one step, no sum of gradients until all of them had room: for steps that may run
out of memory.

DDP adds gradients up while the backward pass of the last micro-batch runs. A rank that runs out of
memory there leaves the others in a sum that never ends, and nothing can be undone. So a micro-batch
of a size that has not been seen to fit is passed without DDP's sums; then the ranks vote, and the
gradients are added up here: in DDP's own groups, in its order and with its factor, so that the bits
are those of DDP and it does not matter which steps are done which way.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tasuki.train.unused import refuse_missing

Groups = list[list[Tensor]]
"""Parameters, as DDP adds up their gradients together."""


class OutOfMemoryElsewhere(MemoryError):
    """Another rank had no room."""


def can_be_added_up(module: nn.Module) -> bool:
    """Not where DDP looks for unused parameters in each step, or gradients are sparse."""
    if not isinstance(module, DistributedDataParallel) or module.find_unused_parameters:
        return False
    if not hasattr(module.reducer, "_get_zeros_like_grad_buckets"):
        return False
    return not any(getattr(part, "sparse", False) is True for part in module.modules())


def find_groups(module: DistributedDataParallel) -> Groups:
    """After DDP has settled them."""
    buckets = module.reducer._get_zeros_like_grad_buckets()
    return [bucket.parameters() for bucket in buckets]


def agree_on_any(is_so: bool, flag: Tensor) -> bool:
    """On whichever rank. `flag` is a whole number to do it with."""
    flag.fill_(int(is_so))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


@torch.no_grad()
def add_up(module: DistributedDataParallel, groups: Groups) -> None:
    """The mean over ranks of every gradient, in its place."""
    refuse_missing(module)
    factor = 1.0 / dist.get_world_size()
    for group in groups:
        flat = torch.empty(
            sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device
        )
        views, begin = [], 0
        for parameter in group:
            view = flat.as_strided(parameter.shape, _strides(parameter), begin)
            torch.mul(_gradient(parameter), factor, out=view)
            views.append(view)
            begin += parameter.numel()
        dist.all_reduce(flat)
        for parameter, view in zip(group, views, strict=True):
            _gradient(parameter).copy_(view)
    # As after a pass with DDP's sums: the next one begins with the buffers of rank 0.
    module.require_forward_param_sync = True


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """As it lies in memory, where that is without holes."""
    if torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return parameter.stride()
    return torch.empty(parameter.shape, device="meta").stride()
