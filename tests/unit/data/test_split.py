"""A step is split over ranks and into micro-batches; the samples stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.order import Order
from tasuki.data.shares import Limit, StepSplit, halve, share_of_step
from tasuki.data.split import Batch, micro_batches, resolve_batch, share_of_rank
from tasuki.data.used import UsedSamples
from tasuki.errors import UsageError

counts = st.integers(1, 40)


@given(st.integers(0, 500), st.integers(1, 64))
def test_shares_are_contiguous_cover_all_and_the_earlier_ranks_get_more(num, world):
    shares = [share_of_rank(num, rank, world) for rank in range(world)]
    assert [sample for share in shares for sample in share] == list(range(num))
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 50), st.integers(0, 300), counts)
def test_micro_batches_cover_the_share_in_as_few_even_pieces_as_possible(start, length, most):
    share = range(start, start + length)
    pieces = micro_batches(share, most)
    assert [sample for piece in pieces for sample in piece] == list(share)
    assert len(pieces) == -(-length // most)
    lengths = [len(piece) for piece in pieces]
    assert all(0 < size <= most for size in lengths)
    assert not lengths or max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("effective", "micro", "accumulation", "ranks", "expected"),
    [
        (None, None, None, 1, (8, 8, 1)),
        (None, None, None, 3, (8, 3, 1)),
        (None, None, None, 16, (8, 1, 1)),
        (32, None, None, 4, (32, 8, 1)),
        (10, None, None, 4, (10, 3, 1)),
        (1024, 128, None, 4, (1024, 128, 2)),
        (1024, None, 2, 4, (1024, 128, 2)),
        (None, 128, 2, 4, (1024, 128, 2)),
        (1024, 128, 2, 4, (1024, 128, 2)),
        (16, 1, None, 1, (16, 1, 16)),
        (10, 4, None, 1, (10, 4, 3)),
        (16, 4, None, 3, (16, 4, 2)),
        (16, None, 2, 3, (16, 3, 2)),
        (8, 64, None, 2, (8, 4, 1)),
        (None, 2, None, 1, (8, 2, 4)),
        (None, 2, None, 4, (8, 2, 1)),
        (None, None, 4, 1, (8, 2, 4)),
    ],
)
def test_what_is_not_given_follows(effective, micro, accumulation, ranks, expected):
    batch = resolve_batch(effective, micro, accumulation, ranks)
    assert (batch.effective_batch, batch.micro_batch, batch.accumulation) == expected


def test_three_numbers_that_disagree_are_refused_with_all_numbers():
    with pytest.raises(UsageError) as caught:
        resolve_batch(1000, 128, 2, 4)
    message = "effective_batch is 1000, but micro_batch 128 × accumulation 2 × ranks 4 = 1024"
    assert str(caught.value) == message
    assert "effective_batch: 1024" in caught.value.hint


def test_a_micro_batch_alone_never_raises_the_default_effective_batch_silently():
    with pytest.raises(UsageError, match="micro_batch 4 × ranks 4 = 16 samples") as caught:
        resolve_batch(None, 4, None, 4)
    assert "effective_batch: 16" in caught.value.hint


@pytest.mark.parametrize(("effective", "accumulation", "ranks"), [(9, 4, 1), (8, 4, 4)])
def test_an_accumulation_that_cannot_be_kept_is_refused(effective, accumulation, ranks):
    with pytest.raises(UsageError, match=f"into {accumulation} even micro-batches") as caught:
        resolve_batch(effective, None, accumulation, ranks)
    assert "micro_batch:" in caught.value.hint


@pytest.mark.parametrize("name", ["effective_batch", "micro_batch", "accumulation", "ranks"])
def test_numbers_below_one_are_refused_by_name(name):
    numbers: dict[str, int] = {"effective_batch": 8, "micro_batch": 8, "accumulation": 1}
    with pytest.raises(UsageError, match=f"{name} is 0"):
        resolve_batch(**({**numbers, "ranks": 1} | {name: 0}))


@given(counts, st.none() | counts, st.none() | counts, st.integers(1, 9))
def test_what_is_resolved_is_what_the_ranks_then_do(effective, micro, accumulation, ranks):
    try:
        batch: Batch = resolve_batch(effective, micro, accumulation, ranks)
    except UsageError:
        assert accumulation is not None
        return
    assert batch.effective_batch == effective
    assert accumulation in (None, batch.accumulation)
    share = share_of_rank(effective, 0, ranks)
    pieces = micro_batches(share, batch.micro_batch)
    assert len(pieces) == batch.accumulation
    assert max(len(piece) for piece in pieces) <= batch.micro_batch
    assert micro is not None or len(pieces[0]) == batch.micro_batch


# -- micro-batches that were too large are halved -------------------------------------------------


def make_order(sizes, batch):
    plan = plan_buckets(sizes, len(sizes), None, rule=BucketRule(kind="exact"))
    return Order(plan, seed=1, stage="one", effective_batch=batch, kind="shuffle")


def pieces(order, step, split):
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


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_halving_ends_with_single_samples_and_loses_none(num, batch, micro, world, has_costs, data):
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
    # Of two about one step the later counts, and more than a rank has is never taken.
    assert split.with_limit(Limit(bucket=0, from_step=20, most=4)).most_at(20, 0) == 4
    assert split.with_limit(Limit(bucket=0, from_step=30, most=99)).most_at(30, 0) == 8
