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

from tasuki.data.permutation import (
    MAX_SIZE,
    KeyedPermutation,
    mix_word,
    mix_words,
    permute_each,
    position_of_each,
)


def everything(size: int, key: bytes) -> np.ndarray:
    return KeyedPermutation(size, key).at(np.arange(size))


def key(number: int) -> bytes:
    return number.to_bytes(4, "little")


def under_many_keys(draws: int, size: int, *, places: int) -> list[tuple[int, ...]]:
    """What stands at the first places under each of many keys."""
    permutations = [KeyedPermutation(size, key(number)) for number in range(draws)]
    which = np.repeat(np.arange(draws), places)
    values = permute_each(permutations, which, np.tile(np.arange(places), draws))
    return [tuple(row) for row in values.reshape(draws, places).tolist()]


def test_every_size_up_to_300_is_a_bijection_with_its_inverse() -> None:
    for size in range(301):
        shuffled = everything(size, b"small")
        assert sorted(shuffled.tolist()) == list(range(size))
        back = KeyedPermutation(size, b"small").position_of(shuffled)
        assert back.tolist() == list(range(size))


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 2**40) | st.integers(1, MAX_SIZE), st.binary(max_size=40), st.data())
def test_large_sizes_are_injective_in_range_and_invertible(
    size: int, key: bytes, data: st.DataObject
) -> None:
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
def test_it_is_what_its_definition_says(size: int, key: bytes, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))
    values = KeyedPermutation(size, key).at(np.array(positions))
    assert values.tolist() == [reference.permute(size, key, position) for position in positions]


def test_a_whole_middle_sized_shuffle_is_a_bijection() -> None:
    shuffled = everything(100_003, b"middle")
    assert np.array_equal(np.sort(shuffled), np.arange(100_003))


def test_frozen_values_of_format_1() -> None:
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


def test_other_keys_and_other_sizes_give_other_shuffles() -> None:
    shuffles = {tuple(everything(40, key(number))) for number in range(200)}
    assert len(shuffles) == 200
    assert everything(40, b"k").tolist() != everything(41, b"k").tolist()[:40]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_tiny_size_are_about_equally_likely(size: int) -> None:
    draws = 24_000
    seen = Counter(under_many_keys(draws, size, places=size))
    orders = list(itertools.permutations(range(size)))
    expected = draws / len(orders)
    chi_square = sum((seen[order] - expected) ** 2 / expected for order in orders)
    freedom = len(orders) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [5, 7, 9, 12, 17, 25])
def test_where_two_samples_go_is_about_uniform(size: int) -> None:
    """Chi-square over the ordered pairs of places that the samples 0 and 1 take."""
    draws = 20_000
    seen = Counter(under_many_keys(draws, size, places=2))
    pairs = list(itertools.permutations(range(size), 2))
    expected = draws / len(pairs)
    chi_square = sum((seen[pair] - expected) ** 2 / expected for pair in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_a_shuffle_of_1000_moves_samples_as_far_as_a_random_one() -> None:
    here = np.arange(1000)
    moved = [np.abs(everything(1000, key(number)) - here).mean() for number in range(40)]
    # |x - y| of two random places is n/3 on average; one shuffle's mean has a deviation of about 7.
    assert abs(np.mean(moved) - 1000 / 3) < 5
    assert all(300 < mean < 367 for mean in moved)


def test_a_shuffle_keeps_about_one_sample_in_place_and_about_two_neighbours_together() -> None:
    here = np.arange(1000)
    shuffles = [everything(1000, key(number)) for number in range(300)]
    in_place = np.mean([(shuffled == here).sum() for shuffled in shuffles])
    neighbours = np.mean([(np.abs(np.diff(shuffled)) == 1).sum() for shuffled in shuffles])
    assert 0.75 < in_place < 1.25
    assert 1.6 < neighbours < 2.4


def test_many_permutations_in_one_pass_equal_each_on_its_own() -> None:
    sizes = [1, 2, 5, 37, 1000, 2**40]
    permutations = [KeyedPermutation(size, key(number)) for number, size in enumerate(sizes)]
    rng = np.random.default_rng(0)
    which = rng.integers(0, len(sizes), 500)
    positions = rng.integers(0, np.array(sizes)[which])
    values = permute_each(permutations, which, positions)
    alone = [
        int(permutations[w].at(np.array([p]))[0]) for w, p in zip(which, positions, strict=True)
    ]
    assert values.tolist() == alone
    assert np.array_equal(position_of_each(permutations, which, values), positions)


def test_positions_may_have_any_shape_and_are_left_alone() -> None:
    permutation = KeyedPermutation(50, b"k")
    positions = np.arange(50)
    line = permutation.at(positions)
    assert np.array_equal(positions, np.arange(50))
    assert np.array_equal(permutation.at(positions.reshape(5, 10)), line.reshape(5, 10))
    assert int(permutation.at(np.array(7))) == line[7]
    assert permutation.at(np.array([], dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize("position", [-1, 10, 2**62])
def test_a_position_outside_is_refused(position: int) -> None:
    with pytest.raises(IndexError):
        KeyedPermutation(10, b"k").at(np.array([3, position]))


def test_wrapping_around_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ends = KeyedPermutation(MAX_SIZE, b"k").at(np.array([0, MAX_SIZE - 1]))
        last = KeyedPermutation(3, b"k").at(np.array(2))
    assert ends.max() < MAX_SIZE and int(last) < 3


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
@settings(deadline=None, database=None)
def test_both_mixers_agree(words: list[int]) -> None:
    mixed = mix_words(np.array(words, dtype=np.uint64)).tolist()
    assert mixed == [mix_word(word) for word in words] == [reference.mix(word) for word in words]
