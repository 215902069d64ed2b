"""What torch's CUDA allocator takes from a card for a trace of allocations and frees.

Pure: no torch, no GPU. The rules are those of torch's caching allocator, read from its source:
requests are rounded up to 512 B; up to 1 MiB they come from a pool of small blocks; the best fit
wins, the lowest address of equals; a freed block joins its free neighbours and stays cached.
Two ways of getting memory are known:

- *Fixed segments* (torch's own default): 2 MiB for small requests, 20 MiB for those below 10 MiB,
  otherwise the request rounded up to 2 MiB. A large block is split if more than 1 MiB is left over.
- *Growing segments* (`expandable_segments`, tasuki's default on GPUs): one stretch of addresses per
  pool, backed by pages of 2 MiB (small) or 20 MiB (large) as it grows.

When the card is full, whatever is cached and whole (a segment, or pages) goes back to it, once, and
the request is tried again. Not modelled: several streams, CUDA graphs, `max_split_size_mb`,
`roundup_power2_divisions`, `garbage_collection_threshold`; and cudaMalloc's choice of addresses,
which decides between blocks of equal size (here: the older segment).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
_ROUND = 512
_SMALL = MIB
"""The largest request of the small pool."""
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT = 10 * MIB
"""From here on a request has a segment of its own size."""
_ROUND_LARGE = 2 * MIB
_ENDLESS = 1 << 62
"""Addresses that a growing segment may still take; more than any card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a trace did to the card."""

    live_peak: int
    """Bytes that were asked for and not yet given back, at the most."""
    allocated_peak: int
    """The same in blocks: torch's `max_memory_allocated`."""
    reserved_peak: int
    """Taken from the card, cached blocks included: torch's `max_memory_reserved`."""
    live: int
    allocated: int
    reserved: int
    """These three: at the end."""
    retries: int = 0
    """How often cached memory had to go back to the card first; each costs a synchronisation."""
    refused: int | None = None
    """The request that did not fit; the trace ends there. None: all did."""

    @property
    def fits(self) -> bool:
        return self.refused is None


class Block:
    """A stretch of addresses in one segment, with its neighbours there."""

    __slots__ = ("address", "after", "before", "is_mapped", "is_used", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.before: Block | None = None
        self.after: Block | None = None
        self.is_used = False
        self.is_mapped = True


class _OutOfMemory(Exception):
    """The card is full; carries the size of the request."""


class _Card:
    """How much of the card is taken."""

    __slots__ = ("capacity", "peak", "reserved", "retries", "top")

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.reserved = self.peak = self.retries = 0
        self.top = 0
        """The next segment's address: of equal blocks the older one is taken."""

    def take(self, size: int) -> bool:
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        return True


class Pool:
    """Free blocks by size, and where new ones come from. This one: fixed segments."""

    def __init__(self, card: _Card, *, is_small: bool) -> None:
        self.card = card
        self.is_small = is_small
        self.least_rest = _ROUND if is_small else MIB + 1
        """A rest of this size becomes a block of its own."""
        self.free: list[tuple[int, int]] = []
        """(size, address), sorted."""
        self.at: dict[int, Block] = {}
        """The free ones by address."""

    def find(self, size: int) -> Block | None:
        """The best fit, taken out of the free ones."""
        index = bisect_left(self.free, (size, 0))
        if index == len(self.free):
            return None
        return self.at.pop(self.free.pop(index)[1])

    def grow(self, size: int) -> Block | None:
        """A new segment; None if the card has no room for it."""
        segment = _segment_size(size)
        if not self.card.take(segment):
            return None
        block = Block(self.card.top, segment)
        self.card.top += segment
        return block

    def use(self, block: Block, size: int) -> None:
        """Hand a block out; what is left over stays here if it is worth it."""
        rest = block.size - size
        if rest >= self.least_rest:
            block.size = size
            other = Block(block.address + size, rest)
            other.before = block
            other.after = after = block.after
            if after is not None:
                after.before = other
            block.after = other
            self.add(other)
        block.is_used = True

    def give_back(self, block: Block) -> Block:
        """The block is free: it joins its free neighbours."""
        block.is_used = False
        before, after = block.before, block.after
        if before is not None and not before.is_used and before.is_mapped:
            self.remove(before)
            block = _joined(before, block)
        if after is not None and not after.is_used and after.is_mapped:
            self.remove(after)
            block = _joined(block, after)
        self.add(block)
        return block

    def add(self, block: Block) -> None:
        insort(self.free, (block.size, block.address))
        self.at[block.address] = block

    def remove(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]
        del self.at[block.address]

    def release(self) -> None:
        """Segments without a block in use go back to the card."""
        for block in [b for b in self.at.values() if b.before is None and b.after is None]:
            self.remove(block)
            self.card.reserved -= block.size


class GrowingPool(Pool):
    """One segment that grows by pages, and may have holes after a release."""

    def __init__(self, card: _Card, *, is_small: bool) -> None:
        super().__init__(card, is_small=is_small)
        self.least_rest = _ROUND
        self.page = _SMALL_SEGMENT if is_small else _LARGE_SEGMENT
        self.first = Block(0, _ENDLESS)
        self.first.is_mapped = False
        self.unmapped = [self.first]
        """By address; the last one is the endless rest."""

    def find(self, size: int) -> Block | None:
        """The best fit. A block that could grow is as large as it could become: while others are
        large enough, it is left alone."""
        index = bisect_left(self.free, (size, 0))
        if index == len(self.free):
            return None
        block = self.at[self.free[index][1]]
        while index + 1 < len(self.free) and (reach := _reach(block)) > block.size:
            other = self.at[self.free[index + 1][1]]
            if _reach(other) >= reach:
                break
            block, index = other, index + 1
        del self.free[index], self.at[block.address]
        return block

    def grow(self, size: int) -> Block | None:
        """Pages at the lowest address where they make enough room, a free block before them
        included; None if the card is full (pages that were had by then stay)."""
        block: Block | None = self._place(size)
        while block is not None and not (block.is_mapped and block.size >= size):
            hole, missing = block, size
            if block.is_mapped:
                assert block.after is not None, "the endless rest is never used up"
                hole, missing = block.after, size - block.size
            block = self._map(hole, min(missing, hole.size))
        if block is not None:
            self.remove(block)
        return block

    def _place(self, size: int) -> Block:
        for hole in self.unmapped:
            before = hole.before
            start = before if before is not None and not before.is_used else hole
            room, block = start.size, start.after
            while room < size and block is not None and not block.is_used:
                room += block.size
                block = block.after
            if room >= size:
                return start
        raise AssertionError("the endless rest is always large enough")

    def _map(self, hole: Block, size: int) -> Block | None:
        """Pages under the beginning of a hole: a free block, joined with its neighbours."""
        taken = -(-size // self.page) * self.page
        if not self.card.take(taken):
            return None
        index = self.unmapped.index(hole)
        del self.unmapped[index]
        if taken < hole.size:
            rest = Block(hole.address + taken, hole.size - taken)
            rest.is_mapped = False
            _insert_after(hole, rest)
            hole.size = taken
            self.unmapped.insert(index, rest)
        hole.is_mapped = True
        return self.give_back(hole)

    def release(self) -> None:
        """Whole pages without a byte in use go back to the card."""
        for block in list(self.at.values()):
            start = -(-block.address // self.page) * self.page
            end = (block.address + block.size) // self.page * self.page
            if start < end:
                self._unmap(block, start, end)

    def _unmap(self, block: Block, start: int, end: int) -> None:
        self.remove(block)
        head, tail = start - block.address, block.address + block.size - end
        hole = block
        if head:
            hole = Block(start, block.size - head)
            _insert_after(block, hole)
            block.size = head
            self.add(block)
        if tail:
            rest = Block(end, tail)
            _insert_after(hole, rest)
            self.add(rest)
        hole.size = end - start
        hole.is_mapped = False
        self.card.reserved -= hole.size
        self._add_hole(hole)

    def _add_hole(self, hole: Block) -> None:
        before, after = hole.before, hole.after
        if before is not None and not before.is_mapped:
            self.unmapped.remove(before)
            hole = _joined(before, hole)
        if after is not None and not after.is_mapped:
            self.unmapped.remove(after)
            hole = _joined(hole, after)
        insort(self.unmapped, hole, key=lambda block: block.address)


def _segment_size(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _ROUND_LARGE) * _ROUND_LARGE


def _reach(block: Block) -> int:
    """How large a block of a growing segment could become."""
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _joined(left: Block, right: Block) -> Block:
    left.size += right.size
    left.after = after = right.after
    if after is not None:
        after.before = left
    return left


def _insert_after(block: Block, new: Block) -> None:
    new.before, new.after = block, block.after
    if block.after is not None:
        block.after.before = new
    block.after = new


class Allocator:
    """The allocator of one stream; `simulate` is the usual way in."""

    def __init__(self, *, capacity: int | None = None, grows: bool = False) -> None:
        self.card = _Card(capacity)
        kind = GrowingPool if grows else Pool
        self.small, self.large = kind(self.card, is_small=True), kind(self.card, is_small=False)
        self.used: dict[int, tuple[Block, Pool, int]] = {}
        """By id: the block, its pool, and the bytes that were asked for."""
        self.live = self.live_peak = self.allocated = self.allocated_peak = 0

    def allocate(self, number: int, size: int) -> None:
        """`number` names the allocation. Nothing is taken for empty tensors."""
        assert number not in self.used, number
        if size <= 0:
            return
        rounded = -(-size // _ROUND) * _ROUND
        pool = self.small if rounded <= _SMALL else self.large
        block = pool.find(rounded) or pool.grow(rounded) or self._retry(pool, rounded)
        pool.use(block, rounded)
        self.used[number] = (block, pool, size)
        self.live += size
        self.allocated += block.size
        self.live_peak = max(self.live_peak, self.live)
        self.allocated_peak = max(self.allocated_peak, self.allocated)

    def free(self, number: int) -> None:
        found = self.used.pop(number, None)
        if found is None:
            return  # an empty tensor's
        block, pool, size = found
        self.live -= size
        self.allocated -= block.size
        pool.give_back(block)

    def _retry(self, pool: Pool, size: int) -> Block:
        self.card.retries += 1
        self.large.release()
        self.small.release()
        block = pool.grow(size)
        if block is None:
            raise _OutOfMemory(size)
        return block

    def outcome(self, *, refused: int | None = None) -> Outcome:
        return Outcome(
            live_peak=self.live_peak,
            allocated_peak=self.allocated_peak,
            reserved_peak=self.card.peak,
            live=self.live,
            allocated=self.allocated,
            reserved=self.card.reserved,
            retries=self.card.retries,
            refused=refused,
        )


def simulate(
    events: Iterable[tuple[int, int]], *, capacity: int | None = None, grows: bool = False
) -> Outcome:
    """Each event is (id, bytes) for an allocation, (-id, anything) for its free; ids are positive.
    Without a capacity the card is endless and nothing is ever given back to it."""
    allocator = Allocator(capacity=capacity, grows=grows)
    for number, size in events:
        if number < 0:
            allocator.free(-number)
            continue
        try:
            allocator.allocate(number, size)
        except _OutOfMemory:
            return allocator.outcome(refused=size)
    return allocator.outcome()
