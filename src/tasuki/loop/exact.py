"""What exactness hangs on: set at every start, written down at the first, compared at the others.

A difference does not stop a run; it is said aloud that from here on the claim is "same samples,
numbers close" instead of "bit for bit".
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Any, cast

import numpy as np
import torch

from tasuki.runs.atomic import FORMAT, create_exclusive, read_json, to_json
from tasuki.runs.runs import RunFolder


def apply_settings(*, threads: int, exact: bool) -> None:
    """Before any operation: thread counts decide in which order numbers are added."""
    torch.set_num_threads(threads)
    if exact:
        set_deterministic(True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True


def set_deterministic(is_on: bool) -> None:
    """As `torch.use_deterministic_algorithms(is_on, warn_only=True)`, which loads the compiler only
    to tell it so: a second or more of every start. Here it is told when it is loaded, if ever."""
    torch.set_deterministic_debug_mode("warn" if is_on else "default")
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1" if is_on else "0"
    compiler = sys.modules.get("torch._inductor.config")
    if compiler is not None:
        cast(Any, compiler).deterministic = is_on


def describe(*, threads: int, world: int, device: torch.device) -> dict[str, Any]:
    # Another vector width adds numbers in another order.
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return {
        "threads": threads,
        "world": world,
        "device": device.type,
        "device_model": model,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def freeze(run: RunFolder, facts: dict[str, Any]) -> None:
    """The first attempt's word; a later call changes nothing."""
    if not run.frozen.exists():
        create_exclusive(run.frozen, to_json({"format": FORMAT, **facts}))


def frozen_threads(run: RunFolder) -> int | None:
    """The thread count of the first start: a requeue onto other CPUs must not change it."""
    if not run.frozen.exists():
        return None
    threads = read_json(run.frozen).get("threads")
    return int(threads) if isinstance(threads, int) else None


def what_differs(run: RunFolder, facts: dict[str, Any], *, world: int) -> list[str]:
    """In words, what is not as it was at the first start; `world` is that of the checkpoint."""
    frozen = {**read_json(run.frozen), "world": world}
    return [
        f"{key}: {frozen.get(key)} → {value}"
        for key, value in facts.items()
        if frozen.get(key) != value
    ]
