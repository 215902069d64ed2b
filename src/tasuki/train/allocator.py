"""What torch's allocator is told, in a worker's environment, before torch is imported.

Pure, and free of torch. Training data vary in size, so that on a GPU growing segments are the
default; whoever exported the variable has decided already; what the spec says wins over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasuki.spec.allocator import GROWING_SEGMENTS, parse_allocator

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Both are set: older versions of torch read the second only; where both are known one of them
wins (in 2.13 the second), and which is not documented."""
_ALSO_READ = "PYTORCH_HIP_ALLOC_CONF"


@dataclass(frozen=True, slots=True)
class Allocator:
    """What to set, and what to say about it."""

    variables: dict[str, str] = field(default_factory=dict)
    note: str = ""


def choose_allocator(
    written: str | None, environment: Mapping[str, str], *, device: str
) -> Allocator:
    """`written` is the stage's `allocator`; None where the spec says nothing."""
    exported = {
        name: environment[name] for name in (*VARIABLES, _ALSO_READ) if environment.get(name)
    }
    if written is None:
        if exported or device != "cuda":
            return Allocator()
        return Allocator(dict.fromkeys(VARIABLES, GROWING_SEGMENTS))
    settings = parse_allocator(written)
    if settings is None:
        return Allocator()
    overruled = [f"{name}={value}" for name, value in exported.items() if value != settings]
    note = (
        f"`allocator: {written}` of the spec counts, not {' and '.join(overruled)} of the "
        "environment"
        if overruled
        else ""
    )
    return Allocator(dict.fromkeys(VARIABLES, settings), note)
