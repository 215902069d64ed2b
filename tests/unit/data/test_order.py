"""The order of samples: each once per epoch, wherever one begins, as its definition says."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data import reference

from tasuki.data.buckets import BucketPlan, BucketRule, plan_buckets, sort_by_score
from tasuki.data.order import Cursor, Order, OrderKind, derive_key, sample_seed, sample_seeds
from tasuki.data.split import micro_batches, share_of_rank
from tasuki.errors import UsageError

quick = settings(max_examples=40, deadline=None, database=None)
KINDS: tuple[OrderKind, ...] = ("shuffle", "smallest_first", "largest_first")
"""Those that shuffle; `score` has a file of its own."""
kinds = st.sampled_from(KINDS)
size_lists = st.lists(st.sampled_from([3, 5, 8, 13]), min_size=1, max_size=70)
batches = st.integers(1, 20)


def make_order(
    sizes=None, *, num=0, seed=1, stage="first", batch=4, kind="shuffle", block_samples=4096
):
    plan = plan_buckets(sizes, num if sizes is None else len(sizes))
    return Order(
        plan,
        seed=seed,
        stage=stage,
        effective_batch=batch,
        kind=kind,
        block_samples=block_samples,
    )


def plain(step):
    return step.bucket, step.indices.tolist(), step.first_position


def whole_epoch(order, epoch=0):
    return [plain(order.step(epoch, step)) for step in range(order.steps_per_epoch)]


def samples_of(order, epoch=0):
    return [sample for _, indices, _ in whole_epoch(order, epoch) for sample in indices]


MIXED = [5] * 21 + [9] * 10 + [2] * 3 + [5] * 4 + [11]


@quick
@given(st.integers(1, 300) | size_lists, batches, kinds, st.integers(0, 5))
def test_every_sample_comes_exactly_once_per_epoch(data, batch, kind, epoch):
    sizes, num = (None, data) if isinstance(data, int) else (data, len(data))
    order = make_order(sizes, num=num, batch=batch, kind=kind)
    steps = [order.step(epoch, step) for step in range(order.steps_per_epoch)]
    for numbers in ([step.indices for step in steps], [step.positions for step in steps]):
        assert sorted(np.concatenate(numbers).tolist()) == list(range(num))
    assert order.samples_per_epoch == num
    assert sizes or order.steps_per_epoch == -(-num // batch)


@quick
@given(
    st.none() | size_lists,
    batches,
    kinds,
    st.integers(-5, 2**40),
    st.integers(1, 100),
    st.randoms(use_true_random=False),
)
def test_the_order_is_what_its_definition_says(sizes, batch, kind, seed, block, chance):
    """In any order of asking, with blocks of any size."""
    stage = chance.choice(["first", "größe", ""])
    options: dict[str, Any] = {"num": 57, "batch": batch, "kind": kind, "seed": seed}
    order = make_order(sizes, stage=stage, block_samples=block, **options)
    expected = {
        epoch: reference.epoch_steps(
            sizes,
            len(sizes or range(57)),
            seed=seed,
            stage=stage,
            epoch=epoch,
            batch=batch,
            kind=kind,
        )
        for epoch in (0, 3)
    }
    for _ in range(15):
        cursor = Cursor(chance.choice([0, 3]), chance.randrange(order.steps_per_epoch))
        step = order.step(cursor.epoch, cursor.step_in_epoch)
        assert plain(step) == expected[cursor.epoch][cursor.step_in_epoch]
    assert whole_epoch(order, 3) == expected[3]


def test_frozen_order_of_format_1():
    """If this fails, resumed runs see other samples: restore the code, or raise ORDER_FORMAT."""
    sizes = [512] * 5 + [256] * 3
    frozen = {
        kind: whole_epoch(make_order(sizes, batch=2, kind=kind, seed=42, stage="small"), 7)
        for kind in KINDS
    }
    assert frozen == GOLDEN_ORDER
    alone = make_order(None, num=10**8, batch=8, seed=42, stage="small").step(2, 10**6)
    assert plain(alone) == GOLDEN_SEEK
    key = derive_key(seed=42, stage="größe", epoch=7, purpose="samples", size=512)
    assert key.hex() == GOLDEN_KEY


GOLDEN_ORDER = {
    "shuffle": [(1, [0], 7), (0, [7], 2), (1, [2, 1], 5), (1, [4, 3], 3), (0, [6, 5], 0)],
    "smallest_first": [(0, [6, 5], 0), (0, [7], 2), (1, [2, 1], 5), (1, [4, 3], 3), (1, [0], 7)],
    "largest_first": [(1, [2, 1], 5), (1, [4, 3], 3), (1, [0], 7), (0, [6, 5], 0), (0, [7], 2)],
}
GOLDEN_SEEK = (
    0,
    [68707204, 49740941, 62194190, 86801214, 78780943, 89858214, 24666117, 91416829],
    22694280,
)
GOLDEN_KEY = "092de47232d6c048e26f7f77d11b2c1565f931efe5c2af55ad94e9998e31d70d"


def test_the_kind_of_order_says_which_buckets_come_first():
    rising = [bucket for bucket, _, _ in whole_epoch(make_order(MIXED, kind="smallest_first"))]
    falling = [bucket for bucket, _, _ in whole_epoch(make_order(MIXED, kind="largest_first"))]
    mixed = [bucket for bucket, _, _ in whole_epoch(make_order(MIXED, kind="shuffle"))]
    assert rising == sorted(rising)
    assert falling == sorted(rising, reverse=True)
    assert mixed not in (rising, falling)
    assert sorted(mixed) == rising


def test_resuming_at_any_step_gives_the_rest_of_the_epoch():
    all_steps = whole_epoch(make_order(MIXED), 2)
    for done in range(len(all_steps)):
        resumed = make_order(MIXED, block_samples=8)
        rest = [plain(resumed.step(2, step)) for step in range(done, resumed.steps_per_epoch)]
        assert rest == all_steps[done:]


@quick
@given(size_lists, batches, kinds, st.data())
def test_any_change_of_ranks_keeps_samples_and_their_sequence(sizes, batch, kind, data):
    order = make_order(sizes, batch=batch, kind=kind)
    for step in range(order.steps_per_epoch):
        world = data.draw(st.integers(1, 9))
        micro_batch = data.draw(st.integers(1, 9))
        samples = order.step(0, step).indices
        shares = [share_of_rank(len(samples), rank, world) for rank in range(world)]
        pieces = [piece for share in shares for piece in micro_batches(share, micro_batch)]
        done = [sample for piece in pieces for sample in samples[piece.start : piece.stop]]
        assert done == samples.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_seeds_and_stages_differ(kind):
    orders = [make_order(MIXED, kind=kind, seed=seed) for seed in (1, 2)]
    orders.append(make_order(MIXED, kind=kind, stage="second"))
    epochs = [tuple(samples_of(order, epoch)) for order in orders for epoch in range(5)]
    assert len(set(epochs)) == len(epochs)
    order = make_order(None, num=160, kind=kind)
    firsts = {tuple(first for _, _, first in whole_epoch(order, epoch)) for epoch in range(5)}
    assert len(firsts) == 5, "the sequence of steps too"


def test_a_sample_keeps_its_position_whatever_the_batch_and_the_kind():
    def places(order):
        steps = [order.step(4, step) for step in range(order.steps_per_epoch)]
        pairs = [zip(step.indices.tolist(), step.positions.tolist(), strict=True) for step in steps]
        return {sample: position for pair in pairs for sample, position in pair}

    first = places(make_order(MIXED, batch=4))
    assert places(make_order(MIXED, batch=7, kind="largest_first")) == first
    assert places(make_order(MIXED, batch=1, kind="smallest_first")) == first


def test_neither_the_plan_nor_the_indices_of_a_step_can_be_overwritten():
    order = make_order(MIXED, batch=100)
    before = plan_buckets(MIXED, len(MIXED)).fingerprint()
    order.step(0, 0)
    assert order.plan.fingerprint() == before
    with pytest.raises(ValueError, match="read-only"):
        order.step(0, 0).indices[0] = 99


@pytest.mark.parametrize(("epoch", "step"), [(0, -1), (0, 12), (-1, 0), (5, 10**9)])
def test_a_step_outside_the_epoch_is_refused(epoch, step):
    order = make_order(MIXED)
    assert order.steps_per_epoch == 12
    order.step(0, 11)
    with pytest.raises(IndexError):
        order.step(epoch, step)


def test_an_unknown_kind_and_an_empty_batch_are_refused():
    with pytest.raises(UsageError, match="`random`") as caught:
        make_order(MIXED, kind="random")
    assert "largest_first" in caught.value.hint
    with pytest.raises(UsageError, match="effective_batch is 0"):
        make_order(MIXED, batch=0)


def test_an_order_can_be_sent_to_a_worker_process():
    order = make_order(MIXED)
    order.step(0, 3)
    assert whole_epoch(pickle.loads(pickle.dumps(order)), 1) == whole_epoch(order, 1)


@quick
@given(size_lists, batches, kinds, st.data())
def test_a_length_in_samples_ends_at_the_first_step_that_uses_enough(sizes, batch, kind, data):
    order = make_order(sizes, batch=batch, kind=kind)
    count = data.draw(st.integers(1, 3 * len(sizes)))
    steps = order.total_steps("samples", count)
    places = [divmod(step, order.steps_per_epoch) for step in range(steps)]
    used = [len(order.step(*place).indices) for place in places]
    assert sum(used) >= count
    assert sum(used[:-1]) < count


def test_lengths_in_epochs_and_steps_are_plain_arithmetic():
    order = make_order(MIXED)
    assert order.total_steps("epochs", 3) == 36
    assert order.total_steps("steps", 17) == 17
    assert order.total_steps("samples", 0) == 0
    assert order.total_steps("samples", len(MIXED)) == 12
    assert order.total_steps("samples", len(MIXED) + 1) == 13
    with pytest.raises(UsageError, match="-1 epochs"):
        order.total_steps("epochs", -1)


@given(st.integers(-9, 2**64), st.text(max_size=4), st.integers(0, 99), st.integers(0, 2**62))
@settings(deadline=None, database=None)
def test_one_seed_equals_the_same_of_many_and_its_definition(seed, stage, epoch, position):
    state = int.from_bytes(reference.key(seed, stage, epoch, "rng", None)[:8], "little")
    defined = reference.mix((state + (position + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 1
    assert sample_seed(seed, stage, epoch, position) == defined
    assert sample_seeds(seed, stage, epoch, np.array([position])).tolist() == [defined]


def test_frozen_seeds_of_format_1():
    assert sample_seeds(42, "small", 7, np.arange(3)).tolist() == GOLDEN_SEEDS


GOLDEN_SEEDS = [3564465524537396688, 6515547242889921226, 1291610313326000956]


def count_calls(action):
    """Of functions, Python's and others: the same on every machine, however busy."""
    calls = 0

    def note(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def test_seeking_into_a_hundred_million_samples_takes_few_calls_and_little_memory():
    plan: BucketPlan = plan_buckets(None, 10**8)

    def seek():
        Order(plan, seed=1, stage="s", effective_batch=8).step(0, 10**6)

    tracemalloc.start()
    seek()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert count_calls(seek) < 1000  # a replay would take a million


# -- order: score ---------------------------------------------------------------------------------

# Few different scores: equal ones are the hard case.
scored = st.lists(
    st.tuples(st.sampled_from([3, 5, 8, 13]), st.integers(-3, 3) | st.floats(-5, 5)),
    min_size=1,
    max_size=60,
)


def make_score_order(pairs, *, batch=4, **options):
    sizes, scores = [size for size, _ in pairs], [score for _, score in pairs]
    plan = plan_buckets(sizes, len(sizes), rule=BucketRule(kind="exact"))
    plan = sort_by_score(plan, scores)
    return Order(plan, seed=1, stage="s", effective_batch=batch, kind="score", **options)


def expected_steps(pairs, batch):
    """(bucket, samples, first position) of each step, slowly and from the definition alone."""
    slots = []
    offset = 0
    for bucket, size in enumerate(sorted({size for size, _ in pairs})):
        places = sorted((score, i) for i, (own, score) in enumerate(pairs) if own == size)
        for first in range(0, len(places), batch):
            taken = places[first : first + batch]
            slots.append((taken[0][0], bucket, first, [sample for _, sample in taken], offset))
        offset += len(places)
    slots.sort(key=lambda slot: slot[:3])
    return [(bucket, taken, before + first) for _, bucket, first, taken, before in slots]


def steps_by_score(order, epoch=0):
    return [plain(order.step(epoch, step)) for step in range(order.steps_per_epoch)]


@quick
@given(scored, batches, st.integers(1, 100), st.randoms(use_true_random=False))
def test_by_score_the_order_is_what_its_definition_says_in_every_epoch(pairs, batch, block, chance):
    order = make_score_order(pairs, batch=batch, block_samples=block)
    expected = expected_steps(pairs, batch)
    for number in chance.sample(range(len(expected)), min(12, len(expected))):
        assert plain(order.step(3, number)) == expected[number]
    assert steps_by_score(order, 0) == steps_by_score(order, 5) == expected
    assert sorted(i for _, taken, _ in expected for i in taken) == list(range(len(pairs)))


@quick
@given(scored, batches, st.integers(0, 150))
def test_by_score_a_length_in_samples_ends_at_the_first_step_that_uses_enough(pairs, batch, count):
    order = make_score_order(pairs, batch=batch)
    lengths = [len(taken) for _, taken, _ in expected_steps(pairs, batch)] * (count + 1)
    counted = [0, *np.cumsum(lengths).tolist()]
    steps = order.total_steps("samples", count)
    assert counted[steps] >= count
    assert steps == 0 or counted[steps - 1] < count


def test_with_one_bucket_the_epoch_is_the_samples_in_ascending_score():
    chance = np.random.default_rng(1)
    pairs = [(7, float(score)) for score in chance.permutation(50)]
    order = make_score_order(pairs, batch=8)
    assert [pairs[i][1] for _, taken, _ in steps_by_score(order) for i in taken] == list(range(50))


def test_without_scores_the_order_is_refused_and_the_hint_says_how_to_give_them():
    with pytest.raises(UsageError, match="needs a score per sample") as caught:
        Order(plan_buckets([1, 2], 2), seed=1, stage="s", effective_batch=2, kind="score")
    assert "sample_scores" in caught.value.hint
