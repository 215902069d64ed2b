"""Every verb as one Python function that returns the values of `--json`.

Thin: the same actions as the command line, without its talk. Files are its groups of verbs; names
are taken from here (`tasuki/__init__.py` does, when one is used).
"""

from __future__ import annotations

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

__all__ = [
    "cancel",
    "checkpoint_diff",
    "checkpoint_prune",
    "checkpoint_show",
    "checkpoint_verify",
    "data_check",
    "data_merge",
    "data_split",
    "data_tokenize",
    "estimate",
    "evaluate",
    "export",
    "extend",
    "history",
    "inspect",
    "logs",
    "new",
    "plan",
    "report",
    "resume",
    "run",
    "status",
    "submit",
    "watch",
    "why",
]
