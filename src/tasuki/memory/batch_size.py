"""The largest micro-batch that fits a device, by bucket.

A run's first start and `tasuki tune --batch-size` call `work`.

A child process, which leaves nothing behind and has touched nothing of the run when it ends. The
order: {"stage": as plain values, "paths": where recipes lie, "device": "cuda:0" | "cpu", "ranks":
1, "threads": 1, "is_bounded": no more than `safety_factor` leaves of use, "parent": pid | null}.
The answer: {"capacity_bytes": null, "reason"} where no limit is known; else see `Tuner.answer`. A
prediction (memory) comes first, at most four tries on the device correct it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from tasuki.data.fetch import seed_everything
from tasuki.data.order import Order
from tasuki.errors import TasukiError
from tasuki.estimation.by_cost import CostProbes
from tasuki.estimation.probes import Probe, read_probe
from tasuki.loop.exact import apply_settings
from tasuki.memory.by_cost import probe_by_cost, worst_of
from tasuki.memory.child import work as trace
from tasuki.memory.tuner import CostTuner, Tuner, beside_here
from tasuki.spec.resolved import ResolvedStage, stage_from_plain, to_plain
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.testing.memory import VARIABLE, memory_cap
from tasuki.train.data import StageData, prepare_data
from tasuki.train.gauge import open_gauge
from tasuki.train.precision import apply_precision
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe

_SIGNAL_ON_PARENT_DEATH = 1
_NO_LIMIT = "the memory of this device has no limit that is known"
_OWN_LOADER = "the recipe brings a loader of its own, which makes its batches itself"


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    _die_with(order.get("parent"))
    warnings.simplefilter("ignore")
    stage = stage_from_plain(order["stage"])
    device = torch.device(order["device"])
    cap = os.environ.get(VARIABLE)
    if device.type == "cpu" and not cap:
        return {"capacity_bytes": None, "reason": _NO_LIMIT}
    assert stage.recipe is not None
    progress(Progress("opening the data"))
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[Path(p) for p in order["paths"]])
    data = prepare_data(recipe, stage, rank=0, world=order["ranks"])
    if not isinstance(data.order, Order):
        return {"capacity_bytes": None, "reason": _OWN_LOADER}
    is_by_cost = data.split.costs is not None
    probe, untraced = _traced(recipe, stage, data, order, progress)
    apply_settings(threads=order["threads"], exact=stage.exact)
    apply_precision(stage.precision, device)
    with _capped(device):
        kind = CostTuner if is_by_cost else Tuner
        return kind(recipe, stage, data, order, progress).answer(probe, untraced)


def _die_with(parent: int | None) -> None:
    """A run that is killed must find its device free when it comes again."""
    if parent is not None:
        ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _traced(
    recipe: Any,
    stage: ResolvedStage,
    data: StageData,
    order: Mapping[str, Any],
    progress: ProgressCallback,
) -> tuple[Probe | CostProbes | None, dict[str, str] | None]:
    """What cannot be traced is measured."""
    is_by_cost = data.split.costs is not None
    kind = torch.device(order["device"]).type
    asked = {"folder": order["paths"][0], "device": kind, "ranks": order["ranks"]}
    try:
        if is_by_cost:
            found = _traced_by_cost(recipe, stage, data, asked, progress)
        else:
            # Two micro-batches: gradients of the first lie there during the second.
            twice = msgspec.structs.replace(stage, accumulation=2)
            found = trace({**asked, "stage": to_plain(twice)}, progress)
    except TasukiError as error:
        return None, {"op": "", "reason": error.message}
    except Exception as error:
        return None, {"op": "", "reason": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
    if found["probe"] is None:
        return None, found["untraced"]
    return _cost_probes(found, data) if is_by_cost else read_probe(found["probe"]), None


def _traced_by_cost(
    recipe: Any,
    stage: ResolvedStage,
    data: StageData,
    asked: dict[str, Any],
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Traced once more about the budget that is likely: of half the cost samples are others."""
    found = probe_by_cost(recipe, stage, data, asked, progress)
    if found["probe"] is None:
        return found
    device = torch.device(asked["device"])
    with _capped(device):
        gauge = open_gauge(device)
    assert gauge is not None
    beside = beside_here(device, ranks=asked["ranks"])
    probes = _cost_probes(found, data)
    likely = probes.largest(capacity=gauge.capacity_bytes, beside=beside).batch
    if not 0 < likely < worst_of(data).whole:
        return found
    buckets = msgspec.structs.replace(stage.buckets, budget=likely)
    closer = msgspec.structs.replace(stage, buckets=buckets)
    again = probe_by_cost(recipe, closer, data, asked, progress)
    return found if again["probe"] is None else again


def _cost_probes(found: Mapping[str, Any], data: StageData) -> CostProbes:
    large, small = read_probe(found["probe"]), read_probe(found["small"])
    dearest = worst_of(data).dearest
    return CostProbes(large=large, small=small, dearest=dearest).accumulated()


def _capped(device: torch.device) -> contextlib.AbstractContextManager[object]:
    cap = os.environ.get(VARIABLE)
    return memory_cap(cap) if cap and device.type == "cpu" else contextlib.nullcontext()
