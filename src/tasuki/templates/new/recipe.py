"""The recipe: model, data and loss. The only code tasuki needs from you.

This one learns a noisy sine from generated points; put your own model and data in its place.
"""

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Sine:
    """`params` of the spec are the constructor's keywords."""

    def __init__(self, width: int = 64, samples: int = 2048) -> None:
        self.width = width
        self.samples = samples

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(1, self.width),
            nn.Tanh(),
            nn.Dropout(0.05),
            nn.Linear(self.width, self.width),
            nn.Tanh(),
            nn.Linear(self.width, 1),
        )

    def build_dataset(self, source: str, split: str) -> TensorDataset:
        """`source` is the spec's `data`, `split` is train, val or test."""
        seed = {"train": 1, "val": 2, "test": 3}[split]
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(self.samples, 1, generator=generator) * 2 * math.pi
        noise = 0.1 * torch.randn(self.samples, 1, generator=generator)
        y = torch.sin(x) + (noise if split == "train" else 0)
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
