"""CPU tensors that behave as CUDA's, as far as memory goes; and as a CPU's again afterwards."""

from __future__ import annotations

import pytest
import torch
from tests.unit.memory.models import Mlp, stage_of, traces_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tasuki.memory.autocast import (
    cuda_autocast,
    names_left_alone,
    names_with,
    names_with_policy,
)
from tasuki.memory.kernels import choose_attention, cuda_kernels

BF16 = torch.bfloat16


def cast(function):
    with torch.autocast("cpu", BF16):
        return function().dtype


def test_every_operation_that_cuda_casts_has_a_policy_here():
    if torch.__version__.startswith("2.13"):  # whose lists these are
        assert names_with_policy() | names_left_alone() == names_with("AutocastCUDA")


def test_autocast_computes_in_cudas_formats_and_in_a_cpus_again_afterwards():
    x = torch.ones(4, 4, dtype=BF16)
    norm, softmax = nn.LayerNorm(4), lambda: x.softmax(-1)
    before = cast(lambda: norm(x)), cast(softmax)
    with cuda_autocast():
        assert cast(lambda: norm(x)) == cast(softmax) == cast(x.sum) == torch.float32
        assert cast(lambda: x.float() @ x.float()) == BF16
        assert cast(lambda: x.norm(2, 1)) == torch.float32
        assert cast(lambda: functional.layer_norm(x.double(), (4,))) == torch.float64
        assert cast(lambda: torch.einsum("ij,jk", x.float(), x.float())) == BF16
        assert cast(lambda: torch.atan2(x, x.float())) == torch.float32
        assert cast(lambda: torch.trace(x)) == BF16  # a CPU's list alone has it
    assert (cast(lambda: norm(x)), cast(softmax)) == before == (BF16, BF16)


def heads(dtype=BF16, *, dim=16, length=8, num=2):
    return torch.ones(1, num, length, dim, dtype=dtype)


@pytest.mark.parametrize(
    ("query", "key", "mask", "is_causal", "expected"),
    [
        (heads(), heads(), None, True, "flash"),
        (heads(dim=12), heads(dim=12), None, True, "flash"),  # padded
        (heads(torch.float32), heads(torch.float32), None, True, "efficient"),
        (heads(), heads(), torch.ones(8, 8), False, "efficient"),
        (heads(dim=512), heads(dim=512), None, False, "efficient"),
        (heads(), heads(length=4), None, True, "efficient"),
        (heads(dim=12), heads(dim=12), torch.ones(8, 8), False, "math"),
        (heads(torch.float64), heads(torch.float64), None, False, "math"),
        (heads()[0], heads()[0], None, False, "math"),
    ],
)
def test_attention_takes_the_kernel_that_a_gpu_would(query, key, mask, is_causal, expected):
    chosen = choose_attention(query, key, key, mask=mask, is_causal=is_causal, is_grouped=False)
    assert chosen == expected


def test_attention_does_as_the_user_says():
    q = heads()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert choose_attention(q, q, q, mask=None, is_causal=True, is_grouped=False) == "math"


@pytest.mark.parametrize("mask", [None, torch.ones(8, 8, dtype=torch.bool)])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_attention_can_be_traced_back_and_forth(mask, dtype):
    with FakeTensorMode(allow_non_fake_inputs=True), cuda_kernels():
        q = torch.ones(3, 2, 8, 16, dtype=dtype, requires_grad=True)
        out = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.1)
        out.sum().backward()
    assert out.shape == q.grad.shape == q.shape


def test_dropout_keeps_a_byte_per_number():
    saved = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with cuda_kernels(), hooks:
        functional.dropout(torch.ones(6, 6, requires_grad=True), 0.5)
    assert [t.dtype for t in saved] == [torch.bool]


class OnCuda(Mlp):
    """Names the device where people name it."""

    def build_model(self):
        return super().build_model().to("cuda").cuda()

    def loss(self, model, batch):
        x, y = batch
        scale = torch.ones(1, device="cuda").to(x.device)
        torch.cuda.synchronize()
        return functional.cross_entropy(model(x.cuda()) * scale, y.to(x.device))


def held(trace, kind):
    begin = trace.events[: trace.begin]
    return sum(e.num_bytes for e in begin if trace.kinds[e.number - 1] == kind)


def test_a_recipe_may_name_cuda_and_its_batch_is_copied_there_once():
    points = [(2, 0)]
    [plain] = traces_of(Mlp(), stage_of(), points, device="cuda")
    [named] = traces_of(OnCuda(), stage_of(), points, device="cuda")
    for trace in (plain, named):
        copies = [e for e in trace.events if e.number > 0 and trace.kinds[e.number - 1] == "batch"]
        assert sum(e.num_bytes for e in copies) == 2 * 24 * 4 + 2 * 8
        assert held(trace, "batch") == 0  # what waits on the host is not counted


def test_fp16_steps_in_spite_of_what_a_scaler_cannot_read():
    [trace] = traces_of(Mlp(), stage_of(precision="fp16"), [(2, 0)], device="cuda")
    assert held(trace, "optimizer") == 2 * held(trace, "weights") + 8 * 4  # a count per tensor


def test_an_offloaded_optimizer_takes_nothing_of_the_device():
    [trace] = traces_of(Mlp(), stage_of(offload=True), [(2, 0)], device="cuda")
    assert held(trace, "optimizer") == 0
    assert held(trace, "weights") > 0


def test_several_ranks_have_a_second_copy_of_the_gradients():
    [trace] = traces_of(Mlp(), stage_of(), [(2, 0)], device="cuda", ranks=2)
    assert held(trace, "gradients") == held(trace, "weights")


class OwnAdam(Mlp):
    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters())


def test_adam_takes_all_parameters_at_once_as_on_cuda():
    stage = stage_of()
    [there] = traces_of(OwnAdam(), stage, [(2, 0)], device="cuda")
    [here] = traces_of(OwnAdam(), stage, [(2, 0)], device="cpu")
    assert most_in_step(there, "optimizer") == held(there, "weights")  # the roots of all moments
    assert most_in_step(here, "optimizer") < held(here, "weights")
    assert held(there, "optimizer") == 2 * held(there, "weights")  # its counts stay on the host


def most_in_step(trace, kind):
    now = most = 0
    for event in trace.events[trace.begin :]:
        if trace.kinds[abs(event.number) - 1] == kind:
            now += event.num_bytes if event.number > 0 else -event.num_bytes
            most = max(most, now)
    return most
