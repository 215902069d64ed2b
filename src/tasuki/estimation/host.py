"""What a node must hold: imports, data, loader workers, the copies that saves are written from.

Pure: from what a short child measured (train/survey.py) and what the memory probe tells of weights
and optimizer. And what to ask for after the system has killed a job for its memory. Each part says
where it comes from. Not seen: what a data set keeps of samples as an epoch goes on, and page cache,
which the system takes back by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasuki.units import format_bytes

GIB = 1 << 30
MIB = 1 << 20
_CUDA_BYTES = 2 * GIB
"""Of CUDA's libraries and context on the host, of a rank: assumed."""
_WORKER_BYTES = 64 * MIB
"""What a forked worker has of its own beside data and batches: assumed."""
_SAVE_BUFFERS = 2
"""One is written while the next is filled."""
MARGIN = 0.2
GROWS_BY = 1.5
"""After a kill: what the next job asks for is so many times what the last one had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Of one rank."""

    import_bytes: int | None
    """Resident after the imports, in a child that imported what a rank imports."""
    data_bytes: int | None
    """What opening the data added."""
    batch_bytes: int | None
    """Of a micro-batch."""
    state_bytes: int | None
    """Weights and the optimizer's states: what a checkpoint holds."""
    workers: int = 0
    prefetch: int = 2
    is_spawned: bool = False
    """Workers begin with an empty process: they import everything once more."""
    device_bytes: int = 0
    """Of tensors where the device is a CPU: they lie on the host, too."""
    is_gpu: bool = True
    ranks: int = 1
    """Of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """What the ranks of a node need together."""

    total: int
    breakdown: dict[str, int]
    """`total` in parts."""
    unknown: tuple[str, ...] = ()
    """Parts that nobody could measure, and that are not in it."""
    sources: dict[str, str] = field(default_factory=dict)


def host_needs(facts: HostFacts) -> HostNeeds | None:
    """None: not even the imports are known."""
    if facts.import_bytes is None:
        return None
    parts, sources, unknown = {}, {}, []
    own = facts.import_bytes if facts.is_spawned else _WORKER_BYTES
    batches = facts.batch_bytes or 0
    known = {
        "imports": (facts.import_bytes, "measured in a child"),
        "cuda": (_CUDA_BYTES if facts.is_gpu else 0, "assumed"),
        "data": (facts.data_bytes, "measured in a child"),
        "loader": (
            facts.workers * (own + (facts.data_bytes or 0) + facts.prefetch * batches) + batches,
            f"{facts.workers} workers × (their copy of the data + {facts.prefetch} micro-batches)",
        ),
        "tensors": (facts.device_bytes, "traced: the device is a CPU"),
        "save buffers": (
            None if facts.state_bytes is None else _SAVE_BUFFERS * facts.state_bytes,
            "two copies of weights and optimizer",
        ),
    }
    for name, (count, source) in known.items():
        if count is None:
            unknown.append(name)
        elif count:
            parts[name], sources[name] = facts.ranks * count, source
    parts["margin"] = round(MARGIN * sum(parts.values()))
    sources["margin"] = f"{MARGIN:.0%}, assumed"
    total = sum(parts.values())
    return HostNeeds(total=total, breakdown=parts, unknown=tuple(unknown), sources=sources)


def to_ask_for(count: int) -> int:
    """Rounded up to what people ask a scheduler for: whole GiB."""
    return max(1, -(-count // GIB)) * GIB


@dataclass(frozen=True, slots=True)
class Asked:
    """How much memory to ask for, and why it is not what the spec says."""

    bytes: int | None
    reason: str = ""


def next_memory(given: int | None, killed: Sequence[int | None]) -> Asked:
    """`given`: `cluster.memory`; `killed`: what jobs had asked for that the system killed for their
    memory (None: nothing; the site decided). More than any of them had is a person's own choice."""
    known = [asked for asked in killed if asked is not None]
    times = f"killed {len(killed)} time{'s' if len(killed) > 1 else ''} for its memory"
    if not known:
        if not killed or given is not None:
            return Asked(given)
        return Asked(
            None,
            f"{times}, with what the site gives by itself: `cluster.memory` would ask for more",
        )
    most = max(known)
    if given is not None and given > most:
        return Asked(given)
    grown = to_ask_for(round(GROWS_BY * most))
    had = format_bytes(most)
    return Asked(grown, f"{times} with {had}: {format_bytes(grown)} ({GROWS_BY} ×) are asked for")
