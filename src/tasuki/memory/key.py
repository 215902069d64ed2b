"""When is a probe file still true? While its key is the same. Pure and free of torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tasuki.spec.resolved import ResolvedStage, to_plain

_VERSION = 2
"""Of the way in which probes are made: another one makes all files untrue."""
_MATTERS = (
    "recipe",
    "params",
    "data",
    "size",
    "split",
    "precision",
    "gradient_checkpointing",
    "offload",
    "clip",
    "buckets",
    "exact",
)
"""Keys of a stage on which the memory of a step hangs, beside its batch."""


def probe_key(
    stage: ResolvedStage,
    *,
    code: Mapping[str, str],
    torch: str,
    device: str,
    accumulates: bool,
    ranks: int,
    sizes: tuple[int, ...] = (),
) -> str:
    """`code`: file names and digests of what the recipe is made of."""
    plain = to_plain(stage)
    told: dict[str, Any] = {
        "version": _VERSION,
        "stage": {name: plain[name] for name in _MATTERS},
        "code": dict(code),
        "torch": torch,
        "device": device,
        "accumulates": accumulates,
        "is_alone": ranks == 1,
        "sizes": list(sizes),
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
