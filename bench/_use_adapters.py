"""What the adapters cost: a step of Lightning and of HF's Trainer, with them and without, in turns.

Steps only: what an attempt costs once (its claim, its first and last checkpoint, a restore) is
measured elsewhere, and is the same for every way to train. Run by `make bench NAME=use`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAIRS = 7
STEPS = 240
WARM_UP = 40
BATCH = 32
GOAL = "≤ 1.03"

Row = tuple[str, float, str, str]


def measure(pairs: int = PAIRS, steps: int = STEPS) -> list[Row]:
    """(what, figure, unit, goal), the figure being the median of the ratios of pairs."""
    logging.disable(logging.WARNING)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, _quiet(), contextlib.chdir(folder):
        for name, train in (("Lightning", _lightning), ("HF Trainer", _hf)):
            train(steps=WARM_UP * 2, run=Path(folder) / f"{name[:2]}-warm")
            ratios, bare_s = [], []
            for number in range(pairs):
                own = Path(folder) / f"{name[:2]}-{number}"
                if number % 2:
                    bare, ours = train(steps=steps, run=None), train(steps=steps, run=own)
                else:
                    ours, bare = train(steps=steps, run=own), train(steps=steps, run=None)
                ratios.append(ours / bare)
                bare_s.append(bare)
            spread = f"{min(ratios):.3f}–{max(ratios):.3f}"
            step_ms = 1000 * statistics.median(bare_s)
            what = f"a step of {name} with tasuki, against without ({step_ms:.1f} ms; {spread})"
            rows.append((what, statistics.median(ratios), "ratio", GOAL))
    logging.disable(logging.NOTSET)
    return rows


@contextlib.contextmanager
def _quiet():
    """Frameworks print; the adapters say their lines on descriptor 1."""
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)
    )


def _data(steps: int) -> TensorDataset:
    own = torch.Generator().manual_seed(0)
    x = torch.randn(steps * BATCH, 256, generator=own)
    return TensorDataset(x, torch.arange(steps * BATCH) % 8)


class _Clock:
    """The mean time of a step after the first ones."""

    def __init__(self, steps: int) -> None:
        self._steps, self._count = steps, 0
        self.mean_s = 0.0

    def tick(self) -> None:
        self._count += 1
        if self._count == WARM_UP:
            self._began = time.perf_counter()
        if self._count == self._steps:
            self.mean_s = (time.perf_counter() - self._began) / (self._steps - WARM_UP)


def _lightning(*, steps: int, run: Path | None) -> float:
    import lightning as pl

    from tasuki.integrations.lightning import TasukiCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _model()

        def training_step(self, batch):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    class Ticks(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            clock.tick()

    clock = _Clock(steps)
    ours = [TasukiCallback(run)] if run is not None else []
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[*ours, Ticks()],
    )
    trainer.fit(Module(), DataLoader(_data(steps), BATCH, shuffle=True))
    return clock.mean_s


def _hf(*, steps: int, run: Path | None) -> float:
    import transformers

    from tasuki.integrations.hf import Trainer

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _model()

        def forward(self, x, labels=None):
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Ticks(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.tick()

    clock = _Clock(steps)
    args = transformers.TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        logging_steps=50,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    kind: Callable[..., Any] = Trainer if run is not None else transformers.Trainer
    more = {"run": run} if run is not None else {}
    data = [{"x": x, "labels": y} for x, y in _data(steps)]
    trainer = kind(Module(), args, train_dataset=data, callbacks=[Ticks()], **more)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return clock.mean_s


if __name__ == "__main__":
    for what, figure, unit, goal in measure():
        print(f"{what}: {figure:.3f} {unit} (goal {goal})")
