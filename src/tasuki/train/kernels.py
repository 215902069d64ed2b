"""Where compiled kernels are kept: with the run, so that later attempts, on other nodes too, find
them. Told by the environment, before torch is imported; free of torch itself.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


def keep_kernels(folder: Path, environment: MutableMapping[str, str], *, cpus: int) -> None:
    """A place that the user exported stays."""
    told = environment.get(_FOLDER, "")
    # torch writes its own default, /tmp/torchinductor_<user>, into the environment of its children.
    if not told or Path(told).name.startswith("torchinductor_"):
        environment[_FOLDER] = str(folder)
    if cpus <= 2:
        environment.setdefault(_THREADS, "1")  # a pool of compilers would only be in the way
