"""The check of used samples against the pure order of samples (data/sample_check.py)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tasuki.data.buckets import BucketPlan, BucketRule, plan_buckets, sort_by_score
from tasuki.data.order import Order
from tasuki.data.plain import Gathered, PlainOrder
from tasuki.data.sample_check import SampleDifference, find_difference
from tasuki.data.used import NONE, Used, UsedSamples
from tasuki.errors import DataError

SIZES = np.random.default_rng(3).integers(1, 5, 61).tolist()
Steps = list[list[int]]


def build_plans() -> list[BucketPlan]:
    sized = plan_buckets(SIZES, len(SIZES), lambda size: size != 2, rule=BucketRule(kind="exact"))
    scored = sort_by_score(sized, np.random.default_rng(0).random(len(SIZES)))
    return [plan_buckets(None, 61), sized, scored]


def steps_of(order: Order | Gathered, stop: int) -> Steps:
    """The samples of each step, one step at a time."""
    places = (divmod(step, order.steps_per_epoch) for step in range(stop))
    return [order.steps(epoch, step, step + 1)[0].tolist() for epoch, step in places]


def record(steps: Steps, every: int, ranks: int = 1) -> dict[int, Used]:
    """What checkpoints record when `ranks` ranks share each step."""
    by_rank = [UsedSamples() for _ in range(ranks)]
    records = {}
    for step, ids in enumerate(steps):
        for rank, samples in enumerate(by_rank):
            samples.add(step, ids[rank::ranks])
        if (step + 1) % every == 0 or step + 1 == len(steps):
            records[step + 1] = sum((samples.total() for samples in by_rank), NONE)
    return records


def check(order: Order | Gathered, records: dict[int, Used]) -> SampleDifference | None:
    return find_difference(order, records, lambda _: None)


@pytest.fixture
def order(monkeypatch) -> Order:
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


def use_twice(steps: Steps) -> None:
    steps[13].append(steps[12][0])


def leave_out(steps: Steps) -> None:
    steps[13].pop()


def swap_steps(steps: Steps) -> None:
    steps[12], steps[13] = steps[13], steps[12]


def repeat_epoch(steps: Steps) -> None:
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


def test_a_missing_record_between_two_others_hides_nothing(order):
    steps = steps_of(order, 18)
    assert check(order, {18: record(steps, 18)[18]}) is None
    leave_out(steps)
    assert check(order, {18: record(steps, 18)[18]}) is not None


@pytest.mark.parametrize("planted", ["repeated", "foreign"])
def test_an_order_that_does_not_contain_each_sample_once_is_refused(monkeypatch, planted):
    order = Order(build_plans()[1], seed=9, stage="s", effective_batch=4)
    original = Order.steps

    first, second = order.plan.members[:2]
    other = second if planted == "repeated" else SIZES.index(2)

    def wrong(self: Order, epoch: int, start: int, stop: int):
        ids, counts = original(self, epoch, start, stop)
        return np.where(ids == first, other, ids), counts

    monkeypatch.setattr(Order, "steps", wrong)
    with pytest.raises(DataError, match="does not contain each sample once"):
        check(order, record(steps_of(order, order.steps_per_epoch), 5))
