"""Several ranks with a loader that tasuki does not share out: no two work on the same batches,
unless the loader alone can know."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tasuki.errors import DataError
from tasuki.integrations.batches import Batches, Feed, Wanted, make_feed

NUMBERS = torch.arange(24.0)


class OfRank(DistributedSampler):
    """Not quite torch's own: tasuki leaves it its order."""


def feed_of(loader, *, rank: int, world: int = 2) -> Feed:
    wanted = Wanted(
        epochs=2, steps=None, seed=3, stage="s", rank=rank, world=world, say=lambda _: None
    )
    return make_feed(loader, wanted)


def batches_of(loader, *, rank: int, world: int = 2, first: int = 0) -> list[list[float]]:
    feed = feed_of(loader, rank=rank, world=world)
    batches = Batches(feed.open(first, None))
    return [batches.next().tolist() for _ in range(first, feed.total_steps)]


def drawn() -> list[DataLoader]:
    weighted = WeightedRandomSampler(torch.ones(24), 24)
    again = RandomSampler(NUMBERS, replacement=True)
    return [
        DataLoader(NUMBERS, batch_size=4, sampler=weighted),
        DataLoader(NUMBERS, batch_sampler=BatchSampler(again, 4, drop_last=False)),
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_ranks_that_draw_with_replacement_draw_apart_and_a_resume_draws_the_same(number):
    zero, one = (batches_of(drawn()[number], rank=rank) for rank in (0, 1))
    assert len(zero) == 12
    assert all(a != b for a, b in zip(zero, one, strict=True))
    for first in (1, 5, 6, 11):
        assert batches_of(drawn()[number], rank=1, first=first) == one[first:]
    assert batches_of(drawn()[number], rank=0, world=1) == zero


def test_ranks_that_share_out_by_themselves_draw_one_order():
    found = []
    for rank in (0, 1):
        sampler = OfRank(NUMBERS, num_replicas=2, rank=rank)
        loader = DataLoader(NUMBERS, batch_size=4, sampler=sampler)
        found += [x for batch in batches_of(loader, rank=rank)[:3] for x in batch]
    assert sorted(found) == NUMBERS.tolist()


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_sampler_that_shares_nothing_out_is_refused_with_several_ranks(kind):
    own = SubsetRandomSampler(range(20))
    batches = {"batch_sampler": BatchSampler(own, 4, drop_last=False)}
    more = batches if kind == "batch_sampler" else {"sampler": own, "batch_size": 4}
    loader = DataLoader(NUMBERS, **more)
    with pytest.raises(
        DataError, match="2 ranks would get the same batches: a SubsetRandomSampler"
    ):
        feed_of(loader, rank=1)
    assert feed_of(loader, rank=0, world=1).total_steps == 10


def test_of_a_stream_ranks_are_told_to_share_it_out_themselves():
    stream = [NUMBERS[:4], NUMBERS[4:8]]
    assert any("a part of its own, by its rank" in line for line in feed_of(stream, rank=0).told)
    assert len(feed_of(stream, rank=0, world=1).told) == 1
