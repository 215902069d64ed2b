"""Bucket boundaries: the least padding there is, found exactly."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.boundaries import GOOD_WASTE, MOST_BUCKETS, best_boundaries, waste_of

quick = settings(max_examples=80, deadline=None, database=None)
histograms = st.dictionaries(
    st.integers(0, 40) | st.integers(0, 600), st.integers(1, 60), min_size=1, max_size=14
)
powers = st.integers(1, 2)

Histogram = dict[int, int]


def parts(histogram: Histogram) -> tuple[list[int], list[int]]:
    sizes = sorted(histogram)
    return sizes, [histogram[size] for size in sizes]


def padding(histogram: Histogram, uppers: tuple[int, ...], power: int) -> int:
    """Counted sample by sample, from the definition."""
    return sum(
        count * (min(upper for upper in uppers if upper >= size) ** power - size**power)
        for size, count in histogram.items()
    )


def least_padding(histogram: Histogram, buckets: int, power: int) -> int:
    """Every choice of uppers, tried one after another."""
    sizes = sorted(histogram)
    others = combinations(sizes[:-1], min(buckets, len(sizes)) - 1)
    return min(padding(histogram, (*chosen, sizes[-1]), power) for chosen in others)


@quick
@given(histograms, st.integers(1, 5), powers)
def test_no_other_boundaries_leave_less_padding(
    histogram: Histogram, buckets: int, power: int
) -> None:
    found = best_boundaries(*parts(histogram), buckets=buckets, power=power)
    assert len(found.uppers) == min(buckets, len(histogram))
    assert padding(histogram, found.uppers, power) == least_padding(histogram, buckets, power)


@quick
@given(histograms, st.none() | st.integers(1, 9), powers)
def test_boundaries_are_existing_sizes_ascending_and_the_last_is_the_largest(
    histogram: Histogram, buckets: int | None, power: int
) -> None:
    uppers = best_boundaries(*parts(histogram), buckets=buckets, power=power).uppers
    assert list(uppers) == sorted(set(uppers) & set(histogram))
    assert uppers[-1] == max(histogram)


@quick
@given(histograms, st.none() | st.integers(1, 9), powers)
def test_the_waste_is_the_share_of_padding_and_given_boundaries_are_measured_alike(
    histogram: Histogram, buckets: int | None, power: int
) -> None:
    found = best_boundaries(*parts(histogram), buckets=buckets, power=power)
    lost = padding(histogram, found.uppers, power)
    data = sum(count * size**power for size, count in histogram.items())
    assert found.waste == (lost / (lost + data) if lost + data else 0.0)
    assert waste_of(*parts(histogram), found.uppers, power=power) == found.waste
    assert waste_of(*parts(histogram), list(found.uppers)[::-1], power=power) == found.waste


@quick
@given(histograms, powers)
def test_as_many_buckets_as_sizes_waste_nothing(histogram: Histogram, power: int) -> None:
    found = best_boundaries(*parts(histogram), buckets=99, power=power)
    assert (list(found.uppers), found.waste) == (sorted(histogram), 0.0)


@quick
@given(histograms, powers)
def test_left_open_there_are_as_few_buckets_as_keep_the_waste_within_five_percent(
    histogram: Histogram, power: int
) -> None:
    found = best_boundaries(*parts(histogram), power=power)
    assert found.waste <= GOOD_WASTE == 0.05
    if (fewer := len(found.uppers) - 1) > 0:
        assert best_boundaries(*parts(histogram), buckets=fewer, power=power).waste > GOOD_WASTE


def test_there_are_never_more_than_sixteen_unless_asked_for() -> None:
    sizes = [2**exponent for exponent in range(40)]
    counts = sizes[::-1]  # as much data of every size: two in a bucket waste a quarter of theirs
    found = best_boundaries(sizes, counts)
    assert len(found.uppers) == MOST_BUCKETS == 16
    assert found.waste > GOOD_WASTE
    assert len(best_boundaries(sizes, counts, buckets=30).uppers) == 30


def test_what_grows_with_the_square_gets_other_boundaries() -> None:
    sizes, counts = [10, 60, 100], [100, 100, 1]
    # Padding 10 to 60 costs 5,000 and 60 to 100 costs 4,000; squared: 350,000 and 640,000.
    assert best_boundaries(sizes, counts, buckets=2).uppers == (10, 100)
    assert best_boundaries(sizes, counts, buckets=2, power=2).uppers == (60, 100)


@pytest.mark.parametrize("power", [1, 2])
def test_large_numbers_are_not_rounded(power: int) -> None:
    base = 2**40
    # In floats the costs of these choices differ by less than their rounding.
    histogram = {base: 10**12, base + 1: 1, base + 2: 2, base + 3: 10**12}
    found = best_boundaries(*parts(histogram), buckets=2, power=power)
    assert padding(histogram, found.uppers, power) == least_padding(histogram, 2, power)


def test_a_hundred_thousand_sizes_are_no_trouble() -> None:
    chance = np.random.default_rng(3)
    sizes = np.cumsum(chance.integers(1, 5, 100_000))
    counts = chance.integers(1, 50, 100_000)
    found = best_boundaries(sizes, counts, buckets=3)  # numpy's numbers, not Python's
    assert len(found.uppers) == 3
    assert set(found.uppers) <= set(sizes.tolist())
    even = [int(sizes[len(sizes) * part // 3 - 1]) for part in range(1, 4)]
    assert found.waste < waste_of(sizes, counts, even)
    assert all(isinstance(upper, int) for upper in found.uppers)


def test_one_size_needs_one_bucket() -> None:
    found = best_boundaries([512], [7])
    assert (found.uppers, found.waste) == ((512,), 0.0)
