"""`order: score`: small scores first, in every epoch, exactly once (promise 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets, sort_by_score
from tasuki.data.order import Order, sample_seeds
from tasuki.data.shares import StepSplit, share_of_step
from tasuki.errors import UsageError

quick = settings(max_examples=60, deadline=None, database=None)
batches = st.integers(1, 20)
# Few different scores: equal ones are the hard case.
samples = st.lists(
    st.tuples(st.sampled_from([3, 5, 8, 13]), st.integers(-3, 3) | st.floats(-5, 5)),
    min_size=1,
    max_size=60,
)
Samples = list[tuple[int, float]]
Plain = tuple[int, list[int], int]


def make_order(
    pairs: Sequence[tuple[int, float]], *, batch: int = 4, rule: str = "exact", **options: Any
) -> Order:
    sizes, scores = [size for size, _ in pairs], [score for _, score in pairs]
    plan = plan_buckets(sizes, len(sizes), rule=BucketRule(kind=rule))  # type: ignore[arg-type]
    plan = sort_by_score(plan, scores)
    return Order(plan, seed=1, stage="s", effective_batch=batch, kind="score", **options)


def expected_steps(pairs: Sequence[tuple[int, float]], batch: int) -> list[Plain]:
    """(bucket, samples, first position) of each step, slowly and from the definition alone."""
    slots = []
    offset = 0
    for bucket, size in enumerate(sorted({size for size, _ in pairs})):
        places = sorted((score, i) for i, (own, score) in enumerate(pairs) if own == size)
        for first in range(0, len(places), batch):
            taken = places[first : first + batch]
            slots.append((taken[0][0], bucket, first, [sample for _, sample in taken], offset))
        offset += len(places)
    slots.sort(key=lambda slot: slot[:3])
    return [(bucket, taken, before + first) for _, bucket, first, taken, before in slots]


def steps_of(order: Order, epoch: int = 0) -> list[Plain]:
    found = (order.step(epoch, step) for step in range(order.steps_per_epoch))
    return [(step.bucket, step.indices.tolist(), step.first_position) for step in found]


@quick
@given(samples, batches, st.integers(1, 100))
def test_the_order_is_what_its_definition_says_in_every_epoch(
    pairs: Samples, batch: int, block: int
) -> None:
    order = make_order(pairs, batch=batch, block_samples=block)
    expected = expected_steps(pairs, batch)
    assert steps_of(order, 0) == steps_of(order, 5) == expected


@quick
@given(samples, batches)
def test_every_sample_comes_exactly_once_per_epoch(pairs: Samples, batch: int) -> None:
    steps = steps_of(make_order(pairs, batch=batch))
    assert sorted(i for _, taken, _ in steps for i in taken) == list(range(len(pairs)))
    positions = sorted(first + i for _, taken, first in steps for i in range(len(taken)))
    assert positions == list(range(len(pairs)))


@quick
@given(samples, batches)
def test_scores_rise_within_a_step_within_a_bucket_and_from_step_to_step(
    pairs: Samples, batch: int
) -> None:
    order = make_order(pairs, batch=batch)
    last_of_bucket: dict[int, float] = {}
    firsts = []
    for bucket, taken, _ in steps_of(order):
        scores = [last_of_bucket.get(bucket, -np.inf), *(pairs[i][1] for i in taken)]
        assert scores == sorted(scores)
        assert {pairs[i][0] for i in taken} == {order.plan.buckets[bucket].size}
        last_of_bucket[bucket] = scores[-1]
        firsts.append(scores[1])
    assert firsts == sorted(firsts)


def test_with_one_bucket_the_epoch_is_the_samples_in_ascending_score() -> None:
    chance = np.random.default_rng(1)
    pairs = [(7, float(score)) for score in chance.permutation(50)]
    order = make_order(pairs, batch=8)
    assert [pairs[i][1] for _, taken, _ in steps_of(order) for i in taken] == list(range(50))


def test_with_costs_sizes_do_not_matter_to_the_order() -> None:
    pairs = [(size, float(-size)) for size in (4, 9, 2, 7, 5)]
    order = make_order(pairs, batch=2, rule="single")
    assert [taken for _, taken, _ in steps_of(order)] == [[1, 3], [4, 0], [2]]


@quick
@given(samples, batches, st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_seeking_in_any_order_equals_iterating(
    pairs: Samples, batch: int, jumps: list[int]
) -> None:
    expected = expected_steps(pairs, batch)
    order = make_order(pairs, batch=batch, block_samples=16)
    for jump in jumps:
        cursor = order.cursor_at(jump)
        step = order.step(cursor.epoch, cursor.step_in_epoch)
        found = (step.bucket, step.indices.tolist(), step.first_position)
        assert found == expected[jump % len(expected)]


def test_resuming_in_the_middle_of_an_epoch_gives_the_rest_of_it() -> None:
    pairs = [(size, score % 7) for size in (3, 5, 8) for score in range(11)]
    whole = steps_of(make_order(pairs), 2)
    for done in range(len(whole)):
        resumed = make_order(pairs, block_samples=8)
        rest = [resumed.step(2, step) for step in range(done, resumed.steps_per_epoch)]
        assert [step.indices.tolist() for step in rest] == [taken for _, taken, _ in whole[done:]]


@quick
@given(samples, batches, st.integers(0, 150))
def test_a_length_in_samples_is_the_first_step_count_that_uses_enough(
    pairs: Samples, batch: int, count: int
) -> None:
    order = make_order(pairs, batch=batch)
    steps = order.total_steps("samples", count)
    per_epoch = [len(taken) for _, taken, _ in expected_steps(pairs, batch)]
    used = [per_epoch[step % len(per_epoch)] for step in range(steps)]
    assert sum(used) >= count
    assert steps == 0 or sum(used[:-1]) < count
    assert order.total_steps("epochs", 3) == 3 * len(expected_steps(pairs, batch))


@quick
@given(samples, batches, st.integers(1, 4))
def test_ranks_share_a_step_and_positions_seed_its_samples(
    pairs: Samples, batch: int, world: int
) -> None:
    order = make_order(pairs, batch=batch)
    for number in range(order.steps_per_epoch):
        step = order.step(1, number)
        seeds = sample_seeds(1, "s", 1, step.positions).tolist()
        shares = [
            share_of_step(
                order,
                order.steps_per_epoch + number,
                StepSplit(rank=rank, world=world, micro_batch=3),
            )
            for rank in range(world)
        ]
        counted = [
            (request.indices, request.seeds)
            for share in shares
            for request, count in zip(share.requests, share.counts, strict=True)
            if count
        ]
        assert [i for indices, _ in counted for i in indices] == step.indices.tolist()
        assert [seed for _, own in counted for seed in own or ()] == seeds


def test_without_scores_the_order_is_refused_and_the_hint_says_how_to_give_them() -> None:
    with pytest.raises(UsageError, match="needs a score per sample") as caught:
        Order(plan_buckets([1, 2], 2), seed=1, stage="s", effective_batch=2, kind="score")
    assert "sample_scores" in caught.value.hint
