"""CUDA's autocast on a CPU's: which operations compute in which format.

The two lists differ in about 170 operations, layer_norm and softmax among them, and with them what
the backward pass keeps. The policies are those of torch 2.13 (ATen/autocast_mode.h); which
operations have one is asked of torch itself, and a test compares both. Where both devices have the
same policy a CPU's own kernel stays: it caches casts of weights, as CUDA's does.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = _names(
    """
    _convolution convolution addmv addr mv einsum chain_matmul linalg_multi_dot lstm_cell
    gru_cell rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell
    _scaled_dot_product_flash_attention
    """
)
"""In the smaller format."""
FLOAT = _names(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm
    rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity dist
    pdist renorm logsumexp upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    """
)
"""In fp32: what is smaller is copied."""
INTO_FLOAT = _names(
    """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList
    linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
    """
)
"""The result in fp32, by the operation's own `dtype`."""
NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""The same by another overload."""
WIDEST = _names(
    """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
    """
)
"""In the widest format of the arguments."""

_SAME_EFFECT = frozenset({"conv1d.padding", "conv2d.padding", "conv3d.padding", "mkldnn_rnn_layer"})
"""On a CPU cast one call earlier than on CUDA."""
_NO_EQUAL = frozenset({"cudnn_convolution", "cudnn_convolution_transpose"})
"""CUDA's own."""
_DIFFER = frozenset({"prod", "prod.dim_int", "grid_sampler"})
"""Both devices have a policy, and not the same."""


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """While it lasts, `torch.autocast("cpu")` casts as CUDA's does."""
    library = torch.library.Library("aten", "IMPL")
    try:
        _put_all(library)
        yield
    finally:
        library._destroy()


def _put_all(library: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overriding is what is meant
        for name in sorted(names_with("AutocastCPU") - names_with("AutocastCUDA") - _SAME_EFFECT):
            _put(library, name, torch.library.fallthrough_kernel)
        for name, kernel in _kernels():
            _put(library, name, kernel)


def names_with(key: str) -> frozenset[str]:
    """Operations that torch has registered something for."""
    names = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return frozenset(n.removeprefix("aten::") for n in names if has(n, key))


def names_with_policy() -> frozenset[str]:
    """All that this module puts in place."""
    return LOWER | FLOAT | INTO_FLOAT | WIDEST | frozenset(NORMS)


def names_left_alone() -> frozenset[str]:
    """Both devices do the same, or CUDA's has no equal."""
    return ((names_with("AutocastCPU") & names_with("AutocastCUDA")) - _DIFFER) | _NO_EQUAL


def _put(library: Any, name: str, kernel: Any) -> None:
    library.impl(name, kernel, "AutocastCPU", allow_override=True)


def _kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    known = names_with("AutocastCUDA")  # another torch may not have them all
    for name in sorted(names_with_policy() & known):
        op = _overload(name)
        if name in LOWER:
            yield name, _casting(op, lambda _: torch.get_autocast_dtype("cpu"))
        elif name in FLOAT:
            yield name, _casting(op, lambda _: torch.float32)
        elif name in WIDEST:
            yield name, _casting(op, _widest)
        elif name in INTO_FLOAT:
            yield name, _into_float(op)
        else:
            yield name, _norm_into_float(_overload(f"norm.{NORMS[name]}"))


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _is_cast(value: object) -> bool:
    """Autocast leaves whole numbers and doubles alone."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _widest(values: list[Tensor]) -> torch.dtype:
    kinds = {value.dtype for value in values}
    return torch.float32 if torch.float32 in kinds else torch.get_autocast_dtype("cpu")


def _without_autocast() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _casting(op: Any, choose: Callable[[list[Tensor]], torch.dtype]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            dtype = choose([leaf for leaf in tree_leaves((args, kwargs)) if _is_cast(leaf)])
            cast = tree_map(lambda v: v.to(dtype) if _is_cast(v) else v, (args, kwargs))
            return op(*cast[0], **cast[1])

    return kernel


def _into_float(op: Any) -> Callable[..., Any]:
    fused = {"softmax": torch.ops.aten._softmax, "log_softmax": torch.ops.aten._log_softmax}
    half_to_float = fused.get(op._overloadpacket.__name__)

    def kernel(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            names = [a.name for a in op._schema.arguments]
            given = dict(zip(names, (value, *args), strict=False)) | kwargs
            if not _is_cast(value) or given.get("dtype") is not None:
                return op(value, *args, **kwargs)
            if half_to_float is not None and value.dtype == torch.float16:
                # CUDA reads fp16 and writes fp32 in one kernel; bf16 is copied to fp32 first.
                return half_to_float(value, given["dim"], True)
            given["dtype"] = torch.float32
            return op(**given)

    return kernel


def _norm_into_float(op: Any) -> Callable[..., Any]:
    def kernel(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            dtype = torch.float32 if _is_cast(value) else value.dtype
            return op(value, *args, **kwargs, dtype=dtype)

    return kernel
