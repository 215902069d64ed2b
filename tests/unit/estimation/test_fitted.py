"""A stage on a card: which micro-batch, what it needs, how long."""

from __future__ import annotations

import pytest

from tasuki.estimation.accumulated import accumulated
from tasuki.estimation.fitted import (
    Card,
    fit_bucket,
    fit_cost,
    limit_to_ask_for,
    predicted_times,
    smallest_card,
)
from tasuki.estimation.gpus import TABLE
from tasuki.estimation.probes import read_probe
from tasuki.estimation.works import covers, facts_key, probe_work
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedStage
from tests.unit.estimation.probe_values import probe_value, small_value

MIB = 1 << 20
BUCKET = {"size": 16, "largest": 16, "samples": 100, "steps": 13}


def stage_of(**keys) -> ResolvedStage:
    return ResolvedStage(name="a", recipe="r:R", **keys)


def fit(stage, *, capacity=2048 * MIB, ranks=1, probe=None, bucket=BUCKET):
    card = Card(gpu=TABLE["a100-40gb"], capacity=capacity, ranks=ranks)
    return fit_bucket(stage, bucket, probe or read_probe(small_value(scale=10_000)), card)


def test_the_micro_batch_is_a_ranks_share_where_that_fits():
    found = fit(stage_of(effective_batch=12), ranks=4)
    assert (found.micro_batch, found.accumulation, found.is_given) == (3, 1, False)
    assert found.max_micro_batch > 3 and found.fits


def test_else_it_is_the_largest_that_fits_times_the_safety_factor():
    half = fit(stage_of(effective_batch=4096))
    whole = fit(stage_of(effective_batch=4096, safety_factor=1.0))
    assert whole.micro_batch == whole.max_micro_batch < 4096
    assert half.micro_batch == half.max_micro_batch // 2
    assert half.accumulation == -(-4096 // half.micro_batch)


def test_a_given_micro_batch_stays_and_says_by_how_much_it_does_not_fit():
    found = fit(stage_of(effective_batch=4096, micro_batch=4096))
    assert (found.micro_batch, found.is_given) == (4096, True)
    assert found.missing_bytes == found.needs.peak_bytes - 2048 * MIB > 0
    assert 0 < found.max_micro_batch < 4096


def test_a_card_on_which_not_even_one_sample_fits_is_missing_something():
    found = fit(stage_of(), capacity=600 * MIB)
    assert (found.micro_batch, found.max_micro_batch, found.fits) == (1, 0, False)
    assert found.missing_bytes == found.needs.peak_bytes - 600 * MIB


def test_gradients_of_earlier_micro_batches_count():
    probe = read_probe(small_value())
    later = accumulated(probe)
    # Weights 1000, batch 10 B, activations 100 B + 16 B, and the gradients of before.
    assert probe.peak(batch=64, size=16) == 1000 + 640 + 7424 + 1000
    assert later.peak(batch=64, size=16) == 1000 + 640 + 7424 + 1000 + 1000
    assert later.curve(batch=64, size=16)[-1] == probe.curve(batch=64, size=16)[-1]
    without = read_probe(probe_value([[1, 0, 1000]], begin=1))
    assert accumulated(without) is without


def test_without_a_probe_the_batch_is_told_and_nothing_else():
    card = Card(gpu=TABLE["t4"], capacity=1)
    found = fit_bucket(stage_of(effective_batch=6), BUCKET, None, card)
    assert (found.micro_batch, found.max_micro_batch, found.needs, found.step) == (
        6,
        None,
        None,
        None,
    )
    assert found.fits


def test_a_prediction_adds_up_the_steps_of_all_buckets():
    value = small_value(flops=[0, 1e9, 0, 1e8, 0, 0])
    two = [
        fit(stage_of(), probe=read_probe(value), bucket={**BUCKET, "largest": n, "steps": steps})
        for n, steps in ((16, 10), (64, 5))
    ]
    found = predicted_times({"total_steps": 150}, two)
    epoch = 10 * two[0].step.seconds + 5 * two[1].step.seconds
    assert found.wall_s == pytest.approx(10 * epoch)
    assert found.source == "predicted" and found.error == two[0].step.error
    assert found.wall_s_p90 == pytest.approx(found.wall_s * (1 + found.error))


def test_without_samples_the_time_of_a_step_is_known_and_that_of_the_stage_is_not():
    value = small_value(flops=[0, 1e9, 0, 0, 0, 0])
    one = fit(
        stage_of(), probe=read_probe(value), bucket={**BUCKET, "samples": None, "steps": None}
    )
    found = predicted_times({"total_steps": None}, [one])
    assert found.step_s == one.step.seconds and found.wall_s is None
    given = predicted_times({"total_steps": 7}, [one])
    assert given.wall_s == pytest.approx(7 * one.step.seconds)


def test_the_smallest_card_that_holds_it_is_named():
    found = fit(
        stage_of(effective_batch=64, micro_batch=64), probe=read_probe(small_value(scale=10**7))
    )
    card = smallest_card(found.needs)
    assert card.memory_bytes >= found.needs.peak_bytes
    smaller = [g for g in TABLE.values() if (g.memory_bytes or 0) < card.memory_bytes]
    assert all((g.memory_bytes or 0) < found.needs.peak_bytes for g in smaller)


@pytest.mark.parametrize(
    ("seconds", "asked"), [(1, 600), (601, 1200), (7201, 9000), (8 * 3600 + 1, 9 * 3600)]
)
def test_time_is_asked_for_in_round_numbers_above_what_is_needed(seconds, asked):
    assert limit_to_ask_for(seconds) == asked


def test_stages_that_differ_in_data_and_size_share_a_probe_where_batches_are_made_up():
    one, other = stage_of(data="a", lr=1.0), stage_of(data="b", lr=2.0)
    made_up = {"has_example": True, "buckets": [{"largest": 16}]}
    where = {"folder": "/f", "device": "cuda", "ranks": 1}
    assert probe_work(one, made_up, **where) == probe_work(other, made_up, **where)
    read = {**made_up, "has_example": False}
    assert probe_work(one, read, **where) != probe_work(other, read, **where)
    assert facts_key(one, folder="/f", ranks=1) != facts_key(other, folder="/f", ranks=1)
    bf16 = stage_of(data="a", precision="bf16")
    assert probe_work(one, made_up, **where) != probe_work(bf16, made_up, **where)


def test_sizes_between_three_that_were_traced_need_no_further_trace():
    assert covers([16, 32, 64], [48], is_exact=True)
    assert covers([16], [16], is_exact=False)
    assert not covers([16, 32, 64], [65], is_exact=True)
    assert not covers([16, 64], [32], is_exact=True)
    assert not covers([16, 32, 64], [48], is_exact=False)


# -- by cost --------------------------------------------------------------------------------------


def by_cost(slope: int, *, fixed: int = 0) -> dict[str, object]:
    """Weights, activations that grow with the cost, and gradients."""
    events = [[1, 0, MIB], [2, 3, fixed, slope], [3, 1, MIB], [-2], [-3]]
    return probe_value(events, begin=1, terms=[[0, 0], [1, 0]], unit="cost")


COSTLY = {
    **BUCKET,
    "cost": 1000,
    "whole_cost": 9000,
    "mean_cost": 3000.0,
}


def fit_by_cost(*, budget, capacity=2048 * MIB, large=100_000, small=150_000, **keys):
    stage = stage_of(buckets=Buckets(kind="cost", cost="n", budget=budget), **keys)
    card = Card(gpu=TABLE["a100-40gb"], capacity=capacity)
    probes = (read_probe(by_cost(slope)) for slope in (large, small))
    return fit_cost(stage, COSTLY, *probes, card)


def test_a_given_budget_needs_what_its_worse_micro_batch_needs():
    small = fit_by_cost(budget=4000)
    assert (small.budget, small.is_given, small.micro_batch) == (4000, True, None)
    assert small.needs.tensors.bytes == 3 * MIB + 4000 * 150_000
    large = fit_by_cost(budget=4000, large=200_000)
    assert large.needs.tensors.bytes == 3 * MIB + 4000 * 200_000
    assert fit_by_cost(budget=10**6).needs.batch == 9000, "a rank has no more of a step"


def test_the_dearest_sample_goes_alone_and_is_counted():
    found = fit_by_cost(budget=100)
    assert found.needs.batch == 1000 and found.needs.tensors.bytes == 3 * MIB + 1000 * 100_000
    too_small = fit_by_cost(budget="auto", capacity=690 * MIB)
    assert too_small.max_budget == 0 and not too_small.fits
    assert too_small.missing_bytes == too_small.needs.peak_bytes - 690 * MIB


def test_a_budget_left_open_is_the_largest_that_fits_times_the_factor_or_the_whole_share():
    half = fit_by_cost(budget="auto", capacity=1500 * MIB)
    assert half.budget == half.max_budget // 2 < 9000
    whole = fit_by_cost(budget="auto", capacity=1500 * MIB, safety_factor=1.0)
    assert whole.budget == whole.max_budget
    again = fit_by_cost(budget=whole.budget, capacity=1500 * MIB)
    assert again.fits and not fit_by_cost(budget=whole.budget + 99, capacity=1500 * MIB).fits
    assert fit_by_cost(budget="auto", capacity=40_000 * MIB).budget == 9000


def test_without_data_a_sample_is_taken_to_cost_its_size():
    bucket = {**BUCKET, "samples": None, "steps": None}
    probe, card = read_probe(small_value()), Card(gpu=TABLE["a100-40gb"], capacity=2048 * MIB)
    stage = stage_of(effective_batch=64, buckets=Buckets(kind="cost", cost="n", budget=100))
    found = fit_cost(stage, bucket, probe, None, card)
    assert (found.budget, found.needs.batch, found.micro_batch) == (100, 6, None)
    unknown = fit_cost(stage, {**bucket, "largest": None}, probe, None, card)
    assert unknown.needs.batch == 64 and unknown.max_budget is None
