"""When two stages are the same work: the key under which history keeps what was measured."""

from __future__ import annotations

import hashlib
import json

from tasuki.spec.resolved import ResolvedStage

_MATTERS = (
    "recipe", "params", "data", "size", "split", "effective_batch", "micro_batch", "accumulation",
    "precision", "gradient_checkpointing", "offload", "compile", "exact", "buckets",
)  # fmt: skip
"""What a step's time depends on; names, seeds, lengths and rates do not matter."""


def stage_key(stage: ResolvedStage, *, device: str, ranks: int) -> str:
    facts = {name: repr(getattr(stage, name)) for name in _MATTERS}
    text = json.dumps([facts, device, ranks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
