"""What the adapters cost: a step of Lightning and of HF's Trainer, with them and without, in turns.

Steps only: what an attempt costs once (its claim, its first and last checkpoint, a restore) is
measured elsewhere, and is the same for every way to train. Run by `make bench NAME=use`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from _measure import Spread, ratios, run_interleaved, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "15"))
STEPS = 240
WARM_UP = 40
BATCH = 32
GOAL = 1.03

Row = tuple[str, Spread, str, float | None]


class Took(NamedTuple):
    """By a step, in seconds."""

    clock: float
    core: float
    """Of all threads of the process: the clock tells of whoever else works."""


Train = Callable[..., Took]


def measure() -> list[Row]:
    logging.disable(logging.WARNING)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # idle ones spin, and would be counted
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, _quiet(), contextlib.chdir(folder):
        for name, train in (("Lightning", _lightning), ("HF Trainer", _hf)):
            rows += _compare(name, train, Path(folder))
    torch.set_num_threads(threads)
    logging.disable(logging.NOTSET)
    return rows


def _compare(name: str, train: Train, folder: Path) -> list[Row]:
    numbers = count()
    took = run_interleaved(
        {
            "alone": lambda: train(run=None),
            "ours": lambda: train(run=folder / f"{name[:2]}-{next(numbers)}"),
        },
        rounds=ROUNDS,
    )
    core, clock = ({k: [t[i] for t in v] for k, v in took.items()} for i in (1, 0))
    step_ms = 1000 * spread(core["alone"]).median
    what = f"a step of {name} with tasuki, over {step_ms:.2f} ms without"
    return [
        (f"{what}, of a core", ratios(core["ours"], core["alone"]), "ratio", GOAL),
        ("… by the clock", ratios(clock["ours"], clock["alone"]), "ratio", None),
    ]


@contextlib.contextmanager
def _quiet():
    """Frameworks print; the adapters say their lines on the descriptors."""
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
    x = torch.randn(STEPS * BATCH, 256, generator=own)
    return TensorDataset(x, torch.arange(STEPS * BATCH) % 8)


class _Clock:
    """The mean time of a step after the first ones."""

    def __init__(self) -> None:
        self._count = 0
        self.mean = Took(0.0, 0.0)

    def tick(self) -> None:
        self._count += 1
        if self._count == WARM_UP:
            self._began = time.perf_counter(), time.process_time()
        if self._count == STEPS:
            clock_s, core_s = self._began
            num = STEPS - WARM_UP
            self.mean = Took(
                (time.perf_counter() - clock_s) / num, (time.process_time() - core_s) / num
            )


def _lightning(*, run: Path | None) -> Took:
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
    return clock.mean


def _hf(*, run: Path | None) -> Took:
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
    return clock.mean
