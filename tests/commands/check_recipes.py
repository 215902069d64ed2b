"""Recipes that fail late: each in a place that a queue would show only after hours."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

SAMPLES = 24


class Points(Dataset):
    """Of sizes 1 to 3; each sample says its own."""

    def __init__(self, split: str = "train") -> None:
        self.split = split
        self.x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
        self.sizes = [1 + number % 3 for number in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], torch.tensor(float(self.sizes[index]))


class Sound:
    width = 8

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, self.width), nn.ReLU(), nn.Linear(self.width, 1))

    def build_dataset(self, source, split):
        return Points(split)

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x)[:, 0], y)


class Watched(Sound):
    """Writes down what it was given, and under which variables."""

    def _note(self, **facts) -> None:
        with Path(os.environ["WATCHED"]).open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def build_schedule(self, optimizer, total_steps):
        self._note(total_steps=total_steps, hub=os.environ.get("HF_HUB_OFFLINE"))
        return LambdaLR(optimizer, lambda step: 1.0)

    def loss(self, model, batch):
        if model.training:
            self._note(step=sorted(batch[1].tolist()))
        return super().loss(model, batch)

    def evaluate(self, model, dataset):
        self._note(evaluated=[dataset.split, len(dataset), len(list(dataset))])
        return {"loss": float(self.loss(model, torch.utils.data.default_collate(list(dataset))))}


class NoFile(Sound):
    def build_dataset(self, source, split):
        Path(source).read_bytes()
        return Points()


class NoTest(Sound):
    """Its test data are not there; nobody opens them before the end."""

    def build_dataset(self, source, split):
        if split == "test":
            raise FileNotFoundError(2, "No such file or directory", "test.h5")
        return Points()


class Strange(torch.optim.SGD):
    """Keeps a function in its state once it has stepped."""

    def state_dict(self):
        value = super().state_dict()
        if self.state:
            value["state"][0] = {"rule": lambda x: x}
        return value


class Unstorable(Sound):
    def build_optimizer(self, model):
        return Strange(model.parameters(), lr=0.01, momentum=0.9)


class Picky(torch.optim.SGD):
    """Saves what it will not take back."""

    def load_state_dict(self, state) -> None:
        if state["state"]:
            raise ValueError("momentum of another world")
        super().load_state_dict(state)


class Unloadable(Sound):
    def build_optimizer(self, model):
        return Picky(model.parameters(), lr=0.01, momentum=0.9)


class Wide(Sound):
    width = 9


class BadEvaluate(Sound):
    def evaluate(self, model, dataset):
        raise ValueError("planted in evaluate")


class BadLoss(Sound):
    def loss(self, model, batch):
        raise ValueError("planted in loss")


class ShortSchedule(Sound):
    """Right until the last step."""

    def build_schedule(self, optimizer, total_steps):
        def factor(step: int) -> float:
            if step >= total_steps:
                raise ValueError(f"no value for step {step}")
            return 1.0

        return LambdaLR(optimizer, factor)


class Downloader(Sound):
    """Fetches weights when the model is built."""

    def build_model(self) -> nn.Module:
        urllib.request.urlopen("http://weights.example.org/model.bin", timeout=5)
        return super().build_model()


class DataDownloader(Sound):
    def build_dataset(self, source, split):
        urllib.request.urlopen("http://data.example.org/train.h5", timeout=5)
        return Points()


class Hungry(Sound):
    """A killer of small machines: at three samples or more."""

    def loss(self, model, batch):
        if len(batch[0]) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return super().loss(model, batch)


class Hungrier(Sound):
    """Has room for samples of size 1 only."""

    def loss(self, model, batch):
        if batch[1].max() > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return super().loss(model, batch)


class Sleeper(Sound):
    def loss(self, model, batch):
        import time

        time.sleep(1000)


class WrongShape(Sound):
    def build_model(self) -> nn.Module:
        return nn.Linear(7, 1)


class NotANumber(Sound):
    def loss(self, model, batch):
        return super().loss(model, batch) * float("nan")


class IgnoresModel(Sound):
    def loss(self, model, batch):
        return batch[0].square().mean()
