"""Micro-batches that were too large are halved, for their bucket and from their step on; the
samples of a step stay as they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.order import Order
from tasuki.data.shares import Limit, StepSplit, halve, share_of_step
from tasuki.data.used import UsedSamples


def make_order(sizes: list[int], batch: int) -> Order:
    plan = plan_buckets(sizes, len(sizes), None, rule=BucketRule(kind="exact"))
    return Order(plan, seed=1, stage="one", effective_batch=batch, kind="shuffle")


def pieces(order: Order, step: int, split: StepSplit) -> list[list[list[int]]]:
    """By rank: the samples of its micro-batches that count."""
    found = []
    for rank in range(split.world):
        own = StepSplit(
            rank=rank,
            world=split.world,
            micro_batch=split.micro_batch,
            costs=split.costs,
            budget=split.budget,
            limits=split.limits,
        )
        share = share_of_step(order, step, own)
        pairs = zip(share.requests, share.counts, strict=True)
        found.append([request.indices for request, count in pairs if count])
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_halving_ends_with_single_samples_and_never_loses_one(
    num, batch, micro, world, has_costs, data
):
    order = make_order([8] * num, batch)
    costs = None
    if has_costs:
        costs = np.array(data.draw(st.lists(st.integers(1, 9), min_size=num, max_size=num)))
    split = StepSplit(world=world, micro_batch=micro, costs=costs, budget=micro)
    step = data.draw(st.integers(0, order.steps_per_epoch - 1))
    whole = sorted(order.step(0, step).indices.tolist())
    for _ in range(99):
        found = pieces(order, step, split)
        flat = [sample for rank in found for piece in rank for sample in piece]
        assert sorted(flat) == whole
        largest, limit = halve(order, step, split)
        size = len if costs is None else lambda piece: int(costs[piece].sum())
        joined = [piece for rank in found for piece in rank if len(piece) > 1]
        if limit is None:
            assert not joined
            break
        assert largest == max(size(piece) for piece in joined)
        assert limit.most < largest, "it does get smaller"
        split = split.with_limit(limit)
    else:
        raise AssertionError("halving does not end")


def test_a_limit_holds_for_its_bucket_from_its_step_on_whenever_it_was_found():
    order = make_order([8] * 20 + [16] * 20, 4)
    buckets = [order.step(0, step).bucket for step in range(10)]
    first = buckets.index(1)
    split = StepSplit(micro_batch=4).with_limit(Limit(bucket=1, from_step=first + 1, most=2))
    for step, bucket in enumerate(buckets):
        is_small = bucket == 1 and step > first
        assert len(pieces(order, step, split)[0]) == (2 if is_small else 1), step
    # An earlier one, found by a later attempt, does not lift it.
    split = split.with_limit(Limit(bucket=1, from_step=first, most=3))
    assert split.most_at(first, 1) == 3 and split.most_at(first + 1, 1) == 2
    assert split.at_last().most_at(0, 1) == 2 and split.at_last().most_at(0, 0) == 4


def test_samples_of_a_step_that_is_undone_are_not_counted():
    told, plain = UsedSamples(), UsedSamples()
    for step in range(600):
        for part in (range(100), range(100, 300)):
            told.add(step, part)
            plain.add(step, part)
        if step % 7 == 0:  # and again, in other parts
            told.take_back(step)
            for part in (range(150), range(150, 200), range(200, 300)):
                told.add(step, part)
    assert told.total() == plain.total()


def test_the_last_decision_counts_from_its_step_on_and_steps_before_stay_as_they_were():
    """Raised at step 10, out of memory at 15, raised again at 20."""
    split = StepSplit(micro_batch=8)
    for step, most in ((0, 2), (10, 4), (15, 2), (20, 3)):
        split = split.with_limit(Limit(bucket=0, from_step=step, most=most))
    at = [split.most_at(step, 0) for step in (0, 9, 10, 14, 15, 19, 20, 99)]
    assert at == [2, 2, 4, 4, 2, 2, 3, 3]
    assert split.at_last().most_at(0, 0) == 2, "the smallest"
    # An attempt that went back runs out of memory before all that: no raise of before lifts it.
    back = split.with_limit(Limit(bucket=0, from_step=12, most=1))
    assert [back.most_at(step, 0) for step in (9, 11, 12, 15, 20)] == [2, 4, 1, 1, 1]
    # More than a rank has is never taken.
    assert split.with_limit(Limit(bucket=0, from_step=30, most=99)).most_at(30, 0) == 8
