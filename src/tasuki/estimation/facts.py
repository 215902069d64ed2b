"""When two stages are the same work: the keys under which history keeps what was measured.

Two of them. Stages of one `key` take the same time for a step; stages of one *family* are the same
model, trained by the same switches on the same kind of hardware, with other data, sizes or batches:
what one of them measured says something of the others, once it is scaled (times.py).
"""

from __future__ import annotations

import hashlib
import json

from tasuki.spec.resolved import ResolvedStage

_MATTERS = (
    "recipe", "params", "data", "size", "split", "effective_batch", "micro_batch", "accumulation",
    "precision", "gradient_checkpointing", "offload", "compile", "exact", "buckets",
)  # fmt: skip
"""What a step's time depends on; names, seeds, lengths and rates do not matter."""
_FAMILY = (
    "recipe", "params", "precision", "gradient_checkpointing", "offload", "compile", "exact",
)  # fmt: skip
"""What it depends on beside the data and how many of them a step takes."""


def stage_key(stage: ResolvedStage, *, device: str, ranks: int) -> str:
    return _digest(stage, _MATTERS, device, ranks)


def family_key(stage: ResolvedStage, *, device: str, ranks: int) -> str:
    return _digest(stage, _FAMILY, device, ranks)


def _digest(stage: ResolvedStage, names: tuple[str, ...], device: str, ranks: int) -> str:
    if stage.command is not None:
        names = (*names, "command")
    facts = {name: repr(getattr(stage, name)) for name in names}
    text = json.dumps([facts, device, ranks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
