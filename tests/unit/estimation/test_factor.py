"""The safety factor starts low, rises while peaks allow, and falls after a surprise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tasuki.estimation.conformal import ENOUGH, bound_of, ratios_in
from tasuki.estimation.factor import Border, Shrunk, Tuned, TunedBucket, decide

BUCKET = TunedBucket(
    bucket=0, size=None, share=1000, found=100, curve=((1, 1_000), (100, 10_000), (125, 12_500))
)
TUNED = Tuned(factor=0.5, capacity_bytes=10_500, buckets=(BUCKET,), ratios=(1.0,))


def crossed(ratio: float = 1.0, *, num: int = 8) -> list[tuple[float, int]]:
    """(factor, micro-batch) after each of some borders, where peaks are `ratio` × predicted."""
    border = Border(factor=0.5, in_use={0: 50}, peak_bytes=0)
    found = []
    for _ in range(num):
        peak = round(BUCKET.predicted(border.in_use[0]) * ratio)
        decision = decide(TUNED, replace(border, peak_bytes=peak))
        in_use = {**border.in_use, **decision.changes}
        ratios = [*border.ratios, decision.ratio]
        border = replace(border, factor=decision.factor, in_use=in_use, ratios=ratios)
        found.append((decision.factor, in_use[0]))
    return found


def test_found_times_factor_is_the_micro_batch_at_least_one_at_most_the_share():
    found = replace(BUCKET, found=1024)
    assert [found.safe(factor) for factor in (0.3, 0.5, 0.7, 1.0)] == [307, 512, 716, 1000]
    assert replace(BUCKET, found=1).safe(0.5) == 1 and replace(BUCKET, found=0).safe(0.5) == 1


def test_it_rises_by_a_tenth_a_border_up_to_what_fits():
    factors = [factor for factor, _ in crossed(num=12)]
    assert factors[:4] == [0.6, 0.7, 0.8, 0.9]
    assert factors[-1] > 0.9 and all(batch * 10_000 <= 10_500 * 100 for _, batch in crossed())


def test_it_stays_where_peaks_say_that_more_does_not_fit():
    """Memory that is 1.5 × what was predicted leaves 70 of 100."""
    for factor, batch in crossed(1.5, num=20):
        assert BUCKET.predicted(batch) * 1.5 <= TUNED.capacity_bytes and factor <= 0.7


def test_a_peak_that_nobody_expected_lowers_it():
    border = Border(factor=0.7, in_use={0: 70}, peak_bytes=9_900, ratios=[1.0] * 30)
    decision = decide(TUNED, border)
    assert decision.factor == pytest.approx(0.6) and decision.changes == {0: 60}
    assert "expected at the most" in decision.reason


def test_what_ran_out_of_memory_once_is_not_tried_again():
    shrunk = [Shrunk(bucket=0, was=70)]
    border = Border(factor=0.7, in_use={0: 35}, peak_bytes=10_400, shrunk=shrunk, num_new=1)
    decision = decide(TUNED, border)
    assert decision.factor == pytest.approx(0.6) and decision.ratio is None
    assert decision.changes == {0: 45}, "no more than a tenth of what was found at once"
    for _ in range(12):
        in_use = {0: decision.changes.get(0, border.in_use[0])}
        peak = round(BUCKET.predicted(in_use[0]))
        border = Border(factor=decision.factor, in_use=in_use, peak_bytes=peak, shrunk=shrunk)
        decision = decide(TUNED, border)
    assert border.in_use[0] == 69


def test_a_bound_covers_95_of_100_of_what_comes_next():
    numbers = random.Random(4)
    covered = 0
    for _ in range(2000):
        *known, following = (numbers.lognormvariate(0, 0.1) for _ in range(60))
        covered += following <= bound_of(known)
    assert 0.94 <= covered / 2000 <= 0.985


def test_few_ratios_bound_with_a_margin_that_shrinks():
    bounds = [bound_of([1.0] * n) for n in range(ENOUGH + 1)]
    assert bounds[0] == pytest.approx(1.1) and bounds[-1] == 1.0
    assert bounds == sorted(bounds, reverse=True)


def test_history_gives_ratios_of_the_same_recipe_and_gpu_and_skips_what_is_torn():
    here = {"recipe": "r:R", "device": "cuda", "device_model": "A100"}
    figures = {"predicted_bytes": 100, "peak_bytes": 110}
    torn = [{**figures, "peak_bytes": None}, {"predicted_bytes": 0, "peak_bytes": 1}, 7, figures]
    lines = [
        {**here, "buckets": torn},
        {**here, "device_model": "H100", "buckets": [figures]},
        {**here, "recipe": "s:S", "buckets": [figures]},
        {**here, "buckets": None},
        {**here, "device": "cpu", "buckets": [figures]},
        {"step_s": 1.0},
    ]
    assert ratios_in(lines, recipe="r:R", gpu="A100") == [1.1]
    assert ratios_in(lines, recipe="r:R", gpu="cpu") == [1.1]
