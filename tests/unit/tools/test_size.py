"""`make size` counts what a reader would call code."""

from __future__ import annotations

from tools.size import Size, measure

_TEXT = '''\
"""What this is for."""

import os  # the system

# A trap.
LIMIT = 3
"""Of tries."""

TEXT = """two
lines"""


def count(n: int) -> int:
    """Count."""
    return n
'''


def test_blanks_comments_and_docstrings_are_not_code():
    assert measure(_TEXT, is_module=True) == Size(code=6, lines=15, modules=1, comments=2)
