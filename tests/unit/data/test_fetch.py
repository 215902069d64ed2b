"""How a batch is fetched changes nothing about it, bit for bit (promise 2)."""

from __future__ import annotations

import collections
import random
import re

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from tasuki.data.collate import pad_collate
from tasuki.data.fetch import Fetcher, Request, draws, kept_random_states
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.errors import DataError

CHOSEN = [5, 0, 3, 3, 7]
NUMBERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8", "?")
"""Of uint64 torch's default collate takes rows, but no single numbers."""


def is_same(one, other):
    """In types, shapes, keys and every bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.equal(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def sample_by_sample(dataset):
    return default_collate([dataset[index] for index in CHOSEN])


# -- data that are read as a whole --------------------------------------------------------------


def tensors():
    chance = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(8, 3, generator=chance),
        torch.arange(8),
        torch.randn(8, 2, 2, generator=chance).half(),
        torch.arange(16).view(8, 2) > 5,
    )


def test_a_tensor_data_set_gives_what_its_samples_would():
    fetcher = Fetcher(tensors(), None)
    assert not fetcher.is_seeded
    batch = fetcher(Request(CHOSEN, None))
    assert is_same(batch, sample_by_sample(tensors()))
    batch[0].add_(1)  # a copy, never a window on the data
    assert is_same(fetcher(Request(CHOSEN, None)), sample_by_sample(tensors()))


@pytest.mark.parametrize("dtype", [*NUMBERS, ">f4", ">u2", "u8", ">u8", "g"])
def test_an_array_gives_what_its_samples_would_or_their_error(dtype):
    for shape in ((8,), (8, 3), (8, 2, 2)):
        array = (np.arange(np.prod(shape)).reshape(shape) % 5).astype(dtype)
        try:
            expected = sample_by_sample(array)
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error), match=re.escape(str(error)[:40])):
                Fetcher(array, None)(Request(CHOSEN, None))
        else:
            assert is_same(Fetcher(array, None)(Request(CHOSEN, None)), expected)


def test_a_mapped_file_gives_what_its_samples_would_and_stays_as_it_is(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).random((8, 4)).astype("f4"))
    before = (tmp_path / "x.npy").read_bytes()
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    fetcher = Fetcher(array, None)
    assert not fetcher.is_seeded
    batch = fetcher(Request(CHOSEN, None))
    expected = default_collate([np.array(array[index]) for index in CHOSEN])
    assert is_same(batch, expected)
    batch += 1  # a copy
    assert (tmp_path / "x.npy").read_bytes() == before


@pytest.mark.parametrize(
    "data",
    [
        [torch.tensor([1.0, 2.0]) * k for k in range(8)],
        [{"a": k, "b": (1.5 * k, "word")} for k in range(8)],
        list(range(8)),
        range(8),
        tuple(np.float32(k) for k in range(8)),
        np.arange(16).view("c16"),
    ],
    ids=["tensors", "dicts", "list", "range", "scalars", "complex"],
)
def test_other_data_give_what_the_default_collate_makes_of_their_samples(data):
    assert is_same(Fetcher(data, None)(Request(CHOSEN, None)), sample_by_sample(data))


@pytest.fixture
def stored(tmp_path):
    """Eight samples with rows of every type, single numbers, and flat rows of two lengths."""
    chance = np.random.default_rng(1)
    options = {"chunks": True, "compression": "gzip"}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["n"] = np.array([4, 2, 4, 4, 4, 4, 2, 4], dtype=np.int32)
        for dtype in NUMBERS:
            values = chance.integers(0, 2, (8, 3))
            file.create_dataset(f"rows_{dtype}", data=values.astype(dtype), **options)
            file.create_dataset(f"one_{dtype}", data=values[:, 0].astype(dtype), **options)
        file.create_dataset("edges", data=chance.integers(0, 9, (28, 2)), **options)
        file["edges_offsets"] = np.cumsum([0, 4, 2, 4, 4, 4, 4, 2, 4])
    return tmp_path / "x.h5"


def test_samples_of_a_file_read_together_are_those_read_one_by_one(stored):
    data = Hdf5Dataset(stored)
    fetcher = Fetcher(data, None)
    assert not fetcher.is_seeded
    assert data.read_stacked(CHOSEN) is not None
    assert is_same(fetcher(Request(CHOSEN, None)), sample_by_sample(data))
    other = stored.with_name("y.h5")
    other.write_bytes(stored.read_bytes())
    both = Hdf5Dataset([stored, other])
    chosen = [9 + 4, 0, 2, 11, 3]
    expected = default_collate([both[index] for index in chosen])
    assert is_same(Fetcher(both, None)(Request(chosen, None)), expected)


class OwnItems(Hdf5Dataset):
    def __getitem__(self, index):
        return super().__getitem__(index)["edges"][:2] * 100


class OwnFinish(Hdf5Dataset):
    def finish(self, sample):
        return sample["edges"][:2] * 100


class OwnReading(Hdf5Dataset):
    def read_raw(self, indices):
        return [s | {"edges": s["edges"] + np.random.rand()} for s in super().read_raw(indices)]


class Wrapper:
    """Passes on whatever it does not have itself."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]["edges"][:2] * 100


@pytest.mark.parametrize(
    "make", [OwnItems, OwnFinish, lambda p: Wrapper(Hdf5Dataset(p))], ids=["[]", "finish", "wrap"]
)
def test_a_subclass_or_wrapper_of_our_reader_is_asked_and_seeded_like_any_other_data(stored, make):
    data = make(stored)
    assert draws(data)
    expected = default_collate([Hdf5Dataset(stored)[i]["edges"][:2] * 100 for i in CHOSEN])
    assert is_same(Fetcher(data, None)(Request(CHOSEN, [1] * 5)), expected)


def test_a_transform_or_a_reader_that_draws_has_each_sample_under_its_own_random_numbers(stored):
    def noisy(sample):
        return sample["edges"][:2] + np.random.rand() + random.random()

    reading = OwnReading(stored), lambda samples: [s["edges"][0] for s in samples]
    for data, collate in ((Hdf5Dataset(stored, transform=noisy), None), reading):
        fetcher = Fetcher(data, collate)
        assert fetcher.is_seeded
        alone = [fetcher(Request([i], [40 + i]))[0] for i in CHOSEN]
        together = fetcher(Request(CHOSEN, [40 + i for i in CHOSEN]))
        assert all(np.array_equal(*pair) for pair in zip(together, alone, strict=True))


# -- random numbers -----------------------------------------------------------------------------


class Noisy(Dataset[Tensor]):
    """Draws from all three generators."""

    def __len__(self):
        return 50

    def __getitem__(self, index):
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor([index, *drawn], dtype=torch.float64)


def test_a_samples_random_numbers_depend_on_its_seed_alone():
    fetcher = Fetcher(Noisy(), None)
    assert fetcher.is_seeded
    batch = fetcher(Request([3, 8, 3], [11, 22, 11]))
    torch.rand(7), np.random.rand(3), random.random()
    other = fetcher(Request([8, 30, 3], [22, 33, 11]))
    assert batch[0].equal(batch[2]) and batch[0].equal(other[2]) and batch[1].equal(other[0])
    assert len(set(batch[:2, 1:].flatten().tolist() + other[1, 1:].tolist())) == 9


def test_a_collate_that_draws_is_seeded_even_where_the_data_draw_nothing():
    def collate(samples):
        return [sample + random.random() for sample in samples]

    fetcher = Fetcher([10, 20, 30], collate)
    assert fetcher.is_seeded
    assert fetcher(Request([0, 2], [5, 6])) == fetcher(Request([0, 2], [5, 6]))


def test_data_and_collates_may_say_that_they_draw_nothing():
    class Calm(Noisy):
        draws_random_numbers = False

    own = Calm()
    assert not draws(own) and draws(Noisy())
    late = Noisy()
    late.draws_random_numbers = False
    assert not draws(late) and draws(Wrapper(late))
    assert not Fetcher([1, 2], pad_collate).is_seeded


def test_what_is_drawn_while_fetching_leaves_the_trainings_random_numbers_alone():
    def draw():
        return [random.random(), random.gauss(0, 1), np.random.rand(), float(torch.rand(()))]

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    expected = [draw() for _ in range(2)]
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    first = draw()
    with kept_random_states():
        Fetcher(Noisy(), None)(Request([1, 2], [3, 4]))
    with pytest.raises(ZeroDivisionError), kept_random_states():
        draw()
        1 / 0  # noqa: B018
    assert [first, draw()] == expected


# -- what goes wrong ----------------------------------------------------------------------------


class Broken(Noisy):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("no such molecule")
        return torch.zeros(index)


def test_a_sample_that_cannot_be_read_is_named_with_its_own_words(stored):
    words = "sample 7 cannot be read: ValueError: no such molecule"
    with pytest.raises(DataError, match=words) as caught:
        Fetcher(Broken(), None)(Request([3, 7], [0, 0]))
    assert caught.value.hint
    assert isinstance(caught.value.__cause__, ValueError)
    data = Hdf5Dataset(stored, transform=lambda sample: sample["nodes"])
    with pytest.raises(DataError, match="sample 3 cannot be read: KeyError: 'nodes'"):
        Fetcher(data, None)(Request([3], [0]))


def test_samples_of_different_shapes_are_refused_with_what_to_do(stored):
    with pytest.raises(DataError, match="differ in shape") as caught:
        Fetcher(Broken(), None)(Request([3, 4], [0, 0]))
    assert "pad_collate" in caught.value.hint and "buckets: exact" in caught.value.hint
    with pytest.raises(DataError, match="differ in shape"):
        Fetcher(Hdf5Dataset(stored), None)(Request([0, 1], None))


# -- padding ------------------------------------------------------------------------------------


def test_padding_fills_every_array_with_zeros_up_to_the_largest_of_the_batch():
    samples = [
        {"n": 2, "x": np.ones((2, 3), dtype="f4"), "a": torch.ones(2, 2, dtype=torch.int64)},
        {"n": 3, "x": np.full((3, 3), 2, dtype="f4"), "a": torch.full((3, 3), 5)},
    ]
    batch = pad_collate(samples)
    assert list(batch) == ["n", "x", "a"]
    assert batch["n"].tolist() == [2, 3]
    assert batch["x"].dtype == torch.float32 and batch["x"].shape == (2, 3, 3)
    assert batch["x"][0].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert batch["a"][0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert batch["a"][1].equal(torch.full((3, 3), 5))


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "samples",
    [
        [torch.ones(3), torch.zeros(3)],
        [(np.ones(2), 1), (np.zeros(2), 2)],
        [Pair(torch.ones(2), 1.5), Pair(torch.zeros(2), 2.5)],
        [[1, 1.5], [2, 2.5]],
        [np.float32(1), np.float32(2)],
        [{"x": [torch.ones(1), True]}, {"x": [torch.zeros(1), False]}],
        [torch.ones(2, dtype=torch.int64), torch.full((2,), 0.5)],
    ],
)
def test_where_nothing_differs_padding_gives_what_the_default_collate_gives(samples):
    assert is_same(pad_collate(samples), default_collate(samples))


def test_padding_keeps_numbers_of_any_type_and_refuses_other_dimensions_in_words():
    batch = pad_collate([torch.ones(1, dtype=torch.int64), torch.full((2,), 0.5)])
    assert batch.tolist() == [[1.0, 0.0], [0.5, 0.5]]
    with pytest.raises(DataError, match="arrays of 1 and of 2 dimensions"):
        pad_collate([torch.zeros(2), torch.zeros(2, 2)])
