"""Several ranks with a loader that tasuki does not share out: no two work on the same batches,
unless the loader alone can know."""

from __future__ import annotations

import pytest
import torch
from tests.adapters.subjects import ADAPTERS_OF_RANKS, DATA, Subject, make_script
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tasuki.errors import EXIT_DONE, DataError
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


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(10)),
        SequentialSampler(range(10)),
        DistributedSampler(range(10), num_replicas=1, rank=0, shuffle=False),
        DistributedSampler(NUMBERS, num_replicas=2, rank=0),
    ],
    ids=["random", "sequential", "distributed", "of-another-world"],
)
def test_a_sampler_over_a_part_of_the_data_set_keeps_to_its_part(sampler):
    """Its order is its own: in tasuki's the others of the 24 would be trained on, too."""
    part = len(list(sampler))
    loader = DataLoader(NUMBERS, batch_size=4, sampler=sampler)
    assert feed_of(loader, rank=0, world=1).order is None
    found = [x for batch in batches_of(loader, rank=0, world=1) for x in batch]
    assert len(found) == 2 * part and len(set(found[:part])) == part


def test_a_sampler_over_something_as_long_as_the_data_set_means_all_of_it():
    loader = DataLoader(NUMBERS, batch_size=4, sampler=RandomSampler(range(24)))
    assert feed_of(loader, rank=0, world=1).order is not None


def test_of_a_stream_ranks_are_told_to_share_it_out_themselves_and_nothing_is_weighed():
    stream = [NUMBERS[:4], NUMBERS[4:8]]
    assert any("a part of its own, by its rank" in line for line in feed_of(stream, rank=0).told)
    assert len(feed_of(stream, rank=0, world=1).told) == 1
    for world in (1, 2):
        batches = Batches(feed_of(stream, rank=0, world=world).open(0, None))
        batches.next()
        assert batches.weight == 1.0


@pytest.mark.parametrize(("samples", "batch", "world"), [(11, 2, 4), (9, 4, 2), (10, 3, 3)])
def test_weighted_by_run_weight_ddps_average_is_the_mean_over_the_steps_samples(
    samples, batch, world
):
    """DDP gives the mean over ranks of what each has; what is borrowed must count nothing."""
    data = torch.arange(float(samples))
    feeds = [
        feed_of(DataLoader(data, batch_size=batch), rank=rank, world=world) for rank in range(world)
    ]
    ranks = [Batches(feed.open(0, None), shared_by=feed.shared_by) for feed in feeds]
    borrowed = 0
    for step in range(feeds[0].steps_per_epoch):
        means = [each.next().mean().item() * each.weight for each in ranks]
        own = [index for each in ranks for index in each.indices]
        assert sum(means) / world == pytest.approx(data[own].mean().item()), step
        assert len(own) == ranks[0].samples
        for each in ranks:
            assert (each.weight == 0.0) == (not each.indices)
            borrowed += not each.indices
        if len(own) == batch * world:
            assert [each.weight for each in ranks] == [1.0] * world
    assert borrowed == world - samples % (batch * world)


@pytest.mark.parametrize(
    ("samples", "world", "words"),
    [
        (24, 2, ""),
        (22, 2, ""),
        (23, 2, "a smaller batch of 7 samples does not share out evenly among 2 ranks"),
        (11, 2, "a smaller batch of 3 samples does not share out evenly among 2 ranks"),
        (23, 1, ""),
    ],
)
def test_shares_of_an_epochs_smaller_batch_that_differ_are_known_beforehand(samples, world, words):
    loader = DataLoader(NUMBERS[:samples], batch_size=4)
    uneven = feed_of(loader, rank=0, world=world).uneven
    assert uneven.startswith(words) if words else uneven == ""


UNEVEN = (
    DATA
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", **MEET)
torch.manual_seed(1)
model = DistributedDataParallel(nn.Linear(6, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(9), batch_size=2)
with tasuki.open_run() as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=1):
        loss = loss_of(model, batch)
        opt.zero_grad(); loss.backward(); opt.step()
print("weights", os.environ["RANK"], [len(batch[0]), run.weight])
"""
)


@pytest.mark.timeout(300)
def test_a_loop_with_uneven_shares_hears_of_the_weight_that_each_rank_has(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("uneven", UNEVEN, 3, ranks=2))
    assert script.attempt(warm) == [EXIT_DONE] * 2, script.said()
    (told,) = [line for line in script.said().splitlines() if line.startswith("WARNING")]
    assert "`loss = loss_fn(model(x), y) * run.weight`" in told
    # Of the last step's one sample: the other rank borrows one, which counts nothing.
    assert "weights 0 [1, 2.0]" in script.said(), script.said()
    assert "weights 1 [1, 0.0]" in script.said(), script.said()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("subject", ADAPTERS_OF_RANKS, ids=str)
def test_a_framework_with_uneven_shares_is_told_at_the_start_what_avoids_them(
    servers, tmp_path, subject
):
    script = make_script(tmp_path / "p", subject)
    assert script.attempt(servers, EPOCHS="1") == [EXIT_DONE] * 3, script.said()
    told = [line for line in script.said().splitlines() if "a smaller batch of 8 samples" in line]
    assert len(told) == 1 and told[0].startswith("WARNING: ") and "run.weight" not in told[0], told
