"""Every bench still works: its smoke mode runs the same code with the smallest sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCHES = sorted(path for path in (ROOT / "bench").glob("*.py") if not path.name.startswith("_"))
WITHIN_S = 600


@pytest.mark.long
@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_a_bench_runs_in_smoke_mode_and_writes_no_results(bench):
    results = ROOT / "bench" / "results" / f"{bench.stem}.json"
    written_at = results.stat().st_mtime if results.exists() else None
    done = subprocess.run(
        [sys.executable, str(bench), "--smoke"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert len(done.stdout.splitlines()) > 1, "no table was printed"
    assert (results.stat().st_mtime if results.exists() else None) == written_at
