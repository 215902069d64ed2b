"""The model of save.py, and the boundary between its steps at which both loops are measured alike.

Both loops call `Gate.boundary` between two steps. It waits there for an order of the bench, lets
some quiet steps pass, times the case's `save`, lets steps pass until nothing runs in the background
any more, and replies. So each loop goes on as it always does, and the same is timed in both.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _peers import answer, orders

WIDTH, TOKENS = 512, 32
QUIET = 3
"""Steps before a save."""
AFTER = 3
"""Steps after it at the least; more while something runs in the background."""
LAYER_PARAMETERS = 3_152_384
LR = 1e-4
SEED = 7


def make_model(megabytes: int) -> nn.Module:
    """A transformer whose weights and AdamW moments are about that large: 600 MB are 50.4M."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    layers = max(1, round(megabytes * 1e6 / (12 * LAYER_PARAMETERS)))
    return Blocks(layers)


class Blocks(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(count)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens.square().mean()


class Adapted(nn.Module):
    """A large frozen layer and two small trained ones, as in LoRA."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + torch.tanh(self.base(tokens) + self.up(self.down(tokens)))


class AdaptedBlocks(nn.Module):
    """Some 50 MB of frozen and 1.6 MB of trained weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.ModuleList(Adapted(1024, 16) for _ in range(12))

    def forward(self, tokens: Tensor) -> Tensor:
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens.square().mean()

    def needed_bytes(self) -> int:
        """Trained weights and the two moments of each: the least that a checkpoint contains."""
        return 3 * sum(4 * p.numel() for p in self.parameters() if p.requires_grad)


def make_batch(width: int = WIDTH) -> Tensor:
    return torch.randn(1, TOKENS, width, generator=torch.Generator().manual_seed(SEED))


class Batches(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The same batch again and again, as a data set."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, _: int) -> dict[str, Tensor]:
        return {"tokens": self._batch}

    _batch = make_batch()[0]


class Case:
    """One way to save. Files go into `folder`, a new one for each save."""

    folder: Path

    def save(self) -> None:
        """The loop waits until it returns."""

    def is_busy(self) -> bool:
        return False

    def total_s(self, began: float, *, blocked_until: float) -> float:
        """From the request until it is done."""
        return blocked_until - began


class Gate:
    """Between two steps."""

    def __init__(self, cases: dict[str, Case], others: dict[str, Callable[[], Any]]) -> None:
        """`others` are orders other than saves: their reply is what they return."""
        self._cases, self._others = cases, others
        self._orders = self._take_orders()
        self._case: Case | None = None

    def _take_orders(self) -> Iterator[dict[str, Any]]:
        answer("ready")
        yield from orders()
        os._exit(0)  # the bench is over, and teardown with torch takes seconds

    def boundary(self) -> None:
        now = time.perf_counter()
        if self._case is not None:
            self._note_step(self._case, now)
        if self._case is None:
            self._wait_for_save()
        self._last = time.perf_counter()

    def _wait_for_save(self) -> None:
        for order in self._orders:
            if order["do"] != "save":
                answer(self._others[order["do"]]())
                continue
            self._case = self._cases[order["case"]]
            self._case.folder = Path(order["folder"])
            self._quiet: list[float] = []
            self._meanwhile: list[float] = []
            self._is_saved = False
            return

    def _note_step(self, case: Case, now: float) -> None:
        taken = now - self._last
        if not self._is_saved:
            self._quiet.append(taken)
            if len(self._quiet) == QUIET:
                self._save(case)
            return
        is_busy = case.is_busy()
        # The step during which the background work ended does not count, unless it is the only one.
        if is_busy or len(self._meanwhile) < (1 if self._was_busy else AFTER):
            self._meanwhile.append(taken)
        self._num_after += 1
        if self._num_after >= AFTER and not is_busy:
            self._report(case)

    def _save(self, case: Case) -> None:
        self._is_saved, self._num_after = True, 0
        self._began = time.perf_counter()
        case.save()
        self._ended = time.perf_counter()
        self._was_busy = case.is_busy()

    def _report(self, case: Case) -> None:
        shutil.rmtree(case.folder, ignore_errors=True)
        self._case = None
        answer(
            {
                "blocked_s": self._ended - self._began,
                "total_s": case.total_s(self._began, blocked_until=self._ended),
                "quiet_s": self._quiet,
                "meanwhile_s": self._meanwhile,
            }
        )


def set_cache(files: Iterable[Path], *, is_warm: bool) -> None:
    """Bring files into the page cache, or out of it: a load is compared in both."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            if is_warm:
                while file.read(16 << 20):
                    pass
            else:
                os.fsync(file.fileno())  # what is not written yet cannot be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
