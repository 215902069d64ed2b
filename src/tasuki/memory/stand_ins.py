"""What other libraries do with numbers, done without them: same storages, same saved tensors.

bitsandbytes packs weights of 4 bits when they are moved to a device, by kernels that need numbers:
here a layer gets a packed weight of the right size and goes through the library's own operations.
torch_geometric draws negative edges in numpy: here as many come as were asked for. A library that
the recipe has not imported is not looked for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tasuki.memory.fake_ways import patched

_SCALES_PER_BLOCK = 256
"""Of bitsandbytes' second quantisation, of the scales."""
_TABLE = 256
"""Values that 8 bits stand for."""


def packed(model: nn.Module) -> list[Tensor]:
    """Packs the layers of 4 bits that are not yet; what they hold beside their parameters."""
    library = sys.modules.get("bitsandbytes")
    if library is None:
        return []
    found: list[Tensor] = []
    has_table = False
    for part in model.modules():
        if isinstance(part, library.nn.Linear4bit):
            found += _pack(part, library)
            if part.quant_state.nested and not has_table:
                # The table that all others are copied from: the library keeps it.
                part.table_of_all, has_table = torch.empty(_TABLE), True
                found.append(part.table_of_all)
    return found


def _pack(layer: Any, library: Any) -> list[Tensor]:
    weight = layer.weight
    if getattr(weight, "bnb_quantized", False) and weight.quant_state is not None:
        shape = tuple(weight.quant_state.shape)
    else:
        shape = (layer.out_features, layer.in_features)
    count, block = shape[0] * shape[1], weight.blocksize
    state = _state(library, weight, shape, num_blocks=-(-count // block))
    unit = 2 * weight.quant_storage.itemsize  # two weights in a byte
    new: Any = torch.empty(-(-count // unit), 1, dtype=weight.quant_storage)
    layer.weight = nn.Parameter(new, requires_grad=False)
    layer.weight.quant_state = layer.quant_state = state
    second = [] if state.state2 is None else [state.offset, state.state2.absmax, state.state2.code]
    return [state.absmax, state.code, *second]


def _state(library: Any, weight: Any, shape: tuple[int, ...], *, num_blocks: int) -> Any:
    make = library.functional.QuantState
    known = {
        "shape": torch.Size(shape),
        "code": torch.empty(16),
        "blocksize": weight.blocksize,
        "quant_type": weight.quant_type,
        "dtype": torch.float32,
    }
    if not weight.compress_statistics:
        return make(absmax=torch.empty(num_blocks), **known)
    second = make(
        absmax=torch.empty(-(-num_blocks // _SCALES_PER_BLOCK)),
        code=torch.empty(_TABLE),
        blocksize=_SCALES_PER_BLOCK,
        dtype=torch.float32,
    )
    scales = torch.empty(num_blocks, dtype=torch.uint8)
    return make(absmax=scales, offset=torch.empty(()), state2=second, **known)


@contextlib.contextmanager
def drawn_edges() -> Iterator[None]:
    """Wherever the function has been imported to."""
    module = sys.modules.get("torch_geometric.utils._negative_sampling")
    if module is None:
        yield
        return
    original = module.negative_sampling
    with contextlib.ExitStack() as stack:
        for other in list(sys.modules.values()):
            name = getattr(other, "__name__", "")
            if (
                name.startswith("torch_geometric")
                and vars(other).get("negative_sampling") is original
            ):
                stack.enter_context(patched(other, "negative_sampling", _negative_edges))
        yield


def _negative_edges(
    edge_index: Tensor,
    num_nodes: Any = None,  # noqa: ARG001 (as torch_geometric names it)
    num_neg_samples: int | float | None = None,
    method: str = "sparse",  # noqa: ARG001
    force_undirected: bool = False,  # noqa: ARG001
) -> Tensor:
    count = edge_index.shape[1]
    if isinstance(num_neg_samples, float):
        count = int(num_neg_samples * count)
    elif num_neg_samples is not None:
        count = num_neg_samples
    drawn = edge_index.new_empty(count)
    return torch.stack([drawn.div(2, rounding_mode="floor"), drawn % 2])
