"""Recipes for `verify resume`: sound ones, and some with the bugs that people write.

Tests copy one class at a time: what the command says of the code is about that class.
"""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

SAMPLES = 64


def points() -> tuple[Tensor, Tensor]:
    x = torch.sin(torch.arange(6.0 * SAMPLES) * 12.3).reshape(SAMPLES, 6)
    return x, x[:, :2].sum(1, keepdim=True)


class Sound:
    """Dropout draws from torch's random numbers, BatchNorm has buffers."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
        )

    def build_dataset(self, source, split):
        return TensorDataset(*points())

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Counter(Sound):
    """A warm-up that counts its own calls."""

    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        return super().loss(model, batch) * min(1.0, self.calls / 100)


class OwnGenerator(Sound):
    """Noise from a generator that is not in the checkpoints."""

    def __init__(self) -> None:
        self.noise = torch.Generator().manual_seed(3)

    def loss(self, model, batch):
        x, y = batch
        return super().loss(model, [x + 0.1 * torch.randn(x.shape, generator=self.noise), y])


class AttemptRate(Sound):
    """A learning rate that depends on the attempt."""

    def build_schedule(self, optimizer, total_steps):
        attempt = int(os.environ["TASUKI_ATTEMPT"])
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / attempt)


class AddressOrder(Sound):
    """Weights a sum by hashes of tensors, which are addresses.

    The order of a set of a few tensors would do, but is often the same in two processes.
    """

    def loss(self, model, batch):
        norms = (1e-4 * (hash(p) % 1009) * p.square().sum() for p in model.parameters())
        return super().loss(model, batch) + sum(norms)


class ProcessNumber(Sound):
    """A loss that depends on the process ID."""

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + os.getpid() * 1e-5)


class WrongValidation(Sound):
    """Weights are right; what it logs after a resume is not."""

    calls = 0

    def evaluate(self, model, dataset):
        self.calls += 1
        return {"loss": float(self.calls)}


class BadLoad(torch.optim.SGD):
    """`load_state_dict` does not put back what `state_dict` gave."""

    def load_state_dict(self, state) -> None:
        super().load_state_dict({**state, "state": {}})


class Unloadable(Sound):
    def build_optimizer(self, model):
        return BadLoad(model.parameters(), lr=0.02, momentum=0.9)


# -- nothing is wrong with these ------------------------------------------------------------------


class UncountedCalls(Sound):
    """State that is lost and decides nothing."""

    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        return super().loss(model, batch)


class TorchLoader(Sound):
    def build_dataset(self, source, split):
        return DataLoader(TensorDataset(*points()), batch_size=8, shuffle=True)


class StatefulLoader(Sound):
    def build_dataset(self, source, split):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(TensorDataset(*points()), batch_size=8, shuffle=True)


class Sizes(Sound):
    """Samples of several sizes, in buckets."""

    def sample_sizes(self, dataset):
        return [1 + number % 3 for number in range(len(dataset))]


class Augmented(Dataset):
    """Draws from the random numbers that tasuki seeds for each sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index):
        x, y = points()
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return x[index] + 0.1 * noise, y[index]


class Augmentation(Sound):
    def build_dataset(self, source, split):
        return Augmented()


class OwnSchedule(Sound):
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def build_schedule(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)


class Frozen(Sound):
    """Most of the model is not trained."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for parameter in model[0].parameters():
            parameter.requires_grad = False
        return model


class Recurrent(Sound):
    def build_model(self) -> nn.Module:
        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.LSTM(1, 8, num_layers=2, dropout=0.1, batch_first=True)
                self.head = nn.Linear(8, 1)

            def forward(self, x):
                return self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])

        return Last()
