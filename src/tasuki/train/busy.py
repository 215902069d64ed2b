"""How long a GPU was at work, from a trace of torch's profiler. Pure; called by profile.py."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


def busy_s(trace: bytes) -> float:
    """Seconds in which something ran on the device; what overlaps counts once."""
    events: Iterable[dict[str, Any]] = json.loads(gzip.decompress(trace))["traceEvents"]
    spans = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if event.get("ph") == "X" and event.get("cat") in _WORK
    )
    busy, reached = 0.0, float("-inf")
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return busy / 1e6
