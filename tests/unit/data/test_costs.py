"""Costs bound micro-batches and spread them over ranks; they never choose samples (promise 3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.costs import sample_costs
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit, share_of_step
from tasuki.data.split import split_by_cost
from tasuki.data.worst import MOST_SAMPLES, WorstBatches, worst_in_steps
from tasuki.errors import DataError, UsageError
from tasuki.spec.buckets import Buckets, Term, parse_buckets, parse_cost

quick = settings(max_examples=60, deadline=None, database=None)
costs_of_steps = st.lists(st.integers(0, 60), min_size=1, max_size=40)
budgets = st.integers(1, 100)
worlds = st.integers(1, 6)

# -- what people write --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("nodes", [(1, "nodes", 1)]),
        ("nodes+edges", [(1, "nodes", 1), (1, "edges", 1)]),
        (" nodes + 2*edges ", [(1, "nodes", 1), (2, "edges", 1)]),
        ("n^2", [(1, "n", 2)]),
        ("3 * n ^ 2+n_1", [(3, "n", 2), (1, "n_1", 1)]),
        ("n+n", [(1, "n", 1), (1, "n", 1)]),
    ],
)
def test_a_cost_is_a_sum_of_names_with_factors_and_powers(text, terms):
    assert parse_cost(text) == tuple(Term(*term) for term in terms)


@pytest.mark.parametrize(
    "text",
    ["", "+", "nodes+", "2", "2*", "n^", "n^0", "n^5", "n^2.5", "-n", "n-m", "n*m", "n*2", "f(n)"],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="no cost of a sample") as caught:
        parse_cost(text)
    assert "nodes+edges" in caught.value.hint


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("exact", Buckets(kind="exact")),
        ("auto", Buckets(kind="auto")),
        ("default", Buckets()),
        ([512, 1024], Buckets(kind="bounds", uppers=(512, 1024))),
        ({"auto": 6}, Buckets(kind="auto", count=6)),
        ({"auto": "auto", "power": 2}, Buckets(kind="auto", power=2)),
        ({"cost": "n^2", "budget": 9}, Buckets(kind="cost", cost="n^2", budget=9)),
    ],
)
def test_every_way_to_write_buckets_is_shown_so_that_it_reads_back(written, found):
    assert parse_buckets(written) == found
    assert parse_buckets(found.label()) == found


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("sizes", "no way to make buckets"),
        ({}, "no way to make buckets"),
        ([512, 256], "no bucket boundaries"),
        ([0, 512], "no bucket boundaries"),
        ([True, 512], "no bucket boundaries"),
        ({"cost": "n"}, "needs `cost`"),
        ({"cost": "n", "budget": 0}, "needs `cost`"),
        ({"cost": "n", "budget": 7, "size": 3}, "no key `size`"),
        ({"auto": 2000}, "number of buckets"),
        ({"auto": 6, "power": 9}, "number of buckets"),
        ({"auto": 6, "powr": 2}, "no key `powr`"),
    ],
)
def test_buckets_that_cannot_be_are_refused_with_what_to_write(written, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_buckets(written)
    assert "`" in caught.value.hint


# -- what a sample costs ------------------------------------------------------------------------

COUNTS = {"nodes": [3, 5, 0], "edges": np.array([10, 1, 7], dtype=np.uint16)}


def test_costs_are_added_up_sample_by_sample():
    assert sample_costs("nodes+2*edges", COUNTS.__getitem__, 3).tolist() == [23, 7, 14]
    # 10² does not fit into the 8 bits in which it is stored.
    small = {"n": np.array([200, 1], dtype=np.uint8)}
    assert sample_costs("n^2+n", small.__getitem__, 2).tolist() == [40200, 2]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1.5, 2.0, 3.0], "no whole number per sample"),
        ([1, 2], "no whole number per sample"),
        ([[1], [2], [3]], "no whole number per sample"),
        ([1, -2, 3], "-2 for sample 1"),
        ([1, 2, 10**9], "too large"),
    ],
)
def test_counts_that_cannot_be_are_refused_by_name(numbers, words):
    with pytest.raises(DataError, match=words) as caught:
        sample_costs("nodes^2", lambda _: numbers, 3)
    assert "nodes" in caught.value.message and caught.value.hint
    # (2³²)² = 2⁶⁴ is 0 in 64 bits.
    for text, large in (("n^2", 2**32), ("n+n", 2**63 + 1)):
        with pytest.raises(DataError, match="too large"):
            sample_costs(text, lambda _, large=large: np.array([large, 1], dtype=np.uint64), 2)


# -- micro-batches and ranks --------------------------------------------------------------------


def split_all(costs, budget, world):
    return [split_by_cost(costs, budget, rank=rank, world=world) for rank in range(world)]


@quick
@given(costs_of_steps, budgets, worlds)
def test_a_micro_batch_keeps_to_the_budget_and_a_sample_over_it_goes_alone(costs, budget, world):
    """Every sample is in one micro-batch of one rank, no two could be one, and ranks are even."""
    ranks = split_all(costs, budget, world)
    assert sorted(i for own in ranks for batch in own for i in batch) == list(range(len(costs)))
    for own in ranks:
        assert all(batch == sorted(batch) and batch for batch in own)
        assert all(sum(costs[i] for i in batch) <= budget or len(batch) == 1 for batch in own)
        loads = sorted(sum(costs[i] for i in batch) for batch in own)
        assert len(loads) < 2 or loads[0] + loads[1] > budget
    busiest = max(sum(costs[i] for batch in own for i in batch) for own in ranks)
    assert busiest <= sum(costs) / world + max(costs) * (1 - 1 / world) + 1e-9


def test_the_split_of_a_step_is_what_it_was():
    """If this fails, runs with a budget resume with other micro-batches: same samples, but other
    roundings."""
    assert split_all([5] * 4, 100, 2) == split_all([0] * 4, 100, 2) == [[[0, 2]], [[1, 3]]]
    costs = [7, 1, 9, 4, 4, 12, 3]
    assert split_all(costs, 10, 1) == [[[0, 6], [1, 2], [3, 4], [5]]]
    assert split_all(costs, 10, 2) == [[[3, 4], [5]], [[0, 6], [1, 2]]]


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=40),
    st.integers(1, 12),
    budgets,
    worlds,
    st.booleans(),
)
def test_ranks_and_costs_change_neither_the_samples_of_a_step_nor_their_seeds(
    samples, batch, budget, world, has_costs
):
    sizes = [size for size, _ in samples]
    costs = np.array([cost for _, cost in samples]) if has_costs else None
    plan = plan_buckets(sizes, len(sizes), rule=BucketRule(kind="single"))
    order = Order(plan, seed=3, stage="s", effective_batch=batch)
    for number in range(order.steps_per_epoch):
        plain = share_of_step(order, number, StepSplit(micro_batch=batch))
        [whole] = plain.requests
        assert whole.seeds is not None
        seed_of = dict(zip(whole.indices, whole.seeds, strict=True))
        taken: list[int] = []
        for rank in range(world):
            split = StepSplit(rank=rank, world=world, micro_batch=2, costs=costs, budget=budget)
            share = share_of_step(order, number, split)
            assert share.num_samples == len(whole.indices)
            for request, count in zip(share.requests, share.counts, strict=True):
                assert count in (0, len(request.indices)) and request.indices
                assert request.seeds == [seed_of[i] for i in request.indices]
                taken += request.indices if count else []
        assert sorted(taken) == sorted(order.step(0, number).indices.tolist())


def test_a_rank_without_samples_borrows_one_that_counts_nothing():
    order = Order(plan_buckets(None, 1), seed=3, stage="s", effective_batch=4)
    split = StepSplit(rank=1, world=2, micro_batch=4, costs=np.array([5]), budget=9)
    share = share_of_step(order, 0, split)
    assert (share.requests[0].indices, share.counts, share.num_samples) == ([0], (0,), 1)


# -- the worst micro-batches ----------------------------------------------------------------------

all_costs = st.lists(st.integers(0, 60), min_size=1, max_size=40)


def worst_of(costs, *, batch, world=1):
    plan = plan_buckets(costs, len(costs), rule=BucketRule(kind="single"))
    return WorstBatches(np.array(costs, dtype=np.int64), plan, batch=batch, world=world)


@quick
@given(all_costs, st.integers(1, 12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_rank_has_more_of_a_step_than_the_whole_share(costs, batch, world, random):
    whole = worst_of(costs, batch=batch, world=world).whole
    step = random.sample(costs, min(batch, len(costs)))
    for rank in range(world):
        pieces = split_by_cost(step, 10**6, rank=rank, world=world)
        assert sum(step[n] for piece in pieces for n in piece) <= whole
        within = split_by_cost(step, max(1, whole), rank=rank, world=world)
        assert len(within) <= 1, "a budget of the whole share splits nothing"


@quick
@given(all_costs, st.integers(1, 12), st.integers(1, 300))
def test_they_keep_to_the_budget_and_to_the_samples_of_a_step(costs, batch, budget):
    worst = worst_of(costs, batch=batch)
    for fill in (worst.of_large, worst.of_small):
        samples, cost = fill(budget)
        assert cost == sum(costs[n] for n in samples)
        assert cost <= budget or len(samples) == 1
        if budget <= worst.whole:
            assert len(set(samples)) == len(samples) <= batch
    assert max(costs) in [costs[n] for n in worst.of_large(min(budget, worst.whole))[0]]


def order_of(costs, *, batch):
    plan = plan_buckets(costs, len(costs), rule=BucketRule(kind="single"))
    return Order(plan, seed=3, stage="a", effective_batch=batch)


@quick
@given(all_costs, st.integers(1, 12), st.integers(1, 90), st.integers(1, 3))
def test_no_micro_batch_of_the_run_has_more_than_the_worst_real_ones(costs, batch, budget, world):
    order, array = order_of(costs, batch=batch), np.array(costs, dtype=np.int64)
    part = array % 7
    steps = 2 * order.steps_per_epoch
    worst = worst_in_steps(
        order, array, budget=budget, world=world, total_steps=steps, parts=[part]
    )
    assert len(worst) <= 4
    real = [
        samples[piece].tolist()
        for step in range(steps)
        for samples in [order.step(*divmod(step, order.steps_per_epoch)).indices]
        for rank in range(world)
        for piece in split_by_cost(array[samples].tolist(), budget, rank=rank, world=world)
    ]
    assert all(one in real for one in worst)
    measures = [
        lambda one: int(array[one].sum()),
        len,
        lambda one: len(one) * int(array[one].max()),
        lambda one: int(part[one].sum()),
    ]
    for measure in measures:
        assert max(map(measure, worst)) == max(map(measure, real))


def test_of_a_long_run_only_the_first_steps_are_looked_through():
    order, costs = order_of([1] * 1000, batch=100), np.ones(1000, dtype=np.int64)
    seen: list[int] = []
    step = order.step
    order.step = lambda epoch, n: seen.append(n) or step(epoch, n)
    worst_in_steps(order, costs, budget=10, world=10, total_steps=10**9)
    assert len(seen) == MOST_SAMPLES // 1000
