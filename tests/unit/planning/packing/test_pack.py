"""Every item once, on GPUs of its own, after what it depends on; short, bounded, and repeatable."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.errors import PlanError
from tasuki.planning.packing.bounds import lower_bound
from tasuki.planning.packing.branch import prove
from tasuki.planning.packing.build import build_parallel, build_serial
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.problem import Problem, state_problem
from tasuki.planning.packing.search import apply_rules, rules
from tasuki.planning.packing.values import Item, ItemId, Placement, Pool, Schedule
from tests.unit.planning.packing.drawn import EFFORT, problems

MINUTE = 60.0


def chain(experiment: str, *minutes: float, **facts: Any) -> list[Item]:
    """Stages one after another."""
    items: list[Item] = []
    for number, length in enumerate(minutes, 1):
        after = (items[-1].id,) if items else ()
        values = {"seconds": length * MINUTE, "after": after, **facts}
        items.append(Item(experiment=experiment, stage=f"stage{number}", **values))
    return items


def evaluated(items: list[Item], minutes: float) -> list[Item]:
    last = items[-1]
    evaluation = Item(
        experiment=last.experiment,
        stage=last.stage,
        kind="evaluate",
        seconds=minutes * MINUTE,
        after=(last.id,),
    )
    return [*items, evaluation]


def five_experiments() -> list[Item]:
    """Trained for 1 to 2 hours each, in eight stages; evaluated in an hour and a half in all."""
    return [
        *evaluated(chain("exp1", 75), 18),
        *evaluated(chain("exp2", 120), 22),
        *evaluated(chain("exp3", 40, 35, 40), 20),
        *evaluated(chain("exp4", 50, 55), 17),
        *evaluated(chain("exp5", 65), 16),
    ]


def by_lpt(items: Sequence[Item], gpus: int) -> float:
    """The longest item first among those that may start, as GPUs get free; written naively."""
    now, ends, waiting = 0.0, dict[ItemId, float](), sorted(items, key=lambda i: i.id)
    while waiting:
        running = [i for i in items if ends.get(i.id, -1) > now]
        free = gpus - sum(i.gpus for i in running)
        for item in sorted(waiting, key=lambda i: -i.seconds):
            if item.gpus <= free and all(ends.get(i, math.inf) <= now for i in item.after):
                ends[item.id] = now + item.seconds
                free -= item.gpus
                waiting.remove(item)
        now = min(end for end in ends.values() if end > now)
    return max(ends.values(), default=0.0)


def check(schedule: Schedule, items: Sequence[Item]) -> None:
    """What a schedule promises, by another way than it checks itself: each pair of items."""
    pool = schedule.pool
    placed = {p.id: p for p in schedule.placements}
    assert sorted(placed) == sorted(item.id for item in items)
    assert len(schedule.placements) == len(items)
    for one in placed.values():
        assert one.end_s - one.start_s == pytest.approx(one.item.seconds, abs=0.0011)
        assert len(set(one.gpus)) == one.item.gpus and set(one.gpus) < {*range(9)}
        assert all(gpu < pool.gpus_per_node for gpu in one.gpus) and one.node < pool.num_nodes
        assert all(placed[before].end_s <= one.start_s for before in one.item.after)
        beside = [
            other
            for other in placed.values()
            if other.node == one.node and other.start_s <= one.start_s < other.end_s
        ]
        assert sum(len(other.gpus) for other in beside) == len({g for o in beside for g in o.gpus})
        if pool.cpus_per_node is not None:
            assert sum(other.item.cpus for other in beside) <= pool.cpus_per_node


# -- properties -------------------------------------------------------------------------------


@settings(max_examples=40)
@given(problems(), st.randoms(use_true_random=False))
def test_a_schedule_keeps_every_promise_in_whatever_order_items_are_listed(
    problem: tuple[list[Item], Pool], random: random.Random
) -> None:
    items, pool = problem
    schedule = pack(items, pool, effort=EFFORT)
    check(schedule, items)
    assert schedule.lower_bound_s <= schedule.makespan_s
    assert schedule.is_optimal == (schedule.gap == 0)
    assert schedule.reasons
    assert pack(random.sample(items, len(items)), pool, effort=EFFORT) == schedule


@settings(max_examples=30)
@given(problems(most_nodes=1, most=16))
def test_it_is_never_worse_than_the_longest_item_first(problem: tuple[list[Item], Pool]) -> None:
    items, pool = problem[0], Pool(gpus_per_node=problem[1].gpus_per_node)
    stated, lpt = state_problem(items, pool), by_lpt(items, pool.num_gpus)
    built = build_parallel(stated, rules(stated)["longest item first"])
    assert stated.seconds(built.makespan) <= lpt + 0.02
    assert pack(items, pool, effort=1).makespan_s <= lpt + 0.02


@settings(max_examples=15)
@given(problems(most=6, most_nodes=1))
def test_a_proof_and_a_bound_agree_with_trying_every_order(
    drawn: tuple[list[Item], Pool],
) -> None:
    problem = state_problem(*drawn)
    if not problem.num_items:
        return
    best = min(build_serial(problem, order).makespan for order in every_order(problem))
    first = apply_rules(problem, bound=0).built
    proof = prove(problem, known=first, bound=0, most_steps=50_000)
    assert proof.is_complete and proof.built.makespan == best
    assert lower_bound(problem).time <= best


def every_order(problem: Problem) -> list[tuple[int, ...]]:
    """An order that is as short as possible is among them: earliest starts lose nothing."""
    return [
        order
        for order in itertools.permutations(range(problem.num_items))
        if all(order.index(k) < order.index(j) for j in order for k in problem.after[j])
    ]


def test_the_proof_tries_to_wait_although_something_fits() -> None:
    """Rules start what they can, and take 23 s; waiting is a way of its own."""
    items = [
        Item(experiment="e", stage="s0", seconds=6, gpus=2),
        Item(experiment="e", stage="s1", seconds=1, gpus=2),
        Item(experiment="e", stage="s2", seconds=7, gpus=1, after=(ItemId("e", "s1"),)),
        Item(experiment="e", stage="s3", seconds=9, gpus=3, after=(ItemId("e", "s0"),)),
    ]
    schedule = pack(items, Pool(gpus_per_node=3))
    assert schedule.is_optimal and schedule.makespan_s == 17
    assert schedule.reasons[0].startswith("search through all orders")


# -- the case of the requirements -------------------------------------------------------------


def test_five_experiments_on_four_gpus_are_packed_as_short_as_can_be() -> None:
    items = five_experiments()
    schedule = pack(items, Pool(gpus_per_node=4))
    by_hand = 75 + 18 + 65 + 16  # GPU 0: exp1, then exp5, each evaluated where it was trained
    assert schedule.is_optimal
    assert schedule.makespan_s == 147 * MINUTE < by_hand * MINUTE < 6 * 60 * MINUTE
    check(schedule, items)


def test_a_stage_that_starts_from_another_experiment_waits_for_it() -> None:
    first = chain("teacher", 30)
    second = chain("student", 10, after=(first[0].id,))
    placed = pack([*second, *first], Pool(gpus_per_node=2)).of(second[0].id)
    assert placed.start_s == 30 * MINUTE


# -- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "pool", "minutes"),
    [
        pytest.param(chain("a", 10, 20, 30), Pool(gpus_per_node=4), 60, id="a chain"),
        pytest.param(
            [i for n in range(5) for i in chain(f"e{n}", 60)],
            Pool(gpus_per_node=4),
            120,
            id="five of an hour on four GPUs: one comes second",
        ),
        pytest.param(
            [i for n in range(4) for i in chain(f"e{n}", 60, gpus=3)],
            Pool(gpus_per_node=4, num_nodes=2),
            120,
            id="three of four GPUs have a node alone",
        ),
        pytest.param(
            [i for n in range(4) for i in chain(f"e{n}", 60, gpus=3)],
            Pool(gpus_per_node=8),
            120,
            id="two of three GPUs on a node of eight",
        ),
        pytest.param(
            [i for n in range(4) for i in chain(f"e{n}", 60, cpus=5)],
            Pool(gpus_per_node=4, cpus_per_node=10),
            120,
            id="CPUs for two at a time",
        ),
        pytest.param(
            [*chain("a", 10), *(i for n in range(4) for i in chain(f"e{n}", 60, after=(A,)))],
            Pool(gpus_per_node=2),
            130,
            id="all but the first start late",
        ),
    ]
    if (A := ItemId("a", "stage1"))
    else [],
)
def test_the_lower_bound_is_reached_where_its_reason_holds(
    items: list[Item], pool: Pool, minutes: float
) -> None:
    problem = state_problem(items, pool)
    assert problem.seconds(lower_bound(problem).time) == minutes * MINUTE
    assert pack(items, pool).is_optimal


# -- wrong input ------------------------------------------------------------------------------


def test_times_items_and_pools_that_make_no_sense_are_refused() -> None:
    for seconds in (0, -1, math.nan, math.inf, 1e300):
        with pytest.raises(PlanError, match="e/s is said to take") as refused:
            Item(experiment="e", stage="s", seconds=seconds)
        assert "expect" in refused.value.hint
    for item in ({"gpus": 0}, {"gpus": 1.5}, {"cpus": -1}, {"kind": "test"}):
        with pytest.raises(PlanError, match="e/s"):
            Item(experiment="e", stage="s", seconds=1, **item)
    for pool in ({"gpus_per_node": 0}, {"gpus_per_node": 1, "num_nodes": 0}):
        with pytest.raises(PlanError, match="nothing can be packed"):
            Pool(**pool)


def refusal(items: list[Item], pool: Pool) -> PlanError:
    with pytest.raises(PlanError) as refused:
        pack(items, pool)
    assert refused.value.hint
    return refused.value


def test_an_item_that_needs_more_than_a_node_is_refused_although_the_pool_has_it() -> None:
    pool = Pool(gpus_per_node=4, num_nodes=4, cpus_per_node=8)
    error = refusal(chain("e", 1, gpus=8), pool)
    assert str(error) == "e/stage1 needs 8 GPUs on one node, but a node has 4"
    assert "16 CPUs" in str(refusal(chain("e", 1, cpus=16), pool))


def test_a_circle_is_refused_and_shown() -> None:
    a, b = ItemId("a", "s"), ItemId("b", "s")
    items = [
        Item(experiment="a", stage="s", seconds=1, after=(b,)),
        Item(experiment="b", stage="s", seconds=1, after=(a,)),
        Item(experiment="c", stage="s", seconds=1, after=(b,)),
    ]
    assert "circle: b/s → a/s → b/s" in str(refusal(items, Pool(gpus_per_node=1)))
    itself = Item(experiment="a", stage="s", seconds=1, after=(a,))
    assert "circle: a/s → a/s" in str(refusal([itself], Pool(gpus_per_node=1)))


def test_an_unknown_item_and_one_that_is_listed_twice_are_refused() -> None:
    items = chain("e", 1, after=(ItemId("gone", "s", "evaluate"),))
    assert "gone/s:evaluate" in str(refusal(items, Pool(gpus_per_node=1)))
    assert "twice" in str(refusal(chain("e", 1) * 2, Pool(gpus_per_node=1)))


def test_nothing_to_pack_is_a_schedule_too() -> None:
    schedule = pack([], Pool(gpus_per_node=4))
    assert (schedule.makespan_s, schedule.gap, schedule.is_optimal) == (0.0, 0.0, True)


def test_a_chain_longer_than_the_stack_is_no_problem() -> None:
    items = chain("long", *[1] * 1200)
    schedule = pack(items, Pool(gpus_per_node=2), effort=1)
    assert schedule.is_optimal and schedule.makespan_s == 1200 * MINUTE


# -- a schedule checks itself -----------------------------------------------------------------


def placed(item: Item, start_s: float, *gpus: int) -> Placement:
    return Placement(
        item=item, start_s=start_s, end_s=start_s + item.seconds, node=0, gpus=tuple(gpus)
    )


def test_a_schedule_that_breaks_a_promise_cannot_be_made() -> None:
    one, two = chain("e", 1, 1, cpus=3)
    other = chain("f", 1, cpus=3)[0]
    for wrong in (
        [placed(one, 0, 0), placed(other, 30, 0)],
        [placed(one, 0, 0), placed(two, 30, 1)],
        [placed(one, 0, 0), placed(other, 0, 1)],
        [placed(one, 0, 2)],
        [placed(one, 0, 0, 1)],
        [placed(two, 0, 0)],
    ):
        with pytest.raises(AssertionError, match="does not hold"):
            Schedule(
                pool=Pool(gpus_per_node=2, cpus_per_node=5),
                placements=tuple(wrong),
                lower_bound_s=60.0,
            )
