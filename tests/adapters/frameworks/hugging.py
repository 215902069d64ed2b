"""HF Trainer."""

import os
import sys

import transformers
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
from transformers import EarlyStoppingCallback, TrainingArguments

from tasuki.integrations.hf import Trainer

IS_PLATEAU = os.environ.get("SCHEDULE") == "plateau"


def told(row):
    """A line of the log without what hangs on the clock."""
    return {k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k}


transformers.set_seed(7)
trainer = Trainer(
    Net(),
    TrainingArguments(
        output_dir="out",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        dataloader_num_workers=WORKERS,
        dataloader_persistent_workers=WORKERS > 0,
        dataloader_pin_memory=False,
        learning_rate=1e-2,
        lr_scheduler_type="reduce_lr_on_plateau" if IS_PLATEAU else "cosine",
        logging_steps=3,
        eval_strategy="steps" if VALIDATE_EVERY else "epoch",
        eval_steps=VALIDATE_EVERY or None,
        metric_for_best_model="loss",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    ),
    train_dataset=Noisy(),
    eval_dataset=held_out(),
    callbacks=[EarlyStoppingCallback(50)],
    run=sys.argv[1],
    run_options={"save": "3 steps", "log_every": 1},
)
output = trainer.train()
remember(
    trainer.model,
    optimizer=trainer.optimizer.state_dict(),
    scheduler=trainer.lr_scheduler.state_dict(),
    history=[told(row) for row in trainer.state.log_history],
    step=trainer.state.global_step,
    best=trainer.state.best_metric,
    loss=output.training_loss,
)
