"""Projects and commands, as the tests of the command line have them."""

from __future__ import annotations

from tests.commands.conftest import here, project, real_project, warm_python

__all__ = ["here", "project", "real_project", "warm_python"]
