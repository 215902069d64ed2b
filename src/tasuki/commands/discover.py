"""Load a spec. A child process with h5py reads which sizes the data have, for `stages: auto`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.spec.discover import Found, LookAtData
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec


def load_resolved_spec(
    spec: str | Path,
    overrides: Sequence[str] = (),
    preset: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> ResolvedSpec:
    """Load a spec, and read its data where it has `stages: auto`.

    Args:
        spec: A file, a folder, or `file.py:function`.
        overrides: `KEY=VALUE`, as `--set`.
        preset: A named set of values of the spec.
        environment: Environment variables. None: those of this process.
    """
    variables = dict(os.environ if environment is None else environment)
    look = look_with(python=sys.executable, environment=variables)
    return load_spec(str(spec), settings=overrides, config=preset, environ=variables, look=look)


def look_with(*, python: str, environment: dict[str, str]) -> LookAtData:
    """A way to look at data, for `load_spec`."""

    def look(sources: Sequence[str], folder: str, split: str) -> list[Found]:
        told = subprocesses.run(
            "tasuki.data.hdf5.discover:work",
            {"sources": list(sources), "split": split},
            python=python,
            environment=environment,
            cwd=folder,
            result=list[dict[str, Any]],
        )
        return [Found(one["source"], tuple(one["sizes"])) for one in told]

    return look
