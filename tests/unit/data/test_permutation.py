from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data import reference

from tasuki.data.permutation import MAX_SIZE, KeyedPermutation, permute_each


def everything(size, key):
    return KeyedPermutation(size, key).at(np.arange(size))


def key(number):
    return number.to_bytes(4, "little")


def under_many_keys(draws, size, *, places):
    """What stands at the first places under each of many keys."""
    permutations = [KeyedPermutation(size, key(number)) for number in range(draws)]
    which = np.repeat(np.arange(draws), places)
    values = permute_each(permutations, which, np.tile(np.arange(places), draws))
    return [tuple(row) for row in values.reshape(draws, places).tolist()]


def test_every_size_up_to_100_and_a_large_one_is_a_bijection_with_its_inverse():
    for size in [*range(101), 100_003]:
        shuffled = everything(size, b"small")
        assert np.array_equal(np.sort(shuffled), np.arange(size))
        back = KeyedPermutation(size, b"small").position_of(shuffled)
        assert np.array_equal(back, np.arange(size))


@settings(max_examples=40, deadline=None, database=None)
@given(st.integers(1, 2**40) | st.integers(1, MAX_SIZE), st.binary(max_size=40), st.data())
def test_large_sizes_are_injective_in_range_and_invertible(size, key, data):
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    positions = np.unique(np.append(rng.integers(0, size, 200), [0, size - 1]))
    permutation = KeyedPermutation(size, key)
    values = permutation.at(positions)
    assert values.dtype == np.int64
    assert values.min() >= 0 and values.max() < size
    assert len(np.unique(values)) == len(positions)
    assert np.array_equal(permutation.position_of(values), positions)


@settings(max_examples=40, deadline=None, database=None)
@given(st.integers(1, 2**40), st.binary(max_size=8), st.data())
def test_it_is_what_its_definition_says(size, key, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))
    values = KeyedPermutation(size, key).at(np.array(positions))
    assert values.tolist() == [reference.permute(size, key, position) for position in positions]


def test_frozen_values_of_format_1():
    """If this fails, resumed runs see other samples: restore the code, or raise ORDER_FORMAT."""
    assert everything(10, b"").tolist() == GOLDEN_TEN_EMPTY_KEY
    assert everything(10, b"tasuki").tolist() == GOLDEN_TEN
    assert everything(5, b"tasuki").tolist() == GOLDEN_FIVE
    million = KeyedPermutation(10**6, b"tasuki").at(np.array([0, 1, 2, 999_999]))
    assert million.tolist() == GOLDEN_MILLION
    huge = KeyedPermutation(2**40, b"tasuki").at(np.array([0, 1, 2**39, 2**40 - 1]))
    assert huge.tolist() == GOLDEN_HUGE


GOLDEN_TEN_EMPTY_KEY = [0, 7, 5, 2, 6, 8, 3, 4, 1, 9]
GOLDEN_TEN = [5, 3, 8, 9, 1, 0, 6, 4, 2, 7]
GOLDEN_FIVE = [2, 0, 1, 4, 3]
GOLDEN_MILLION = [521686, 513693, 74591, 989690]
GOLDEN_HUGE = [1030588968931, 118537669964, 629617772126, 698281098347]


@pytest.mark.parametrize("size", [2, 4])
def test_all_orders_of_a_tiny_size_are_about_equally_likely(size):
    draws = 8_000
    seen = Counter(under_many_keys(draws, size, places=size))
    orders = list(itertools.permutations(range(size)))
    expected = draws / len(orders)
    chi_square = sum((seen[order] - expected) ** 2 / expected for order in orders)
    freedom = len(orders) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [5, 12])
def test_where_two_samples_go_is_about_uniform(size):
    """Chi-square over the ordered pairs of places that the samples 0 and 1 take."""
    draws = 8_000
    seen = Counter(under_many_keys(draws, size, places=2))
    pairs = list(itertools.permutations(range(size), 2))
    expected = draws / len(pairs)
    chi_square = sum((seen[pair] - expected) ** 2 / expected for pair in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("position", [-1, 10, 2**62])
def test_a_position_outside_is_refused(position):
    with pytest.raises(IndexError):
        KeyedPermutation(10, b"k").at(np.array([3, position]))


def test_wrapping_around_warns_nobody():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ends = KeyedPermutation(MAX_SIZE, b"k").at(np.array([0, MAX_SIZE - 1]))
        last = KeyedPermutation(3, b"k").at(np.array(2))
    assert ends.max() < MAX_SIZE and int(last) < 3
