"""One training run by each of the other tools, as their own manuals show it.

Every tool gets the same order: train the model of _tiny.py to step `steps`, save every `save_every`
steps into `folder` (None: never), `resume` from the newest checkpoint there or not. Each resumes
through its own way of finding and loading the newest. All defaults are kept but those that would
print, log elsewhere or use more than the CPU.

Run as `python _tools.py TOOL` it forks for each order (see _peers.py), with the imports done; as
`python _tools.py TOOL ORDER` it works on one, in a fresh process. In both environments.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from _tiny import SEED, Notes, Samples, Tiny

LR = 1e-3
Order = dict[str, Any]


class Job:
    """An order, unpacked: what every tool begins with."""

    def __init__(self, order: Order) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.folder = Path(order["folder"])
        self.steps: int = order["steps"]
        self.save_every: int | None = order.get("save_every")
        self.is_resume: bool = order.get("resume", False)
        self.is_jit: bool = order.get("jit", False)
        self.batch: int = order.get("batch", 4)
        self._keep_at: int | None = order.get("keep_at")
        self.notes = Notes(order["tiny"])
        self.data = Samples(order["tiny"])
        self.model = Tiny(order["tiny"], self.notes)
        self.per_epoch = len(self.data) // self.batch

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=LR)

    def loader(self) -> Any:
        return DataLoader(self.data, batch_size=self.batch, shuffle=True)

    def is_due(self, step: int) -> bool:
        return self.save_every is not None and step % self.save_every == 0

    def saved(self, step: int) -> None:
        """The tool reports that a save is done. The one at step `keep_at` is copied."""
        self.notes.add("saved", step=step)
        if step == self._keep_at:
            shutil.copytree(self.folder, f"{self.folder}-kept")

    def resumed(self, step: int) -> None:
        self.notes.add("resumed", step=step)


# -- loops written by hand --------------------------------------------------------------------


class TorchLoop:
    """A custom loop: `torch.save` over the same file, batches skipped on resume."""

    def __init__(self, job: Job) -> None:
        self.job, self.model, self.optimizer = job, job.model, job.optimizer()
        self.step = 0

    def run(self) -> None:
        if self.job.is_resume:
            self.step = self.load()
            self.job.resumed(self.step)
        while self.step < self.job.steps:
            for batch in self.batches():
                self.train_step(batch)
                self.step += 1
                if self.job.is_due(self.step):
                    self.save()
                    self.job.saved(self.step)
                if self.step == self.job.steps:
                    return

    def batches(self) -> Iterator[Any]:
        done = self.step % self.job.per_epoch
        for number, batch in enumerate(self.job.loader()):
            if number >= done:
                yield batch

    def train_step(self, batch: Any) -> None:
        loss = self.model(**batch)["loss"]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }

    @property
    def file(self) -> Path:
        return self.job.folder / "last.pt"

    def save(self) -> None:
        torch.save(self.state(), self.file)

    def load(self) -> int:
        state = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])


class DcpLoop(TorchLoop):
    """The same loop with torch.distributed.checkpoint, one folder per save, two of them kept."""

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self._state(), checkpoint_id=self.job.folder / f"step-{self.step:06}")
        for old in self._folders()[:-2]:
            shutil.rmtree(old)

    def load(self) -> int:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self._state()
        dcp.load(state, checkpoint_id=self._folders()[-1])
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return int(state["step"])

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def _folders(self) -> list[Path]:
        return sorted(self.job.folder.glob("step-*"))


class AccelerateLoop(TorchLoop):
    """accelerate: `save_state`, `load_state`, `skip_first_batches`."""

    def __init__(self, job: Job) -> None:
        from accelerate import Accelerator

        super().__init__(job)
        self.accelerator = Accelerator(cpu=True)
        prepared = self.accelerator.prepare(self.model, self.optimizer, job.loader())
        self.model, self.optimizer, self.loader = prepared

    def batches(self) -> Iterator[Any]:
        done = self.step % self.job.per_epoch
        yield from self.accelerator.skip_first_batches(self.loader, done) if done else self.loader

    def train_step(self, batch: Any) -> None:
        self.accelerator.backward(self.model(**batch)["loss"])
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self) -> None:
        self.accelerator.save_state(str(self.job.folder / f"step-{self.step:06}"))
        for old in sorted(self.job.folder.glob("step-*"))[:-2]:
            shutil.rmtree(old)

    def load(self) -> int:
        newest = sorted(self.job.folder.glob("step-*"))[-1]
        self.accelerator.load_state(str(newest))
        return int(newest.name.removeprefix("step-"))


# -- trainers ---------------------------------------------------------------------------------


class LightningRun:
    """Lightning's Trainer with a ModelCheckpoint that also keeps `last.ckpt`."""

    def __init__(self, job: Job) -> None:
        import lightning as pl
        from lightning.pytorch.callbacks import Callback, ModelCheckpoint

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net: nn.Module = job.model

            def training_step(self, batch: Any, _: int) -> Any:
                return self.net(**batch)["loss"]

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), lr=LR)

        class Said(Callback):
            def on_train_start(self, trainer: Any, _: Any) -> None:
                if job.is_resume:
                    job.resumed(trainer.global_step)

        callbacks: list[Any] = [Said()]
        if job.save_every is not None:
            callbacks.append(
                ModelCheckpoint(job.folder, every_n_train_steps=job.save_every, save_last=True)
            )
        self.job, self.module = job, Module()
        self.trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=job.steps,
            max_epochs=-1,
            logger=False,
            callbacks=callbacks,
            enable_checkpointing=job.save_every is not None,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=job.folder,
        )
        # Two files per save: the one named after the step, then `last.ckpt`.
        save = self.trainer.save_checkpoint

        def save_and_say(path: Any, *arguments: Any, **options: Any) -> None:
            save(path, *arguments, **options)
            if Path(path).name == "last.ckpt":
                job.saved(self.trainer.global_step)

        self.trainer.save_checkpoint = save_and_say  # type: ignore[method-assign]

    def run(self) -> None:
        path = str(self.job.folder / "last.ckpt") if self.job.is_resume else None
        self.trainer.fit(self.module, self.job.loader(), ckpt_path=path)


class HfRun:
    """HF's Trainer; two checkpoints kept."""

    def __init__(self, job: Job) -> None:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Said(TrainerCallback):
            def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
                if job.is_resume:
                    job.resumed(state.global_step)

            def on_save(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
                job.saved(state.global_step)

        self.job = job
        extra = {"enable_jit_checkpoint": True} if job.is_jit else {}
        arguments = TrainingArguments(
            output_dir=str(job.folder),
            max_steps=job.steps,
            per_device_train_batch_size=job.batch,
            learning_rate=LR,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no" if job.save_every is None else "steps",
            save_steps=job.save_every or 500,
            save_total_limit=2,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            seed=SEED,
            **extra,
        )
        self.trainer = Trainer(
            model=job.model, args=arguments, train_dataset=job.data, callbacks=[Said()]
        )

    def run(self) -> None:
        self.trainer.train(resume_from_checkpoint=True if self.job.is_resume else None)


# -- orders -----------------------------------------------------------------------------------

TOOLS: dict[str, Callable[[Job], Any]] = {
    "torch": TorchLoop,
    "dcp": DcpLoop,
    "accelerate": AccelerateLoop,
    "lightning": LightningRun,
    "hf": HfRun,
}
TITLES = {
    "torch": "torch.save loop",
    "dcp": "DCP loop",
    "accelerate": "accelerate",
    "lightning": "Lightning",
    "hf": "HF Trainer",
    "tasuki": "tasuki",
}
PACKAGE_OF = {"accelerate": "accelerate", "lightning": "lightning", "hf": "transformers"}
"""What these need from the other tools' environment."""


def _import(tool: str) -> None:
    """Before the first fork. torch imports _dynamo when its first optimizer is made: 1.4 s."""
    needed = {
        "dcp": ("torch.distributed.checkpoint.state_dict",),
        "accelerate": ("accelerate",),
        "lightning": ("lightning.pytorch.callbacks",),
        "hf": ("transformers.trainer",),
    }
    for name in ("torch._dynamo", *needed.get(tool, ())):
        importlib.import_module(name)


def work(tool: str, order: Order) -> None:
    TOOLS[tool](Job(order)).run()


def main(arguments: list[str]) -> None:
    tool = arguments[0]
    if len(arguments) > 1:
        work(tool, json.loads(arguments[1]))
        sys.stdout.flush()
        os._exit(0)
    from _peers import serve_forks  # a fresh process does without what it imports

    _import(tool)
    serve_forks(lambda order: work(tool, order))


if __name__ == "__main__":
    main(sys.argv[1:])
