"""Imports of large libraries, without looking for garbage in between.

Importing torch makes a million objects that stay. Python looks through them for cycles again and
again, which takes a quarter of the time of a start. What was imported is then left out of later
looks too. Used by the process of a rank.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold()[0] == 0:  # else what was imported has chosen its own
            gc.set_threshold(*before)
