"""The largest batch that fits is found with four tries, whatever the prediction is worth."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.estimation.search import MOST_TRIES, Tried, largest_fitting, next_try


def search(peak, predict, *, capacity: int, most: int) -> list[Tried]:
    """As the tuner does it; `peak` is what the device would measure."""
    tried: list[Tried] = []
    while (batch := next_try(tried, predict=predict, capacity=capacity, most=most)) is not None:
        assert 1 <= batch <= most and batch not in [one.batch for one in tried]
        needed = peak(batch)
        tried.append(Tried(batch, needed if needed <= capacity else None))
    assert len(tried) <= MOST_TRIES
    return tried


def bent(batch: int) -> int:
    """Weights and optimizer first, activations later."""
    return max(5_000 + 10 * batch, 2_000 + 120 * batch)


def test_a_right_prediction_takes_one_try():
    tried = search(bent, bent, capacity=100_000, most=10_000)
    assert tried == [Tried(816, bent(816))]


@settings(max_examples=60)
@given(
    offset=st.integers(-500, 3_000),
    slope=st.floats(0.8, 1.3),
    capacity=st.integers(12_000, 2_000_000),
)
def test_a_prediction_that_is_somewhat_off_is_corrected(offset, slope, capacity):
    def peak(batch: int) -> int:
        return int(offset + slope * bent(batch))

    found = largest_fitting(search(peak, bent, capacity=capacity, most=1 << 20))
    largest = bisect_right(range(1, 25_000), capacity, key=peak)
    # 9 of 1,000 tries are below 0.9; at worst three do not fit, the last one by a hair.
    assert largest // 2 <= found <= largest


def test_after_three_tries_that_did_not_fit_the_last_is_half_of_them_and_not_one_sample():
    """In a room that weights fill by three quarters."""
    tried = search(lambda n: int(2_828 + 1.28125 * bent(n)), bent, capacity=12_000, most=1 << 20)
    assert [one.batch for one in tried] == [83, 76, 43, 21]
    assert largest_fitting(tried) == 21, "42 would"


def test_no_more_is_tried_than_is_of_use():
    assert search(bent, bent, capacity=10**9, most=16) == [Tried(16, bent(16))]


@pytest.mark.parametrize("predict", [bent, None])
def test_where_not_even_one_sample_fits_nothing_is_found(predict):
    assert largest_fitting(search(bent, predict, capacity=1_000, most=64)) == 0


@settings(max_examples=60)
@given(capacity=st.integers(6_000, 3_000_000))
def test_without_a_prediction_peaks_are_joined_by_lines(capacity):
    """What is found fits, and is a good part of what there is."""
    found = largest_fitting(search(bent, None, capacity=capacity, most=1 << 20))
    largest = bisect_right(range(1, 26_000), capacity, key=bent)
    assert largest // 4 <= found <= largest


def test_a_prediction_that_is_worth_nothing_ends_too():
    assert len(search(lambda n: 10**9, bent, capacity=100_000, most=5_000)) <= MOST_TRIES


def test_a_prediction_that_failed_is_not_tried_again_a_sample_below():
    """By cost, say, where a line foretells what is none: 1 fits, 827 does not, nor would 826."""

    def peak(batch: int) -> int:
        return 2_260 + 20 * max(0, batch - 200)

    def predict(batch: int) -> int:
        return 16_450 + 5 * batch

    tried = search(peak, predict, capacity=6_291, most=10_000)
    largest = max(n for n in range(1, 10_000) if peak(n) <= 6_291)
    assert largest == 401
    assert largest // 4 <= largest_fitting(tried), tried
