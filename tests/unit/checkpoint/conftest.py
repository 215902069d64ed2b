from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.runs.runs import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "exp1").mkdir()
    return RunFolder(tmp_path / "exp1")
