"""Instructions of a step, counted by valgrind: the same on a busy machine as on a quiet one.

Called by overhead.py with `BENCH_INSTRUCTIONS=1`; runs itself under callgrind. tasuki's real loop
and the bare one take turns, and at every turn a call of `getppid` makes callgrind write down what
the main thread has executed since the last one. Valgrind makes a step some fifty times
slower, so signs of life, which come once a second, are left out: at true speed thousands of steps
share one. About five minutes for the tiny step; the larger one takes over half an hour.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WARM_UP, CHUNKS = 2, 2
"""Chunks of ten steps."""
_LIMIT_S = 3000.0


def count_instructions(width: int) -> dict[str, float]:
    """Instructions of a step, by loop."""
    if shutil.which("valgrind") is None:
        sys.exit("error: valgrind not found")
    with tempfile.TemporaryDirectory(prefix="tasuki-callgrind-") as name:
        out = Path(name)
        # Each turn is one dump, in the order of the labels that the child prints at its end.
        command = ["valgrind", "--tool=callgrind", "--separate-threads=yes"]
        command += [f"--callgrind-out-file={out}/turn", "--dump-before=getppid", "-q"]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        found = subprocess.run(
            [*command, sys.executable, __file__, str(width)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        labels: list[str] = json.loads(found.stdout.splitlines()[-1])
        return _by_loop(labels, [_total(out, number) for number in range(1, len(labels) + 1)])


def _by_loop(labels: list[str], totals: list[int]) -> dict[str, float]:
    from _loops import CHUNK

    names = dict.fromkeys(label for label in labels if label)
    return {
        name: statistics.median(
            total for label, total in zip(labels, totals, strict=True) if label == name
        )
        / CHUNK
        for name in names
    }


def _total(folder: Path, number: int) -> int:
    """Of the main thread since the dump before."""
    text = (folder / f"turn.{number}-01").read_text()
    found = re.search(r"^totals: (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def main(width: int) -> int:
    """Inside valgrind."""
    from _loops import BareLoop, Taken, Turns, give, open_bench
    from tasuki.train import training

    labels: list[str] = []

    def mark(label: str) -> None:
        labels.append(label)
        os.getppid()

    class Counted(Turns):
        chunks = 0

        def begin(self, loop: Any) -> None:
            self.bare = BareLoop(give(loop))

        def before_chunk(self, loop: Any) -> None:  # noqa: ARG002
            mark("")

        def after_chunk(self, taken: Taken) -> None:  # noqa: ARG002
            self.chunks += 1
            is_counted = self.chunks > WARM_UP
            mark("tasuki" if is_counted else "")
            self.bare.run_chunk(before=lambda: mark(""))
            mark("bare" if is_counted else "")

    training._TELL_OFTEN_S = 1e9
    with open_bench(width) as bench:
        bench.train((WARM_UP + CHUNKS) * 10, Counted())
    print(json.dumps(labels), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
