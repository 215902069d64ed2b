"""The command line of a worker, as a value; parsed before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    job: Path
    run: Path
    claim: int
    phase: str
    stage: str
    number: int
    """Of the phase in its attempt: ranks of one phase meet under it."""
    rank: int
    world: int
    fd: int | None
    host: str = "127.0.0.1"
    """Where the first rank can be reached by all."""
    cpus: int | None = None
    """Of this rank, in a job of several lanes; None: its share of the node's."""
