"""How tasuki feels in use: what a step of an adapter, a log call, a look at runs cost.

Run as `python bench/use.py`, or with the names of some parts: `… use.py watch status`. Each part is
in a file that describes what it measures:

    adapters  _use_adapters.py  a step of Lightning and of HF's Trainer, with tasuki and without
    log       _use_log.py       `run.log(loss=loss)` in a custom loop
    watch     _use_watch.py     what `tasuki watch` takes of a core
    status    _use_status.py    `tasuki status` of 1,000 runs
    board     _use_board.py     `tasuki board` in a real browser
"""

from __future__ import annotations

import sys

import _use_adapters
import _use_board
import _use_log
import _use_status
import _use_watch
from _measure import run_bench

PARTS = {
    "adapters": _use_adapters.measure,
    "log": _use_log.measure,
    "watch": _use_watch.measure,
    "status": _use_status.measure,
    "board": _use_board.measure,
}

if __name__ == "__main__":
    sys.exit(run_bench("use", PARTS, packages=("torch", "rich", "msgspec")))
