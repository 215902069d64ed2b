"""Seeds are left out where nobody draws, and no batch is another one for that."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.drawing import DRAWS, Data, collate_of_three, request

from tasuki.data import drawn, fetch, generators, watched
from tasuki.data.drawn import ThriftyFetcher
from tasuki.data.fetch import Fetcher


def thrifty(data, collate=None):
    return ThriftyFetcher(Fetcher(data, collate), [request(0), request(39)])


def always_seeded(data, wanted, collate=None):
    return Fetcher(data, collate)(wanted)


def states():
    numpy: Any = np.random.get_state()
    return [
        random.getstate(),
        (numpy[1].tolist(), *numpy[2:]),
        torch.get_rng_state().tolist(),
    ]


@pytest.fixture
def seedings(monkeypatch):
    """Numbers of the generators that were seeded, one after another."""
    found: list[int] = []
    for number, generator in enumerate(generators.HOST):

        def seed(value, number=number, really=generator.seed):
            found.append(number)
            really(value)

        monkeypatch.setattr(generator, "seed", seed)
    return found


@settings(max_examples=40, deadline=None)
@given(
    plan=st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from(sorted(DRAWS)), max_size=3), max_size=8
    ),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    between=st.lists(st.sampled_from(sorted(DRAWS)), max_size=3),
)
def test_batches_are_those_of_seeding_every_sample(plan, batches, between):
    fetcher = thrifty(Data(plan))
    for indices in batches:
        for name in between:
            DRAWS[name]()
        before = states()
        batch = fetcher(request(*indices))
        assert states() == before, "the training's random numbers were touched"
        with_seeds = always_seeded(Data(plan), request(*indices))
        assert batch.equal(with_seeds), (indices, plan)


def test_data_that_draw_nothing_are_neither_seeded_nor_fetched_twice(seedings):
    data = Data({})
    fetcher = thrifty(data)
    fetcher(request(1, 2))
    assert data.fetched == [0, 0, 39, 39, 1, 2], "looked at once"
    seedings.clear(), data.fetched.clear()
    fetcher(request(3, 4, 5))
    fetcher(request(5))
    assert (seedings, data.fetched) == ([], [3, 4, 5, 5])


class ReadsTheSeed(Data):
    """Draws nothing, but seeds a generator of its own with what it finds."""

    def __getitem__(self, index):
        own = torch.Generator().manual_seed(torch.initial_seed() + index)
        return torch.rand(2, generator=own)


class ForksTheGenerator(Data):
    """Draws, and puts the state back."""

    def __getitem__(self, index):
        with torch.random.fork_rng(devices=[]):
            return torch.rand(2) + index


@pytest.mark.parametrize("kind", [ReadsTheSeed, ForksTheGenerator])
def test_data_that_only_look_at_the_random_states_are_seeded(kind):
    fetcher = thrifty(kind({}))
    assert fetcher(request(3, 4)).equal(always_seeded(kind({}), request(3, 4)))


class ForksRarely(ForksTheGenerator):
    def __getitem__(self, index):
        return super().__getitem__(index) if index == 7 else torch.zeros(2)


def test_rare_samples_that_only_look_are_the_same_whatever_was_fetched_before():
    first, second = thrifty(ForksRarely({})), thrifty(ForksRarely({}))
    for index in range(7):
        second(request(index))
        torch.rand(index)
    assert first(request(7, 8)).equal(second(request(7, 8)))


def test_data_that_say_that_they_draw_are_always_seeded():
    data = ForksRarely({})
    data.draws_random_numbers = True
    fetcher = thrifty(data)
    for wanted in (request(7, 8), request(1), request(2, 7)):
        assert fetcher(wanted).equal(always_seeded(data, wanted))


def test_samples_whose_content_is_not_known_are_seeded(seedings):
    class Things(Data):
        def __getitem__(self, index):
            return object()

    fetcher = thrifty(Things({}), lambda samples: samples)
    fetcher(request(1))
    seedings.clear()
    fetcher(request(2, 3))
    assert seedings == [0, 1, 2] * 2


def test_a_collate_that_begins_to_draw_is_seeded_by_the_last_sample():
    fetcher = thrifty(Data({}), collate_of_three)
    for wanted in (request(1), request(2, 3, 4), request(5)):
        assert fetcher(wanted) == always_seeded(Data({}), wanted, collate_of_three)


def test_a_generator_that_cannot_be_watched_is_seeded(monkeypatch, seedings):
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


@pytest.mark.parametrize("name", sorted(DRAWS))
@pytest.mark.parametrize("times", [1, 624])
def test_whoever_draws_is_noticed(name, times):
    kept = watched.WATCHED.keep()
    watched.WATCHED.calm()
    try:
        assert watched.WATCHED.are_calm()
        for _ in range(times):
            DRAWS[name]()
        assert not watched.WATCHED.are_calm()
    finally:
        watched.WATCHED.put(kept)


def test_the_generators_of_this_python_numpy_and_torch_can_be_watched():
    """Where they cannot, training is right but slower: look at generators.py."""
    assert watched.WATCHED.is_possible
