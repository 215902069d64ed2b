"""`adapters`: a step of Lightning and of HF's Trainer, with tasuki's adapter and without, in turns.

Steps only: what an attempt costs once (its start, its first and last checkpoint, a restore) is the
same for every way to train, and is measured by save.py and start.py. In CPU time of all threads of
the process, since the clock also counts what others do. A part of use.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from _measure import Figure, ratios, run_interleaved, sized
from _peers import say

ROUNDS = sized(15, smoke=1)
NUM_STEPS, WARM_UP = sized((240, 40), smoke=(20, 5))
BATCH = 32
GOAL = 1.03


def measure(folder: Path) -> list[Figure]:
    logging.disable(logging.WARNING)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # idle ones spin, and would be counted
    figures = []
    tools = {
        "lightning": ("Lightning", _train_lightning),
        "transformers": ("HF Trainer", _train_hf),
    }
    for package, (name, train) in tools.items():
        if importlib.util.find_spec(package) is None:
            say(f"without {name}: not installed")
            continue
        with _silenced(), contextlib.chdir(folder):
            figures.append(_compare(name, train, folder))
    torch.set_num_threads(threads)
    logging.disable(logging.NOTSET)
    return figures


def _compare(name: str, train: Callable[..., float], folder: Path) -> Figure:
    numbers = count()
    taken = run_interleaved(
        {
            "without": lambda: train(run=None),
            "with": lambda: train(run=folder / f"{name[:2]}-{next(numbers)}"),
        },
        rounds=ROUNDS,
    )
    ratio = ratios(taken["with"], taken["without"])
    return Figure(f"a step of {name} with tasuki", "without", ratio, goal=GOAL, digits=3)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Frameworks print; the adapters write their lines to the descriptors."""
    kept, nothing = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(nothing)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)
    )


def _data() -> TensorDataset:
    own = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_STEPS * BATCH, 256, generator=own)
    return TensorDataset(x, torch.arange(NUM_STEPS * BATCH) % 8)


class _Clock:
    """The mean CPU time of a step after the first ones."""

    def __init__(self) -> None:
        self._count, self.step_s = 0, 0.0

    def tick(self) -> None:
        self._count += 1
        if self._count == WARM_UP:
            self._started = time.process_time()
        if self._count == NUM_STEPS:
            self.step_s = (time.process_time() - self._started) / (NUM_STEPS - WARM_UP)


def _train_lightning(*, run: Path | None) -> float:
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

    clock = _Clock()
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
    trainer.fit(Module(), DataLoader(_data(), BATCH, shuffle=True))
    return clock.step_s


def _train_hf(*, run: Path | None) -> float:
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

    clock = _Clock()
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
    data = [{"x": x, "labels": y} for x, y in _data()]
    trainer = kind(Module(), args, train_dataset=data, callbacks=[Ticks()], **more)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return clock.step_s
