"""What work on files says while it lasts: sentences, and how far it is."""

from __future__ import annotations

from collections.abc import Callable

from tasuki.subprocesses import Progress, ProgressCallback

OnProgress = Callable[[str, int, int], None]
"""Takes what is done, how much of it, and how much there is."""


class Talk:
    """To the command that waits for this process. A sentence is progress of nothing in nothing."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress

    def say(self, text: str) -> None:
        self._progress(Progress(text, 0, 0))

    def progress(self, what: str, done: int, total: int) -> None:
        self._progress(Progress(what, done, total))
