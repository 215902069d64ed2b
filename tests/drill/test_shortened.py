"""What a rank does differently in a drill: fewer samples, shorter passes, and a look at hidden
state."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.short import ShortLoader
from tasuki.failpoints import DRILL
from tasuki.loop.hidden import Walk, digest_of, leaf
from tasuki.train.drilled import (
    few_steps,
    fewer_batches,
    fewer_samples,
    read_order,
)
from tasuki.train.rehearsed import few_to_evaluate


@pytest.fixture
def in_a_drill(tmp_path):
    read_order({DRILL: json.dumps({"steps_per_epoch": 6, "trace": str(tmp_path)})})
    yield
    read_order({})


def test_outside_of_a_drill_nothing_is_shortened():
    plan = plan_buckets([1, 2, 3], 3)
    loader = DataLoader(TensorDataset(torch.zeros(100)))
    assert fewer_samples(plan, batch=2) is plan
    assert fewer_batches(loader) is loader


@pytest.mark.parametrize(
    ("sizes", "batch", "buckets"),
    [
        (None, 8, [(None, 46)]),  # six steps, the last of them not full
        ([3] * 10, 8, [(3, 10)]),  # fewer than wanted: all
        ([1] * 50 + [9] * 50, 8, [(1, 22), (9, 22)]),
        (list(range(1, 31)) * 9, 4, [(1, 3), (7, 3), (13, 3), (18, 3), (24, 3), (30, 3)]),
        ([1] * 9, 1, [(1, 6)]),
    ],
)
def test_a_drill_keeps_the_first_samples_of_small_and_large_buckets(
    in_a_drill, sizes, batch, buckets
):
    plan = plan_buckets(sizes, 500 if sizes is None else len(sizes))
    short = fewer_samples(plan, batch=batch)
    assert [(bucket.size, bucket.samples) for bucket in short.buckets] == buckets
    for number, bucket in enumerate(short.buckets):
        whole = {b.size: n for n, b in enumerate(plan.buckets)}[bucket.size]
        index = plan.index(whole)
        first = range(bucket.samples) if index is None else index[: bucket.samples]
        assert list(short.index(number)) == list(first)
    assert short.fingerprint() == fewer_samples(plan, batch=batch).fingerprint()


class Stateful:
    """A loader with a state, which goes on where it was left."""

    def __len__(self) -> int:
        return 50

    def __iter__(self):
        return iter(range(50))

    def state_dict(self):
        return {}

    def load_state_dict(self, state) -> None:
        pass


def test_a_short_loader_ends_its_passes_early_and_is_that_loader_otherwise(in_a_drill):
    inner = DataLoader(TensorDataset(torch.arange(100)), batch_size=4, shuffle=True)
    short = fewer_batches(inner, accumulation=2)
    assert isinstance(short, ShortLoader) and len(short) == 12
    assert len(list(short)) == len(list(short)) == 12
    assert short.batch_size == 4 and not hasattr(short, "state_dict")
    short.mark = 3
    assert inner.mark == 3


def test_a_short_pass_that_is_put_back_ends_where_it_would_have(in_a_drill):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> ShortLoader:
        generator = torch.Generator().manual_seed(1)
        inner = StatefulDataLoader(list(range(50)), batch_size=2, shuffle=True, generator=generator)
        return fewer_batches(inner)

    loader = make()
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    assert len(first) == len(second) == 6 and first != second
    again = make()
    assert [batch.tolist() for batch in again] == first
    passing = iter(again)
    taken = [next(passing).tolist(), next(passing).tolist()]
    resumed = make()
    resumed.load_state_dict(again.state_dict())
    assert taken + [batch.tolist() for batch in resumed] == second


def test_a_loader_without_a_length_or_with_a_state_of_its_own_is_left_alone(in_a_drill):
    class Endless:
        def __iter__(self):
            return itertools.count()

    class Stream(IterableDataset):
        def __iter__(self):
            return itertools.count()

    for loader in (Endless(), Stateful(), DataLoader(Stream())):
        assert fewer_batches(loader) is loader


# -- hidden state ---------------------------------------------------------------------------------


class Thing:
    kept = 0

    def __init__(self) -> None:
        self.number = 1
        self.generator = torch.Generator().manual_seed(1)
        self.numpy = np.random.default_rng(1)
        self.python = random.Random(1)
        self.queue = deque([1.0, 2.0])
        self.nested = {"mean": [torch.zeros(2)]}
        self.counter = itertools.count()
        self.module = nn.utils.skip_init(nn.Linear, 2, 2).requires_grad_(True)
        nn.init.zeros_(self.module.weight)
        nn.init.zeros_(self.module.bias)
        self._private = 3
        self.itself = self
        self.function = lambda: None


def entries_of(value: object) -> dict[str, str]:
    walk = Walk()
    walk.attributes("it", value)
    return walk.entries


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda t: setattr(t, "number", 2), "it.number"),
        (lambda t: setattr(Thing, "kept", 1), "it.kept"),
        (lambda t: torch.rand(1, generator=t.generator), "it.generator"),
        (lambda t: t.numpy.random(), "it.numpy"),
        (lambda t: t.python.random(), "it.python"),
        (lambda t: t.queue.append(3.0), "it.queue[2]"),
        (lambda t: t.nested["mean"][0].add_(1), "it.nested['mean'][0]"),
        (lambda t: next(t.counter), "it.counter"),
        (lambda t: t.module.bias.data.add_(1), "it.module.bias"),
        (lambda t: t.module.requires_grad_(False), "it.module.bias.requires_grad"),
        (lambda t: setattr(t, "_private", 4), "it._private"),
    ],
)
def test_a_change_of_hidden_state_shows_and_nothing_else_does(monkeypatch, change, name):
    monkeypatch.setattr(Thing, "kept", 0)
    thing = Thing()
    before = entries_of(thing)
    assert before == entries_of(thing) == entries_of(Thing())
    change(thing)
    after = entries_of(thing)
    changed = {key for key in {**before, **after} if before.get(key) != after.get(key)}
    assert name in changed
    attribute = re.split(r"[.\[]", name)[1]
    assert {re.split(r"[.\[]", key)[1] for key in changed} == {attribute}


def test_looking_draws_no_random_numbers_and_changes_nothing():
    thing = Thing()
    states = torch.get_rng_state(), np.random.get_state()[2], random.getstate()
    entries_of(thing)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (np.random.get_state()[2], random.getstate())
    assert next(thing.counter) == 0


class Trap:
    __slots__ = ("value",)

    @property
    def __dict__(self):
        raise RuntimeError("do not look")


class Hooked(torch.optim.SGD):
    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=0.1)
        self._own = 1


def test_objects_that_do_not_like_to_be_looked_at_do_no_harm():
    walk = Walk()
    walk.into("trap", Trap())
    assert list(walk.entries) == ["trap"]


def test_of_torchs_own_private_attributes_only_those_of_the_users_code_count():
    optimizer = Hooked(nn.Linear(2, 2).parameters())
    walk = Walk()
    walk.attributes("optimizer", optimizer)
    assert walk.entries == {"optimizer._own": "int 1"}


def test_large_things_cost_little_and_small_changes_of_small_ones_show():
    paths = [f"/data/{number}.png" for number in range(100_000)]
    walk = Walk()
    walk.into("paths", paths)
    assert list(walk.entries) == ["paths"]
    assert walk.entries["paths"].startswith("100000 items")
    assert leaf("x" * 10_000_000) == leaf("x" * 10_000_000)
    assert leaf(0.1 + 0.2) != leaf(0.3)


def test_every_bit_of_a_batch_counts():
    batch = {"x": torch.zeros(1 << 21), "y": [np.zeros(3), "a"], "n": 3}
    before = digest_of(batch)
    batch["x"][12345] = 1e-45
    assert digest_of(batch) != before
    batch["x"][12345] = 0.0
    assert digest_of(batch) == before
    batch["y"][1] = "b"
    assert digest_of(batch) != before
    assert digest_of(torch.tensor(0.0)) != digest_of(torch.tensor(-0.0))


@pytest.fixture
def in_a_rehearsal(tmp_path):
    wanted = {"offline": False, "smallest": ["small"], "effective_batches": {}}
    order = {"steps_per_epoch": 2, "trace": str(tmp_path), "rehearsal": wanted}
    read_order({DRILL: json.dumps(order)})
    yield
    read_order({})


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


def test_a_rehearsals_own_loader_is_shortened_in_evaluations_alone(in_a_rehearsal):
    loader = DataLoader(TensorDataset(torch.zeros(100)))
    assert fewer_batches(loader, is_trained=True) is loader
    assert len(list(fewer_batches(loader))) == 2


def test_few_samples_of_a_data_set_are_otherwise_that_data_set(in_a_rehearsal):
    dataset = TensorDataset(torch.arange(100))
    dataset.sizes, dataset.vocab = list(range(100)), 7
    few = few_to_evaluate(dataset)
    assert len(few) == 8 and int(few[7][0]) == 99 and few.vocab == 7
    assert few.sizes.tolist() == [int(sample) for (sample,) in few]
