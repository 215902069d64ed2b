"""The micro-batches that stand for all others of a budget are real ones, and none costs more."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.order import Order
from tasuki.data.split import split_by_cost
from tasuki.data.worst import MOST_SAMPLES, WorstBatches, worst_in_steps

quick = settings(max_examples=150, deadline=None, database=None)
all_costs = st.lists(st.integers(0, 60), min_size=1, max_size=40)


def worst_of(costs: list[int], *, batch: int, world: int = 1) -> WorstBatches:
    plan = plan_buckets(costs, len(costs), rule=BucketRule(kind="single"))
    return WorstBatches(np.array(costs, dtype=np.int64), plan, batch=batch, world=world)


@quick
@given(all_costs, st.integers(1, 12), st.integers(1, 5), st.randoms())
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


def test_the_dearest_come_first_and_the_even_ones_are_as_many_as_a_step_has():
    worst = worst_of([50, 1, 2, 3, 40, 4, 5, 30], batch=4)
    assert (worst.dearest, worst.whole) == (50, 125)
    assert worst.of_large(20) == ([0], 50), "over the budget: alone"
    assert worst.of_large(93) == ([0, 4, 3], 93)
    assert worst.of_small(5) == ([1, 2], 3)
    assert worst.of_small(14) == ([2, 3, 5, 6], 14)
    assert worst.of_small(125)[1] == worst.of_large(125)[1] == 125
    assert worst.of_large(260)[1] == 260, "twice a step, and some small ones"


def order_of(costs: list[int], *, batch: int) -> Order:
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
    order.step = lambda epoch, n: seen.append(n) or step(epoch, n)  # type: ignore[method-assign]
    worst_in_steps(order, costs, budget=10, world=10, total_steps=10**9)
    assert len(seen) == MOST_SAMPLES // 1000
