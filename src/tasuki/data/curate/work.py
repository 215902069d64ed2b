"""Merge, split or check, for `tasuki data`.

A child process, as the command line itself imports neither numpy nor h5py.
"""

from __future__ import annotations

import resource
from typing import Any

from tasuki.data.curate.check import check
from tasuki.data.curate.contents import close_all
from tasuki.data.curate.merge import merge
from tasuki.data.curate.split import split
from tasuki.data.curate.talk import Talk
from tasuki.subprocesses import ProgressCallback

_VERBS = {"merge": merge, "split": split, "check": check}


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    _open_many_files()
    try:
        return _VERBS[order["verb"]](order, Talk(progress))
    finally:
        close_all()


def _open_many_files() -> None:
    """A folder of a thousand files has a thousand work folders, each with its lock."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
