"""All that a training of HF's Trainer depends on, where it asks for its next batches; and back.

The Trainer's own checkpoint holds pickles and leaves out what was summed up since the last line of
its log. Here everything is put back at the place in the program at which it was captured.

Reads and sets what the Trainer keeps to itself: hf.py says for which versions that is tested.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from tasuki.errors import CheckpointError
from tasuki.loop.state import (
    State,
    refuse_difference,
    restore_module,
    restore_optimizer,
    restore_other,
    unsaved_buffers,
)
from tasuki.loop.things import unwrapped

_SUMS = (
    *("_total_loss_scalar", "_globalstep_last_logged", "current_flos"),
    *("_initial_num_input_tokens_seen", "_initial_global_step"),
)
_PROCESS = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks")
"""Of a TrainerState: a matter of the process."""


def capture(trainer: Trainer) -> State:
    """What all ranks share. Tensors are the live ones."""
    model = model_of(trainer)
    scaler = getattr(trainer.accelerator, "scaler", None)
    return {
        "model": model.state_dict(),
        "buffers": unsaved_buffers(model),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
        **_counters(trainer),
    }


def _counters(trainer: Trainer) -> State:
    fields = dataclasses.fields(trainer.state)
    names = [field.name for field in fields if field.name not in _PROCESS]
    state = {name: getattr(trainer.state, name) for name in names}
    return {
        # What hangs on the clock is the same in no two runs, and a resumed run would differ by it.
        "state": state | {"log_history": [without_times(row) for row in state["log_history"]]},
        "control": dataclasses.asdict(trainer.control),
        "callbacks": [(type(one).__name__, one.state()["attributes"]) for one in _kept(trainer)],
    }


def restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    restore_module(model_of(trainer), state["model"], state["buffers"])
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps it
    restore_optimizer(optimizer, state["optimizer"])
    restore_other(trainer.lr_scheduler, state["scheduler"])
    if state["scaler"] is not None:
        restore_other(trainer.accelerator.scaler, state["scaler"])
    restore_counters(trainer, state)
    found = capture(trainer)
    refuse_difference({key: state[key] for key in found}, found)


def restore_counters(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """What callbacks look at when a training begins."""
    for name, value in state["state"].items():
        setattr(trainer.state, name, copy.deepcopy(value))
    for name, value in state["control"].items():
        setattr(trainer.control, name, value)
    kept = _kept(trainer)
    before = [name for name, _ in state["callbacks"]]
    now = [type(one).__name__ for one in kept]
    if before != now:
        raise CheckpointError(
            f"not the callbacks that the run began with: {', '.join(before)} before, "
            f"{', '.join(now)} now",
            hint="give the Trainer the same callbacks as before, or begin another run",
        )
    for one, (_, attributes) in zip(kept, state["callbacks"], strict=True):
        for name, value in attributes.items():
            setattr(one, name, copy.deepcopy(value))


def capture_sums(trainer: Trainer) -> State:
    """Each rank's own: its losses since the last line of the log."""
    return {"loss": trainer._tr_loss, **{name: getattr(trainer, name) for name in _SUMS}}


def restore_sums(trainer: Trainer, state: Mapping[str, Any]) -> None:
    trainer._tr_loss = state["loss"].to(trainer.args.device)
    for name in _SUMS:
        setattr(trainer, name, state[name])


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the Trainer's log without how long something took."""
    return {k: v for k, v in row.items() if not k.endswith(("_runtime", "_per_second"))}


def model_of(trainer: Trainer) -> nn.Module:
    model: nn.Module = unwrapped(trainer.model)
    return model


def _kept(trainer: Trainer) -> list[Any]:
    """Callbacks that say what their state is."""
    return [one for one in trainer.callback_handler.callbacks if isinstance(one, ExportableState)]
