"""Batches to trace with: of the recipe's example, of its data, or of its loader."""

from __future__ import annotations

import pytest
import torch
from tests.unit.memory.models import Mlp, stage_of, traces_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tasuki.errors import RecipeError
from tasuki.memory.batches import Batches
from tasuki.memory.key import probe_key
from tasuki.spec.resolved import ResolvedSave, ResolvedStage
from tasuki.spec.values import Every

STAGE = ResolvedStage(name="a", recipe="r:R", data="x")


class Sized:
    """Samples of several sizes; the largest of each bucket counts."""

    sizes = (3, 9, 9, 5)

    def build_dataset(self, source, split):
        return self

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((self.sizes[index],), index)


class Example(Sized):
    def example_batch(self, size, batch):
        return torch.zeros(batch, size or 2)

    def build_dataset(self, source, split):
        raise AssertionError("an example needs no data")


class Loader(Sized):
    def build_dataset(self, source, split):
        rows = TensorDataset(torch.arange(8), torch.zeros(8, 3))
        return DataLoader(rows, batch_size=4)


def test_a_sample_of_each_size_stands_for_all_of_them():
    batches = Batches(Sized(), STAGE)
    assert batches.sizes == (3, 5, 9)
    assert batches.at(4, 9).tolist() == [[1] * 9] * 4
    assert batches.at(2, 8).tolist() == [[3] * 5] * 2  # the largest that is not larger


def test_a_recipes_example_needs_no_data():
    batches = Batches(Example(), STAGE, sizes=[16, 32])
    assert batches.sizes == (16, 32)
    assert batches.at(3, 16).shape == (3, 16)
    assert Batches(Example(), STAGE).at(3, 0).shape == (3, 2)


def test_an_example_that_fails_is_explained():
    class Failing(Example):
        def example_batch(self, size, batch):
            raise ValueError("no")

    with pytest.raises(RecipeError, match=r"example_batch\(None, 2\) failed: ValueError: no"):
        Batches(Failing(), STAGE).at(2, 0)


def test_batches_of_a_loader_are_cut_and_repeated_by_rows():
    batches = Batches(Loader(), STAGE)
    assert batches.sizes == ()
    numbers, rows = batches.at(7, 0)
    assert numbers.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert rows.shape == (7, 3)


class ReadsNumbers(Mlp):
    """Its model cannot be built without numbers."""

    def build_model(self):
        model = super().build_model()
        model.register_buffer("table", torch.from_numpy(torch.ones(8).numpy() * 2))
        model[-1].bias = nn.Parameter(torch.tensor(torch.ones(5).numpy()))
        return model


def test_a_model_that_needs_numbers_is_built_of_real_tensors_and_traced_all_the_same():
    [plain] = traces_of(Mlp(), stage_of(), [(2, 0)])
    [found] = traces_of(ReadsNumbers(), stage_of(), [(2, 0)])
    assert found.peak == plain.peak + 8 * 4


def test_a_probe_is_true_as_long_as_what_memory_hangs_on_stays():
    def key(stage, **more):
        return probe_key(
            stage,
            **{
                "code": {"r.py": "1"},
                "torch": "2.13",
                "device": "cuda",
                "accumulates": False,
                "ranks": 1,
                **more,
            },
        )

    same = key(STAGE)
    harmless = ResolvedStage(
        name="b",
        recipe="r:R",
        data="x",
        lr=1.0,
        save=ResolvedSave(every=Every(unit="steps", count=9)),
    )
    assert key(harmless) == same
    assert key(ResolvedStage(name="a", recipe="r:R", data="x", precision="bf16")) != same
    assert key(STAGE, code={"r.py": "2"}) != same
    assert key(STAGE, torch="2.14") != same
    assert key(STAGE, ranks=2) != same
