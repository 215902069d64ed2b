"""What work on files says while it lasts: sentences, and how far it is."""

from __future__ import annotations

from collections.abc import Callable

from tasuki.answers import Told

OnProgress = Callable[[str, int, int], None]
"""Takes what is done, how much of it, and how much there is."""


class Talk:
    """To whoever asked (answers.py). A sentence is progress of nothing in nothing."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def say(self, text: str) -> None:
        self._told.progress(text, 0, 0)

    def progress(self, what: str, done: int, total: int) -> None:
        self._told.progress(what, done, total)
