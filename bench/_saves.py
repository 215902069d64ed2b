"""How everybody but tasuki saves the model of _gate.py, each in its own loop.

Run as `python _saves.py plain | accelerate | lightning | hf MEGABYTES FOLDER`, a worker that
save.py asks (see _gate.py). `plain` is one loop written by hand with all cases that need torch
alone.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _gate import (
    LR,
    AdaptedBlocks,
    Batches,
    Case,
    Gate,
    folder_bytes,
    make_batch,
    make_model,
    set_cache,
)


def fsync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- written by hand --------------------------------------------------------------------------


class Plain:
    """Model, optimizer and a loop."""

    def __init__(self, megabytes: int, folder: Path) -> None:
        self.folder = folder
        self.model = make_model(megabytes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.batch = make_batch()

    def run(self) -> None:
        self.step()
        others = {
            "load warm": lambda: self.load(is_warm=True),
            "load cold": lambda: self.load(is_warm=False),
            "lora": self.lora_bytes,
        }
        gate = Gate(self.cases(), others)
        while True:
            gate.boundary()
            self.step()

    def step(self) -> None:
        self.model(self.batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state, flat."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{number}.{key}": value for key, value in values.items()}
        return found

    def cases(self) -> dict[str, Case]:
        cases = (Memcpy, PlainWrite, TorchSave, TorchSaveDurable, Safetensors, Dcp, DcpAsync)
        return {case.__name__: case(self) for case in cases}

    def load(self, *, is_warm: bool) -> dict[str, float]:
        """Seconds of `torch.load` and of putting the state into model and optimizer."""
        path = self.folder / "load.pt"
        if not path.exists():
            torch.save(self.state(), path)
        set_cache([path], is_warm=is_warm)
        began = time.perf_counter()
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return {"seconds": time.perf_counter() - began}

    def lora_bytes(self) -> dict[str, float]:
        """Bytes of a checkpoint over the bytes it cannot do without."""
        model = AdaptedBlocks()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR)
        model(make_batch(1024)).backward()
        optimizer.step()
        path = self.folder / "lora.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        return {"bytes": path.stat().st_size, "needed": model.needed_bytes()}


class PlainCase(Case):
    def __init__(self, plain: Plain) -> None:
        self.plain = plain


class Memcpy(PlainCase):
    """No save can keep the loop for less: every tensor copied into memory that is there already."""

    _buffers: dict[str, torch.Tensor] | None = None

    def save(self) -> None:
        tensors = self.plain.tensors()
        if self._buffers is None:
            self._buffers = {name: torch.empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            self._buffers[name].copy_(value)


class PlainWrite(PlainCase):
    """The same number of bytes from memory into a file, and fsync."""

    _bytes: memoryview | None = None

    def save(self) -> None:
        if self._bytes is None:
            size = sum(t.numel() * t.itemsize for t in self.plain.tensors().values())
            self._bytes = memoryview(torch.randint(256, (size,), dtype=torch.uint8).numpy())
        began = time.perf_counter()
        with (self.folder / "bytes").open("wb", buffering=0) as file:
            at = 0
            while at < len(self._bytes):
                at += file.write(self._bytes[at : at + (16 << 20)])
            os.fsync(file.fileno())
        self._taken = time.perf_counter() - began

    def total_s(self, began: float, *, blocked_until: float) -> float:  # noqa: ARG002
        return self._taken


class TorchSave(PlainCase):
    def save(self) -> None:
        torch.save(self.plain.state(), self.folder / "state.pt")


class TorchSaveDurable(PlainCase):
    def save(self) -> None:
        temp = self.folder / ".state.tmp"
        torch.save(self.plain.state(), temp)
        fsync_path(temp)
        temp.rename(self.folder / "state.pt")
        fsync_path(self.folder)


class Safetensors(PlainCase):
    def save(self) -> None:
        from safetensors.torch import save_file

        save_file(self.plain.tensors(), self.folder / "state.safetensors")


class Dcp(PlainCase):
    def __init__(self, plain: Plain) -> None:
        super().__init__(plain)
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{plain.folder}/ranks", rank=0, world_size=1
            )

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.plain.model, self.plain.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(), checkpoint_id=str(self.folder / "dcp"))


class DcpAsync(Dcp):
    _future: Future[Any] | None = None

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        future = dcp.async_save(self.state(), checkpoint_id=str(self.folder / "dcp"))
        assert isinstance(future, Future)
        self._future, self._ended = future, None
        future.add_done_callback(lambda _: self._note_end())

    _ended: float | None = None

    def _note_end(self) -> None:
        self._ended = time.perf_counter()

    def is_busy(self) -> bool:
        return self._future is not None and not self._future.done()

    def total_s(self, began: float, *, blocked_until: float) -> float:
        assert self._future is not None
        self._future.result()
        return (self._ended or blocked_until) - began


# -- the peers --------------------------------------------------------------------------------


class Accelerated(Plain):
    """accelerate: prepared model and optimizer, `save_state`."""

    def __init__(self, megabytes: int, folder: Path) -> None:
        from accelerate import Accelerator

        super().__init__(megabytes, folder)
        self.accelerator = Accelerator(cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def cases(self) -> dict[str, Case]:
        class SaveState(PlainCase):
            def save(case) -> None:  # noqa: N805
                self.accelerator.save_state(str(case.folder / "state"))

        return {"accelerate": SaveState(self)}


def run_lightning(megabytes: int, folder: Path) -> None:
    """Lightning's own loop; the gate is a callback."""
    import lightning as pl
    from lightning.pytorch.callbacks import Callback

    def make(net: nn.Module, callbacks: list[Any], **options: Any) -> tuple[Any, Any]:
        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def training_step(self, batch: Any, _: int) -> Any:
                return self.net(batch["tokens"])

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=LR)

        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=-1,
            logger=False,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **options,
        )
        return trainer, Module()

    class Save(Case):
        def save(self) -> None:
            trainer.save_checkpoint(self.folder / "state.ckpt")

    class AtBoundary(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            gate.boundary()

    def lora_bytes() -> dict[str, float]:
        model = AdaptedBlocks()
        small, module = make(model, [], max_steps=1)
        small.fit(module, torch.utils.data.DataLoader([{"tokens": make_batch(1024)[0]}]))
        path = folder / "lora.ckpt"
        small.save_checkpoint(path)
        return {"bytes": path.stat().st_size, "needed": model.needed_bytes()}

    trainer, module = make(make_model(megabytes), [AtBoundary()], max_steps=-1)
    gate = Gate({"lightning": Save()}, {"lora": lora_bytes})
    trainer.fit(module, torch.utils.data.DataLoader(Batches(), batch_size=1))


def run_hf(megabytes: int, folder: Path) -> None:
    """HF's own loop; the gate is a callback. `_save_checkpoint` is what its loop calls."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(tokens)}

    def make(net: nn.Module, data: Any, callbacks: list[Any], steps: int) -> Any:
        arguments = TrainingArguments(
            output_dir=str(folder / "hf"),
            max_steps=steps,
            per_device_train_batch_size=1,
            learning_rate=LR,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        return Trainer(model=Net(net), args=arguments, train_dataset=data, callbacks=callbacks)

    class Save(Case):
        def save(self) -> None:
            trainer.args.output_dir = str(self.folder)
            trainer._save_checkpoint(trainer.model, trial=None)

    class AtBoundary(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            gate.boundary()

    def lora_bytes() -> dict[str, float]:
        model = AdaptedBlocks()
        small = make(model, [{"tokens": make_batch(1024)[0]}], [], 1)
        small.train()
        small.args.output_dir = str(folder / "lora")
        small._save_checkpoint(small.model, trial=None)
        return {"bytes": folder_bytes(folder / "lora"), "needed": model.needed_bytes()}

    trainer = make(make_model(megabytes), Batches(), [AtBoundary()], 1_000_000)
    gate = Gate({"hf": Save()}, {"lora": lora_bytes})
    trainer.train()


def main(which: str, megabytes: str, folder: str) -> None:
    match which:
        case "plain":
            Plain(int(megabytes), Path(folder)).run()
        case "accelerate":
            Accelerated(int(megabytes), Path(folder)).run()
        case "lightning":
            run_lightning(int(megabytes), Path(folder))
        case "hf":
            run_hf(int(megabytes), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
