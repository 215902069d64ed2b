"""What the scripts share: the same data and model, a step that draws from every random number there
is, and a digest of all that must come out the same."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

WORKERS = int(os.environ.get("WORKERS", "0"))
ACCUMULATION = int(os.environ.get("ACCUMULATION", "1"))
VALIDATE_EVERY = int(os.environ.get("VALIDATE_EVERY", "0"))
EPOCHS = int(os.environ.get("EPOCHS", "2"))
BATCH = 4
SAMPLES = 44


class Noisy(Dataset):
    """Samples that draw from all random numbers, as augmentations do."""

    def __init__(self, samples: int = SAMPLES, *, is_noisy: bool = True) -> None:
        self._samples, self._is_noisy = samples, is_noisy

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        own = torch.Generator().manual_seed(index)
        x = torch.randn(4, generator=own)
        if self._is_noisy:
            x = x + 0.01 * (torch.rand(1) + random.random() + float(np.random.rand()))
        return {"x": x, "labels": torch.tensor(index % 3)}


def held_out() -> Noisy:
    """Its loader is the framework's own: what it draws hangs on the number of workers."""
    return Noisy(16, is_noisy=not os.environ.get("QUIET_VALIDATION"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        if self.training:
            x = x + 0.01 * (random.random() + float(np.random.rand()))
        logits = self.head(self.body(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def remember(model: nn.Module, **others) -> None:
    """What came out, for the test to compare."""
    rank = os.environ.get("RANK", "0")
    found = {
        "weights": _digest(model.state_dict()),
        "python": random.random(),
        "numpy": float(np.random.rand()),
        "torch": torch.rand(1).item(),
        **{name: _digest(value) for name, value in others.items()},
    }
    Path(f"out.{rank}.json").write_text(json.dumps(found, sort_keys=True))


def _digest(value) -> str:
    found = hashlib.sha256()

    def add(node) -> None:
        if isinstance(node, torch.Tensor):
            found.update(node.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(node, dict):
            for key in node:
                found.update(repr(key).encode())
                add(node[key])
        elif isinstance(node, list | tuple):
            for one in node:
                add(one)
        else:
            found.update(repr(node).encode())

    add(value)
    return found.hexdigest()[:16]
