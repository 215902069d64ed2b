"""What is left after a kill, a flipped bit, a power cut, a SIGTERM: one table for five tools.

Run as `python bench/promises.py`; five to ten minutes. Each tool trains the small model of _tiny.py
as its manual shows (_tools.py), tasuki in its real supervisor and worker. Then the same happens to
each of them (_subjects.py):

    SIGKILL     at a random moment of a run that saves after every step; then the tool resumes from
                what it takes for the newest checkpoint
    flipped bit one bit somewhere in the newest checkpoint's files; then the tool resumes: noticed
                means that it failed or fell back before the first step
    power cut   the disk under a run that saves after every step is copied, and the copy mounted
                (_powercut.py); then the tool resumes from there
    mid-epoch   a resume in the middle of the second epoch, shuffled and with dropout, against the
                uninterrupted run
    SIGTERM     at step 30, to the process group, before any save was due

`BENCH_KILLS`, `BENCH_FLIPS`, `BENCH_CUTS`: how many. `BENCH_PEERS=0`: only torch and tasuki. Exit
code 1 when tasuki breaks a promise.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _measure import IS_SMOKE, machine_facts, print_table, write_results
from _ours import warm_server
from _peers import find_peers, say
from _powercut import why_not
from _subjects import CUTS, FLIPS, KILLS, SIGTERM_STEP, PeerSubject, TasukiSubject
from _tools import PACKAGE_OF, TITLES

TOOLS = ("torch", "dcp", "lightning", "hf")
Results = dict[str, Any]
Subject = PeerSubject | TasukiSubject


def main() -> int:
    os.environ.setdefault("PYTHONHASHSEED", "0")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unmounts, cleans up
    facts = machine_facts("tasuki", "torch")
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        no_cuts = why_not(folder)
        if no_cuts:
            say(f"without power cuts: {no_cuts}")
        subjects = _open_subjects(folder, stack)
        with ThreadPoolExecutor(2) as pool:  # nothing is timed here
            examined = pool.map(lambda tool: _examine(tool, subjects[tool], no_cuts), subjects)
            results = dict(zip(subjects, examined, strict=True))
    _print_results(results, no_cuts)
    if not IS_SMOKE:
        write_results("promises", {"machine": facts, "no_power_cuts": no_cuts, "tools": results})
    broken = _broken_promises(results["tasuki"])
    for promise in broken:
        print(f"error: tasuki: {promise}", file=sys.stderr)
    return 1 if broken else 0


def _open_subjects(folder: Path, stack: ExitStack) -> dict[str, Subject]:
    peers = find_peers(*(PACKAGE_OF[tool] for tool in TOOLS if tool in PACKAGE_OF))
    subjects: dict[str, Subject] = {}
    for tool in TOOLS:
        python = peers.get(PACKAGE_OF[tool]) if tool in PACKAGE_OF else Path(sys.executable)
        if python is not None:
            peer = PeerSubject(tool, python, folder / tool)
            stack.callback(peer.close)
            subjects[tool] = peer
    (folder / "warm").mkdir()
    warm = stack.enter_context(warm_server(folder / "warm"))
    subjects["tasuki"] = TasukiSubject(warm, folder / "tasuki")
    return subjects


def _examine(tool: str, subject: Subject, no_cuts: str | None) -> Results:
    results: Results = {}
    results["mid_epoch"] = subject.resume_mid_epoch()
    results["sigterm"] = subject.terminate()
    if tool == "hf":
        results["sigterm_jit"] = subject.terminate(jit=True)
    say(f"{TITLES[tool]}: resumed in the middle of an epoch; terminated at step {SIGTERM_STEP}")
    results["flips"] = subject.flip_bits(FLIPS)
    say(f"{TITLES[tool]}: {FLIPS} bits flipped")
    results["kills"] = subject.kill_while_saving(KILLS)
    say(f"{TITLES[tool]}: killed {KILLS} times")
    if no_cuts is None:
        results["cuts"] = subject.cut_power(CUTS)
        say(f"{TITLES[tool]}: {CUTS} power cuts")
    return results


def _broken_promises(results: Results) -> list[str]:
    broken = [
        f"{results[what][how]} of {results[what]['of']} {what}: {how}"
        for what in ("kills", "cuts")
        for how in ("unloadable", "lost")
        if what in results and results[what][how]
    ]
    if results["flips"]["noticed"] < results["flips"]["of"]:
        broken.append("a flipped bit was not noticed")
    if not results["mid_epoch"]["is_bitwise_equal"]:
        broken.append("a resume in mid-epoch has other losses")
    if results["sigterm"]["saved_step"] is None:
        broken.append("SIGTERM did not save")
    return broken


# -- the table --------------------------------------------------------------------------------


def _print_results(results: dict[str, Results], no_cuts: str | None) -> None:
    def row(title: str, cell: Callable[[Results], str]) -> list[str]:
        return [title, *(cell(of_tool) for of_tool in results.values())]

    rows = [
        row(f"SIGKILL while saving, {KILLS}x: newest does not load", _count("kills", "unloadable")),
        row("  loads, but an acknowledged step is lost", _count("kills", "lost")),
        row(f"one bit flipped, {FLIPS}x: noticed before use", _count("flips", "noticed")),
    ]
    if no_cuts is None:
        rows += [
            row(f"power cut, {CUTS}x: newest does not load", _count("cuts", "unloadable")),
            row("  loads, but an acknowledged step is lost", _count("cuts", "lost")),
        ]
    rows += [
        row(
            "resume in mid-epoch: bitwise identical losses",
            lambda of_tool: "yes" if of_tool["mid_epoch"]["is_bitwise_equal"] else "NO",
        ),
        row("  samples repeated / skipped", lambda of_tool: _samples(of_tool["mid_epoch"])),
        row(f"SIGTERM at step {SIGTERM_STEP}: saved", lambda of_tool: _saved(of_tool["sigterm"])),
        row("  exit status", lambda of_tool: _status(of_tool["sigterm"]["status"])),
        row("  samples repeated / skipped after it", lambda of_tool: _samples(of_tool["sigterm"])),
    ]
    print_table("What is left", ["", *(TITLES[tool] for tool in results)], rows)
    if "hf" in results:
        jit = results["hf"]["sigterm_jit"]
        print(
            f"  HF Trainer with enable_jit_checkpoint: {_saved(jit)}, {_status(jit['status'])}, "
            f"samples repeated / skipped {_samples(jit)}"
        )


def _count(what: str, how: str) -> Callable[[Results], str]:
    return lambda of_tool: f"{of_tool[what][how]} of {of_tool[what]['of']}"


def _saved(result: Results) -> str:
    return "nothing" if result["saved_step"] is None else f"step {result['saved_step']}"


def _status(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else str(status)


def _samples(result: Results) -> str:
    if result.get("repeated") is None:
        return "all lost"
    return f"{result['repeated']} / {result['skipped']} of {result['of']}"


if __name__ == "__main__":
    sys.exit(main())
