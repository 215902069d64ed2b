"""Learn the largest eigenvalue of a matrix from examples of three sizes, small ones first.

The answer is known: torch.linalg.eigvalsh computes it. The model is a small graph network that sees
a matrix as a complete graph, so one set of weights serves every size.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SIZES = (12, 20, 32)
COUNTS = {"train": 160, "val": 24, "test": 48}
"""Samples of each size."""


class Matrices(Dataset):
    """Seeded random symmetric matrices, rank one plus noise, with their largest eigenvalue / n."""

    def __init__(self, split: str) -> None:
        generator = torch.Generator().manual_seed({"train": 1, "val": 2, "test": 3}[split])
        self.samples: list[tuple[Tensor, Tensor]] = []
        for size in SIZES:
            for _ in range(COUNTS[split]):
                strength = 0.5 + 2.5 * torch.rand(1, generator=generator)
                direction = 0.2 + torch.rand(size, generator=generator)
                noise = 0.4 * torch.randn(size, size, generator=generator)
                matrix = strength * torch.outer(direction, direction) + (noise + noise.T) / 2
                answer = torch.linalg.eigvalsh(matrix)[-1] / size
                self.samples.append((matrix, answer))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.samples[index]


class GraphNet(nn.Module):
    """Nodes are rows; each round every node hears from all others, weighted by the matrix."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.heard = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))
        self.drop = nn.Dropout(0.02)
        self.leave = nn.Linear(width, 1)

    def forward(self, matrix: Tensor) -> Tensor:
        size = matrix.shape[-1]
        rows = matrix.mean(-1)
        state = self.enter(torch.stack([rows, matrix.square().mean(-1)], -1))
        for own, heard in zip(self.own, self.heard, strict=True):
            state = torch.relu(own(state) + heard(matrix @ state / size))
            state = self.drop(state)
        return self.leave(state.mean(-2)).squeeze(-1)


class LargestEigenvalue:
    def __init__(self, width: int = 48, rounds: int = 3) -> None:
        self.width = width
        self.rounds = rounds

    def build_model(self) -> nn.Module:
        return GraphNet(self.width, self.rounds)

    def build_dataset(self, source: str, split: str) -> Matrices:
        return Matrices(split)

    def sample_sizes(self, dataset: Matrices) -> list[int]:
        return [matrix.shape[0] for matrix, _ in dataset.samples]

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        matrix, answer = batch
        return nn.functional.huber_loss(model(matrix), answer)

    def evaluate(self, model: nn.Module, dataset: Matrices) -> dict[str, float]:
        """The mean relative error in percent, over all sizes and for the largest."""
        errors = {}
        for size in SIZES:
            own = [sample for sample in dataset.samples if sample[0].shape[0] == size]
            matrix = torch.stack([matrix for matrix, _ in own])
            answer = torch.stack([answer for _, answer in own])
            errors[size] = float(((model(matrix) - answer).abs() / answer).mean()) * 100
        return {
            "error": sum(errors.values()) / len(errors),
            f"error_{SIZES[-1]}": errors[SIZES[-1]],
        }
