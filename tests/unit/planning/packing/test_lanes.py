"""Lanes can be carried out by whoever keeps to them, however long items really take."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.planning.packing.lanes import PackedLane, lanes_of
from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.place import choose_gpus
from tasuki.planning.packing.values import Item, ItemId, Placement, Pool
from tests.unit.planning.packing.drawn import EFFORT, problems
from tests.unit.planning.packing.test_pack import MINUTE, chain, five_experiments


def item(stage: str, minutes: float, gpus: int = 1, *after: str) -> Item:
    return Item(
        experiment="e",
        stage=stage,
        seconds=minutes * MINUTE,
        gpus=gpus,
        after=tuple(ItemId("e", before) for before in after),
    )


def carry_out(
    lanes: tuple[PackedLane, ...], lengths: dict[ItemId, float]
) -> dict[ItemId, tuple[float, float, Placement]]:
    """Each lane starts its next entry when the one before and all it waits for have ended."""
    ran: dict[ItemId, tuple[float, float, Placement]] = {}
    left = [(list(lane.entries), 0.0) for lane in lanes]
    while any(entries for entries, _ in left):
        moved = False
        for number, (entries, free_s) in enumerate(left):
            if entries and all(before in ran for before in entries[0].waits_for):
                start = max([free_s, *(ran[before][1] for before in entries[0].waits_for)])
                end = start + lengths[entries[0].placed.id]
                ran[entries[0].placed.id] = (start, end, entries[0].placed)
                left[number] = (entries[1:], end)
                moved = True
        assert moved, "lanes wait for each other for ever"
    return ran


@settings(max_examples=30)
@given(problems(), st.randoms(use_true_random=False))
def test_lanes_are_as_quick_as_the_schedule_and_use_no_gpu_twice_however_long_items_take(
    problem: tuple[list[Item], Pool], random: random.Random
) -> None:
    items, pool = problem
    schedule = pack(items, pool, effort=EFFORT)
    ran = carry_out(lanes_of(schedule), {p.id: p.end_s - p.start_s for p in schedule.placements})
    for placed in schedule.placements:
        assert ran[placed.id][0] <= placed.start_s + 1e-6, "slower than the schedule"
    lengths = {i.id: i.seconds * random.choice([0.2, 1, 1, 3]) for i in items}
    ran = carry_out(lanes_of(schedule), lengths)
    assert sorted(ran) == sorted(i.id for i in items)
    for start, _, placed in ran.values():
        assert all(ran[before][1] <= start for before in placed.item.after)
        beside = [
            other
            for begin, end, other in ran.values()
            if begin <= start < end and other.node == placed.node
        ]
        gpus = [gpu for other in beside for gpu in other.gpus]
        assert len(gpus) == len(set(gpus))
        if pool.cpus_per_node is not None:
            assert sum(other.item.cpus for other in beside) <= pool.cpus_per_node


def test_a_wide_lane_is_followed_by_narrow_ones_that_wait_for_it() -> None:
    items = [item("wide", 60, 2), item("a", 30, 1, "wide"), item("b", 30, 1, "wide")]
    lanes = lanes_of(pack(items, Pool(gpus_per_node=2)))
    assert [lane.gpus for lane in lanes] == [(0, 1), (0,), (1,)]
    assert [[e.waits_for for e in lane.entries] for lane in lanes] == [
        [()],
        [(ItemId("e", "wide"),)],
        [(ItemId("e", "wide"),)],
    ]


def test_a_wide_item_waits_for_all_whose_gpus_it_takes() -> None:
    items = [item("a", 30), item("b", 20), item("wide", 60, 2, "a")]
    lanes = {lane.gpus: lane for lane in lanes_of(pack(items, Pool(gpus_per_node=2)))}
    assert lanes[0, 1].entries[0].waits_for == (ItemId("e", "a"), ItemId("e", "b"))


def test_the_five_experiments_run_in_a_lane_per_gpu() -> None:
    lanes = lanes_of(pack(five_experiments(), Pool(gpus_per_node=4)))
    assert [lane.gpus for lane in lanes] == [(0,), (1,), (2,), (3,)]


def test_a_chain_stays_on_its_gpus() -> None:
    items = [*chain("a", 10, 10, 10, gpus=2), *chain("b", 12, 12, gpus=2), *chain("c", 7, 7, 7)]
    schedule = pack(items, Pool(gpus_per_node=8))
    for experiment in "abc":
        own = {p.gpus for p in schedule.placements if p.id.experiment == experiment}
        assert len(own) == 1


def test_gpus_are_neighbours_where_possible_in_the_smallest_gap() -> None:
    assert choose_gpus({1, 2, 3, 4}, 2, []) == (2, 3)
    assert choose_gpus({0, 1, 2, 3, 6, 7}, 2, []) == (6, 7)
    assert choose_gpus({0, 2, 4}, 2, []) == (0, 2)
    assert choose_gpus({0, 1, 2, 3}, 2, [(2, 3)]) == (2, 3)
    assert choose_gpus({0, 1, 2, 3}, 1, [(2, 3)]) == (2,)
