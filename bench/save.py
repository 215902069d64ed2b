"""What a checkpoint costs: the loop's wait, the steps meanwhile, the way to the disk, the way back.

Run as `python bench/save.py`; five minutes, 8 GB of memory, 5 GB of disk. A transformer of 50.4M
parameters with AdamW (605 MB), one thread. It is trained by a plain loop (_saves.py) and by
tasuki's real worker (_save_ours.py), each in a separate process. Between steps both pass the same
gate (_gate.py), where each way to save takes its turn once per round:

    blocked   how long the loop waits, against `torch.save` in the same round
    steps     how much slower steps are while the save goes on in the background, against the steps
              before it
    total     from the request until it is durable, against a plain write of as many bytes with
              fsync
    load      find, verify, read, put into model and optimizer, against `torch.load` and the same;
              from the page cache and from the disk. What tasuki does after that, capture all of it
              again and compare, is not counted
    LoRA      bytes of a checkpoint against trained weights and their moments, where most of the
              model is frozen

`BENCH_MB`: another size. `BENCH_FOLDER`: where to write, default `.work`. Name a disk: on tmpfs
fsync costs nothing.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from _measure import (
    Figure,
    ratios,
    rotated,
    rounds_within,
    run_bench,
    sized,
    spread,
)
from _peers import ROOT, Worker, say

MEGABYTES = sized(600, smoke=40, variable="BENCH_MB")
ROUNDS, BUDGET_S = sized(7, smoke=1), 330.0
TORCH_SAVE, PLAIN_WRITE = "torch.save", "a plain write + fsync of the bytes"
COPY, DCP_ASYNC = "copying alone", "DCP's async_save"
CASES = {
    COPY: "plain",
    PLAIN_WRITE: "plain",
    TORCH_SAVE: "plain",
    DCP_ASYNC: "plain",
    "tasuki": "tasuki",
}
"""By way to save: the worker that does it."""
Round = dict[str, dict[str, Any]]


def measure(folder: Path) -> list[Figure]:
    with ExitStack() as stack:
        workers = _start_workers(folder, stack)
        _measure_round(workers, list(CASES), folder)
        say("warmed up")
        rounds = []
        for number in rounds_within(BUDGET_S, max_rounds=ROUNDS):
            rounds.append(_measure_round(workers, rotated(list(CASES), number), folder))
            say(f"round {number + 1}")
        lora = {who: worker.ask(do="lora") for who, worker in workers.items()}
    return _figures(rounds, lora)


def _start_workers(folder: Path, stack: ExitStack) -> dict[str, Worker]:
    """Each builds its model, steps once and waits. One waits while the other works."""
    workers = {}
    for who, script in (("plain", "_saves.py"), ("tasuki", "_save_ours.py")):
        (folder / who).mkdir()
        arguments = (str(MEGABYTES), str(folder / who))
        worker = Worker(sys.executable, script, *arguments, log=folder / f"{who}.log")
        stack.callback(worker.close)
        worker.hear()
        workers[who] = worker
    return workers


def _measure_round(workers: dict[str, Worker], cases: list[str], folder: Path) -> Round:
    results: Round = {}
    for case in cases:
        saved = folder / "saved"
        saved.mkdir()
        gc.collect()
        os.sync()  # what the case before left to be written is not this one's cost
        results[case] = workers[CASES[case]].ask(do="save", case=case, folder=str(saved))
        shutil.rmtree(saved, ignore_errors=True)
    for how in ("warm", "cold"):
        for who, worker in workers.items():
            results[f"{who}, {how}"] = worker.ask(do=f"load {how}")
    return results


def _figures(rounds: list[Round], lora: dict[str, dict[str, float]]) -> list[Figure]:
    def values(case: str, key: str) -> list[float]:
        return [results[case][key] for results in rounds]

    figures = []
    for case in ("tasuki", COPY, DCP_ASYNC):
        blocked = ratios(values(case, "blocked_s"), values(TORCH_SAVE, "blocked_s"))
        what = f"a save of {MEGABYTES} MB, {case}: training waits"
        figures.append(Figure(what, TORCH_SAVE, blocked))
    for case in ("tasuki", DCP_ASYNC):
        meanwhile, before = (
            [median(steps) for steps in values(case, key)] for key in ("meanwhile_s", "quiet_s")
        )
        what = f"… steps during the background write, {case}"
        figures.append(Figure(what, "steps before it", ratios(meanwhile, before)))
    total = ratios(values("tasuki", "total_s"), values(PLAIN_WRITE, "total_s"))
    figures.append(Figure("… until it is durable, tasuki", PLAIN_WRITE, total))
    figures.append(
        Figure("… the same in seconds", "", spread(values("tasuki", "total_s")), unit="s")
    )
    for how, title in (("warm", "from the page cache"), ("cold", "from the disk")):
        ours, theirs = (values(f"{who}, {how}", "seconds") for who in ("tasuki", "plain"))
        figures.append(
            Figure(f"load, every byte verified, {title}", "torch.load", ratios(ours, theirs))
        )
    for who, title in (("tasuki", "tasuki"), ("plain", TORCH_SAVE)):
        ratio = lora[who]["bytes"] / lora[who]["needed"]
        what = f"bytes of a LoRA checkpoint, {title}"
        figures.append(Figure(what, "trained weights and their moments", ratio))
    return figures


if __name__ == "__main__":
    chosen = Path(os.environ.get("BENCH_FOLDER") or ROOT / ".work")
    chosen.mkdir(parents=True, exist_ok=True)
    packages = ("torch", "safetensors")
    sys.exit(run_bench("save", {"save": measure}, packages=packages, folder=str(chosen)))
