"""Recipes with resume bugs, as people write them. Each works when nothing interrupts it."""

from __future__ import annotations

import copy
import os
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

SAMPLES = 64


def points() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return x, x[:, :2].sum(1, keepdim=True)


class Sound:
    """Nothing wrong: dropout draws from torch's random numbers, BatchNorm has buffers."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
        )

    def build_dataset(self, source, split):
        return TensorDataset(*points())

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Sloppy(Sound):
    """State that is lost, but decides nothing."""

    def __init__(self) -> None:
        self.num_calls = 0

    def loss(self, model, batch):
        self.num_calls += 1
        return super().loss(model, batch)


class OwnGenerator(Sloppy):
    """Noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(3)

    def loss(self, model, batch):
        x, y = batch
        x = x + 0.1 * torch.randn(x.shape, generator=self.noise)
        return super().loss(model, [x, y])


class UnseededGenerator(Sound):
    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + 0.1 * self.rng.random())


class PythonCounter(Sound):
    """A warm-up that counts by itself."""

    def __init__(self) -> None:
        self.calls = 0

    def loss(self, model, batch):
        self.calls += 1
        return super().loss(model, batch) * min(1.0, self.calls / 15)


class ClassCounter(Sound):
    calls = 0

    def loss(self, model, batch):
        type(self).calls += 1
        return super().loss(model, batch) * min(1.0, self.calls / 15)


TOP = [0]


class TopCounter(Sound):
    """Counts at the top of its module."""

    def loss(self, model, batch):
        TOP[0] += 1
        return super().loss(model, batch) * min(1.0, TOP[0] / 15)


class Average(Sound):
    """Learns from a slow copy of the model that the recipe keeps for itself."""

    def __init__(self) -> None:
        self.teacher: nn.Module | None = None

    def loss(self, model, batch):
        x, _ = batch
        if self.teacher is None:
            self.teacher = copy.deepcopy(model).eval()
        with torch.no_grad():
            for own, theirs in zip(self.teacher.parameters(), model.parameters(), strict=True):
                own.lerp_(theirs, 0.1)
            target = self.teacher(x)
        return super().loss(model, batch) + nn.functional.mse_loss(model(x), target)


class Shuffler:
    """A loader that shuffles with random numbers of its own, and has no state."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.x, self.y = points()

    def __len__(self) -> int:
        return SAMPLES // 8

    def __iter__(self):
        order = list(range(SAMPLES))
        self.rng.shuffle(order)
        for start in range(0, SAMPLES, 8):
            chosen = order[start : start + 8]
            yield self.x[chosen], self.y[chosen]


class OwnShuffle(Sound):
    def build_dataset(self, source, split):
        return Shuffler(random.Random(5))


class UnseededShuffle(Sound):
    def build_dataset(self, source, split):
        return Shuffler(random.Random())


class TorchLoader(Sound):
    """Nothing wrong: torch's own loader, under random numbers that tasuki seeds."""

    def build_dataset(self, source, split):
        return DataLoader(TensorDataset(*points()), batch_size=8, shuffle=True)


class StatefulLoader(Sound):
    """Nothing wrong: a loader that is resumed through its `state_dict`."""

    def build_dataset(self, source, split):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(TensorDataset(*points()), batch_size=8, shuffle=True)


class Sized(Sound):
    """Nothing wrong: samples of several sizes, in buckets."""

    def sample_sizes(self, dataset):
        return [1 + number % 3 for number in range(len(dataset))]


class Jittered(Dataset):
    def __init__(self, rng) -> None:
        self.rng = rng
        self.x, self.y = points()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index] + 0.1 * float(self.rng.random()), self.y[index]


class UnseededData(Sound):
    """Augmentation with a numpy generator that nobody seeds."""

    def build_dataset(self, source, split):
        return Jittered(np.random.default_rng())


class SeededData(Sound):
    """The same, seeded once: right until the first resume."""

    def build_dataset(self, source, split):
        return Jittered(np.random.default_rng(7))


class Boosted(torch.optim.SGD):
    """Its steps grow; by how much is not in its `state_dict`."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.boost = 1.0

    def step(self, closure=None):
        self.boost *= 1.05
        for group in self.param_groups:
            group["lr"] = 0.01 * self.boost
        return super().step(closure)


class LeakyOptimizer(Sound):
    def build_optimizer(self, model):
        return Boosted(model.parameters(), lr=0.01)

    def build_schedule(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)


class Forgetful(torch.optim.SGD):
    """Saves no momentum."""

    def state_dict(self):
        told = super().state_dict()
        return {**told, "state": {}}


class LostMomentum(Sound):
    def build_optimizer(self, model):
        return Forgetful(model.parameters(), lr=0.02, momentum=0.9)


class Falling:
    """A schedule that keeps its count to itself."""

    def __init__(self, optimizer) -> None:
        self.optimizer = optimizer
        self._count = 0

    def step(self) -> None:
        self._count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * 0.9**self._count

    def state_dict(self):
        return {}

    def load_state_dict(self, state) -> None:
        pass


class LeakySchedule(Sound):
    def build_schedule(self, optimizer, total_steps):
        return Falling(optimizer)


class Centred(nn.Module):
    """Subtracts a running mean that is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = 0.0
        self.linear = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * float(x.mean())
        return self.linear(x - self.mean)


class RunningValue(Sound):
    def build_model(self) -> nn.Module:
        return Centred()


class Urandom(Sound):
    """A loss that draws from the system."""

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + os.urandom(1)[0] / 1000)


class Closure(Sound):
    """A count that only a closure holds."""

    def __init__(self) -> None:
        count = 0

        def following() -> int:
            nonlocal count
            count += 1
            return count

        self.following = following

    def loss(self, model, batch):
        return super().loss(model, batch) * min(1.0, self.following() / 15)


class Guesser(Sound):
    """Every step is exact; its validation is not."""

    def evaluate(self, model, dataset):
        return {"loss": os.urandom(1)[0] + os.urandom(1)[0] / 256}


class Unloadable(torch.optim.SGD):
    """`load_state_dict` does not put back what `state_dict` gave."""

    def load_state_dict(self, state) -> None:
        super().load_state_dict({**state, "state": {}})


class BadLoad(Sound):
    def build_optimizer(self, model):
        return Unloadable(model.parameters(), lr=0.02, momentum=0.9)
