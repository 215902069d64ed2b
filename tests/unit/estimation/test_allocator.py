"""What torch's CUDA allocator takes from a card: its rules by hand, and what always holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tasuki.estimation.allocator import MIB, Allocator, simulate

Events = list[tuple[int, int]]


def taken(*sizes: float, grows: bool = False) -> int:
    """MiB that the card gives for tensors of these MiB, all alive."""
    events = [(number, round(size * MIB)) for number, size in enumerate(sizes, 1)]
    found = simulate(events, grows=grows).reserved_peak
    assert found % MIB == 0
    return found // MIB


def in_mib(*events: tuple[int, float]) -> Events:
    return [(number, round(size * MIB)) for number, size in events]


@pytest.mark.parametrize(
    ("size", "block"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (3 * MIB + 1, 3146240)]
)
def test_a_tensor_has_a_multiple_of_512_bytes(size, block):
    found = simulate([(1, size)])
    assert (found.live_peak, found.allocated_peak) == (size, block)


def test_small_tensors_share_segments_of_2_mib_and_middling_ones_of_20():
    assert taken(0.001) == taken(1, 1) == 2
    assert taken(1, 1, 1) == 4
    assert taken(1.1) == taken(9, 9) == taken(6, 6, 6) == 20
    assert taken(9, 9, 9) == 40


def test_from_10_mib_on_a_tensor_has_its_own_segment_in_steps_of_2_mib():
    assert taken(9.999) == 20
    assert taken(10) == 10
    assert taken(10.5) == taken(12) == 12
    assert taken(10.5, 10.5) == 24


def test_what_is_left_of_a_large_block_is_used_if_it_is_more_than_1_mib():
    reused = in_mib((1, 30), (-1, 0), (2, 28), (3, 2))
    assert simulate(reused).reserved_peak == 30 * MIB
    wasted = in_mib((1, 30), (-1, 0), (2, 29), (3, 1.01))
    found = simulate(wasted)
    assert found.reserved_peak == 50 * MIB, "1 MiB left over is no block of its own"
    assert found.allocated == round(31.01 * MIB / 512 + 0.5) * 512


def test_a_full_card_gets_back_whole_cached_segments_and_is_asked_again():
    events = in_mib((1, 30), (2, 20), (-1, 0), (3, 40))
    found = simulate(events, capacity=60 * MIB)
    assert found.fits and (found.retries, found.reserved) == (1, 60 * MIB)
    assert simulate(events).reserved_peak == 90 * MIB


def test_growing_segments_take_pages_of_2_and_20_mib_and_waste_no_rest():
    assert taken(0.001, grows=True) == 2
    assert taken(9.999, grows=True) == 20
    assert taken(10.5, grows=True) == taken(10, 10, grows=True) == 20
    assert taken(10.5, 10.5, grows=True) == 40, "fixed ones: 24"
    assert taken(29, 1.5, 9.5, grows=True) == 40


def test_a_growing_segment_extends_the_free_block_at_its_end():
    """Where fixed segments need 30 + 50 MiB: the reason why growing ones are the default."""
    events = in_mib((1, 30), (-1, 0), (2, 50))
    assert simulate(events).reserved_peak == 80 * MIB
    assert simulate(events, grows=True).reserved_peak == 60 * MIB


def test_the_end_of_a_growing_segment_is_kept_for_what_fits_nowhere_else():
    """The free end has 5 MiB, a gap has 6: a tensor of 4 MiB goes into the gap."""
    events = in_mib((1, 6), (2, 9), (-1, 0), (3, 4), (4, 7))
    assert simulate(events, grows=True).reserved_peak == 40 * MIB
    allocator = Allocator(grows=True)
    for number, size in events:
        allocator.allocate(number, size) if number > 0 else allocator.free(-number)
    assert allocator.used[3][0].address == 0
    assert allocator.used[4][0].address == 15 * MIB


def test_a_full_card_gets_back_whole_pages_of_a_growing_segment():
    events = in_mib((1, 50), (2, 5), (-1, 0), (3, 1), (4, 56))
    found = simulate(events, capacity=82 * MIB, grows=True)
    assert found.fits and found.retries == 1
    # Pages 0 and 1 are empty and go back; page 2 holds 10 MiB of the gap, tensor 2 and 5 MiB of
    # free end: 56 MiB begin there and need three more pages.
    assert found.reserved == (20 + 60 + 2) * MIB
    assert simulate(events, capacity=81 * MIB, grows=True).refused == 56 * MIB


# What always holds


def draw_trace(chance: random.Random) -> Events:
    """Up to 40 tensors of all sizes, freed in any order; nine live at once, or fewer."""
    events: Events = []
    live: list[int] = []
    for number in range(1, chance.randint(1, 40) + 1):
        most = chance.choice([4096, 3 * MIB, 20 * MIB, 100 * MIB])
        events.append((number, chance.randint(0, most)))
        live.append(number)
        while len(live) > chance.randint(0, 9):
            events.append((-live.pop(chance.randrange(len(live))), 0))
    return events


@pytest.mark.parametrize("grows", [False, True])
def test_it_does_what_a_plain_reading_of_the_rules_does(grows):
    num_full = 0
    for seed in range(400):
        chance = random.Random(seed)
        events = draw_trace(chance)
        needed = simulate(events, grows=grows).reserved_peak
        capacity = chance.choice([None, max(1, needed - chance.randint(1, 20 * MIB))])
        found = simulate(events, capacity=capacity, grows=grows)
        plain = Plain(capacity, grows).run(events)
        assert (found.reserved_peak, found.reserved, found.fits) == plain, seed
        assert found.live_peak <= found.allocated_peak <= found.reserved_peak, seed
        num_full += found.retries > 0 and found.fits
    assert num_full > 20, "of these a card gets cached memory back"


class Plain:
    """The same rules over plain lists, looked through from end to end."""

    def __init__(self, capacity: int | None, grows: bool) -> None:
        self.capacity, self.grows = capacity, grows
        self.reserved = self.peak = 0
        self.pools: list[list[list[Any]]] = [[], []]
        """Blocks [segment, address, size, state], state = free, unmapped or the tensor's id."""
        if grows:
            self.pools = [[[0, 0, 1 << 50, "unmapped"]], [[0, 0, 1 << 50, "unmapped"]]]
        self.segments = 0

    def run(self, events: Events) -> tuple[int, int, bool]:
        for number, size in events:
            if number < 0:
                for pool in self.pools:
                    for block in pool:
                        if block[3] == -number:
                            block[3] = "free"
                    self.tidy(pool)
            elif size and not self.put(number, -(-size // 512) * 512):
                return self.peak, self.reserved, False
        return self.peak, self.reserved, True

    def tidy(self, pool: list[list[Any]]) -> None:
        index = 0
        while index + 1 < len(pool):
            a, b = pool[index : index + 2]
            if a[0] == b[0] and a[3] == b[3] and a[3] in ("free", "unmapped"):
                a[2] += b[2]
                del pool[index + 1]
            else:
                index += 1

    def put(self, number: int, size: int) -> bool:
        pool = self.pools[size > MIB]
        block = self.fit(pool, size) or self.more(pool, size)
        if block is None:
            self.release()
            block = self.more(pool, size)
        if block is None:
            return False
        rest = block[2] - size
        if rest >= 512 if self.grows or size <= MIB else rest > MIB:
            pool.insert(pool.index(block) + 1, [block[0], block[1] + size, rest, "free"])
            block[2] = size
        block[3] = number
        return True

    def fit(self, pool: list[list[Any]], size: int) -> list[Any] | None:
        fitting = sorted((b for b in pool if b[3] == "free" and b[2] >= size), key=lambda b: b[2])
        if self.grows and len(fitting) > 1:
            after = pool.index(fitting[0]) + 1
            if after < len(pool) and pool[after][3] == "unmapped":
                reach = fitting[0][2] + pool[after][2]
                other = pool.index(fitting[1]) + 1
                grown = pool[other][2] if pool[other][3] == "unmapped" else 0
                if fitting[1][2] + grown < reach:
                    return self.fit([b for b in pool if b is not fitting[0]], size)
        return fitting[0] if fitting else None

    def take(self, size: int) -> bool:
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        return True

    def more(self, pool: list[list[Any]], size: int) -> list[Any] | None:
        if not self.grows:
            segment = 2 if size <= MIB else 20 if size < 10 * MIB else -(-size // (2 * MIB)) * 2
            if not self.take(segment * MIB):
                return None
            self.segments += 1
            pool.append([self.segments, 0, segment * MIB, "free"])
            return pool[-1]
        page = (2 if size <= MIB else 20) * MIB
        for start, block in enumerate(pool):
            is_before_hole = block[3] == "free" and pool[start + 1][3] == "unmapped"
            if not is_before_hole and block[3] != "unmapped":
                continue
            end, room = start, 0
            while room < size and end < len(pool) and pool[end][3] in ("free", "unmapped"):
                room += pool[end][2]
                end += 1
            if room >= size:
                return self.map_from(pool, block[1], size, page)
        raise AssertionError

    def map_from(self, pool: list[list[Any]], address: int, size: int, page: int) -> Any:
        while True:
            first = next(b for b in pool if b[1] == address)
            if first[3] == "free" and first[2] >= size:
                return first
            hole = first if first[3] == "unmapped" else pool[pool.index(first) + 1]
            missing = min(size if hole is first else size - first[2], hole[2])
            pages = -(-missing // page) * page
            if not self.take(pages):
                return None
            hole[3] = "free"
            if pages < hole[2]:
                rest = [0, hole[1] + pages, hole[2] - pages, "unmapped"]
                pool.insert(pool.index(hole) + 1, rest)
                hole[2] = pages
            self.tidy(pool)

    def release(self) -> None:
        for large, pool in enumerate(self.pools):
            kept: list[list[Any]] = []
            page = (20 if large else 2) * MIB
            for block in pool:
                segment, _, size, state = block
                alone = sum(b[0] == segment for b in pool) == 1
                if state != "free" or (not self.grows and not alone):
                    kept.append(block)
                elif not self.grows:
                    self.reserved -= size
                else:
                    kept += self.cut(block, page)
            pool[:] = kept
            self.tidy(pool)

    def cut(self, block: list[Any], page: int) -> list[list[Any]]:
        _, address, size, _ = block
        start, end = -(-address // page) * page, (address + size) // page * page
        if start >= end:
            return [block]
        self.reserved -= end - start
        parts = [(address, start, "free"), (start, end, "unmapped"), (end, address + size, "free")]
        return [[0, low, high - low, state] for low, high, state in parts if high > low]
