"""tasuki: PyTorch training that finishes inside the clock of a cluster.

Every verb is also a function here that returns what `--json` prints; specs can be written with the
classes below. Names are loaded when they are used: importing tasuki imports neither torch nor
anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasuki.api import cancel, logs, new, plan, resume, run, status
    from tasuki.errors import TasukiError
    from tasuki.spec.written import (
        Cluster,
        Evaluate,
        Expect,
        Experiment,
        Loader,
        Save,
        Spec,
        Stage,
        Validate,
    )

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Evaluate",
    "Expect",
    "Experiment",
    "Loader",
    "Save",
    "Spec",
    "Stage",
    "TasukiError",
    "Validate",
    "cancel",
    "logs",
    "new",
    "plan",
    "resume",
    "run",
    "status",
]

_VERBS = {"cancel", "logs", "new", "plan", "resume", "run", "status"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tasuki' has no attribute {name!r}")
    from importlib import import_module

    home = "tasuki.api" if name in _VERBS else "tasuki.spec.written"
    if name == "TasukiError":
        home = "tasuki.errors"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
