"""A graph network learns the largest eigenvalue of a matrix; one set of weights for every size.

Nodes are the rows of a matrix and its entries are the weights of the edges. tasuki calls the
methods of `MatrixGNN`; the spec's `params` are the arguments of its constructor.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from tasuki import Hdf5Dataset

Batch = dict[str, Tensor]


class GraphNet(nn.Module):
    """Each round every node hears from all others, as loudly as the matrix says."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.heard = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))
        self.drop = nn.Dropout(0.02)
        self.leave = nn.Linear(width, 1)

    def forward(self, matrix: Tensor) -> Tensor:
        size = matrix.shape[-1]
        state = self.enter(torch.stack([matrix.mean(-1), matrix.square().mean(-1)], -1))
        for own, heard in zip(self.own, self.heard, strict=True):
            message = heard(matrix @ state / size)
            state = self.drop(torch.relu(own(state) + message))
        return self.leave(state.mean(-2)).squeeze(-1)


class MatrixGNN:
    def __init__(self, width: int = 48, rounds: int = 3) -> None:
        self.width = width
        self.rounds = rounds

    def build_model(self) -> nn.Module:
        return GraphNet(self.width, self.rounds)

    def build_dataset(self, source: str | list[str], split: str) -> Hdf5Dataset:
        """Samples are dicts: `n`, `matrix` (flat) and `answer`. Only those asked for are read."""
        return Hdf5Dataset(source, split)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """All samples of a batch have one size. The error is relative, as in `evaluate`."""
        ratio = model(squares(batch["matrix"])) / batch["answer"]
        return nn.functional.huber_loss(ratio, torch.ones_like(ratio))

    def example_batch(self, size: int, batch: int) -> Batch:
        """A batch as `loss` gets it, for `tasuki estimate` before there are data: only its shapes
        count."""
        return {
            "n": torch.full((batch,), size),
            "matrix": torch.zeros(batch, size * size),
            "answer": torch.ones(batch),
        }

    def evaluate(self, model: nn.Module, dataset: Hdf5Dataset) -> dict[str, float]:
        """Mean relative errors in percent: of all samples, of each of several sizes, and `guess`,
        that of always answering the mean of a size's answers: what learning has to beat."""
        device = next(model.parameters()).device
        sizes = np.asarray(dataset.sizes)
        errors, guesses = {}, []
        for size in np.unique(sizes).tolist():
            own = Subset(dataset, np.flatnonzero(sizes == size).tolist())
            found, answers = [], []
            for batch in DataLoader(own, batch_size=max(1, 2**22 // size**2)):
                found.append(model(squares(batch["matrix"].to(device))).cpu())
                answers.append(batch["answer"])
            answer = torch.cat(answers)
            errors[size] = relative_error(torch.cat(found), answer)
            guesses.append(relative_error(answer.mean(), answer))
        by_size = {f"error_{size}": float(error.mean()) for size, error in errors.items()}
        return {
            "error": float(torch.cat(list(errors.values())).mean()),
            **(by_size if len(by_size) > 1 else {}),
            "guess": float(torch.cat(guesses).mean()),
        }


def squares(flat: Tensor) -> Tensor:
    """Matrices as they are stored → (batch, n, n)."""
    size = math.isqrt(flat.shape[-1])
    return flat.view(-1, size, size)


def relative_error(found: Tensor, answer: Tensor) -> Tensor:
    return 100 * (found - answer).abs() / answer
