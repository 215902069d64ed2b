from __future__ import annotations

import pickle
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data import reference

from tasuki.data.buckets import BucketPlan, plan_buckets
from tasuki.data.order import (
    Cursor,
    Order,
    OrderKind,
    StepSamples,
    derive_key,
    sample_seed,
    sample_seeds,
)
from tasuki.data.split import micro_batches, share_of_rank
from tasuki.errors import UsageError

quick = settings(max_examples=50, deadline=None, database=None)
KINDS: tuple[OrderKind, ...] = ("shuffle", "smallest_first", "largest_first")
"""Those that shuffle; `score` has a file of its own."""
kinds = st.sampled_from(KINDS)
size_lists = st.lists(st.sampled_from([3, 5, 8, 13]), min_size=1, max_size=70)
batches = st.integers(1, 20)


def make_order(
    sizes: list[int] | None = None,
    *,
    num: int = 0,
    seed: int = 1,
    stage: str = "first",
    batch: int = 4,
    kind: OrderKind = "shuffle",
    block_samples: int = 4096,
) -> Order:
    plan = plan_buckets(sizes, num if sizes is None else len(sizes))
    return Order(
        plan,
        seed=seed,
        stage=stage,
        effective_batch=batch,
        kind=kind,
        block_samples=block_samples,
    )


def plain(step: StepSamples) -> tuple[int, list[int], int]:
    return step.bucket, step.indices.tolist(), step.first_position


def whole_epoch(order: Order, epoch: int = 0) -> list[tuple[int, list[int], int]]:
    return [plain(order.step(epoch, step)) for step in range(order.steps_per_epoch)]


def samples_of(order: Order, epoch: int = 0) -> list[int]:
    return [sample for _, indices, _ in whole_epoch(order, epoch) for sample in indices]


MIXED = [5] * 21 + [9] * 10 + [2] * 3 + [5] * 4 + [11]


@quick
@given(size_lists, batches, kinds, st.integers(0, 5))
def test_every_sample_comes_exactly_once_per_epoch(
    sizes: list[int], batch: int, kind: OrderKind, epoch: int
) -> None:
    order = make_order(sizes, batch=batch, kind=kind)
    assert sorted(samples_of(order, epoch)) == list(range(len(sizes)))
    assert order.samples_per_epoch == len(sizes)


@quick
@given(st.integers(1, 300), batches, kinds)
def test_every_sample_comes_exactly_once_without_sizes(
    num: int, batch: int, kind: OrderKind
) -> None:
    order = make_order(None, num=num, batch=batch, kind=kind)
    assert sorted(samples_of(order)) == list(range(num))
    assert order.steps_per_epoch == -(-num // batch)


@quick
@given(st.none() | size_lists, batches, kinds, st.integers(-5, 2**40), st.text(max_size=5))
def test_the_order_is_what_its_definition_says(
    sizes: list[int] | None, batch: int, kind: OrderKind, seed: int, stage: str
) -> None:
    num = 57 if sizes is None else len(sizes)
    order = make_order(sizes, num=num, batch=batch, kind=kind, seed=seed, stage=stage)
    for epoch in (0, 3):
        assert whole_epoch(order, epoch) == reference.epoch_steps(
            sizes, num, seed=seed, stage=stage, epoch=epoch, batch=batch, kind=kind
        )


def test_frozen_order_of_format_1() -> None:
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_draws_from_one_bucket_and_only_its_last_slot_is_smaller(kind: OrderKind) -> None:
    order = make_order(MIXED, batch=4, kind=kind)
    sizes = np.array(MIXED)
    small: list[int] = []
    for bucket, indices, _ in whole_epoch(order):
        assert set(sizes[indices]) == {order.plan.buckets[bucket].size}
        if len(indices) < 4:
            small.append(bucket)
    # 2: 3 samples, 5: 25, 9: 10, 11: 1; each has one slot that is not full.
    assert sorted(small) == [0, 1, 2, 3]
    assert order.steps_per_epoch == 1 + 7 + 3 + 1


def test_the_kind_of_order_says_which_buckets_come_first() -> None:
    rising = [bucket for bucket, _, _ in whole_epoch(make_order(MIXED, kind="smallest_first"))]
    falling = [bucket for bucket, _, _ in whole_epoch(make_order(MIXED, kind="largest_first"))]
    mixed = [bucket for bucket, _, _ in whole_epoch(make_order(MIXED, kind="shuffle"))]
    assert rising == sorted(rising)
    assert falling == sorted(rising, reverse=True)
    assert mixed not in (rising, falling)
    assert sorted(mixed) == rising


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_shuffled_so_that_small_steps_do_not_always_come_last(kind: OrderKind) -> None:
    order = make_order(None, num=41, batch=4, kind=kind)
    at = {
        next(step for step, (_, indices, _) in enumerate(whole_epoch(order, e)) if len(indices) < 4)
        for e in range(30)
    }
    assert len(at) > 5


@quick
@given(size_lists, batches, kinds, st.lists(st.integers(0, 10**6), min_size=1, max_size=15))
def test_seeking_in_any_order_equals_iterating(
    sizes: list[int], batch: int, kind: OrderKind, jumps: list[int]
) -> None:
    epochs = [whole_epoch(make_order(sizes, batch=batch, kind=kind), epoch) for epoch in range(3)]
    order = make_order(sizes, batch=batch, kind=kind, block_samples=16)
    for jump in jumps:
        cursor = order.cursor_at(jump % (3 * order.steps_per_epoch))
        step = order.step(cursor.epoch, cursor.step_in_epoch)
        assert plain(step) == epochs[cursor.epoch][cursor.step_in_epoch]


@quick
@given(size_lists, batches, kinds, st.integers(1, 100))
def test_the_size_of_a_block_changes_nothing(
    sizes: list[int], batch: int, kind: OrderKind, block_samples: int
) -> None:
    usual = make_order(sizes, batch=batch, kind=kind)
    other = make_order(sizes, batch=batch, kind=kind, block_samples=block_samples)
    assert whole_epoch(usual, 1) == whole_epoch(other, 1)


def test_resuming_at_any_step_gives_the_rest_of_the_epoch() -> None:
    all_steps = whole_epoch(make_order(MIXED), 2)
    for done in range(len(all_steps)):
        resumed = make_order(MIXED, block_samples=8)
        rest = [plain(resumed.step(2, step)) for step in range(done, resumed.steps_per_epoch)]
        assert rest == all_steps[done:]


def test_samples_come_exactly_once_while_the_ranks_change_in_the_middle_of_an_epoch() -> None:
    worlds = [1, 2, 4, 3]
    steps = make_order(MIXED, batch=7).steps_per_epoch
    seen: list[int] = []
    for step in range(steps):
        world = worlds[step * len(worlds) // steps]
        for rank in range(world):
            samples = make_order(MIXED, batch=7).step(0, step)  # each rank computes it for itself
            share = share_of_rank(len(samples.indices), rank, world)
            for piece in micro_batches(share, 1 + step % 3):
                seen += samples.indices[piece.start : piece.stop].tolist()
    assert sorted(seen) == list(range(len(MIXED)))


@quick
@given(size_lists, batches, kinds, st.data())
def test_any_change_of_ranks_and_micro_batches_keeps_samples_and_their_sequence(
    sizes: list[int], batch: int, kind: OrderKind, data: st.DataObject
) -> None:
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
def test_epochs_seeds_and_stages_differ(kind: OrderKind) -> None:
    orders = [make_order(MIXED, kind=kind, seed=seed) for seed in (1, 2)]
    orders.append(make_order(MIXED, kind=kind, stage="second"))
    epochs = [tuple(samples_of(order, epoch)) for order in orders for epoch in range(5)]
    assert len(set(epochs)) == len(epochs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sequence_of_steps_differs_between_epochs_too(kind: OrderKind) -> None:
    order = make_order(None, num=160, kind=kind)
    firsts = {tuple(first for _, _, first in whole_epoch(order, epoch)) for epoch in range(5)}
    assert len(firsts) == 5


def test_buckets_of_equal_length_are_shuffled_differently() -> None:
    order = make_order([1] * 50 + [2] * 50, batch=50, kind="smallest_first")
    low, high = (indices for _, indices, _ in whole_epoch(order))
    assert [sample - 50 for sample in high] != low


def test_all_epochs_together_put_every_sample_everywhere() -> None:
    order = make_order(None, num=12, batch=3)
    table = np.array([samples_of(order, epoch) for epoch in range(600)])
    counts = np.array([np.bincount(column, minlength=12) for column in table.T])
    chi_square = ((counts - 50) ** 2 / 50).sum()
    assert chi_square < 132 + 4 * np.sqrt(2 * 132)


@quick
@given(size_lists, batches, kinds)
def test_positions_number_the_samples_of_an_epoch(
    sizes: list[int], batch: int, kind: OrderKind
) -> None:
    order = make_order(sizes, batch=batch, kind=kind)
    steps = [order.step(0, step) for step in range(order.steps_per_epoch)]
    positions = np.concatenate([step.positions for step in steps])
    assert sorted(positions.tolist()) == list(range(len(sizes)))


def test_a_sample_keeps_its_position_whatever_the_batch_and_the_kind() -> None:
    def places(order: Order) -> dict[int, int]:
        steps = [order.step(4, step) for step in range(order.steps_per_epoch)]
        pairs = [zip(step.indices.tolist(), step.positions.tolist(), strict=True) for step in steps]
        return {sample: position for pair in pairs for sample, position in pair}

    first = places(make_order(MIXED, batch=4))
    assert places(make_order(MIXED, batch=7, kind="largest_first")) == first
    assert places(make_order(MIXED, batch=1, kind="smallest_first")) == first


def test_the_indices_of_a_step_cannot_be_overwritten() -> None:
    order = make_order(MIXED)
    with pytest.raises(ValueError, match="read-only"):
        order.step(0, 0).indices[0] = 99


def test_the_plan_stays_as_it_is_when_steps_are_drawn() -> None:
    plan = plan_buckets(MIXED, len(MIXED))
    before = plan.fingerprint()
    Order(plan, seed=1, stage="s", effective_batch=100).step(0, 0)
    assert plan.fingerprint() == before


@pytest.mark.parametrize(("epoch", "step"), [(0, -1), (0, 12), (-1, 0), (5, 10**9)])
def test_a_step_outside_the_epoch_is_refused(epoch: int, step: int) -> None:
    order = make_order(MIXED)
    assert order.steps_per_epoch == 12
    order.step(0, 11)
    with pytest.raises(IndexError):
        order.step(epoch, step)


def test_an_unknown_kind_and_an_empty_batch_are_refused() -> None:
    with pytest.raises(UsageError, match="`random`") as caught:
        make_order(MIXED, kind="random")  # type: ignore[arg-type]
    assert "largest_first" in caught.value.hint
    with pytest.raises(UsageError, match="effective_batch is 0"):
        make_order(MIXED, batch=0)


def test_an_order_can_be_sent_to_a_worker_process() -> None:
    order = make_order(MIXED)
    order.step(0, 3)
    assert whole_epoch(pickle.loads(pickle.dumps(order)), 1) == whole_epoch(order, 1)


def test_a_cursor_counts_epochs_and_steps() -> None:
    order = make_order(MIXED)
    assert order.cursor_at(0) == Cursor(0, 0)
    assert order.cursor_at(11) == Cursor(0, 11)
    assert order.cursor_at(12) == Cursor(1, 0)
    assert order.cursor_at(12 * 10**9 + 5) == Cursor(10**9, 5)


@quick
@given(size_lists, batches, kinds, st.data())
def test_a_length_in_samples_ends_at_the_first_step_that_uses_enough(
    sizes: list[int], batch: int, kind: OrderKind, data: st.DataObject
) -> None:
    order = make_order(sizes, batch=batch, kind=kind)
    count = data.draw(st.integers(1, 3 * len(sizes)))
    steps = order.total_steps("samples", count)
    cursors = [order.cursor_at(step) for step in range(steps)]
    used = [len(order.step(at.epoch, at.step_in_epoch).indices) for at in cursors]
    assert sum(used) >= count
    assert sum(used[:-1]) < count


def test_lengths_in_epochs_and_steps_are_plain_arithmetic() -> None:
    order = make_order(MIXED)
    assert order.total_steps("epochs", 3) == 36
    assert order.total_steps("steps", 17) == 17
    assert order.total_steps("samples", 0) == 0
    assert order.total_steps("samples", len(MIXED)) == 12
    assert order.total_steps("samples", len(MIXED) + 1) == 13
    with pytest.raises(UsageError, match="-1 epochs"):
        order.total_steps("epochs", -1)


def test_seeds_of_samples_depend_on_every_input_and_fit_63_bits() -> None:
    inputs = [(1, "a", 0, 0), (2, "a", 0, 0), (1, "b", 0, 0), (1, "a", 1, 0), (1, "a", 0, 1)]
    seeds = [sample_seed(*each) for each in inputs]
    assert len(set(seeds)) == len(seeds)
    many = sample_seeds(1, "a", 0, np.arange(100_000))
    assert many.dtype == np.int64
    assert many.min() >= 0
    assert many.max() > 2**62
    assert len(np.unique(many)) == 100_000


@given(st.integers(-9, 2**64), st.text(max_size=4), st.integers(0, 99), st.integers(0, 2**62))
@settings(deadline=None, database=None)
def test_one_seed_equals_the_same_of_many_and_its_definition(
    seed: int, stage: str, epoch: int, position: int
) -> None:
    state = int.from_bytes(reference.key(seed, stage, epoch, "rng", None)[:8], "little")
    defined = reference.mix((state + (position + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 1
    assert sample_seed(seed, stage, epoch, position) == defined
    assert sample_seeds(seed, stage, epoch, np.array([position])).tolist() == [defined]


def test_frozen_seeds_of_format_1() -> None:
    assert sample_seeds(42, "small", 7, np.arange(3)).tolist() == GOLDEN_SEEDS


GOLDEN_SEEDS = [3564465524537396688, 6515547242889921226, 1291610313326000956]


def count_calls(action: Callable[[], object]) -> int:
    """Of functions, Python's and others: the same on every machine, however busy."""
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def test_seeking_into_a_hundred_million_samples_takes_few_calls_and_little_memory() -> None:
    plan: BucketPlan = plan_buckets(None, 10**8)

    def seek() -> None:
        Order(plan, seed=1, stage="s", effective_batch=8).step(0, 10**6)

    tracemalloc.start()
    seek()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert count_calls(seek) < 1000  # a replay would take a million


def test_a_plan_with_thousands_of_buckets_is_iterated_in_few_calls() -> None:
    sizes = np.random.default_rng(0).integers(0, 3000, 100_000)
    order = Order(
        plan_buckets(sizes, len(sizes)), seed=1, stage="s", effective_batch=8, kind="shuffle"
    )
    sizes_of_steps: list[int] = []
    calls = count_calls(
        lambda: sizes_of_steps.extend(len(order.step(0, step).indices) for step in range(2000))
    )
    # 3.5 of them a sample, keys included; with one pass per bucket instead of per block it is 20.
    assert calls / sum(sizes_of_steps) < 8
