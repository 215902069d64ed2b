"""Which samples were used, as one number (data/used.py)."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.collate import pad_collate
from tasuki.data.fetch import Fetcher, Request
from tasuki.data.loader import Loader, _Requests
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit
from tasuki.data.tempo import LoaderSettings
from tasuki.data.used import NONE, Used, UsedSamples
from tasuki.errors import DataError, RunError

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
KEYS = (0x243F6A8885A308D3, 0x13198A2E03707344)


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def slowly(pairs: list[tuple[int, int]]) -> Used:
    """The definition, word for word, in plain integers."""
    lanes = [
        sum(
            mix(mix(key + (step + 1) * GOLDEN & MASK) + (index + 1) * GOLDEN & MASK)
            for step, index in pairs
        )
        & MASK
        for key in KEYS
    ]
    return Used(len(pairs), lanes[1] << 64 | lanes[0])


def used(pairs: list[tuple[int, int]], start: Used = NONE) -> Used:
    samples = UsedSamples(start)
    for step, index in pairs:
        samples.add(step, [index])
    return samples.total()


# -- the number -----------------------------------------------------------------------------------


def test_frozen_digests_of_used_samples():
    """Manifests and events hold them: another value here means that no old run can be checked."""
    assert NONE.to_json() == {"count": 0, "digest": "0" * 32}
    assert used([(0, 0)]).to_json() == {"count": 1, "digest": "b11e4b8da6a2b57993a9bdb51e5d5285"}
    many = [(step, 7 * step + place) for step in range(1000) for place in range(8)]
    assert used(many).to_json() == {"count": 8000, "digest": "64fa805306bfb0d5f465631820ab1d8e"}
    far = [(2**40, 2**45), (2**62, 2**61)]
    assert used(far).to_json() == {"count": 2, "digest": "eef4e9da1d6cb7272caf7702e7159ffd"}


SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""Of the machine, not of what is tested."""


@settings(max_examples=50, **SLOW)
@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**62)), max_size=40),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_any_number_of_ranks_in_any_order_gives_the_sum_that_the_definition_gives(
    pairs: list[tuple[int, int]], ranks: int, chance: random.Random
):
    dealt: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for pair in chance.sample(pairs, len(pairs)):
        chance.choice(dealt).append(pair)
    total = NONE
    for own in dealt:
        total += used(own)
    assert total == slowly(pairs)


@given(st.lists(st.lists(st.integers(0, 10**9), max_size=9), max_size=600), st.integers(0, 600))
@settings(max_examples=30, **SLOW)
def test_going_on_from_a_checkpoint_gives_the_number_of_an_undisturbed_run(
    steps: list[list[int]], at: int
):
    whole, first = UsedSamples(), UsedSamples()
    for step, indices in enumerate(steps):
        whole.add(step, indices)
        if step < at:
            first.add(step, indices)
    second = UsedSamples(Used.from_json(json.loads(json.dumps(first.total().to_json()))))
    for step, indices in enumerate(steps[at:], start=at):
        second.add(step, indices)
        second.total()  # asking does not change it
    assert second.total() == whole.total()
    assert whole.total().count == sum(len(indices) for indices in steps)


def test_a_sample_repeated_left_out_swapped_or_used_in_another_step_is_another_number():
    pairs = [(step, 8 * step + place) for step in range(300) for place in range(8)]
    right = used(pairs)
    others = [
        pairs + pairs[5:6],
        pairs[:5] + pairs[6:],
        [*pairs[:5], (pairs[5][0], 9999), *pairs[6:]],
        [(step + 1, index) for step, index in pairs],
        [(pairs[0][0], pairs[8][1]), *pairs[1:8], (pairs[8][0], pairs[0][1]), *pairs[9:]],
    ]
    found = [used(other) for other in others]
    assert right not in found and len(set(found)) == len(found)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"count": 1},
        {"count": "1", "digest": "0" * 32},
        {"count": True, "digest": "0" * 32},
        {"count": -1, "digest": "0" * 32},
        {"count": 1, "digest": "0" * 31},
        {"count": 1, "digest": "x" * 32},
        {"count": 1, "digest": 12},
    ],
    ids=str,
)
def test_what_is_no_record_is_refused(value: dict[str, Any]):
    with pytest.raises(DataError):
        Used.from_json(value)


# -- what loaders tell ----------------------------------------------------------------------------

SIZES = np.random.default_rng(3).integers(1, 5, 61).tolist()


def make_order(**more: Any) -> Order:
    plan = plan_buckets(SIZES, len(SIZES), rule=BucketRule(kind="exact"))
    return Order(plan, **({"seed": 4, "stage": "s", "effective_batch": 5} | more))


def used_before(order: Order, stop: int) -> Used:
    """What the order says of these steps."""
    samples = UsedSamples()
    for step in range(stop):
        samples.add(step, order.step(*divmod(step, order.steps_per_epoch)).indices.tolist())
    return samples.total()


def told_by(order: Order, split: StepSplit, *, first: int, stop: int, workers: int = 0) -> Used:
    """What a rank adds up from the micro-batches of these steps."""
    loader = Loader(
        Fetcher([np.full(size, i) for i, size in enumerate(SIZES)], pad_collate),
        order,
        split,
        first_step=first,
        total_steps=stop,
        settings=LoaderSettings(workers=workers),
    )
    samples = UsedSamples()
    try:
        for step, (batches, _) in enumerate(loader.steps(), start=first):
            for batch in batches:
                samples.add(step, batch.indices)
                assert len(batch.indices) == batch.num_samples
    finally:
        loader.stop()
    return samples.total()


@pytest.mark.parametrize("costs", [None, np.array(SIZES) * 3])
def test_ranks_and_micro_batches_add_up_to_what_the_order_says(costs):
    order = make_order()
    parts = [(0, 7, 1), (7, 18, 2), (18, 33, 4), (33, 3 * order.steps_per_epoch, 3)]
    total = NONE
    for first, stop, world in parts:
        for rank in range(world):
            split = StepSplit(rank=rank, world=world, micro_batch=2, costs=costs, budget=20)
            total += told_by(order, split, first=first, stop=stop)
        assert total == used_before(order, stop)
    assert total.count == 3 * len(SIZES)


def test_with_workers_the_samples_are_those_that_came_back_from_them():
    order = make_order()
    split = StepSplit(micro_batch=2)
    stop = order.steps_per_epoch
    assert told_by(order, split, first=3, stop=stop, workers=2) == told_by(
        order, split, first=3, stop=stop
    )


@pytest.mark.parametrize("planted", [-1, 1])
def test_a_loader_that_resumes_one_step_off_leaves_another_number(planted):
    order, split = make_order(), StepSplit(micro_batch=2)
    samples = UsedSamples(told_by(order, split, first=0, stop=7))
    for step in range(7, 15):
        epoch, at = divmod(step + planted, order.steps_per_epoch)
        samples.add(step, order.step(epoch, at).indices.tolist())
    right = used_before(order, 15)
    assert samples.total() != right and samples.total().count in range(1, right.count + 10)


def test_a_worker_that_hands_over_other_samples_is_noticed(monkeypatch):
    as_it_is = _Requests.__getitems__

    def mixed_up(self: _Requests, request: Request) -> Any:
        return as_it_is(self, Request(request.indices[::-1], request.seeds))

    monkeypatch.setattr(_Requests, "__getitems__", mixed_up)
    with pytest.raises(RunError, match="handed over other samples"):
        told_by(make_order(), StepSplit(micro_batch=3), first=0, stop=5, workers=1)
