"""What free GPUs take next: never less than the plan, never from those that run."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.errors import PlanError
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.repack import Running, repack
from tasuki.planning.packing.values import Item, ItemId, Placement, Pool, Schedule
from tests.unit.planning.packing.drawn import EFFORT, problems
from tests.unit.planning.packing.test_lanes import item
from tests.unit.planning.packing.test_pack import MINUTE, chain


def live_through(
    schedule: Schedule, really: Callable[[Placement], float], *, gone: frozenset[int] = frozenset()
) -> dict[ItemId, Placement]:
    """Ask again whenever something ends; `really`: how long items take; `gone`: GPUs lost."""
    pool, now = schedule.pool, 0.0
    ran: dict[ItemId, Placement] = {}
    ends: dict[ItemId, float] = {}
    while True:
        running = {
            i: Running(node=p.node, gpus=p.gpus, end_s=p.end_s)
            for i, p in ran.items()
            if ends[i] > now
        }
        used = {(r.node, gpu) for r in running.values() for gpu in r.gpus}
        free = {
            node: {g for g in range(pool.gpus_per_node) if (node, g) not in used and g not in gone}
            for node in range(pool.num_nodes)
        }
        waiting = [p.id for p in schedule.placements if p.id not in ran]
        done = ran.keys() - running.keys()
        facts = {"done": done, "running": running, "waiting": waiting, "now_s": now}
        started = repack(schedule, free=free, **facts)
        assert started == repack(schedule, free=free, **facts)
        for placed in started:
            assert set(placed.gpus) <= free[placed.node]
            free[placed.node] -= set(placed.gpus)
            assert placed.start_s == now and placed.id not in ran
            assert done >= set(placed.item.after)
            ran[placed.id] = placed
            ends[placed.id] = now + really(placed)
        if pool.cpus_per_node is not None:
            for node in range(pool.num_nodes):
                own = [p for i, p in ran.items() if ends[i] > now and p.node == node]
                assert sum(p.item.cpus for p in own) <= pool.cpus_per_node
        later = [end for end in ends.values() if end > now]
        if not later:
            return ran
        now = min(later)


@settings(max_examples=20)
@given(problems(most_nodes=1))
def test_when_all_goes_as_planned_the_end_is_no_later(problem: tuple[list[Item], Pool]) -> None:
    schedule = pack(*problem, effort=EFFORT)
    ran = live_through(schedule, lambda placed: placed.item.seconds)
    assert max((p.end_s for p in ran.values()), default=0) <= schedule.makespan_s + 0.05


@settings(max_examples=20)
@given(problems(), st.randoms(use_true_random=False))
def test_every_item_is_started_once_however_long_others_take(
    problem: tuple[list[Item], Pool], random: random.Random
) -> None:
    schedule = pack(*problem, effort=EFFORT)
    ran = live_through(schedule, lambda p: p.item.seconds * random.choice([0.1, 1, 1.5, 4]))
    assert sorted(ran) == sorted(i.id for i in problem[0])


@settings(max_examples=10)
@given(problems())
def test_with_a_gpu_lost_all_that_still_fits_is_run(problem: tuple[list[Item], Pool]) -> None:
    schedule = pack(*problem, effort=EFFORT)
    ran = live_through(schedule, lambda p: p.item.seconds, gone=frozenset({0}))
    for placed in schedule.placements:
        can_run = placed.item.gpus < schedule.pool.gpus_per_node
        assert (placed.id in ran) == (can_run and all(i in ran for i in placed.item.after))


def test_a_lane_that_is_free_early_takes_what_waits_for_another() -> None:
    items = [item("a", 60), item("b", 60), item("c", 30), item("d", 30)]
    schedule = pack(items, Pool(gpus_per_node=2))
    first = schedule.of(ItemId("e", "a")), schedule.of(ItemId("e", "b"))
    assert {placed.start_s for placed in first} == {0.0}
    late = {first[0].id: Running(node=0, gpus=first[0].gpus, end_s=60 * MINUTE)}
    started = repack(
        schedule,
        done=[first[1].id],
        running=late,
        waiting=[ItemId("e", "c"), ItemId("e", "d")],
        free={0: first[1].gpus},
        now_s=10 * MINUTE,
    )
    assert [placed.gpus for placed in started] == [first[1].gpus]


def test_an_item_that_is_late_is_expected_to_end_soon() -> None:
    """So the free GPU waits for the wide item, which a long chain hangs on, and takes no other."""
    a, wide, last, other = (ItemId("e", stage) for stage in ("a", "wide", "last", "other"))
    items = [item("a", 60), item("wide", 10, 2, "a"), item("last", 60, 1, "wide")]
    schedule = pack([*items, item("other", 90)], Pool(gpus_per_node=2))
    started = repack(
        schedule,
        done=[],
        running={a: Running(node=0, gpus=(0,), end_s=60 * MINUTE)},
        waiting=[wide, last, other],
        free={0: [1]},
        now_s=70 * MINUTE,
    )
    assert started == ()


def test_what_hangs_on_a_failed_item_stays() -> None:
    schedule = pack(chain("e", 10, 10), Pool(gpus_per_node=1))
    facts = {"done": [], "running": {}, "free": {0: [0]}, "now_s": 0.0}
    assert repack(schedule, waiting=[ItemId("e", "stage2")], **facts) == ()  # type: ignore[arg-type]


def test_an_item_of_another_schedule_is_refused() -> None:
    schedule = pack(chain("e", 10), Pool(gpus_per_node=1))
    with pytest.raises(PlanError, match="other/stage1 is no part") as refused:
        repack(
            schedule,
            done=[],
            running={},
            waiting=[ItemId("other", "stage1")],
            free={0: [0]},
            now_s=0.0,
        )
    assert refused.value.hint
