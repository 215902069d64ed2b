"""Lightning."""

import os
import sys

import lightning as pl
import torch
import torchmetrics
from common import (
    ACCUMULATION,
    BATCH,
    EPOCHS,
    VALIDATE_EVERY,
    WORKERS,
    Net,
    Noisy,
    held_out,
    remember,
)
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader

from tasuki.integrations.lightning import TasukiCallback

IS_PLATEAU = os.environ.get("SCHEDULE") == "plateau"
IS_MANUAL = bool(os.environ.get("MANUAL"))


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3)
        self.automatic_optimization = not IS_MANUAL
        self.seen = []

    def training_step(self, batch, index):
        out = self.net(**batch)
        self.accuracy(out["logits"], batch["labels"])
        self.log("loss", out["loss"], on_step=True, on_epoch=True, batch_size=len(batch["x"]))
        self.log("largest", out["loss"], on_epoch=True, reduce_fx="max", batch_size=1)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        if IS_MANUAL:
            self.manual_backward(out["loss"])
            if index % 2:
                self.optimizers().step()
                self.optimizers().zero_grad()
        return out["loss"]

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(**batch)["loss"], batch_size=len(batch["x"]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if IS_PLATEAU:
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return [optimizer], [{"scheduler": schedule, "monitor": "val_loss"}]
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Ends(pl.Callback):
    """What every epoch ended with."""

    def on_train_epoch_end(self, trainer, module):
        found = {key: value.item() for key, value in trainer.callback_metrics.items()}
        module.print("EPOCH", trainer.current_epoch, sorted(found.items()))

    def on_train_end(self, trainer, module):
        remember(
            module,
            optimizer=trainer.optimizers[0].state_dict(),
            scheduler=trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            counters=trainer.fit_loop.state_dict(),
            stopping=trainer.early_stopping_callback.state_dict(),
            metrics={key: value.item() for key, value in trainer.callback_metrics.items()},
        )


pl.seed_everything(7, verbose=False)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    accumulate_grad_batches=1 if IS_MANUAL else ACCUMULATION,
    val_check_interval=VALIDATE_EVERY or 1.0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    callbacks=[
        EarlyStopping("val_loss", patience=50),
        TasukiCallback(sys.argv[1], save="3 steps", log_every=1),
        Ends(),
    ],
)
trainer.fit(
    Module(),
    DataLoader(Noisy(), BATCH, shuffle=True, num_workers=WORKERS),
    DataLoader(held_out(), 8, num_workers=WORKERS, persistent_workers=WORKERS > 0),
)
