"""A step of the tiny MLP by each of the other tools, in separate processes that take turns.

Every tool trains the same model on the same samples with AdamW, clipping and OneCycle, as its
manual shows it, with everything off that may be: no log, no progress bar, no checkpoint. tasuki's
loop (`tasuki`) writes its log lines and watches its deadline all the while. A turn is
STEPS_PER_TURN steps; after it the batch sampler stops and waits for the next order.

Run by overhead.py as `python _step_tools.py TOOL FOLDER`, in the peers' environment but for
`tasuki`. FOLDER is for what a tool insists on writing.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from _measure import sized
from _peers import answer, orders

STEPS_PER_TURN = sized(200, smoke=20)
WIDTH = 256
BATCH = 32
LR = 1e-3
CLIP = 1.0
STEPS = 1_000_000
"""More than there will be turns for."""


class Gate:
    """Reports the CPU seconds of a turn's step, and waits for the next turn."""

    def __init__(self) -> None:
        self._orders = orders()
        self._began: float | None = None

    def pass_on(self) -> None:
        now = time.thread_time()
        if self._began is not None:
            answer((now - self._began) / STEPS_PER_TURN)
        if next(self._orders, None) is None:
            os._exit(0)
        self._began = time.thread_time()


class Batches:
    """A batch sampler with a gate in it."""

    def __init__(self) -> None:
        self._gate = Gate()
        chosen = random.Random(7)
        self._known = [[chosen.randrange(8192) for _ in range(BATCH)] for _ in range(1000)]

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(STEPS):
            if number % STEPS_PER_TURN == 0:
                self._gate.pass_on()
            yield self._known[number % len(self._known)]


def make_samples() -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8192, 64, generator=generator)
    classes = torch.randint(10, (8192,), generator=generator)
    return list(zip(inputs, classes, strict=True))


def make_loader(collate: Any = default_collate) -> Any:
    data: Any = make_samples()
    return DataLoader(data, batch_sampler=Batches(), collate_fn=collate)  # type: ignore[arg-type]


def make_mlp(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(64, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 10),
    )


class Net(nn.Module):
    """With its loss, as HF's Trainer needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_mlp()

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


def make_parts() -> tuple[nn.Module, Any, Any]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)  # as tasuki's default is
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LR, total_steps=STEPS, cycle_momentum=False
    )
    return model, optimizer, schedule


def make_step(
    model: Any,
    optimizer: Any,
    schedule: Any,
    *,
    backward: Callable[[Any], object] = torch.Tensor.backward,
    clip: Callable[[], object] | None = None,
) -> Callable[[Any], Any]:
    """A training step as written by hand, with what a library replaces in it."""
    parameters = list(model.parameters())

    def step(batch: Any) -> Any:
        inputs, labels = batch
        loss = model(inputs, labels)["loss"]
        backward(loss)
        clip() if clip else nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss

    return step


# -- the tools --------------------------------------------------------------------------------


def run_bare() -> None:
    """By hand, without a DataLoader."""
    step, data = make_step(*make_parts()), make_samples()
    for indices in Batches():
        step(default_collate([data[index] for index in indices]))


def run_ignite() -> None:
    from ignite.engine import Engine

    step = make_step(*make_parts())
    Engine(lambda _, batch: step(batch)).run(make_loader(), max_epochs=1)


def run_fabric() -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net, optimizer, schedule = make_parts()
    model, optimizer = fabric.setup(net, optimizer)
    step = make_step(
        model,
        optimizer,
        schedule,
        backward=fabric.backward,
        clip=lambda: fabric.clip_gradients(model, optimizer, max_norm=CLIP),
    )
    for batch in fabric.setup_dataloaders(make_loader(), use_distributed_sampler=False):
        step(batch)


def run_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    *parts, batches = accelerator.prepare(*make_parts(), make_loader())
    step = make_step(
        *parts,
        backward=accelerator.backward,
        clip=lambda: accelerator.clip_grad_norm_(parts[0].parameters(), CLIP),
    )
    for batch in batches:
        step(batch)


def run_lightning() -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self._optimizer, self._schedule = make_parts()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(*batch)["loss"]

        def configure_optimizers(self) -> Any:
            return [self._optimizer], [{"scheduler": self._schedule, "interval": "step"}]

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, gradient_clip_val=CLIP, barebones=True
    )
    trainer.fit(Module(), make_loader())


def run_hf() -> None:
    from transformers import Trainer, TrainingArguments

    def collate(chosen: list[Any]) -> dict[str, Any]:
        inputs, labels = default_collate(chosen)
        return {"inputs": inputs, "labels": labels}

    class Gated(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(make_loader(collate))

    model, optimizer, schedule = make_parts()
    arguments = TrainingArguments(
        output_dir=sys.argv[2],
        max_steps=STEPS,
        max_grad_norm=CLIP,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        remove_unused_columns=False,
    )
    Gated(
        model=model,
        args=arguments,
        train_dataset=make_samples(),  # type: ignore[arg-type]
        optimizers=(optimizer, schedule),
    ).train()


def run_tasuki() -> None:
    from _loops import CHUNK, Taken, Turns, open_bench

    class Gated(Turns):
        def __init__(self) -> None:
            self._gate, self._steps = Gate(), 0

        def before_chunk(self, loop: Any) -> None:  # noqa: ARG002
            if self._steps % STEPS_PER_TURN == 0:
                self._gate.pass_on()

        def after_chunk(self, taken: Taken) -> None:  # noqa: ARG002
            self._steps += CHUNK

    with open_bench(WIDTH) as bench:
        bench.train(STEPS, Gated())


BARE = "bare loop"
TOOLS: dict[str, Callable[[], None]] = {
    BARE: run_bare,
    "tasuki": run_tasuki,
    "Ignite": run_ignite,
    "Fabric": run_fabric,
    "accelerate": run_accelerate,
    "Lightning, barebones": run_lightning,
    "HF Trainer": run_hf,
}
PACKAGE_OF = {
    BARE: "",
    "tasuki": "",
    "Ignite": "pytorch-ignite",
    "Fabric": "lightning",
    "accelerate": "accelerate",
    "Lightning, barebones": "lightning",
    "HF Trainer": "transformers",
}
"""What a tool needs from the other tools' environment."""

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(7)
    tempfile.tempdir = sys.argv[2]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    TOOLS[sys.argv[1]]()
