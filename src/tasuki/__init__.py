"""tasuki: PyTorch training that finishes inside the clock of a cluster.

Every command is also a function here that returns what `--json` prints. Specs can be written with
the classes below. Names are loaded when they are used: importing tasuki imports neither torch nor
anything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasuki.api.after import evaluate, export, history, report
    from tasuki.api.before import estimate, inspect, plan
    from tasuki.api.data import data_check, data_merge, data_split, data_tokenize
    from tasuki.api.everyday import (
        cancel,
        extend,
        logs,
        new,
        resume,
        run,
        status,
        submit,
        watch,
        why,
    )
    from tasuki.api.proof import (
        checkpoint_diff,
        checkpoint_prune,
        checkpoint_show,
        checkpoint_verify,
    )
    from tasuki.commands.check import check
    from tasuki.commands.doctor import doctor
    from tasuki.commands.tune import tune
    from tasuki.commands.verify import verify_gradients, verify_samples
    from tasuki.commands.verify_resume import verify_resume
    from tasuki.data.collate import pad_collate
    from tasuki.data.hdf5.dataset import Hdf5Dataset
    from tasuki.data.tokens.reader import TokenDataset
    from tasuki.errors import TasukiError
    from tasuki.integrations.open import open_run
    from tasuki.integrations.run import Run
    from tasuki.integrations.several import is_complete
    from tasuki.loggers.sink import Sink, SinkRow, SinkRun
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
    "Hdf5Dataset",
    "Loader",
    "Run",
    "Save",
    "Sink",
    "SinkRow",
    "SinkRun",
    "Spec",
    "Stage",
    "TasukiError",
    "TokenDataset",
    "Validate",
    "cancel",
    "check",
    "checkpoint_diff",
    "checkpoint_prune",
    "checkpoint_show",
    "checkpoint_verify",
    "data_check",
    "data_merge",
    "data_split",
    "data_tokenize",
    "doctor",
    "estimate",
    "evaluate",
    "export",
    "extend",
    "history",
    "inspect",
    "is_complete",
    "logs",
    "new",
    "open_run",
    "pad_collate",
    "plan",
    "report",
    "resume",
    "run",
    "status",
    "submit",
    "tune",
    "verify_gradients",
    "verify_resume",
    "verify_samples",
    "watch",
    "why",
]

_MODULES = {
    "api.after": ("evaluate", "export", "history", "report"),
    "api.before": ("estimate", "inspect", "plan"),
    "api.data": ("data_check", "data_merge", "data_split", "data_tokenize"),
    "api.proof": ("checkpoint_diff", "checkpoint_prune", "checkpoint_show", "checkpoint_verify"),
    "commands.check": ("check",),
    "commands.doctor": ("doctor",),
    "commands.tune": ("tune",),
    "commands.verify": ("verify_gradients", "verify_samples"),
    "commands.verify_resume": ("verify_resume",),
    "data.collate": ("pad_collate",),
    "data.hdf5.dataset": ("Hdf5Dataset",),
    "data.tokens.reader": ("TokenDataset",),
    "errors": ("TasukiError",),
    "integrations.open": ("open_run",),
    "integrations.run": ("Run",),
    "integrations.several": ("is_complete",),
    "loggers.sink": ("Sink", "SinkRow", "SinkRun"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tasuki' has no attribute {name!r}")
    default = "spec.written" if name[0].isupper() else "api.everyday"
    return getattr(import_module(f"tasuki.{_HOMES.get(name, default)}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
