"""Ask a child process with h5py which sizes the data have, for `stages: auto`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasuki import subprocesses
from tasuki.spec.discover import Found, LookAtData


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
