"""`buckets`: training steps over samples of many sizes, with buckets against padding.

Both ways read through the same reader and have the same model, optimizer and effective batch:
tasuki's loader with its exact buckets, or torch's DataLoader in random order with padding to the
largest sample. They take turns every tenth of an epoch. A part of loader.py.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from _measure import Figure, ratios, rotated, rounds_within, sized
from tasuki.data.buckets import BucketRule, plan_buckets
from tasuki.data.fetch import Fetcher
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.loader import Loader
from tasuki.data.order import Order
from tasuki.data.shares import StepSplit

MATRICES = {512: 1200, 1024: 900, 1536: 480, 2048: 144, 3072: 88, 4096: 30}
"""Samples by size: six sizes, the largest has 64 times the entries of the smallest."""
SCALES = sized((16, 8), smoke=(32,))
"""Sizes are divided by each, so that a CPU can do them. The smaller the sizes, the more of a step
does not depend on them, so both are measured."""
COUNTS_BY = sized(6, smoke=100)
EFFECTIVE_BATCH = 8
ROUNDS, BUDGET_S = sized(7, smoke=1), 15.0
TURNS = 10
"""In an epoch, which is a round."""
Batch = dict[str, Tensor]


def measure(folder: Path) -> list[Figure]:
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for scale in SCALES:
        mix = {size // scale: -(-count // COUNTS_BY) for size, count in MATRICES.items()}
        dataset = Hdf5Dataset(write_matrices(folder / f"matrices{scale}.h5", mix))
        check_padding(dataset, max(mix))
        what = f"samples/s, exact buckets, 512 … 4096 divided by {scale}"
        figures += _measure_mix(dataset, max(mix), what)
    return figures


def write_matrices(path: Path, mix: dict[int, int]) -> Path:
    """The entries of one sample after another, in random order of sizes; `mix` counts by size."""
    random = np.random.default_rng(2)
    sizes = random.permutation(np.repeat(np.array(list(mix)), list(mix.values())))
    offsets = np.concatenate([[0], np.cumsum(sizes**2)])
    with h5py.File(path, "w") as file:
        file["n"] = sizes
        file["matrix"] = random.standard_normal(offsets[-1], dtype=np.float32)
        file["matrix_offsets"] = offsets
        file["answer"] = random.standard_normal(len(sizes), dtype=np.float32)
    return path


def _measure_mix(dataset: Hdf5Dataset, largest: int, what: str) -> list[Figure]:
    ways = {"buckets": bucketed(dataset), "padded": padded(dataset, largest)}
    for way in ways.values():
        way.warm_up()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in rounds_within(BUDGET_S, max_rounds=ROUNDS):
        gc.collect()
        for way in ways.values():
            way.start_round()
        for turn in range(TURNS):
            for name in rotated(list(ways), number + turn):
                ways[name].run_turn(turn)
        for name, way in ways.items():
            assert way.num_samples == len(dataset), (name, way.num_samples)
            rates[name].append(way.num_samples / way.taken_s)
    padding = 1 - ways["padded"].num_entries / ways["padded"].num_padded
    against = f"padding to the largest ({padding:.0%} padding)"
    return [Figure(what, against, ratios(rates["buckets"], rates["padded"]))]


# -- the model --------------------------------------------------------------------------------


class GraphNet(nn.Module):
    """Nodes are rows, entries the weights of edges. Padding does not change a result."""

    def __init__(self, width: int = 32, rounds: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.state = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.message = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))
        self.leave = nn.Linear(width, 1)

    def forward(self, matrix: Tensor, sizes: Tensor) -> Tensor:
        count = sizes.view(-1, 1, 1)
        x = self.enter(torch.stack([matrix.sum(-1), matrix.square().sum(-1)], -1) / count)
        for state, message in zip(self.state, self.message, strict=True):
            x = torch.relu(state(x) + message(matrix @ x / count))
        is_node = torch.arange(matrix.shape[-1]).view(1, -1, 1) < count
        answer: Tensor = self.leave((x * is_node).sum(-2) / count.squeeze(-1))
        return answer.squeeze(-1)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    matrix, sizes = batch["matrix"], batch["n"]
    if matrix.ndim == 2:  # as stored: all samples have one size
        matrix = matrix.view(len(matrix), int(sizes[0]), -1)
    return nn.functional.mse_loss(model(matrix, sizes), batch["answer"])


def pad_to(size: int, samples: Sequence[dict[str, Any]]) -> Batch:
    matrices = torch.zeros(len(samples), size, size)
    for row, sample in zip(matrices, samples, strict=True):
        n = sample["n"]
        row[:n, :n] = torch.from_numpy(sample["matrix"]).view(n, n)
    return {
        "n": torch.tensor([sample["n"] for sample in samples]),
        "matrix": matrices,
        "answer": torch.tensor([float(sample["answer"]) for sample in samples]),
    }


def check_padding(dataset: Hdf5Dataset, largest: int) -> None:
    """The comparison is fair only if a padded sample has the same loss."""
    torch.manual_seed(1)
    model = GraphNet()
    samples = dataset.read_raw(range(0, len(dataset), len(dataset) // EFFECTIVE_BATCH))
    alone = torch.stack([loss_of(model, pad_to(s["n"], [s])) for s in samples]).mean()
    together = loss_of(model, pad_to(largest, samples))
    assert torch.allclose(alone, together, rtol=1e-4), (alone, together)


# -- the two ways -----------------------------------------------------------------------------


class Way:
    """One way to go through the data, and its clock."""

    def __init__(self, batches: Iterator[Batch], steps_per_epoch: int) -> None:
        torch.manual_seed(1)
        self.model = GraphNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps_per_epoch = steps_per_epoch
        self._batches = batches
        self.start_round()

    def warm_up(self) -> None:
        """A turn; then the epoch ends without training, as every round starts with an epoch."""
        self.run_turn(0)
        for _ in itertools.islice(self._batches, self.steps_per_epoch - self._num_steps):
            pass

    def start_round(self) -> None:
        self.taken_s = 0.0
        self.num_samples = self.num_entries = self.num_padded = self._num_steps = 0

    def run_turn(self, turn: int) -> None:
        """The next part of the epoch; the last turn ends it."""
        num_steps = (turn + 1) * self.steps_per_epoch // TURNS - self._num_steps
        self._num_steps += num_steps
        seen = []
        started = time.perf_counter()
        for batch in itertools.islice(self._batches, num_steps):
            loss_of(self.model, batch).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            seen.append((batch["n"], batch["matrix"].numel()))
        self.taken_s += time.perf_counter() - started
        self.num_samples += sum(len(sizes) for sizes, _ in seen)
        self.num_entries += sum(int(sizes.square().sum()) for sizes, _ in seen)
        self.num_padded += sum(numel for _, numel in seen)


def bucketed(dataset: Hdf5Dataset) -> Way:
    """As a stage of a run reads: order, shares, fetching in this process."""
    rule = BucketRule(kind="exact")
    plan = plan_buckets(np.asarray(dataset.sizes), len(dataset), rule=rule)
    order = Order(plan, seed=1, stage="bench", effective_batch=EFFECTIVE_BATCH)
    loader = Loader(
        Fetcher(dataset, None),
        order,
        StepSplit(micro_batch=EFFECTIVE_BATCH),
        first_step=0,
        total_steps=1 << 40,
    )
    batches = (micro.data for step, _ in loader.steps() for micro in step)
    return Way(batches, order.steps_per_epoch)


def padded(dataset: Hdf5Dataset, largest: int) -> Way:
    """torch's loader in random order."""
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=EFFECTIVE_BATCH,
        shuffle=True,
        collate_fn=partial(pad_to, largest),
        generator=torch.Generator().manual_seed(1),
    )
    epochs = (iter(loader) for _ in itertools.count())
    return Way(itertools.chain.from_iterable(epochs), len(loader))
