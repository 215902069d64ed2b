"""Recipes for `verify gradients`: clean ones, and some whose pieces do not add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Mlp:
    """Casts and draws random numbers, which must not look like a difference."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))

    def build_dataset(self, source: str, split: str) -> Any:
        x = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True).sin())

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(model(x).float(), y.to(torch.bfloat16))


class Dropout(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 1))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(model(x + 0.1 * torch.randn_like(x)), y)


class Norm(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


class NormInEvalMode(Norm):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        model[1].eval()
        return super().loss(model, batch)


class Contrastive(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        scores = model[0](batch[0])
        return nn.functional.cross_entropy(scores @ scores.T, torch.arange(len(scores)))


class Frozen(Mlp):
    """A frozen layer, and a layer that the loss does not use."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0].requires_grad_(False)
        model.unused = nn.Linear(2, 2)
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.mse_loss(model[3](model[2](model[0](batch[0]))), batch[1])


class Fixed(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return batch[0].mean()


class NoFloat64(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        raise RuntimeError("\"my_kernel\" not implemented for 'Double'")


@dataclass
class Tokens:
    """A batch that is neither a tensor nor a list."""

    ids: Tensor
    weights: dict[str, Tensor]


class MeanOverTokens:
    """A mean over tokens, of which samples have unequal numbers."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def build_dataset(self, source: str, split: str) -> Any:
        drawn = torch.Generator().manual_seed(2)
        lengths = torch.randint(3, 12, (24,), generator=drawn).tolist()
        return [torch.randint(1, 11, (length,), generator=drawn) for length in lengths]

    def collate(self, samples: list[Tensor]) -> Tokens:
        ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
        # As a masked language model does it: other tokens count in every batch.
        return Tokens(ids, {"mask": torch.rand(ids.shape) * (ids != 0)})

    def losses(self, model: nn.Module, batch: Tokens) -> Tensor:
        losses = nn.functional.cross_entropy(
            model(batch.ids).transpose(1, 2), batch.ids, ignore_index=0, reduction="none"
        )
        return (losses * batch.weights["mask"])[batch.ids != 0]

    def loss(self, model: nn.Module, batch: Tokens) -> Any:
        return self.losses(model, batch).mean()


class SumOverTokens(MeanOverTokens):
    def loss(self, model: nn.Module, batch: Tokens) -> Any:
        losses = self.losses(model, batch)
        return losses.sum(), len(losses)


class MeanOverTokensAndNorm(MeanOverTokens):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 8), SequenceNorm(8), nn.Linear(8, 11))


class SequenceNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


class Quantized(Mlp):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.packed = nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
        return model


class SparseEmbedding(SumOverTokens):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 8, sparse=True), nn.Linear(8, 11))
