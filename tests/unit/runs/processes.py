"""Real processes for the tests of `store`: races, kills, limits. One clean interpreter each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tasuki

NUM_RACERS = 8
_PACKAGES = str(Path(tasuki.__file__).parent.parent)

_RACE = """
import json, os, sys
from pathlib import Path
from tasuki.runs.runs import RunFolder
from tasuki.runs.jobs import job_folder
folder, number_of = Path(sys.argv[1]), int(sys.argv[2])
gate, opener = os.pipe()
results, teller = os.pipe()
for racer in range(number_of):
    if os.fork() == 0:
        os.close(opener)
        os.read(gate, 1)  # all are let go at once, when the last opener is closed
        {act}
        os.write(teller, json.dumps(result).encode() + b"\\n")
        os._exit(0)
os.close(opener)
os.close(teller)
with os.fdopen(results) as lines:
    print(json.dumps([json.loads(line) for line in lines]))
"""


def python(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """Run code in a fresh interpreter; what it printed. `store` needs no site-packages."""
    done = subprocess.run(
        [*prefix, sys.executable, "-S", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": _PACKAGES},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def race(folder: Path, act: str) -> list[Any]:
    """What each of the racers found; `act` sets `result` and knows `folder` and `racer`."""
    found = json.loads(
        python(_RACE.format(act=act.replace("\n", "\n        ")), folder, NUM_RACERS)
    )
    assert len(found) == NUM_RACERS
    return list(found)
