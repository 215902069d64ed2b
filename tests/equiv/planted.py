"""Recipes with one culprit each, or none, or several."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset

SAMPLES = 30


class Mlp:
    """Clean."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))

    def build_dataset(self, source: str, split: str) -> Any:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.samples, 6, generator=generator)
        return TensorDataset(x, x.sum(1, keepdim=True).sin())

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Half(Mlp):
    """Casts down on the way, as people do: compared in float64 all the same."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        weight = torch.ones(1, dtype=torch.float32)
        return nn.functional.mse_loss(model(x).float() * weight, y.to(torch.bfloat16).float())


class Norm(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


class NormOfItsOwn(Norm):
    """Without running statistics."""

    def build_model(self) -> nn.Module:
        norm = nn.BatchNorm1d(16, track_running_stats=False)
        return nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Linear(16, 1))


class Centred(nn.Module):
    """A norm that nobody knows."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


class HandMadeNorm(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), Centred(), nn.ReLU(), nn.Linear(16, 1))


class Dropped(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 1))


class DroppedAndNormed(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Tanh(), nn.Linear(32, 1)
        )


class HostDraw(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch) * random.random()


class Contrastive(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Linear(6, 8)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, _ = batch
        z = nn.functional.normalize(model(x), dim=-1)
        logits = z @ nn.functional.normalize(model(x.flip(-1)), dim=-1).T
        return nn.functional.cross_entropy(logits / 0.1, torch.arange(len(x)))


class Words(Dataset[Any]):
    """Sequences of unequal lengths."""

    def __init__(self, samples: int, vocabulary: int = 11) -> None:
        generator = torch.Generator().manual_seed(2)
        lengths = torch.randint(3, 12, (samples,), generator=generator).tolist()
        self.rows = [torch.randint(1, vocabulary, (n,), generator=generator) for n in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return {"tokens": self.rows[index]}


def pad(samples: list[Any]) -> Any:
    tokens = [sample["tokens"] for sample in samples]
    return {"tokens": nn.utils.rnn.pad_sequence(tokens, batch_first=True)}


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.0, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        make = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(
            make(16, 2, 32, dropout=dropout, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=tokens == 0)
        return self.head(x)


class Language:
    """Clean: (sum over tokens, their number)."""

    def __init__(self, dropout: float = 0.0, samples: int = SAMPLES) -> None:
        self.dropout, self.samples = dropout, samples

    def build_model(self) -> nn.Module:
        return Transformer(self.dropout)

    def build_dataset(self, source: str, split: str) -> Any:
        return Words(self.samples)

    def collate(self, samples: list[Any]) -> Any:
        return pad(samples)

    def sample_costs(self, dataset: Any) -> Any:
        return {"tokens": [len(row) for row in dataset.rows]}

    def sizes(self, dataset: Any) -> list[int]:
        return [4 * -(-len(row) // 4) for row in dataset.rows]

    def each(self, model: nn.Module, batch: Any) -> Tensor:
        tokens = batch["tokens"]
        logits = model(tokens)[:, :-1].flatten(0, 1)
        labels = tokens[:, 1:].flatten()
        return nn.functional.cross_entropy(logits, labels, ignore_index=0, reduction="none")[
            labels != 0
        ]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        each = self.each(model, batch)
        return each.sum(), len(each)


class Bucketed(Language):
    def sample_sizes(self, dataset: Any) -> list[int]:
        return self.sizes(dataset)


class MeanOverTokens(Language):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return self.each(model, batch).mean()


class ReadsPadding(Language):
    """The mean is over padded places, too."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        tokens = batch["tokens"]
        logits = model(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class MeanOfMeans(Mlp):
    """Right as long as all micro-batches are of one size."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch), 1


class NoSum(Mlp):
    """A mean in the place of the sum."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch), len(batch[0])


class Forgetful(nn.Module):
    """Computes itself anew with other random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        def part(x: Tensor) -> Tensor:
            return nn.functional.dropout(torch.tanh(self.inner(x)), 0.3, self.training)

        return checkpoint(part, x, use_reentrant=False, preserve_rng_state=False)


class ForgetfulRecipe(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), Forgetful(), nn.Linear(16, 1))


class Noise(nn.Module):
    """Draws from a generator of its own, which no checkpointing puts back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.rand(x.shape, generator=self.generator) < 0.7
        return torch.tanh(self.inner(x)) * mask


class OwnGenerator(Mlp):
    def build_model(self) -> nn.Module:
        blocks = [nn.Sequential(Noise()) for _ in range(2)]
        return nn.Sequential(nn.Linear(6, 16), nn.Sequential(*blocks), nn.Linear(16, 1))


class Jittered(Dataset[Any]):
    """Draws from what nobody seeds."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        noise = 0.1 * random.SystemRandom().random()
        x = torch.full((6,), float(index)).sin() + noise
        return x, x.sum()[None]


class RandomData(Mlp):
    def build_dataset(self, source: str, split: str) -> Any:
        return Jittered(self.samples)


class Seeded(Dataset[Any]):
    """Draws as one should."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = torch.full((6,), float(index)).sin() + 0.1 * torch.randn(6)
        return x, x.sum()[None]


class Augmented(Mlp):
    def build_dataset(self, source: str, split: str) -> Any:
        return Seeded()


class Counter(nn.Module):
    """Does something else every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        return x * len(self.calls)


class Stateful(Mlp):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), Counter(), nn.Linear(16, 1))


class NoDouble(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        if batch[0].dtype == torch.float64:
            raise RuntimeError("\"my_kernel_cpu\" not implemented for 'Double'")
        return super().loss(model, batch)


class OwnLoader(Mlp):
    def build_dataset(self, source: str, split: str) -> Any:
        return torch.utils.data.DataLoader(super().build_dataset(source, split), batch_size=4)


class DroppedMeanOverTokens(MeanOverTokens):
    def __init__(self) -> None:
        super().__init__(dropout=0.2)


class NormedContrastive(Contrastive):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))


class DroppedMeanOfMeans(MeanOfMeans):
    """What is wrong in partial steps alone hides behind what differs in all of them."""

    def build_model(self) -> nn.Module:
        return Dropped().build_model()


class Nowhere(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch) * 0


class Inf(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return (model(batch[0]) / 0).mean()
