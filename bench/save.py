"""What a checkpoint costs: the loop's wait, the steps beside it, the way to the disk, the way back.

Run as `python bench/save.py`; five to eight minutes, 8 GB of memory, 5 GB of disk. A transformer of
50.4M parameters with AdamW (605 MB), one thread. Each tool trains it in a loop of its own, in a
process of its own; between steps all of them pass the same gate (_gate.py), where each in its turn
saves once per round:

    blocked   how long the loop waits, over `torch.save` in the same round
    steps     how much slower steps are while the save goes on in the background (of saves that end
              at once: the three steps after it), over the quiet steps before it
    total     from the request until the tool says it is done, over a plain write of as many bytes
              with fsync
    load      verify, read, put into model and optimizer, over `torch.load(weights_only=True)` and
              the same; from the page cache (the goal's) and from the disk. What tasuki does after
              that, capture all of it again and compare the bits, is told apart
    LoRA      bytes of a checkpoint over trained weights and their moments, where most of the model
              is frozen

tasuki's row is its real worker (_save_ours.py). BENCH_MB: another size. BENCH_ROUNDS: rounds.
BENCH_FOLDER: where to write (a disk that you mean; default `.work`). BENCH_PEERS=0: no peers.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from _measure import (
    Spread,
    machine_facts,
    print_facts,
    print_table,
    ratios,
    rounds_within,
    spread,
    write_results,
)
from _peers import ROOT, Worker, end_well_when_told, find_peers, say, versions_of

MEGABYTES = int(os.environ.get("BENCH_MB", "600"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
BUDGET_S = 330.0
"""For the rounds: fewer than ROUNDS, five at the least, when the machine is slow."""
BASELINE, WRITE = "TorchSave", "PlainWrite"
CASES = {
    "Memcpy": ("plain", "memcpy into memory that is there", "is none"),
    WRITE: ("plain", "plain write + fsync of the bytes", "is none"),
    BASELINE: ("plain", "torch.save", "no"),
    "TorchSaveDurable": ("plain", "torch.save + fsync + rename", "yes"),
    "Safetensors": ("plain", "safetensors save_file", "no"),
    "Dcp": ("plain", "DCP save", "not its metadata"),
    "DcpAsync": ("plain", "DCP async_save", "not its metadata"),
    "accelerate": ("accelerate", "accelerate save_state", "no"),
    "lightning": ("lightning", "Lightning save_checkpoint", "no"),
    "hf": ("hf", "HF Trainer", "no"),
    "tasuki": ("tasuki", "tasuki", "yes"),
}
"""By case: who does it, its title, whether it is durable when it says so (see promises.py)."""
GOALS = {"blocked": 0.27, "steps": 1.15, "total": 1.3, "load": 1.3, "lora": 1.2}
Round = dict[str, dict[str, Any]]


def main() -> int:
    end_well_when_told()
    peers = find_peers()
    folder = Path(os.environ.get("BENCH_FOLDER") or ROOT / ".work")
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine_facts("tasuki", "torch", "safetensors")
    facts |= {"megabytes": MEGABYTES, "file_system": _file_system(folder)}
    if peers is not None:
        facts["peers"] = versions_of(peers)
    print_facts(facts)
    with (
        tempfile.TemporaryDirectory(prefix="bench-save-", dir=folder) as name,
        ExitStack() as stack,
    ):
        workers = _start_workers(Path(name), peers, stack)
        cases = [case for case, (who, _, _) in CASES.items() if who in workers]
        rounds = _measure(workers, cases, Path(name))
        lora = {who: workers[who].ask(do="lora") for who in workers if who != "accelerate"}
    found = _figures(rounds, cases, lora)
    _show(found)
    if peers is None:
        print("\nwithout the peers (see above)")
    write_results("save", {"machine": facts, "goals": GOALS, **found})
    return 0


def _file_system(folder: Path) -> str:
    command = ["df", "--output=fstype", str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.split()[-1]


# -- measuring --------------------------------------------------------------------------------


def _start_workers(folder: Path, peers: Path | None, stack: ExitStack) -> dict[str, Worker]:
    """Each builds its model, steps once and waits. Nobody works while another is asked."""
    workers = {}
    for who in dict.fromkeys(who for who, _, _ in CASES.values()):
        python = sys.executable if who in ("plain", "tasuki") else peers
        if python is None:
            continue
        own = folder / who
        own.mkdir()
        script = ["_save_ours.py"] if who == "tasuki" else ["_saves.py", who]
        worker = Worker(python, *script, str(MEGABYTES), str(own), log=folder / f"{who}.log")
        stack.callback(worker.close)
        worker.hear()
        workers[who] = worker
        say(f"{who}: ready")
    return workers


def _measure(workers: dict[str, Worker], cases: list[str], folder: Path) -> list[Round]:
    """After a warm-up round that is thrown away."""
    rounds = []
    _measure_round(workers, cases, folder)
    say("warmed up")
    for number in rounds_within(BUDGET_S, most=ROUNDS):
        turn = number % len(cases)
        rounds.append(_measure_round(workers, cases[turn:] + cases[:turn], folder))
        say(f"round {number + 1}")
    return rounds


def _measure_round(workers: dict[str, Worker], cases: list[str], folder: Path) -> Round:
    found: Round = {}
    for case in cases:
        place = folder / "saved"
        place.mkdir()
        gc.collect()
        os.sync()  # what the case before left to be written is not this one's cost
        found[case] = workers[CASES[case][0]].ask(do="save", case=case, folder=str(place))
        shutil.rmtree(place, ignore_errors=True)
    for how in ("warm", "cold"):
        for who in ("plain", "tasuki"):
            found[f"{who} {how}"] = workers[who].ask(do=f"load {how}")
    return found


# -- figures ----------------------------------------------------------------------------------


def _figures(
    rounds: list[Round], cases: list[str], lora: dict[str, dict[str, float]]
) -> dict[str, Any]:
    def of(case: str, key: str) -> list[float]:
        return [one[case][key] for one in rounds]

    saves = {
        case: {
            "blocked_s": spread(of(case, "blocked_s")),
            "blocked": ratios(of(case, "blocked_s"), of(BASELINE, "blocked_s")),
            "step_s": spread([median(one[case]["quiet_s"]) for one in rounds]),
            "steps": spread(
                [median(one[case]["beside_s"]) / median(one[case]["quiet_s"]) for one in rounds]
            ),
            "is_background": all(of(case, "was_busy")),
            "total_s": spread(of(case, "total_s")),
            "total": ratios(of(case, "total_s"), of(WRITE, "total_s")),
        }
        for case in cases
    }
    loads = {}
    for how in ("warm", "cold"):
        ours, plain = of(f"tasuki {how}", "seconds"), of(f"plain {how}", "seconds")
        loads[how] = {
            "tasuki_s": spread(ours),
            "torch_s": spread(plain),
            "ratio": ratios(ours, plain),
            "compared_s": spread(of(f"tasuki {how}", "compared_s")),
        }
    return {
        "saves": saves,
        "load": loads,
        "lora": {who: {**one, "ratio": one["bytes"] / one["needed"]} for who, one in lora.items()},
    }


def _show(found: dict[str, Any]) -> None:
    saves: dict[str, dict[str, Any]] = found["saves"]
    any_spread: Spread = saves[BASELINE]["blocked_s"]
    print_table(
        f"A save of {MEGABYTES} MB; medians of {any_spread.rounds} rounds [quartiles]",
        [
            "",
            "blocked, s",
            "over torch.save",
            "steps beside it",
            "total, s",
            "over plain",
            "durable",
        ],
        [
            [
                CASES[case][1],
                one["blocked_s"].show(3),
                one["blocked"].show(2),
                one["steps"].show(2) + (" *" if one["is_background"] else "  "),
                one["total_s"].show(2),
                one["total"].show(2),
                CASES[case][2],
            ]
            for case, one in saves.items()
        ],
    )
    print("  * while the save goes on in the background; the others: after it")
    print_table(
        "Load into model and optimizer",
        ["", "torch.load, s", "tasuki, all bytes verified, s", "ratio", "tasuki also compares, s"],
        [
            [
                title,
                one["torch_s"].show(3),
                one["tasuki_s"].show(3),
                one["ratio"].show(2),
                one["compared_s"].show(3),
            ]
            for title, one in (
                ("from the page cache", found["load"]["warm"]),
                ("from the disk", found["load"]["cold"]),
            )
        ],
    )
    titles = {"plain": "torch.save", "lightning": "Lightning", "hf": "HF Trainer"}
    print_table(
        "A model that is mostly frozen (LoRA): bytes of a checkpoint",
        ["", "MB", "over trained + moments"],
        [
            [titles.get(who, who), f"{one['bytes'] / 1e6:.1f}", f"{one['ratio']:.2f}"]
            for who, one in found["lora"].items()
        ],
    )
    _show_goals(found)


def _show_goals(found: dict[str, Any]) -> None:
    ours = found["saves"]["tasuki"]
    figures = {
        "blocked": ours["blocked"].median,
        "steps": ours["steps"].median,
        "total": ours["total"].median,
        "load": found["load"]["warm"]["ratio"].median,
        "lora": found["lora"]["tasuki"]["ratio"],
    }
    print("\ntasuki's goals:")
    for name, value in figures.items():
        is_met = "met" if value <= GOALS[name] else "MISSED"
        print(f"  {name:8} {value:5.2f}  ≤ {GOALS[name]:.2f}: {is_met}")
    # What a save really costs the loop: its wait, and what the steps beside it lose.
    step, lost = ours["step_s"].median, ours["steps"].median - 1
    in_all = ours["blocked_s"].median + max(0.0, lost) * ours["total_s"].median
    print(f"  a save costs the loop about {in_all:.2f} s in all, at steps of {step:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
