"""All that a Lightning training depends on, where it asks for its next batch; and back, exactly.

Lightning's own checkpoint is meant for other places of its loops: after a validation in the middle
of an epoch it would step schedulers twice, and it leaves out what was logged since the epoch began,
metrics, random numbers and whether an epoch is being gone on with. Here everything is put back at
the very place in the program at which it was captured, so that Lightning just goes on.

Reads and sets what Lightning keeps to itself: lightning.py says for which versions that is tested.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from tasuki.loop.state import (
    State,
    refuse_difference,
    restore_module,
    restore_optimizer,
    restore_other,
    unsaved_buffers,
)

_NOT_NEEDED = (
    *("hyper_parameters", "hparams_name", "hparams_type"),
    *("datamodule_hyper_parameters", "datamodule_hparams_name", "datamodule_hparams_type"),
)
"""Of Lightning's checkpoint: it may hold any object, and nothing is put back from it."""
_LOOP_KEYS = (
    *("_batches_that_stepped", "_has_run", "_seen_batches_per_dataloader", "_skip_next_val"),
    *("_last_train_dl_reload_epoch", "_last_val_dl_reload_epoch"),
)
"""Beside the counters, which a loop's own state has."""
_META_KEYS = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)
_TRAINER_KEYS = ("should_stop", "accumulate_grad_batches")


def capture(trainer: Trainer) -> State:
    """What all ranks share. Tensors are the live ones; those that occur twice are stored once."""
    module = trainer.lightning_module
    theirs = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    theirs["callbacks"] = _apart(theirs["callbacks"])
    return {
        "lightning": {key: value for key, value in theirs.items() if key not in _NOT_NEEDED},
        **_own(trainer, module),
    }


def _apart(values: Any) -> Any:
    """Copies. A callback and what was logged may hold one and the same tensor, and after a resume
    two that are equal: that is no difference, and must not look like one on disk."""
    return apply_to_collection(values, Tensor, lambda tensor: tensor.detach().clone())


def _own(trainer: Trainer, module: LightningModule) -> State:
    loops = dict(_loops(trainer.fit_loop))
    return {
        "model": module.state_dict(),
        "buffers": unsaved_buffers(module),
        "gradients": _gradients(module),
        "fixed": [name for name, p in module.named_parameters() if not p.requires_grad],
        "evaluating": [name for name, part in module.named_modules() if not part.training],
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "schedulers": [one.scheduler.state_dict() for one in trainer.lr_scheduler_configs],
        "counters": trainer.fit_loop.state_dict(),
        "loops": {name: _of(loop, _LOOP_KEYS) for name, loop in loops.items()},
        "trainer": _of(trainer, _TRAINER_KEYS),
    }


def restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    module = trainer.lightning_module
    restore_module(module, state["model"], state["buffers"])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in state["fixed"])
        grad = state["gradients"].get(name)
        parameter.grad = None if grad is None else grad.to(parameter.device)
    for name, part in module.named_modules():
        part.training = name not in state["evaluating"]
    for optimizer, own in zip(trainer.optimizers, state["optimizers"], strict=True):
        restore_optimizer(optimizer, own)
    for one, own in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=True):
        restore_other(one.scheduler, own)
    trainer.fit_loop.load_state_dict(copy.deepcopy(state["counters"]))
    for name, loop in _loops(trainer.fit_loop):
        vars(loop).update(copy.deepcopy(state["loops"][name]))
        # Not through the property: it is always true where steps are counted, not epochs.
        loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        loop.reset_restart_stage()
    for key, value in state["trainer"].items():
        setattr(trainer, key, value)
    found = _own(trainer, module)
    refuse_difference({key: state[key] for key in found}, found)


def _gradients(module: LightningModule) -> dict[str, Tensor]:
    """Half a step's gradients are there only where a module steps its optimizers by itself."""
    if module.automatic_optimization:
        return {}
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def _of(thing: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: getattr(thing, key) for key in keys if hasattr(thing, key)}


def _loops(loop: _Loop, name: str = "fit_loop") -> Iterator[tuple[str, _Loop]]:
    yield name, loop
    for key, value in vars(loop).items():
        if isinstance(value, _Loop):
            yield from _loops(value, f"{name}.{key}")


# -- what was logged, and metrics: each rank has its own ------------------------------------------


def capture_logged(trainer: Trainer) -> State:
    connector, module = trainer._logger_connector, trainer.lightning_module
    state = {
        "progress_bar": dict(connector._progress_bar_metrics),
        "logged": dict(connector._logged_metrics),
        "callback": dict(connector._callback_metrics),
        "fx": connector._current_fx,
        "is_first": connector._first_loop_iter,
        "results": {name: _results(found) for name, found in _collections(trainer)},
        "metrics": {
            name: _values(part) for name, part in module.named_modules() if isinstance(part, Metric)
        },
    }
    apart: State = _apart(state)
    return apart


def restore_logged(trainer: Trainer, state: Mapping[str, Any]) -> None:
    device, connector = trainer.strategy.root_device, trainer._logger_connector
    state = apply_to_collection(dict(state), Tensor, lambda tensor: tensor.to(device))
    connector._progress_bar_metrics = state["progress_bar"]
    connector._logged_metrics = state["logged"]
    connector._callback_metrics = state["callback"]
    connector._current_fx, connector._first_loop_iter = state["fx"], state["is_first"]
    for name, values in state["metrics"].items():
        part = trainer.lightning_module.get_submodule(name)
        assert isinstance(part, Metric)
        _put_values(part, values)
    for name, found in _collections(trainer):
        found.clear()
        for key, told in state["results"][name].items():
            found[key] = _result(trainer, told)


def _collections(trainer: Trainer) -> Iterator[tuple[str, _ResultCollection]]:
    for name, loop in _loops(trainer.fit_loop):
        if "_results" in vars(loop):
            yield name, vars(loop)["_results"]


def _results(collection: _ResultCollection) -> dict[str, Any]:
    found = {}
    for key, result in collection.items():
        meta, sync = result.meta, result.meta.sync
        cache = result._forward_cache
        found[key] = {
            "meta": _of(meta, _META_KEYS),
            "reduced_by": meta.reduce_fx.__name__,
            "is_builtin": meta.reduce_fx.__module__ == "builtins",
            "sync": (sync.should, sync.rank_zero_only, sync.op),
            "is_tensor": result.is_tensor,
            "has_reset": result.has_reset,
            "cache": cache if isinstance(cache, Tensor) else None,
            "values": _values(result),
        }
    return found


def _result(trainer: Trainer, told: Mapping[str, Any]) -> _ResultMetric:
    reduced_by = getattr(builtins if told["is_builtin"] else torch, told["reduced_by"])
    meta = _Metadata(reduce_fx=reduced_by, **told["meta"])
    should, rank_zero_only, op = told["sync"]
    fn = trainer.strategy.reduce  # as LightningModule.log gives it
    meta.sync = _Sync(_should=should, fn=fn, rank_zero_only=rank_zero_only, _op=op)
    result = _ResultMetric(meta, told["is_tensor"])
    _put_values(result, told["values"])
    if not told["is_tensor"]:
        result.value = trainer.lightning_module.get_submodule(meta.metric_attribute or "")
    result._forward_cache, result.has_reset = told["cache"], told["has_reset"]
    return result


def _values(metric: Metric) -> dict[str, Any]:
    """What a metric has gathered: a module's `state_dict` leaves it out."""
    computed = metric._computed
    return {
        "count": metric._update_count,
        "computed": computed if isinstance(computed, Tensor) else None,
        "gathered": {key: getattr(metric, key) for key in metric._defaults},
    }


def _put_values(metric: Metric, values: Mapping[str, Any]) -> None:
    for key, value in values["gathered"].items():
        setattr(metric, key, value)
    metric._update_count, metric._computed = values["count"], values["computed"]
