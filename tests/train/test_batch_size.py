"""The batch tuner finds the largest micro-batch that fits, with few real steps.

Under a cap on the memory of tensors (tasuki.testing.memory_cap), which is as hard as a GPU's end.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.train import tuned_models

from tasuki.memory.batch_probe import LargestSamples
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.data import prepare_data

MODELS = "tests.train.tuned_models"


KEYS = {"effective_batch": 256}


@pytest.mark.long
@pytest.mark.parametrize(
    ("recipe", "cap", "size"),
    [
        ("Mlp", "200K", 0),
        ("Graphs", "700K", 0),
        ("Gpt", "4M", 48),
    ],
)
def test_the_batch_found_is_the_largest_that_fits_or_one_below(forks, recipe, cap, size):
    found = forks.do(f"{MODELS}:tune", recipe=recipe, cap=cap, **KEYS)
    assert found["source"] == "traced", found["untraced"]
    assert 1 <= len(found["tries"]) <= 4
    *smaller, largest = found["buckets"]
    assert 1 < largest["found"] < 256, "the cap is what ends it"
    near = largest["found"]
    real = forks.do(f"{MODELS}:truth", recipe=recipe, cap=cap, size=size, near=near, **KEYS)
    assert near in (real - 1, real)
    assert all(row["found"] >= near for row in smaller), "smaller samples, more of them"


@pytest.mark.long
def test_what_cannot_be_traced_is_measured_with_four_tries_at_most(forks):
    found = forks.do(f"{MODELS}:tune", recipe="Branching", cap="200K", **KEYS)
    assert found["source"] == "measured" and found["untraced"]["reason"]
    assert len(found["tries"]) <= 4
    (row,) = found["buckets"]
    assert row["measured_bytes"] <= 200 << 10 and row["found"] >= 217 // 2


BY_COST = {"kind": "cost", "cost": "nodes+edges", "budget": "auto"}


@pytest.mark.long
def test_a_budget_is_found_by_the_worst_real_micro_batches(forks):
    """Large graphs have more nodes for the same cost, small ones more edges."""
    keys = {"effective_batch": 300, "buckets": BY_COST}
    found = forks.do(f"{MODELS}:tune", recipe="Clouds", cap="1M", **keys)
    assert found["source"] == "traced", found["untraced"]
    assert 1 <= len(found["tries"]) <= 4
    (row,) = found["buckets"]
    assert row["unit"] == "cost" and 0 < row["found"] < row["share"]
    assert 0.9 * (1 << 20) < row["measured_bytes"] <= 1 << 20
    assert forks.do(f"{MODELS}:fits_cost", recipe="Clouds", cap="1M", budget=row["found"], **keys)
    assert not forks.do(
        f"{MODELS}:fits_cost", recipe="Clouds", cap="1M", budget=row["share"], **keys
    )


def test_no_more_is_tried_than_the_factor_leaves_of_use(forks):
    """Eight samples of a step, at 0.5: sixteen that fit are enough."""
    found = forks.do(f"{MODELS}:tune", recipe="Mlp", cap="10M", effective_batch=8)
    (row,) = found["buckets"]
    assert row["found"] == 16 and row["is_bounded"] and len(found["tries"]) == 1


def test_tries_are_made_with_the_largest_samples_of_a_bucket():
    recipe = tuned_models.Gpt()
    recipe.sizes = (16, 20, 32, 48)
    keys = {"buckets": Buckets(kind="bounds", uppers=(32, 64))}
    stage = ResolvedStage(name="a", recipe="r:R", effective_batch=8, **keys)
    data = prepare_data(recipe, stage, rank=0, world=1)
    samples = LargestSamples(recipe, data)
    sizes = [[data.dataset[i] for i in samples.of(bucket, 200)] for bucket in (0, 1)]
    assert sizes == [[32] * 150 + [20] * 50, [48] * 200]


def test_where_nothing_tells_sizes_the_largest_of_some_samples_are_taken():
    recipe = SimpleNamespace(
        build_dataset=lambda source, split: [torch.zeros(4 + (i == 63) * 9) for i in range(64)]
    )
    data = prepare_data(recipe, ResolvedStage(name="a", recipe="r:R"), rank=0, world=1)
    assert LargestSamples(recipe, data).of(0, 3) == [63, 63, 63]
