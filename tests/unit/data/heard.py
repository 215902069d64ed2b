"""Whoever asked for work on data, in this process."""

from __future__ import annotations

from collections.abc import Callable

from tasuki.subprocesses import Progress


class Heard:
    """Remembers sentences and progress, and may act on progress."""

    def __init__(self, act: Callable[[str, int], object] | None = None) -> None:
        self.sentences: list[str] = []
        self.progressed: list[tuple[str, int]] = []
        self._act = act

    def __call__(self, progress: Progress) -> None:
        if progress.total == 0:
            self.sentences.append(progress.what)
            return
        self.progressed.append((progress.what, progress.done))
        if self._act is not None:
            self._act(progress.what, progress.done)
