"""`speed`: how long `tasuki estimate` takes, in CPU seconds of the command and its children.

Cold: nothing is cached; warm: the same command once more. Six stages of examples/matrix_gnn at
their true sizes (gpu.yaml; without data) and a GPT-2 of 124 M weights (_gpt124m.py), each in a
separate folder. A part of memory.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from _measure import Figure, run_timed, sized, spread
from _peers import BENCH, ROOT

ROUNDS = sized(5, smoke=1)
GOALS = sized({"matrix_gnn": 15.0, "gpt-124m": 10.0}, smoke={"gpt-124m": 10.0})
"""CPU seconds of a cold estimate."""
WARM_GOAL = 1.0
_GPT = """\
project: gpt
recipe: _gpt124m:Gpt124M
cluster: { gpus: 1, gpu: a100-40gb }
defaults: { effective_batch: 32, precision: bf16 }
experiments:
  gpt: { stages: [{ name: gpt, data: none, steps: 1000 }] }
"""


def measure(folder: Path) -> list[Figure]:
    figures = []
    for name, goal in GOALS.items():
        cold, warm = [], []
        for number in range(ROUNDS):
            spec = _write_spec(name, folder / f"{name}-{number}")
            cold.append(_estimate(spec))
            warm.append(_estimate(spec))
        what = f"CPU time of `tasuki estimate`, {name}"
        figures.append(Figure(what, "nothing cached", spread(cold), unit="s", goal=goal))
        figures.append(Figure("… again", "cached", spread(warm), unit="s", goal=WARM_GOAL))
    return figures


def _write_spec(name: str, folder: Path) -> Path:
    folder.mkdir()
    if name == "matrix_gnn":
        for file in ("recipe.py", "gpu.yaml"):
            shutil.copy(ROOT / "examples" / "matrix_gnn" / file, folder)
        return folder / "gpu.yaml"
    shutil.copy(BENCH / "_gpt124m.py", folder)
    (folder / "tasuki.yaml").write_text(_GPT)
    return folder / "tasuki.yaml"


def _estimate(spec: Path) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "SCRATCH"}
    command = [sys.executable, "-m", "tasuki", "estimate", spec.name]
    return run_timed(command, cwd=spec.parent, env={**environment, "TASUKI_SITE": ""}).cpu_s
