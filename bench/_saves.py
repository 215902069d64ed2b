"""The plain loop of save.py, with all ways to save that need torch alone.

Run as `python _saves.py MEGABYTES FOLDER`, a worker that takes orders of save.py (see _gate.py).
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from _gate import LR, AdaptedBlocks, Case, Gate, make_batch, make_model, set_cache
from save import COPY, DCP_ASYNC, PLAIN_WRITE, TORCH_SAVE


class PlainLoop:
    """Model, optimizer and a loop."""

    def __init__(self, megabytes: int, folder: Path) -> None:
        self.folder = folder
        self.model = make_model(megabytes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.batch = make_batch()

    def run(self) -> None:
        self.step()
        cases = {
            COPY: Copy(self),
            PLAIN_WRITE: PlainWrite(self),
            TORCH_SAVE: TorchSave(self),
            DCP_ASYNC: DcpAsync(self),
        }
        others = {
            "load warm": lambda: self.load(is_warm=True),
            "load cold": lambda: self.load(is_warm=False),
            "lora": self.lora_bytes,
        }
        gate = Gate(cases, others)
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
        """Bytes of a checkpoint, and the bytes it cannot do without."""
        model = AdaptedBlocks()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR)
        model(make_batch(1024)).backward()
        optimizer.step()
        path = self.folder / "lora.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        return {"bytes": path.stat().st_size, "needed": model.needed_bytes()}


class PlainCase(Case):
    def __init__(self, loop: PlainLoop) -> None:
        self.loop = loop


class Copy(PlainCase):
    """Every tensor into memory that exists already: the least a loop can wait for a save."""

    _buffers: dict[str, torch.Tensor] | None = None

    def save(self) -> None:
        tensors = self.loop.tensors()
        if self._buffers is None:
            self._buffers = {name: torch.empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            self._buffers[name].copy_(value)


class PlainWrite(PlainCase):
    """The same number of bytes from memory into a file, and fsync."""

    _bytes: memoryview | None = None

    def save(self) -> None:
        if self._bytes is None:
            size = sum(t.numel() * t.itemsize for t in self.loop.tensors().values())
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
        torch.save(self.loop.state(), self.folder / "state.pt")


class DcpAsync(PlainCase):
    _future: Future[Any] | None = None

    def __init__(self, loop: PlainLoop) -> None:
        super().__init__(loop)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{loop.folder}/ranks", rank=0, world_size=1
        )

    def save(self) -> None:
        model, optimizer = get_state_dict(self.loop.model, self.loop.optimizer)
        state = {"model": model, "optimizer": optimizer}
        future = dcp.async_save(state, checkpoint_id=str(self.folder / "dcp"))
        assert isinstance(future, Future)
        self._future = future

    def is_busy(self) -> bool:
        return self._future is not None and not self._future.done()

    def total_s(self, began: float, *, blocked_until: float) -> float:
        assert self._future is not None
        self._future.result()  # raises what went wrong in the background
        return blocked_until - began


if __name__ == "__main__":
    PlainLoop(int(sys.argv[1]), Path(sys.argv[2])).run()
