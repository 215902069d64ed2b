"""Projects and ways to type, as the tests of the command line have them."""

from __future__ import annotations

from tests.commands.conftest import here, warm_python
from tests.slurm.conftest import cluster

__all__ = ["cluster", "here", "warm_python"]
