"""Costs bound micro-batches and spread them over ranks; they never choose samples (promise 3)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.costs import sample_costs
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit, share_of_step
from tasuki.data.split import split_by_cost
from tasuki.errors import DataError, UsageError
from tasuki.spec.buckets import Buckets, Term, parse_buckets, parse_cost

quick = settings(max_examples=100, deadline=None, database=None)
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
def test_a_cost_is_a_sum_of_names_with_factors_and_powers(
    text: str, terms: list[tuple[int, str, int]]
) -> None:
    assert parse_cost(text) == tuple(Term(*term) for term in terms)


@pytest.mark.parametrize(
    "text",
    ["", "+", "nodes+", "2", "2*", "n^", "n^0", "n^5", "n^2.5", "-n", "n-m", "n*m", "n*2", "f(n)"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
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
def test_every_way_to_write_buckets_means_what_it_says_and_is_shown_so_that_it_reads_back(
    written: object, found: Buckets
) -> None:
    assert parse_buckets(written) == found
    assert parse_buckets(found.label()) == found


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("sizes", "no way to make buckets"),
        (7, "no way to make buckets"),
        ({}, "no way to make buckets"),
        ([], "no bucket boundaries"),
        ([512, 256], "no bucket boundaries"),
        ([512, 512], "no bucket boundaries"),
        ([0, 512], "no bucket boundaries"),
        ([True, 512], "no bucket boundaries"),
        ([512.0], "no bucket boundaries"),
        ({"cost": "n"}, "needs `cost`"),
        ({"cost": "n", "budget": 0}, "needs `cost`"),
        ({"cost": "n", "budget": True}, "needs `cost`"),
        ({"cost": 7, "budget": 7}, "needs `cost`"),
        ({"cost": "n*m", "budget": 7}, "no cost of a sample"),
        ({"cost": "n", "budget": 7, "size": 3}, "no key `size`"),
        ({"auto": 0}, "number of buckets"),
        ({"auto": True}, "number of buckets"),
        ({"auto": 2000}, "number of buckets"),
        ({"auto": 6, "power": 9}, "number of buckets"),
        ({"auto": 6, "powr": 2}, "no key `powr`"),
    ],
)
def test_buckets_that_cannot_be_are_refused_with_what_to_write(written: object, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_buckets(written)
    assert "`" in caught.value.hint


# -- what a sample costs ------------------------------------------------------------------------

COUNTS = {"nodes": [3, 5, 0], "edges": np.array([10, 1, 7], dtype=np.uint16)}


def test_costs_are_added_up_sample_by_sample() -> None:
    assert sample_costs("nodes+2*edges", COUNTS.__getitem__, 3).tolist() == [23, 7, 14]
    # 10² does not fit into the 8 bits in which it is stored.
    small = {"n": np.array([200, 1], dtype=np.uint8)}
    assert sample_costs("n^2+n", small.__getitem__, 2).tolist() == [40200, 2]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1.5, 2.0, 3.0], "no whole number per sample"),
        ([True, False, True], "no whole number per sample"),
        ([1, 2], "no whole number per sample"),
        ([[1], [2], [3]], "no whole number per sample"),
        (["a", "b", "c"], "no whole number per sample"),
        ([1, -2, 3], "-2 for sample 1"),
        ([1, 2, 10**9], "too large"),
    ],
)
def test_counts_that_cannot_be_are_refused_by_name(numbers: list[object], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        sample_costs("nodes^2", lambda _: numbers, 3)  # type: ignore[arg-type, return-value]
    assert "nodes" in caught.value.message and caught.value.hint


def test_a_cost_never_wraps_around_to_a_small_number() -> None:
    # (2³²)² = 2⁶⁴ is 0 in 64 bits.
    with pytest.raises(DataError, match="too large"):
        sample_costs("n^2", lambda _: np.array([2**32, 1]), 2)
    with pytest.raises(DataError, match="too large"):
        sample_costs("n+n", lambda _: np.array([2**63 + 1, 1], dtype=np.uint64), 2)


# -- micro-batches and ranks --------------------------------------------------------------------


def split_all(costs: list[int], budget: int, world: int) -> list[list[list[int]]]:
    return [split_by_cost(costs, budget, rank=rank, world=world) for rank in range(world)]


@quick
@given(costs_of_steps, budgets, worlds)
def test_every_sample_is_in_exactly_one_micro_batch_of_one_rank(
    costs: list[int], budget: int, world: int
) -> None:
    ranks = split_all(costs, budget, world)
    assert sorted(i for own in ranks for batch in own for i in batch) == list(range(len(costs)))
    assert all(batch == sorted(batch) and batch for own in ranks for batch in own)


@quick
@given(costs_of_steps, budgets, worlds)
def test_a_micro_batch_keeps_to_the_budget_and_a_sample_over_it_goes_alone(
    costs: list[int], budget: int, world: int
) -> None:
    for own in split_all(costs, budget, world):
        for batch in own:
            assert sum(costs[i] for i in batch) <= budget or len(batch) == 1


@quick
@given(costs_of_steps, budgets, worlds)
def test_no_two_micro_batches_of_a_rank_could_have_been_one(
    costs: list[int], budget: int, world: int
) -> None:
    for own in split_all(costs, budget, world):
        loads = sorted(sum(costs[i] for i in batch) for batch in own)
        assert len(loads) < 2 or loads[0] + loads[1] > budget


@quick
@given(costs_of_steps, worlds)
def test_no_rank_has_more_than_an_even_share_and_one_sample(costs: list[int], world: int) -> None:
    loads = [
        sum(costs[i] for batch in own for i in batch) for own in split_all(costs, 10**9, world)
    ]
    assert max(loads) <= sum(costs) / world + max(costs) * (1 - 1 / world) + 1e-9


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(2, 3))
def test_the_busiest_rank_has_at_most_a_third_more_than_the_best_possible(
    costs: list[int], world: int
) -> None:
    best = min(
        max(sum(c for c, rank in zip(costs, who, strict=True) if rank == r) for r in range(world))
        for who in product(range(world), repeat=len(costs))
    )
    busiest = max(
        sum(costs[i] for batch in own for i in batch) for own in split_all(costs, 10**9, world)
    )
    assert busiest <= (4 / 3 - 1 / (3 * world)) * best + 1e-9


def test_samples_that_cost_the_same_or_nothing_are_shared_out_evenly() -> None:
    for cost in (0, 5):
        ranks = split_all([cost] * 8, 100, 4)
        assert [sum(len(batch) for batch in own) for own in ranks] == [2, 2, 2, 2]


def test_the_split_of_a_step_is_what_it_was() -> None:
    """If this fails, runs with a budget resume with other micro-batches: same samples, but other
    roundings."""
    costs = [7, 1, 9, 4, 4, 12, 3]
    assert split_all(costs, 10, 1) == [[[0, 6], [1, 2], [3, 4], [5]]]
    assert split_all(costs, 10, 2) == [[[3, 4], [5]], [[0, 6], [1, 2]]]


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=40),
    st.integers(1, 12),
    budgets,
    worlds,
)
def test_costs_never_change_which_samples_a_step_has_nor_their_random_numbers(
    samples: list[tuple[int, int]], batch: int, budget: int, world: int
) -> None:
    sizes, costs = [size for size, _ in samples], np.array([cost for _, cost in samples])
    plan = plan_buckets(sizes, len(sizes), rule=BucketRule(kind="single"))
    order = Order(plan, seed=3, stage="s", effective_batch=batch)
    for number in range(order.steps_per_epoch):
        plain = share_of_step(order, number, StepSplit(micro_batch=batch))
        [whole] = plain.requests
        assert whole.seeds is not None
        seed_of = dict(zip(whole.indices, whole.seeds, strict=True))
        taken: list[int] = []
        for rank in range(world):
            split = StepSplit(rank=rank, world=world, micro_batch=1, costs=costs, budget=budget)
            share = share_of_step(order, number, split)
            assert share.num_samples == len(whole.indices)
            for request, count in zip(share.requests, share.counts, strict=True):
                assert count in (0, len(request.indices)) and request.indices
                assert request.seeds == [seed_of[i] for i in request.indices]
                taken += request.indices if count else []
        assert sorted(taken) == sorted(order.step(0, number).indices.tolist())


def test_a_rank_without_samples_borrows_one_that_counts_nothing() -> None:
    order = Order(plan_buckets(None, 1), seed=3, stage="s", effective_batch=4)
    split = StepSplit(rank=1, world=2, micro_batch=4, costs=np.array([5]), budget=9)
    share = share_of_step(order, 0, split)
    assert (share.requests[0].indices, share.counts, share.num_samples) == ([0], (0,), 1)
