"""Seeds are left out where nobody draws, and no batch is another one for that."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.drawing import DRAWS, Data, Fragile, collate_of_three, request
from torch import Tensor

from tasuki.data import drawn, fetch, generators, watched
from tasuki.data.drawn import ThriftyFetcher
from tasuki.data.fetch import Fetcher, Request
from tasuki.errors import DataError


def thrifty(data: Any, collate: Any = None) -> ThriftyFetcher:
    return ThriftyFetcher(Fetcher(data, collate), [request(0), request(39)])


def always_seeded(data: Any, wanted: Request, collate: Any = None) -> Any:
    return Fetcher(data, collate)(wanted)


def states() -> list[Any]:
    numpy: Any = np.random.get_state()
    return [
        random.getstate(),
        (numpy[1].tolist(), *numpy[2:]),
        torch.get_rng_state().tolist(),
    ]


@pytest.fixture
def seedings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the generators that were seeded, one after another."""
    found: list[int] = []
    for number, generator in enumerate(generators.HOST):

        def seed(value: int, number: int = number, really: Any = generator.seed) -> None:
            found.append(number)
            really(value)

        monkeypatch.setattr(generator, "seed", seed)
    return found


@settings(max_examples=60, deadline=None)
@given(
    plan=st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from(sorted(DRAWS)), max_size=3), max_size=8
    ),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    between=st.lists(st.sampled_from(sorted(DRAWS)), max_size=3),
)
def test_batches_are_those_of_seeding_every_sample_whatever_was_fetched_before(
    plan: dict[int, list[str]], batches: list[list[int]], between: list[str]
) -> None:
    fetcher = thrifty(Data(plan))
    for indices in batches:
        for name in between:
            DRAWS[name]()
        before = states()
        batch = fetcher(request(*indices))
        assert states() == before, "the training's random numbers were touched"
        with_seeds = always_seeded(Data(plan), request(*indices))
        assert batch.equal(with_seeds), (indices, plan)


def test_data_that_draw_nothing_are_neither_seeded_nor_fetched_twice(seedings: list[int]) -> None:
    data = Data({})
    fetcher = thrifty(data)
    fetcher(request(1, 2))
    seedings.clear(), data.fetched.clear()
    fetcher(request(3, 4, 5))
    assert (seedings, data.fetched) == ([], [3, 4, 5])


def test_a_first_draw_deep_in_the_data_makes_its_batch_anew_once() -> None:
    data = Data({7: ["numpy"]})
    fetcher = thrifty(data)
    fetcher(request(1))
    data.fetched.clear()
    assert fetcher(request(6, 7)).equal(always_seeded(Data(data.plan), request(6, 7)))
    assert data.fetched == [6, 7, 6, 7]
    fetcher(request(7, 8))
    assert data.fetched[4:] == [7, 8]


class ReadsTheSeed(Data):
    """Draws nothing, but seeds a generator of its own with what it finds."""

    def __getitem__(self, index: int) -> Tensor:
        own = torch.Generator().manual_seed(torch.initial_seed() + index)
        return torch.rand(2, generator=own)


class ForksTheGenerator(Data):
    """Draws, and puts the state back."""

    def __getitem__(self, index: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return torch.rand(2) + index


@pytest.mark.parametrize("kind", [ReadsTheSeed, ForksTheGenerator])
def test_data_that_only_look_at_the_random_states_are_seeded(kind: type[Data]) -> None:
    fetcher = thrifty(kind({}))
    assert fetcher(request(3, 4)).equal(always_seeded(kind({}), request(3, 4)))


class ForksRarely(ForksTheGenerator):
    def __getitem__(self, index: int) -> Tensor:
        return super().__getitem__(index) if index == 7 else torch.zeros(2)


def test_rare_samples_that_only_look_are_the_same_whatever_was_fetched_before() -> None:
    first, second = thrifty(ForksRarely({})), thrifty(ForksRarely({}))
    for index in range(7):
        second(request(index))
        torch.rand(index)
    assert first(request(7, 8)).equal(second(request(7, 8)))


class SaysThatItDraws(ForksRarely):
    draws_random_numbers = True


def test_data_that_say_that_they_draw_are_always_seeded() -> None:
    fetcher = thrifty(SaysThatItDraws({}))
    for wanted in (request(7, 8), request(1), request(2, 7)):
        assert fetcher(wanted).equal(always_seeded(SaysThatItDraws({}), wanted))


def test_samples_whose_content_is_not_known_are_seeded(seedings: list[int]) -> None:
    class Things(Data):
        def __getitem__(self, index: int) -> object:  # type: ignore[override]
            return object()

    fetcher = thrifty(Things({}), lambda samples: samples)
    fetcher(request(1))
    seedings.clear()
    fetcher(request(2, 3))
    assert seedings == [0, 1, 2] * 2


def test_a_collate_that_begins_to_draw_is_seeded_by_the_last_sample() -> None:
    fetcher = thrifty(Data({}), collate_of_three)
    for wanted in (request(1), request(2, 3, 4), request(5)):
        assert fetcher(wanted) == always_seeded(Data({}), wanted, collate_of_three)


def test_an_error_under_random_numbers_is_that_of_the_samples_own() -> None:
    for wanted in (request(20), request(21)):
        fetcher = thrifty(Fragile({}))
        with pytest.raises(DataError) as expected:
            always_seeded(Fragile({}), wanted)
        before = states()
        with pytest.raises(DataError) as caught:
            fetcher(wanted)
        assert str(caught.value) == str(expected.value)
        assert states() == before


def test_a_generator_that_cannot_be_watched_is_seeded(
    monkeypatch: pytest.MonkeyPatch, seedings: list[int]
) -> None:
    monkeypatch.setattr(generators.PYTHON, "can_be_watched", False)
    monkeypatch.setattr(generators.NUMPY, "_has_image", False)
    monkeypatch.setattr(generators.TORCH, "can_be_watched", False)
    for module in (drawn, fetch):
        monkeypatch.setattr(module, "WATCHED", watched.Watched())
    data = Data({9: ["random.gauss", "numpy.randn", "torch.randn"]})
    fetcher = thrifty(data)
    expected = always_seeded(Data(data.plan), request(9, 1))
    random.gauss(0, 1), np.random.randn(), torch.randn(())
    before = states()
    assert fetcher(request(9, 1)).equal(expected)
    seedings.clear()
    fetcher(request(2))
    assert seedings == [0, 1, 2]
    assert states() == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(DRAWS)), max_size=6))
def test_states_that_are_kept_are_the_ones_that_are_put_back(draws: list[str]) -> None:
    for name in draws:
        DRAWS[name]()
        before, kept = states(), watched.WATCHED.keep()
        for other in draws:
            DRAWS[other]()
        watched.WATCHED.put(kept)
        assert states() == before


@pytest.mark.parametrize("name", sorted(DRAWS))
@pytest.mark.parametrize("times", [1, 2, 623, 624, 1248])
def test_whoever_draws_is_noticed(name: str, times: int) -> None:
    kept = watched.WATCHED.keep()
    watched.WATCHED.calm()
    try:
        assert watched.WATCHED.are_calm()
        for _ in range(times):
            DRAWS[name]()
        assert not watched.WATCHED.are_calm()
    finally:
        watched.WATCHED.put(kept)


def test_the_generators_of_this_python_numpy_and_torch_can_be_watched() -> None:
    """Where they cannot, training is right but slower: look at generators.py."""
    assert watched.WATCHED.is_possible


def test_another_bit_generator_of_numpy_is_noticed() -> None:
    own = np.random.get_bit_generator()
    fetcher = thrifty(Data({3: ["numpy"]}))
    expected = fetcher(request(3))
    try:
        np.random.set_bit_generator(np.random.MT19937(5))
        before = states()
        assert fetcher(request(3)).equal(expected)
        assert states() == before
    finally:
        np.random.set_bit_generator(own)
    assert fetcher(request(3)).equal(expected)


def test_samples_are_looked_at_once_in_a_process() -> None:
    data = Data({})
    fetcher = thrifty(data)
    for _ in range(3):
        fetcher(request(5))
    assert data.fetched == [0, 0, 39, 39, 5, 5, 5]
