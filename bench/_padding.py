"""Buckets against padding: whole training steps over samples of many sizes.

A course is one way to go through the data: tasuki's loader with its buckets, or torch's DataLoader
in random order with padding. All courses read through the same reader, have the same model,
optimizer and effective batch, and differ in nothing but which samples share a step and how far
they are padded. They take turns every tenth of an epoch. Used by loader.py.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from _measure import Spread, print_table, ratios, rounds_within, spread
from _samples import every_size, matrix_mix, write_matrices, zipf_mix
from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.collate import pad_collate
from tasuki.data.fetch import Fetcher
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.loader import Loader
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit

EFFECTIVE_BATCH = 8
SCALES = (16, 8)
"""The sizes of the matrices are divided by each: the answer hangs on it, so both are shown. The
smaller the sizes, the more of a step is what it costs whatever its size."""
COUNTS_BY = 6
ROUNDS = 7
BUDGET_S = 15.0
"""For each mix."""
TURNS = 10
"""In an epoch, which is a round."""
GOAL = 3.0
TO_LARGEST = "padded to the largest of all"
TO_BATCH = "padded to the largest of the batch"
Batch = dict[str, Tensor]
Samples = Sequence[dict[str, Any]]


class GraphNet(nn.Module):
    """Nodes are rows, entries the weights of edges. Padding changes no result."""

    def __init__(self, width: int = 32, rounds: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.heard = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))
        self.leave = nn.Linear(width, 1)

    def forward(self, matrix: Tensor, sizes: Tensor) -> Tensor:
        count = sizes.view(-1, 1, 1)
        state = self.enter(torch.stack([matrix.sum(-1), matrix.square().sum(-1)], -1) / count)
        for own, heard in zip(self.own, self.heard, strict=True):
            state = torch.relu(own(state) + heard(matrix @ state / count))
        is_node = torch.arange(matrix.shape[-1]).view(1, -1, 1) < count
        answer: Tensor = self.leave((state * is_node).sum(-2) / count.squeeze(-1))
        return answer.squeeze(-1)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    matrix, sizes = batch["matrix"], batch["n"]
    if matrix.ndim == 2:  # as stored: all samples have one size
        matrix = matrix.view(len(matrix), int(sizes[0]), -1)
    return nn.functional.mse_loss(model(matrix, sizes), batch["answer"])


# -- collates ---------------------------------------------------------------------------------


def pad_to_batch(samples: Samples) -> Batch:
    """tasuki's own, after the samples got their shape."""
    found: Batch = pad_collate(
        [{**s, "matrix": s["matrix"].reshape(s["n"], s["n"])} for s in samples]
    )
    return found


pad_to_batch.draws_random_numbers = False  # type: ignore[attr-defined]


def pad_to(size: int, samples: Samples) -> Batch:
    padded = torch.zeros(len(samples), size, size)
    for row, sample in zip(padded, samples, strict=True):
        n = sample["n"]
        row[:n, :n] = torch.from_numpy(sample["matrix"]).view(n, n)
    return {
        "n": torch.tensor([sample["n"] for sample in samples]),
        "matrix": padded,
        "answer": torch.tensor([float(sample["answer"]) for sample in samples]),
    }


# -- courses ----------------------------------------------------------------------------------


class Course:
    """One way to go through the data, and its clock."""

    def __init__(self, epochs: Iterator[Iterator[Batch]], steps_per_epoch: int) -> None:
        torch.manual_seed(1)
        self.model = GraphNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps_per_epoch = steps_per_epoch
        self.taken_s = self.cpu_s = 0.0
        self.samples = self.data = self.padded = 0
        self._batches = itertools.chain.from_iterable(epochs)
        self._done = 0

    def warm_up(self) -> None:
        """A turn; then an epoch is finished without training, as every round begins with one."""
        self.run_turn(0)
        for _ in itertools.islice(self._batches, self.steps_per_epoch - self._done):
            pass

    def begin_round(self) -> None:
        self.taken_s = self.cpu_s = 0.0
        self.samples = self.data = self.padded = self._done = 0

    def run_turn(self, turn: int) -> None:
        """The next part of the epoch; the last turn ends it."""
        steps = (turn + 1) * self.steps_per_epoch // TURNS - self._done
        self._done += steps
        seen = []
        began, cpu_began = time.perf_counter(), time.thread_time()
        for batch in itertools.islice(self._batches, steps):
            loss_of(self.model, batch).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            seen.append((batch["n"], batch["matrix"].numel()))
        self.cpu_s += time.thread_time() - cpu_began
        self.taken_s += time.perf_counter() - began
        self.samples += sum(len(sizes) for sizes, _ in seen)
        self.data += sum(int(sizes.square().sum()) for sizes, _ in seen)
        self.padded += sum(numel for _, numel in seen)


def bucketed(
    dataset: Hdf5Dataset, rule: BucketRule, collate: Callable[[Any], Any] | None
) -> Course:
    """As a stage of a run reads: order, shares, fetching in this process."""
    plan = plan_buckets(np.asarray(dataset.sizes), len(dataset), rule=rule)
    order = Order(plan, seed=1, stage="bench", effective_batch=EFFECTIVE_BATCH)
    loader = Loader(
        Fetcher(dataset, collate),
        order,
        StepSplit(micro_batch=EFFECTIVE_BATCH),
        first_step=0,
        total_steps=1 << 40,
    )
    batches = (micro.data for step, _ in loader.steps() for micro in step)
    return Course(iter([batches]), order.steps_per_epoch)


def shuffled(dataset: Hdf5Dataset, collate: Callable[[Any], Any]) -> Course:
    """torch's own loader in random order."""
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=EFFECTIVE_BATCH,
        shuffle=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(1),
    )
    return Course((iter(loader) for _ in itertools.count()), len(loader))


def _courses(dataset: Hdf5Dataset, rules: dict[str, BucketRule], largest: int) -> dict[str, Course]:
    return {
        **{
            f"tasuki, buckets: {name}": bucketed(
                dataset, rule, None if rule.kind == "exact" else pad_to_batch
            )
            for name, rule in rules.items()
        },
        TO_BATCH: shuffled(dataset, pad_to_batch),
        TO_LARGEST: shuffled(dataset, partial(pad_to, largest)),
    }


def check_padding(dataset: Hdf5Dataset, largest: int) -> None:
    """The comparison is fair only if a padded sample teaches the same."""
    torch.manual_seed(1)
    model = GraphNet()
    samples = dataset.read_raw(range(0, len(dataset), len(dataset) // EFFECTIVE_BATCH))
    alone = torch.stack([loss_of(model, pad_to(s["n"], [s])) for s in samples]).mean()
    together = loss_of(model, pad_to(largest, samples))
    assert torch.allclose(alone, together, rtol=1e-4), (alone, together)


# -- measuring --------------------------------------------------------------------------------


def measure(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    mixes = {scale: matrix_mix(sizes_by=scale, counts_by=COUNTS_BY) for scale in SCALES}
    exact = {"exact": BucketRule(kind="exact")}
    auto = {
        "auto": BucketRule(kind="auto"),
        "{auto: auto, power: 2}": BucketRule(kind="auto", power=2),
    }
    return {
        **{
            f"matrices/{scale}": _measure_mix(folder / f"matrices{scale}.h5", mix, exact)
            for scale, mix in mixes.items()
        },
        "zipf": _measure_mix(folder / "zipf.h5", zipf_mix(), auto),
    }


def _measure_mix(path: Path, mix: dict[int, int], rules: dict[str, BucketRule]) -> dict[str, Any]:
    dataset = Hdf5Dataset(write_matrices(path, every_size(mix)))
    largest = max(mix)
    check_padding(dataset, largest)
    courses = _courses(dataset, rules, largest)
    for course in courses.values():
        course.warm_up()
    rates: dict[str, list[float]] = {name: [] for name in courses}
    cpu_rates: dict[str, list[float]] = {name: [] for name in courses}
    for number in rounds_within(BUDGET_S, most=ROUNDS):
        _run_round(courses, number)
        for name, course in courses.items():
            assert course.samples == len(dataset), (name, course.samples)
            rates[name].append(course.samples / course.taken_s)
            cpu_rates[name].append(course.samples / course.cpu_s)
    return {
        "samples_by_size": mix,
        "courses": {
            name: {
                "samples_per_s": spread(rates[name]),
                "ratio": ratios(rates[name], rates[TO_LARGEST]),
                "cpu_ratio": ratios(cpu_rates[name], cpu_rates[TO_LARGEST]),
                "padding": 1 - course.data / course.padded,
                "steps_per_epoch": course.steps_per_epoch,
            }
            for name, course in courses.items()
        },
    }


def _run_round(courses: dict[str, Course], number: int) -> None:
    """An epoch of every course, in turns that begin with another course each time."""
    gc.collect()
    for course in courses.values():
        course.begin_round()
    names = list(courses)
    for turn in range(TURNS):
        first = (number + turn) % len(names)
        for name in names[first:] + names[:first]:
            courses[name].run_turn(turn)


# -- showing ----------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    titles = {
        **{
            f"matrices/{scale}": f"matrices of six sizes, 512 … 4096 divided by {scale}, counts "
            f"by {COUNTS_BY}"
            for scale in SCALES
        },
        "zipf": "Zipf's law",
    }
    for mix, title in titles.items():
        counts, courses = found[mix]["samples_by_size"], found[mix]["courses"]
        rate: Spread = courses[TO_LARGEST]["samples_per_s"]
        print_table(
            f"Training steps, {title}: {sum(counts.values())} samples of {len(counts)} sizes from "
            f"{min(counts)} to {max(counts)},\neffective batch {EFFECTIVE_BATCH}, one thread; "
            f"medians of {rate.rounds} epochs [quartiles]; the ways take turns every tenth of one",
            ["way", "samples/s", "ratio to the last", "CPU ratio", "padding", "steps", "goal"],
            [
                [
                    name,
                    one["samples_per_s"].show(0),
                    one["ratio"].show(),
                    one["cpu_ratio"].show(),
                    f"{one['padding']:.1%}",
                    str(one["steps_per_epoch"]),
                    _goal(one, is_asked=name == "tasuki, buckets: exact"),
                ]
                for name, one in courses.items()
            ],
        )


def _goal(figures: dict[str, Any], *, is_asked: bool) -> str:
    if not is_asked:
        return ""
    return f"≥ {GOAL:.0f}: {'met' if figures['ratio'].median >= GOAL else 'missed'}"
