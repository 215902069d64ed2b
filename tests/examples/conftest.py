"""Commands typed in this process, and a Python that has torch imported already."""

from __future__ import annotations

from tests.commands.conftest import here, warm_python

__all__ = ["here", "warm_python"]
