"""Recipes whose steps cost more under some settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

_WORK = torch.ones(64, 64)


class Costly:
    """Its products take `1 + planted` times as long with `exact`. A loss in bf16 is an error."""

    def __init__(self, planted: float = 0.0, products: int = 300) -> None:
        self.planted, self.products = planted, products

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def build_dataset(self, source: Any, split: str) -> Any:
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            raise ValueError("no bf16 here")
        x, y = batch
        is_exact = torch.are_deterministic_algorithms_enabled()
        for _ in range(round(self.products * (1 + self.planted * is_exact))):
            torch.mm(_WORK, _WORK)
        return nn.functional.mse_loss(model(x), y)


class CustomLoader(Costly):
    def build_dataset(self, source: Any, split: str) -> Any:
        return DataLoader(super().build_dataset(source, split), batch_size=8, shuffle=True)


class Diverging(Costly):
    """Its loss is not finite when accumulated: a micro-batch has 8 samples."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        is_small = len(batch[0]) < 8
        return super().loss(model, batch) * (float("nan") if is_small else 1.0)
