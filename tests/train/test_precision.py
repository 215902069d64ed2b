"""Number formats: what is computed in which, what is scaled, and what a step never reads."""

from __future__ import annotations

import pytest
import torch
from tests.train.engines import CPU, make_engine, weights
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tasuki.data.loader import MicroBatch
from tasuki.errors import NotFinite, RecipeError
from tasuki.train.optim import default_optimizer, leave_out_by_hand
from tasuki.train.precision import apply_precision, autocast


class Seen(nn.Module):
    """Remembers in which formats its layers computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
        self.formats: set[torch.dtype] = set()

    def forward(self, x):
        hidden = self.layers[0](x)
        self.formats.add(hidden.dtype)
        return self.layers[2](self.layers[1](hidden))


def mean(model, batch):
    """Small enough for the first scale of fp16."""
    return (model(batch).float() - 1).square().mean() / 100


def total(model, batch):
    return (model(batch).float() - 1).square().sum() / 100, torch.tensor(float(len(batch)))


def make(precision, loss=mean, *, clip=1.0, optimizer=None):
    torch.manual_seed(0)
    model = Seen()
    chosen = optimizer(model) if optimizer else default_optimizer(model, lr=0.01, weight_decay=0.0)
    engine = make_engine(model, loss, chosen, clip=clip, precision=precision)
    return model, chosen, engine


def batches(*, scale=1.0, seed=1, parts=2):
    x = torch.randn(4 * parts, 6, generator=torch.Generator().manual_seed(seed)) * scale
    return [MicroBatch(part, len(part)) for part in x.split(4)], len(x)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_layers_compute_in_the_format_and_weights_stay_fp32(precision, dtype):
    model, _, engine = make(precision)
    before = weights(model)
    engine.step(*batches())
    assert model.formats == {dtype}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not torch.equal(before, weights(model))


def test_evaluation_computes_in_the_same_format_with_the_weights_of_now():
    model, _, _ = make("fp32")
    x = torch.randn(2, 6)
    with torch.no_grad(), autocast("bf16", CPU, is_cached=False):
        assert float(model(x).abs().sum()) > 0
        for parameter in model.parameters():
            parameter.zero_()
        assert float(model(x).abs().sum()) == 0
    assert model.formats == {torch.bfloat16}


@pytest.mark.parametrize("loss", [mean, total])
def test_the_scale_of_fp16_changes_no_gradient_that_fits(loss):
    """Powers of two come out of a product again."""
    results = []
    for precision in ("fp16", "unscaled"):
        model, _, engine = make("fp16", loss)
        if precision == "unscaled":
            engine.scaling = None
        for seed in range(5):
            engine.step(*batches(seed=seed))
        results.append(weights(model))
    assert torch.allclose(*results, atol=2e-4)


def test_an_overflow_leaves_the_step_out_halves_the_scale_and_is_counted():
    model, optimizer, engine = make("fp16")
    engine.step(*batches())
    before, scale = weights(model), engine.scaling.facts()["loss_scale"]
    state = {k: v.clone() for k, v in optimizer.state[next(model.parameters())].items()}

    def burst(grad):
        return grad * float("inf")

    hook = next(model.parameters()).register_hook(burst)
    assert engine.step(*batches())
    hook.remove()
    assert torch.equal(before, weights(model))
    after = optimizer.state[next(model.parameters())]
    assert all(torch.equal(value, after[key]) for key, value in state.items())
    assert engine.scaling.facts() == {"loss_scale": scale / 2, "overflows": 1}
    engine.step(*batches())
    assert not torch.equal(before, weights(model))
    assert engine.scaling.facts()["overflows"] == 1


def test_gradients_that_are_not_finite_with_any_scale_end_the_run_in_words():
    model, _, engine = make("fp16")
    next(model.parameters()).register_hook(lambda grad: grad * float("nan"))
    for _ in range(18):
        engine.step(*batches())
    with pytest.raises(NotFinite, match=r"not finite even with a loss scale of 0\.25"):
        engine.scaling.facts()


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_checked_step_with_a_bad_loss_leaves_the_scale_alone(is_checked):
    _, _, engine = make("fp16")
    engine.step(*batches())
    scale = engine.scaling.facts()["loss_scale"]
    is_good = engine.step(*batches(scale=float("nan")), is_checked=is_checked)
    assert is_good is not is_checked
    facts = engine.scaling.facts()
    assert facts == {
        "loss_scale": scale if is_checked else scale / 2,
        "overflows": 0 if is_checked else 1,
    }
    assert engine.step(*batches(), is_checked=is_checked)


def test_steps_that_may_be_left_out_do_not_use_the_scale_up():
    model, _, engine = make("fp16")
    parameter = next(model.parameters())
    for step in range(60):
        is_bad = step % 3 == 0
        hook = parameter.register_hook(lambda grad: grad * float("nan")) if is_bad else None
        engine.step(*batches(), is_checked=True)
        if hook is not None:
            hook.remove()
    assert engine.scaling.facts() == {"loss_scale": 1.0, "overflows": 20}
    parameter.register_hook(lambda grad: grad * float("nan"))
    for _ in range(30):
        engine.step(*batches(), is_checked=True)
    with pytest.raises(NotFinite, match="50 steps were left out"):
        engine.scaling.facts()


@pytest.mark.parametrize("is_own", [False, True])
def test_fused_steps_are_left_out_whole_when_a_gradient_overflows(is_own):
    class Own(torch.optim.Adam):
        def step(self, closure=None):
            return super().step(closure)

    def build(model):
        kind = Own if is_own else torch.optim.SGD
        more = {} if is_own else {"momentum": 0.9}
        optimizer = kind(model.parameters(), lr=0.1, fused=True, **more)
        leave_out_by_hand(optimizer)
        return optimizer

    model, _, engine = make("fp16", optimizer=build)
    before = weights(model)
    hook = next(model.parameters()).register_hook(lambda grad: grad * float("inf"))
    engine.step(*batches())
    hook.remove()
    assert torch.equal(before, weights(model))
    for _ in range(3):
        engine.step(*batches())
    assert not torch.equal(before, weights(model)) and weights(model).abs().max() < 10


def test_scale_growth_and_overflows_come_back_as_they_were_saved():
    _, _, engine = make("fp16")
    engine.scaling._scaler.set_growth_interval(3)
    for _ in range(4):
        engine.step(*batches())
    kept = engine.scaling.state()
    _, _, other = make("fp16")
    other.scaling.restore(kept)
    assert other.scaling.state() == kept
    assert kept["scaler"]["_growth_tracker"] == 1 and kept["scaler"]["scale"] == 2**17


class Reads(TorchDispatchMode):
    """Counts how often a tensor's value is asked for: on a GPU each waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("precision", "loss", "clip"),
    [("fp32", mean, None), ("fp32", total, 1.0), ("bf16", total, None), ("fp16", mean, 1.0)],
)
def test_a_step_reads_no_tensor_until_the_loss_is_logged(precision, loss, clip):
    _, _, engine = make(precision, loss, clip=clip)
    engine.reads_weights = False  # as on a GPU
    engine.step(*batches())  # states are made in the first
    with Reads() as reads:
        for _ in range(3):
            engine.step(*batches())
        quiet = reads.count
        engine.read_losses()
    assert quiet == 0 and reads.count > 0


def nothing(model, batch):
    return model(batch).sum() * 0, torch.zeros(())


@pytest.mark.parametrize("loss", [total, nothing])
def test_weights_that_are_not_read_give_the_same_step_as_weights_that_are(loss):
    """A weight of 0, too, which must not become NaN."""
    results = []
    for reads_weights in (True, False):
        model, _, engine = make("fp32", loss)
        engine.reads_weights = reads_weights
        for seed in range(3):
            engine.step(*batches(seed=seed, parts=3))
        results.append((weights(model), engine.read_losses()))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_fp16_refuses_weights_that_are_fp16_already():
    model = nn.Linear(2, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RecipeError, match="the model has weights in fp16"):
        make_engine(model, mean, optimizer, precision="fp16")


@pytest.mark.parametrize(
    ("precision", "told"),
    [("fp32", None), ("bf16", None), ("tf32", "is for GPUs"), ("fp16", "on a CPU it is slow")],
)
def test_what_a_cpu_makes_of_a_format_is_said(precision, told):
    lines = apply_precision(precision, CPU)
    assert (told is None and not lines) or told in lines[0]
    assert torch.get_float32_matmul_precision() == "highest"
