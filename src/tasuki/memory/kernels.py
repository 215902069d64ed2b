"""Composite operations that CUDA takes apart in other ways than a CPU: attention and dropout.

A CPU's attention keeps other tensors than CUDA's fused kernels, and its dropout a mask of floats in
place of one of bytes: for a GPT that is a factor of two. Put in place below autocast and above
autograd, so that every way to call them is caught. The choice is that of torch 2.13 on a GPU of
sm80 or newer (ATen/native/transformers/cuda/sdp_utils.cpp).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

_ATEN: Any = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_MOST_FLASH_DIM = 256
_FLASH_MULTIPLE = 8
_BIAS_MULTIPLE = 16
Backend = Literal["flash", "efficient", "math"]


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in (("scaled_dot_product_attention", _attention), ("dropout", _dropout)):
            library.impl(name, kernel, "AutogradCPU", allow_override=True)
        yield
    finally:
        library._destroy()


def choose_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    is_grouped: bool,
) -> Backend:
    """cuDNN's, which newer GPUs prefer to flash, keeps tensors of the same sizes."""
    allowed = torch.backends.cuda
    is_shaped = query.dim() == key.dim() == value.dim() == 4
    is_grouped_well = is_grouped or query.shape[-3] == key.shape[-3] == value.shape[-3]
    if not is_shaped or not is_grouped_well or query.dtype not in (*_HALVES, torch.float32):
        return "math"
    if 0 in query.shape or 0 in key.shape or any(t.stride(-1) != 1 for t in (query, key, value)):
        return "math"
    dims = {t.shape[-1] for t in (query, key, value)}
    is_square = query.shape[-2] == key.shape[-2]
    is_flash = (
        query.dtype in _HALVES
        and mask is None
        and len(dims) == 1
        and max(dims) <= _MOST_FLASH_DIM
        and (is_square or not is_causal)
    )
    if is_flash and allowed.flash_sdp_enabled():
        return "flash"
    alignment = 8 if query.dtype in _HALVES else 4
    is_efficient = query.shape[-1] == key.shape[-1] and all(dim % alignment == 0 for dim in dims)
    return "efficient" if is_efficient and allowed.mem_efficient_sdp_enabled() else "math"


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    backend = choose_attention(
        query, key, value, mask=attn_mask, is_causal=is_causal, is_grouped=enable_gqa
    )
    if backend == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    mask = _as_bias(attn_mask, query.dtype)
    if backend == "math":
        result = _ATEN._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
        return result[0]  # type: ignore[no-any-return]
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(times, -3) for t in (key, value))
    if mask is not None:
        mask = _padded(mask).expand(*query.shape[:3], key.shape[-2])
    keeps_sums = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return _ATEN._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
        query, key, value, mask, keeps_sums, dropout_p, is_causal, scale=scale
    )[0]


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Heads are padded to a multiple of 8."""
    dim = query.shape[-1]
    scale = dim**-0.5 if scale is None else scale
    missing = -dim % _FLASH_MULTIPLE
    if missing:
        query, key, value = (functional.pad(t, (0, missing)) for t in (query, key, value))
    out: Tensor = _ATEN._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :dim] if missing else out


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -torch.inf)


def _padded(mask: Tensor) -> Tensor:
    """In memory; the shape stays."""
    columns = mask.shape[-1]
    missing = -columns % _BIAS_MULTIPLE
    return functional.pad(mask, (0, missing))[..., :columns] if missing else mask


def _dropout(value: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0 or not value.numel():
        return value
    if p == 1:
        return value * torch.zeros_like(value)
    return torch.native_dropout(value, p, train)[0]
