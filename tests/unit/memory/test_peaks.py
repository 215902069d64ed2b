"""A fake step predicts the peak of a real one, eight times beyond the largest batch it has seen."""

from __future__ import annotations

import pytest
import torch
from tests.unit.memory.models import (
    BATCHES,
    Convolutions,
    Frozen,
    Gpt,
    Graphs,
    Mlp,
    Sums,
    fit_of,
    profiled_peak,
    stage_of,
    traces_of,
)

from tasuki.estimation.accumulated import accumulated
from tasuki.estimation.probes import read_probe
from tasuki.memory.bounded import Untraceable

CLOSE = 1e-3
BEYOND = (56, 0)
LONGER = (24, 384)


class WithMomentum(Mlp):
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class PlainAdam(Mlp):
    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), foreach=False, fused=False)


class ForeachAdam(Mlp):
    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), foreach=True)


CASES = {
    "AdamW": (Mlp(), {}, 1),
    "AdamW, not fused": (PlainAdam(), {}, 1),
    "foreach AdamW": (ForeachAdam(), {}, 1),
    "SGD with momentum": (WithMomentum(), {}, 1),
    "sums, accumulated": (Sums(), {}, 3),
    "message passing": (Graphs(), {}, 1),
    "mostly frozen": (Frozen(), {}, 1),
    "fp16 with its scale": (Mlp(), {"precision": "fp16"}, 1),
    "BatchNorm": (Convolutions(), {}, 1),
    "BatchNorm, bf16, checkpointed": (
        Convolutions(),
        {"gradient_checkpointing": True, "precision": "bf16"},
        1,
    ),
}
LONG_CASES = {
    "GPT": (Gpt(dropout=0.1), {}, 1),
    "GPT with fused attention": (Gpt(is_fused=True), {}, 1),
    "GPT, bf16, checkpointed, accumulated": (
        Gpt(dropout=0.1),
        {"gradient_checkpointing": True, "precision": "bf16"},
        2,
    ),
}


def check(recipe, keys, accumulation):
    stage = stage_of(**keys)
    fitted = fit_of(recipe, stage, accumulation=accumulation)
    assert fitted.is_exact, fitted.reason
    point = LONGER if isinstance(recipe, Gpt) else BEYOND
    [real] = traces_of(recipe, stage, [point], is_fake=False, accumulation=accumulation)
    assert fitted.peak(*point) == pytest.approx(real.peak, rel=CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_the_peak_of_a_real_step_is_foretold(case):
    check(*CASES[case])


@pytest.mark.long
@pytest.mark.parametrize("case", LONG_CASES)
def test_the_peak_of_a_real_step_is_foretold_over_batch_and_length(case):
    check(*LONG_CASES[case])


@pytest.mark.parametrize(
    "recipe", [Mlp(128), pytest.param(Gpt(width=64), marks=pytest.mark.long)], ids=["mlp", "gpt"]
)
def test_torchs_own_profiler_sees_the_same_peak(recipe):
    """Not of convolutions: a CPU's take scratch memory inside, which is no tensor."""
    point = LONGER if isinstance(recipe, Gpt) else BEYOND
    fitted = fit_of(recipe, stage_of())
    assert fitted.peak(*point) == pytest.approx(profiled_peak(recipe, stage_of(), point), rel=5e-3)


def test_a_step_is_told_apart_by_what_it_holds():
    [trace] = traces_of(Mlp(), stage_of(), BATCHES[:1], is_fake=True)
    weights = sum(p.numel() for p in Mlp().build_model().parameters()) * 4
    held = dict.fromkeys(trace.kinds, 0)
    for event in trace.events[: trace.begin]:
        held[trace.kinds[event.number - 1]] += event.num_bytes
    assert held["weights"] == weights
    assert held["optimizer"] == 2 * weights + 8 * 4  # two moments, and a count per tensor
    assert held["batch"] == 2 * 24 * 4 + 2 * 8
    gradients = [e.num_bytes for e in trace.events if e.number > 0]
    gradients = [b for b, kind in zip(gradients, trace.kinds, strict=True) if kind == "gradients"]
    assert sum(gradients) == weights
    left = sum(e.num_bytes if e.number > 0 else -e.num_bytes for e in trace.events)
    assert left == sum(held.values()) + 4  # the loss, which is not read yet


def test_frozen_parameters_have_neither_gradients_nor_states():
    [trace] = traces_of(Frozen(), stage_of(), BATCHES[:1], is_fake=True)
    trained = sum(p.numel() for p in Frozen().build_model().parameters() if p.requires_grad) * 4
    sizes = dict.fromkeys(trace.kinds, 0)
    for event in trace.events:
        if event.number > 0:
            sizes[trace.kinds[event.number - 1]] += event.num_bytes
    assert sizes["gradients"] == trained


def test_rows_along_edges_are_messages():
    [trace] = traces_of(Graphs(), stage_of(), BATCHES[:1], is_fake=True)
    # What is gathered and its sigmoid, and the same in the backward pass; 40 edges of 24 numbers.
    rows = [e for e in trace.events if e.number > 0 and trace.kinds[e.number - 1] == "messages"]
    assert [e.num_bytes for e in rows[:2]] == [40 * 24 * 4] * 2


class LeavesTorch(Mlp):
    def loss(self, model, batch):
        batch[0].numpy()
        return super().loss(model, batch)


def test_code_that_needs_numbers_is_named_with_its_line():
    with pytest.raises(Untraceable, match=r"\.numpy\(\) is not supported.*test_peaks\.py:\d+"):
        traces_of(LeavesTorch(), stage_of(), BATCHES[:1])


@pytest.mark.parametrize("name", ["AdamW", "foreach AdamW", "SGD with momentum", "BatchNorm"])
def test_a_step_in_several_micro_batches_follows_from_a_trace_of_one(name):
    recipe, keys, _ = CASES[name]
    stage = stage_of(**keys)
    one, several = (
        read_probe({**fit_of(recipe, stage, accumulation=n).to_plain(), "key": "k", "torch": "t"})
        for n in (1, 2)
    )
    for batch in (1, 8, 64):
        foretold = accumulated(one).peak(batch=batch, size=0)
        traced = several.peak(batch=batch, size=0)
        # What is left are the sums of losses: a number or two.
        assert 0 <= traced - foretold <= 16
