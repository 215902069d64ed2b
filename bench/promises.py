"""What is left after a kill, a flipped bit, a power cut, a notice: one table for five tools.

Run as `python bench/promises.py`; five to ten minutes. Each tool trains the small model of _tiny.py
as its manual shows (_tools.py), tasuki in its real supervisor and worker; then the same happens to
each of them:

    SIGKILL     at a random moment of a run that saves after every step; then the tool resumes from
                what it takes for the newest checkpoint
    flipped bit one bit somewhere in the newest checkpoint's files; then the tool resumes: noticed
                means that it said so before the first step
    power cut   the disk under a run that saves after every step is copied, and the copy mounted
                (_powercut.py); then the tool resumes from there
    mid-epoch   a resume in the middle of the second epoch, shuffled and with dropout, against the
                run that was not disturbed
    SIGTERM     at step 30, to the process group, before any save was due

BENCH_KILLS, BENCH_FLIPS, BENCH_CUTS: how many. BENCH_PEERS=0: no peers.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _measure import machine_facts, print_facts, print_table, write_results
from _ours import warm_server
from _peers import end_well_when_told, find_peers, say, versions_of
from _powercut import why_not
from _subjects import CUTS, FLIPS, KILLS, SIGTERM_STEP, OwnSubject, PeerSubject, Subject
from _tools import OF_PEERS, TITLES

TOOLS = ("torch", "dcp", "lightning", "hf")


def main() -> int:
    end_well_when_told()
    peers = find_peers()
    facts = machine_facts("tasuki", "torch")
    if peers is not None:
        facts["peers"] = versions_of(peers)
    print_facts(facts)
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        no_cuts = why_not(folder)
        if no_cuts:
            say(f"no power cuts: {no_cuts}")
        subjects = _open(folder, peers, stack)
        with ThreadPoolExecutor(2) as pool:  # nothing is timed here
            examined = pool.map(lambda tool: _examine(tool, subjects[tool], no_cuts), subjects)
            found = dict(zip(subjects, examined, strict=True))
    _show(found, no_cuts)
    if peers is None:
        print("\nwithout the peers (see above)")
    write_results("promises", {"machine": facts, "no_power_cuts": no_cuts, "tools": found})
    return 0


def _open(folder: Path, peers: Path | None, stack: ExitStack) -> dict[str, Subject]:
    subjects: dict[str, Subject] = {}
    for tool in TOOLS:
        python = peers if tool in OF_PEERS else Path(sys.executable)
        if python is not None:
            peer = PeerSubject(tool, python, folder / tool)
            stack.callback(peer.close)
            subjects[tool] = peer
    (folder / "warm").mkdir()
    warm = stack.enter_context(warm_server(folder / "warm"))
    subjects["tasuki"] = OwnSubject(warm, folder / "tasuki")
    return subjects


def _examine(tool: str, subject: Subject, no_cuts: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["mid_epoch"] = subject.resume_mid_epoch()
    found["sigterm"] = subject.terminate()
    if tool == "hf":
        found["sigterm_jit"] = subject.terminate(jit=True)
    say(f"{TITLES[tool]}: resumed in the middle of an epoch; terminated at step {SIGTERM_STEP}")
    found["flips"] = subject.flip_bits(FLIPS)
    say(f"{TITLES[tool]}: {FLIPS} bits flipped")
    found["kills"] = subject.kill_while_saving(KILLS)
    say(f"{TITLES[tool]}: killed {KILLS} times")
    if no_cuts is None:
        found["cuts"] = subject.cut_power(CUTS)
        say(f"{TITLES[tool]}: {CUTS} power cuts")
    return found


# -- showing ----------------------------------------------------------------------------------


def _show(found: dict[str, dict[str, Any]], no_cuts: str | None) -> None:
    def row(title: str, cell: Any) -> list[str]:
        return [title, *(cell(one) for one in found.values())]

    rows = [
        row(f"SIGKILL while saving, {KILLS}x: newest does not load", _bad("kills", "unloadable")),
        row("  loads, but an acknowledged step is lost", _bad("kills", "lost")),
        row(f"one bit flipped, {FLIPS}x: noticed before use", _bad("flips", "noticed")),
    ]
    if no_cuts is None:
        rows += [
            row(f"power cut, {CUTS}x: newest does not load", _bad("cuts", "unloadable")),
            row("  loads, but an acknowledged step is lost", _bad("cuts", "lost")),
        ]
    else:
        rows.append(row("power cut", lambda _: "not tried"))
    rows += [
        row(
            "resume in mid-epoch: the same losses, to the bit",
            lambda one: "yes" if one["mid_epoch"]["is_bitwise_equal"] else "NO",
        ),
        row("  samples repeated / skipped", lambda one: _samples(one["mid_epoch"])),
        row(f"SIGTERM at step {SIGTERM_STEP}: saved", lambda one: _saved(one["sigterm"])),
        row("  exit status", lambda one: _status(one["sigterm"]["status"])),
        row("  samples repeated / skipped after it", lambda one: _samples(one["sigterm"])),
    ]
    print_table("What is left", ["", *(TITLES[tool] for tool in found)], rows)
    if no_cuts is not None:
        print(f"  no power cuts: {no_cuts}")
    if "hf" in found:
        jit = found["hf"]["sigterm_jit"]
        print(
            f"  HF Trainer with enable_jit_checkpoint: {_saved(jit)}, {_status(jit['status'])}, "
            f"samples repeated / skipped {_samples(jit)}"
        )
    ours = found["tasuki"]
    total = KILLS + (CUTS if no_cuts is None else 0)
    lost = sum(ours[what][how] for what in ("kills", "cuts") if what in ours for how in _HARM)
    print(
        f"  R20: tasuki: {lost} of {total} kills and power cuts lost something, "
        f"{ours['flips']['noticed']} of {FLIPS} flips found"
    )


_HARM = ("unloadable", "lost")


def _bad(what: str, how: str) -> Any:
    return lambda one: f"{one[what][how]} of {one[what]['of']}"


def _saved(one: dict[str, Any]) -> str:
    return "nothing" if one["saved_step"] is None else f"step {one['saved_step']}"


def _status(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else str(status)


def _samples(one: dict[str, Any]) -> str:
    if one.get("repeated") is None:
        return "all lost"
    return f"{one['repeated']} / {one['skipped']} of {one['of']}"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
