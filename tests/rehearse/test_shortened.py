"""What a rank does differently in a rehearsal: fewer samples, shorter passes."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.short import ShortLoader
from tasuki.train.rehearsed import (
    REHEARSAL,
    few_steps,
    few_to_evaluate,
    fewer_batches,
    fewer_samples,
    read_rehearsal,
)


@pytest.fixture
def in_a_rehearsal(tmp_path):
    told = {"steps": 2, "trace": str(tmp_path), "is_offline": False, "smallest": ["small"]}
    read_rehearsal({REHEARSAL: json.dumps(told)})
    yield
    read_rehearsal({})


def test_outside_of_a_rehearsal_nothing_is_shortened():
    plan = plan_buckets([1, 2, 3], 3)
    loader = DataLoader(TensorDataset(torch.zeros(100)))
    assert fewer_samples(plan, batch=2) is plan
    assert fewer_batches(loader) is loader
    assert few_steps(100) == 100


def test_a_rehearsal_takes_the_largest_samples_of_the_largest_bucket(in_a_rehearsal):
    sizes = [5, 9, 1, 8, 9, 7, 2, 9]
    rule = BucketRule(kind="bounds", uppers=(4, 10))
    plan = plan_buckets(sizes, len(sizes), rule=rule)
    short = fewer_samples(plan, batch=2, weights=lambda: sizes)
    assert [bucket.size for bucket in short.buckets] == [10]
    assert [sizes[i] for i in short.index(0)] == [9, 8, 9, 9]
    small = fewer_samples(plan, batch=2, stage="small", weights=lambda: sizes)
    assert [sizes[i] for i in small.index(0)] == [1, 2]
    assert few_steps(100) == 2 and few_steps(1) == 1


def test_a_short_loader_ends_its_passes_early_and_is_that_loader_otherwise(in_a_rehearsal):
    inner = DataLoader(TensorDataset(torch.arange(100)), batch_size=4, shuffle=True)
    short = fewer_batches(inner)
    assert isinstance(short, ShortLoader) and len(short) == 2
    assert len(list(short)) == len(list(short)) == 2
    assert short.batch_size == 4 and not hasattr(short, "state_dict")
    short.mark = 3
    assert inner.mark == 3


class Stateful:
    """A loader with a state, which continues where it was left."""

    def __len__(self) -> int:
        return 50

    def __iter__(self):
        return iter(range(50))

    def state_dict(self):
        return {}

    def load_state_dict(self, state) -> None:
        pass


def test_a_loader_without_a_length_or_with_a_state_of_its_own_is_left_alone(in_a_rehearsal):
    class Stream(IterableDataset):
        def __iter__(self):
            return itertools.count()

    for loader in (Stateful(), DataLoader(Stream())):
        assert fewer_batches(loader) is loader


def test_few_samples_of_a_data_set_are_otherwise_that_data_set(in_a_rehearsal):
    dataset = TensorDataset(torch.arange(100))
    dataset.sizes, dataset.vocab = list(range(100)), 7
    few = few_to_evaluate(dataset)
    assert len(few) == 8 and int(few[7][0]) == 99 and few.vocab == 7
    assert few.sizes.tolist() == [int(sample) for (sample,) in few]
