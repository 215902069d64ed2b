"""The check of used samples against the pure order of samples (data/sample_check.py)."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import BucketRule, plan_buckets, sort_by_score
from tasuki.data.collate import pad_collate
from tasuki.data.fetch import Fetcher, Request
from tasuki.data.loader import Loader, _Requests
from tasuki.data.order import Order
from tasuki.data.plain import PlainOrder
from tasuki.data.sample_check import SampleDifference, find_difference
from tasuki.data.shares import StepSplit
from tasuki.data.tempo import LoaderSettings
from tasuki.data.used import NONE, Used, UsedSamples
from tasuki.errors import DataError, RunError

SIZES = np.random.default_rng(3).integers(1, 5, 61).tolist()


def build_plans():
    sized = plan_buckets(SIZES, len(SIZES), lambda size: size != 2, rule=BucketRule(kind="exact"))
    scored = sort_by_score(sized, np.random.default_rng(0).random(len(SIZES)))
    return [plan_buckets(None, 61), sized, scored]


def steps_of(order, stop):
    """The samples of each step, one step at a time."""
    places = (divmod(step, order.steps_per_epoch) for step in range(stop))
    return [order.steps(epoch, step, step + 1)[0].tolist() for epoch, step in places]


def record(steps, every, ranks=1):
    """What checkpoints record when `ranks` ranks share each step."""
    by_rank = [UsedSamples() for _ in range(ranks)]
    records = {}
    for step, ids in enumerate(steps):
        for rank, samples in enumerate(by_rank):
            samples.add(step, ids[rank::ranks])
        if (step + 1) % every == 0 or step + 1 == len(steps):
            records[step + 1] = sum((samples.total() for samples in by_rank), NONE)
    return records


def check(order, records):
    return find_difference(order, records, lambda _: None)


@pytest.fixture
def order(monkeypatch):
    """Nine steps per epoch, taken from the order in blocks of two."""
    monkeypatch.setattr("tasuki.data.sample_check._BLOCK_SAMPLES", 16)
    return Order(plan_buckets(None, 66), seed=4, stage="s", effective_batch=8)


@pytest.mark.parametrize(
    ("number", "kind"),
    [*product(range(2), ["shuffle", "smallest_first", "largest_first"]), (2, "score")],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_records_of_any_number_of_ranks_are_those_of_the_order(number, kind, ranks):
    order = Order(build_plans()[number], seed=9, stage="s", effective_batch=4, kind=kind)
    steps = steps_of(order, 2 * order.steps_per_epoch + 3)
    assert check(order, record(steps, 5, ranks)) is None


def test_steps_of_several_batches_are_checked_as_one():
    plain = PlainOrder(samples=45, effective_batch=4, shuffle=True, seed=1, stage="s", gathered=5)
    order = plain.steps()
    assert order.steps_per_epoch == 3
    assert check(order, record(steps_of(order, 8), 2)) is None


def use_twice(steps):
    steps[13].append(steps[12][0])


def leave_out(steps):
    steps[13].pop()


def swap_steps(steps):
    steps[12], steps[13] = steps[13], steps[12]


def repeat_epoch(steps):
    steps[9:] = steps[:9]


@pytest.mark.parametrize(
    ("plant", "after_step"), [(use_twice, 12), (leave_out, 12), (swap_steps, 12), (repeat_epoch, 8)]
)
def test_other_samples_are_found_between_two_records(order, plant, after_step):
    steps = steps_of(order, 18)
    counts = [len(ids) for ids in steps]
    plant(steps)
    assert check(order, record(steps, 2)) == SampleDifference(
        step=after_step + 2,
        after_step=after_step,
        expected=sum(counts[: after_step + 2]),
    )


def test_the_missing_record_of_one_rank_is_found(order):
    halves = [record([ids[rank::2] for ids in steps_of(order, 4)], 2) for rank in range(2)]
    assert check(order, {2: halves[0][2] + halves[1][2], 4: halves[0][4]}).step == 4


@pytest.mark.parametrize("planted", ["repeated", "foreign"])
def test_an_order_that_does_not_contain_each_sample_once_is_refused(monkeypatch, planted):
    order = Order(build_plans()[1], seed=9, stage="s", effective_batch=4)
    original = Order.steps

    first, second = order.plan.members[:2]
    other = second if planted == "repeated" else SIZES.index(2)

    def wrong(self, epoch, start, stop):
        ids, counts = original(self, epoch, start, stop)
        return np.where(ids == first, other, ids), counts

    monkeypatch.setattr(Order, "steps", wrong)
    with pytest.raises(DataError, match="does not contain each sample once"):
        check(order, record(steps_of(order, order.steps_per_epoch), 5))


# -- which samples were used, as one number -------------------------------------------------------

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
KEYS = (0x243F6A8885A308D3, 0x13198A2E03707344)


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def slowly(pairs):
    """The definition, word for word, in plain integers."""
    lanes = [
        sum(
            mix(mix(key + (step + 1) * GOLDEN & MASK) + (index + 1) * GOLDEN & MASK)
            for step, index in pairs
        )
        & MASK
        for key in KEYS
    ]
    return Used(len(pairs), lanes[1] << 64 | lanes[0])


def used(pairs, start=NONE):
    samples = UsedSamples(start)
    for step, index in pairs:
        samples.add(step, [index])
    return samples.total()


# -- the number -----------------------------------------------------------------------------------


def test_frozen_digests_of_used_samples():
    """Manifests and events hold them: another value here means that no old run can be checked."""
    assert NONE.to_json() == {"count": 0, "digest": "0" * 32}
    assert used([(0, 0)]).to_json() == {"count": 1, "digest": "b11e4b8da6a2b57993a9bdb51e5d5285"}
    many = [(step, 7 * step + place) for step in range(1000) for place in range(8)]
    assert used(many).to_json() == {"count": 8000, "digest": "64fa805306bfb0d5f465631820ab1d8e"}
    far = [(2**40, 2**45), (2**62, 2**61)]
    assert used(far).to_json() == {"count": 2, "digest": "eef4e9da1d6cb7272caf7702e7159ffd"}


SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""Of the machine, not of what is tested."""


@settings(max_examples=50, **SLOW)
@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**62)), max_size=40),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_any_number_of_ranks_gives_the_sum_of_the_definition(pairs, ranks, chance):
    dealt: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for pair in chance.sample(pairs, len(pairs)):
        chance.choice(dealt).append(pair)
    total = NONE
    for own in dealt:
        total += used(own)
    assert total == slowly(pairs)


@given(st.lists(st.lists(st.integers(0, 10**9), max_size=9), max_size=600), st.integers(0, 600))
@settings(max_examples=30, **SLOW)
def test_going_on_from_a_checkpoint_gives_the_number_of_an_undisturbed_run(steps, at):
    whole, first = UsedSamples(), UsedSamples()
    for step, indices in enumerate(steps):
        whole.add(step, indices)
        if step < at:
            first.add(step, indices)
    second = UsedSamples(Used.from_json(json.loads(json.dumps(first.total().to_json()))))
    for step, indices in enumerate(steps[at:], start=at):
        second.add(step, indices)
        second.total()  # asking does not change it
    assert second.total() == whole.total()
    assert whole.total().count == sum(len(indices) for indices in steps)


def test_a_sample_repeated_left_out_swapped_or_used_in_another_step_is_another_number():
    pairs = [(step, 8 * step + place) for step in range(300) for place in range(8)]
    right = used(pairs)
    others = [
        pairs + pairs[5:6],
        pairs[:5] + pairs[6:],
        [*pairs[:5], (pairs[5][0], 9999), *pairs[6:]],
        [(step + 1, index) for step, index in pairs],
        [(pairs[0][0], pairs[8][1]), *pairs[1:8], (pairs[8][0], pairs[0][1]), *pairs[9:]],
    ]
    found = [used(other) for other in others]
    assert right not in found and len(set(found)) == len(found)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"count": True, "digest": "0" * 32},
        {"count": -1, "digest": "0" * 32},
        {"count": 1, "digest": "0" * 31},
        {"count": 1, "digest": "x" * 32},
    ],
    ids=str,
)
def test_what_is_no_record_is_refused(value):
    with pytest.raises(DataError):
        Used.from_json(value)


# -- what loaders tell ----------------------------------------------------------------------------


def make_order(**more):
    plan = plan_buckets(SIZES, len(SIZES), rule=BucketRule(kind="exact"))
    return Order(plan, **({"seed": 4, "stage": "s", "effective_batch": 5} | more))


def used_before(order, stop):
    """What the order says of these steps."""
    samples = UsedSamples()
    for step in range(stop):
        samples.add(step, order.step(*divmod(step, order.steps_per_epoch)).indices.tolist())
    return samples.total()


def told_by(order, split, *, first, stop, workers=0):
    """What a rank adds up from the micro-batches of these steps."""
    loader = Loader(
        Fetcher([np.full(size, i) for i, size in enumerate(SIZES)], pad_collate),
        order,
        split,
        first_step=first,
        total_steps=stop,
        settings=LoaderSettings(workers=workers),
    )
    samples = UsedSamples()
    try:
        for step, (batches, _) in enumerate(loader.steps(), start=first):
            for batch in batches:
                samples.add(step, batch.indices)
                assert len(batch.indices) == batch.num_samples
    finally:
        loader.stop()
    return samples.total()


@pytest.mark.parametrize("costs", [None, np.array(SIZES) * 3])
def test_ranks_and_micro_batches_add_up_to_what_the_order_says(costs):
    order = make_order()
    parts = [(0, 7, 1), (7, 18, 2), (18, 33, 4), (33, 3 * order.steps_per_epoch, 3)]
    total = NONE
    for first, stop, world in parts:
        for rank in range(world):
            split = StepSplit(rank=rank, world=world, micro_batch=2, costs=costs, budget=20)
            total += told_by(order, split, first=first, stop=stop)
        assert total == used_before(order, stop)
    assert total.count == 3 * len(SIZES)
    if costs is None:  # and those that came back from workers
        split = StepSplit(micro_batch=2)
        alone = told_by(order, split, first=3, stop=order.steps_per_epoch)
        assert told_by(order, split, first=3, stop=order.steps_per_epoch, workers=1) == alone


def test_a_worker_that_hands_over_other_samples_is_noticed(monkeypatch):
    as_it_is = _Requests.__getitems__

    def mixed_up(self, request):
        return as_it_is(self, Request(request.indices[::-1], request.seeds))

    monkeypatch.setattr(_Requests, "__getitems__", mixed_up)
    with pytest.raises(RunError, match="handed over other samples"):
        told_by(make_order(), StepSplit(micro_batch=3), first=0, stop=5, workers=1)
