"""tasuki: PyTorch training that finishes inside the clock of a cluster.

Every command is also a function here that returns what `--json` prints. Specs can be written with
the classes below. Names are loaded when they are used: importing tasuki imports neither torch nor
anything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasuki.api import (
        cancel,
        checkpoint_diff,
        checkpoint_prune,
        checkpoint_show,
        checkpoint_verify,
        data_check,
        data_merge,
        data_split,
        data_tokenize,
        estimate,
        evaluate,
        export,
        extend,
        history,
        inspect,
        logs,
        new,
        plan,
        report,
        resume,
        run,
        status,
        submit,
        watch,
        why,
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

_HOMES = {
    "check": "tasuki.commands.check",
    "Cluster": "tasuki.spec.written",
    "Evaluate": "tasuki.spec.written",
    "Expect": "tasuki.spec.written",
    "Experiment": "tasuki.spec.written",
    "Hdf5Dataset": "tasuki.data.hdf5.dataset",
    "Loader": "tasuki.spec.written",
    "Run": "tasuki.integrations.run",
    "Save": "tasuki.spec.written",
    "Sink": "tasuki.loggers.sink",
    "SinkRow": "tasuki.loggers.sink",
    "SinkRun": "tasuki.loggers.sink",
    "Spec": "tasuki.spec.written",
    "Stage": "tasuki.spec.written",
    "TasukiError": "tasuki.errors",
    "TokenDataset": "tasuki.data.tokens.reader",
    "Validate": "tasuki.spec.written",
    "doctor": "tasuki.commands.doctor",
    "is_complete": "tasuki.integrations.several",
    "open_run": "tasuki.integrations.open",
    "pad_collate": "tasuki.data.collate",
    "tune": "tasuki.commands.tune",
    "verify_gradients": "tasuki.commands.verify",
    "verify_resume": "tasuki.commands.verify_resume",
    "verify_samples": "tasuki.commands.verify",
}
"""Modules of the names above. All other names are functions of `tasuki.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tasuki' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "tasuki.api")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
