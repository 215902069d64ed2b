from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "exp1")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
