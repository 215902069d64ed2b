"""How children are started, and who hears how far they are. Handed to verbs that ask some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasuki.subprocesses import ProgressCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    python: str
    environment: Mapping[str, str]
    on_progress: ProgressCallback = lambda _: None
