"""How long `tasuki estimate` takes: CPU seconds of the command and its children, cold and warm.

Cold: nothing is kept; warm: the same command once more. Six stages of examples/matrix_gnn at their
true sizes (gpu.yaml; without data) and a GPT-2 of 124 M weights (`_gpt124m.py`), each in a folder
of its own. Run as `python bench/_speed.py`; called by memory.py.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from _measure import print_table

HERE = Path(__file__).resolve().parent
LIMITS = {"matrix_gnn, 6 stages": 15.0, "gpt-124m": 10.0}
WARM_LIMIT = 1.0
_ROUNDS = 3
_GPT = """\
project: gpt
recipe: _gpt124m:Gpt124M
cluster: { gpus: 1, gpu: a100-40gb }
defaults: { effective_batch: 32, precision: bf16 }
experiments:
  gpt: { stages: [{ name: gpt, data: none, steps: 1000 }] }
"""


def measure() -> dict[str, Any]:
    """By case: CPU seconds (median of 3), stages, whether a limit was missed."""
    found = {}
    for name, limit in LIMITS.items():
        rounds = [_cold_and_warm(name) for _ in range(_ROUNDS)]
        cold, warm = (median(pair[at] for pair in rounds) for at in (0, 1))
        found[name] = {
            "cold_cpu_s": cold,
            "warm_cpu_s": warm,
            "cold_limit_s": limit,
            "warm_limit_s": WARM_LIMIT,
            "is_met": cold <= limit and warm <= WARM_LIMIT,
        }
    print_table(
        "CPU seconds of `tasuki estimate`",
        ["case", "cold", "at most", "warm", "at most"],
        [
            [
                name,
                f"{row['cold_cpu_s']:.1f}",
                f"{row['cold_limit_s']:.0f}",
                f"{row['warm_cpu_s']:.2f}",
                f"{row['warm_limit_s']:.0f}",
            ]
            for name, row in found.items()
        ],
    )
    return found


def _cold_and_warm(name: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        spec = _write(name, Path(folder))
        return _estimate(spec), _estimate(spec)


def _write(name: str, folder: Path) -> Path:
    if name.startswith("matrix"):
        for file in ("recipe.py", "gpu.yaml"):
            shutil.copy(HERE.parent / "examples" / "matrix_gnn" / file, folder)
        return folder / "gpu.yaml"
    shutil.copy(HERE / "_gpt124m.py", folder)
    (folder / "tasuki.yaml").write_text(_GPT)
    return folder / "tasuki.yaml"


def _estimate(spec: Path) -> float:
    before = _cpu_s()
    environment = {key: value for key, value in os.environ.items() if key != "SCRATCH"}
    done = subprocess.run(
        [sys.executable, "-m", "tasuki", "estimate", spec.name, "--json"],
        cwd=spec.parent,
        env={**environment, "TASUKI_SITE": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(row["peak_bytes"] for row in json.loads(done.stdout)["stages"])
    return _cpu_s() - before


def _cpu_s() -> float:
    """Of children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    measure()
