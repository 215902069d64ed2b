"""What a run under Slurm loses to preemptions and kills, and what tasuki adds to Slurm's own times.

Run as `python bench/slurm.py`; four to eight minutes. On a private cluster: a real controller and
four nodes on this machine (Debian's packages; `make system`). Three parts, some of them alone by
name, such as `slurm.py run starts` (nothing is written then):

    run       a run that is interrupted ten times, five times with a notice (preempted), five times
              without (SIGKILL): steps done again; the same bits as the undisturbed run or not;
              and, from the same preemptions, the way from a TERM to training again
    starts    start of a supervisor to the start of its rank
    status    `tasuki status` of 1,000 jobs

A preempted job comes back when the scheduler lets it: that, and what a bare script takes to import
torch and load, is subtracted (_interrupted.py). Exit code 1 when a step is lost after a notice,
when more than one save interval is lost after a kill, when bits differ, or when status asks more
often than it should: these do not hang on the machine's speed.

BENCH_JOBS: how many jobs. All processes read bytecode from a folder made for this run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _rank_starts as starts
from _interrupted import (
    KILLED_RANK,
    KILLED_STEP,
    NOTICE,
    SAVE_EVERY,
    Found,
    Interruption,
    PlainJob,
    Return,
    as_json,
    interrupt_run,
    make_project,
)
from _many_jobs import AGAIN, ASKED, Answer, measure_status
from _many_jobs import BASELINE as STATUS_BASELINE
from _measure import (
    Spread,
    machine_facts,
    print_facts,
    print_table,
    ratios,
    spread,
    write_results,
)
from _peers import end_well_when_told, environment, say
from tasuki.testing.slurm import Cluster, missing_programs

JOBS = int(os.environ.get("BENCH_JOBS", "1000"))
PARTS = ("run", "starts", "status")
GOAL_START = 3.0
GOAL_OVER_S = 0.5


def main(words: Sequence[str]) -> int:
    parts = tuple(words) or PARTS
    if unknown := [word for word in parts if word not in PARTS]:
        sys.exit(f"error: there is no part `{unknown[0]}`; there are {', '.join(PARTS)}")
    if missing := missing_programs():
        sys.exit(f"error: there is no {missing[0]} here\n\nhint: `make system` installs Slurm")
    end_well_when_told()
    facts = machine_facts("tasuki", "torch")
    results: dict[str, Any] = {"machine": facts}
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name:
        folder = Path(name)
        _set_environment(folder / "bytecode")
        with Cluster(folder / "slurm") as cluster:
            facts["slurm"] = cluster.run("sinfo", "--version").split()[1]
            print_facts(facts)
            broken: list[str] = []
            for part, measure in _MEASURES.items():
                if part in parts:
                    say(f"part `{part}`")
                    results[part], told = measure(cluster, folder / part)
                    broken += told
    if parts == PARTS:
        write_results("slurm", results)
    for line in broken:
        print(f"error: {line}", file=sys.stderr)
    return 1 if broken else 0


def _set_environment(bytecode: Path) -> None:
    """Of this process, and so of Slurm, its jobs and all that is measured."""
    kept = environment()
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.clear()
    os.environ.update(kept, PYTHONPYCACHEPREFIX=str(bytecode), NO_COLOR="1", COLUMNS="140")


# -- run --------------------------------------------------------------------------------------


def _measure_run(cluster: Cluster, folder: Path) -> tuple[dict[str, Any], list[str]]:
    found = interrupt_run(cluster, folder)
    _show_interruptions(found)
    figures = _show_returns(found.returns)
    return {**as_json(found), "figures": figures}, _broken(found)


def _broken(found: Found) -> list[str]:
    """Promises that do not hang on the machine's speed."""
    told = [
        f"{one.recomputed} steps were done again after: {one.kind}"
        for one in found.interruptions
        if one.recomputed > _allowed(one)
    ]
    return told + [f"not as undisturbed: {what}" for what in found.differences]


def _allowed(one: Interruption) -> int:
    return 0 if one.kind == NOTICE else SAVE_EVERY


def _show_interruptions(found: Found) -> None:
    def row(kind: str) -> list[str]:
        ones = [one for one in found.interruptions if one.kind == kind]
        again = [one.recomputed for one in ones]
        allowed = _allowed(ones[0])
        return [
            kind,
            str(len(ones)),
            ", ".join(map(str, again)),
            str(max(again)),
            f"≤ {allowed}: {'met' if max(again) <= allowed else 'missed'}",
        ]

    print_table(
        f"Steps done again, in a run of {found.steps} steps that saves every {SAVE_EVERY}",
        ["interruption", "times", "each", "most", "goal"],
        [row(kind) for kind in (NOTICE, KILLED_STEP, KILLED_RANK)],
    )
    is_equal = "no: " + ", ".join(found.differences) if found.differences else "yes"
    print(f"  Weights, optimizer, random states, metrics equal to the undisturbed run: {is_equal}")


def _show_returns(returns: list[Return]) -> dict[str, Spread]:
    figures = {title: spread([value(one) for one in returns]) for title, value in _RETURNS.items()}
    over = figures[_OVER]
    goal = f"≤ {GOAL_OVER_S}: {'met' if over.median <= GOAL_OVER_S else 'missed'}"
    print_table(
        f"Preemption to training again, seconds; medians of {len(returns)} [quartiles]",
        ["", "seconds", "goal"],
        [[title, one.show(2), goal if title == _OVER else ""] for title, one in figures.items()],
    )
    return figures


_OVER = "tasuki − scheduler − bare"
_RETURNS: dict[str, Callable[[Return], float]] = {
    "tasuki: TERM → first new step": lambda one: one.whole_s,
    "scheduler: TERM → a plain job's next life": lambda one: one.plain_s,
    "bare: script → torch imported, loaded, a step": lambda one: one.bare_s,
    _OVER: lambda one: one.over_s,
    "  without the scheduler's whole seconds": lambda one: one.unrounded_s,
    "came back later than the plain job by": lambda one: one.later_s,
    "  left later than the plain job by": lambda one: one.left_later_s,
    "    TERM → saved, the attempt ended": lambda one: one.saved_s,
    "script → rank (srun, supervisor), over bare's": lambda one: (
        one.attempt_s + one.rank_s - one.bare_process_s
    ),
    "rank → first new step, over bare's": lambda one: one.step_s - one.bare_step_s,
    "  the same in CPU time": lambda one: one.cpu_s - one.bare_cpu_s,
}


# -- starts -----------------------------------------------------------------------------------


def _measure_starts(cluster: Cluster, folder: Path) -> tuple[dict[str, Any], list[str]]:
    asked = {"backend": "slurm", "partition": "low", "memory": "200M"}
    project = make_project(cluster, folder / "project", asked, pause_s=0.0)
    project.tasuki("submit", "--extra", "hold=true")
    plain = PlainJob(cluster, folder)
    taken = starts.measure_starts(
        project.folder / "runs", environment=project.environment, number=plain.number
    )
    cluster.run("scancel", plain.number)
    figures = {
        name: {"seconds": spread(values), "ratio": ratios(values, taken[starts.BASELINE])}
        for name, values in taken.items()
    }
    ratio = figures[starts.OURS]["ratio"]
    goal = f"≤ {GOAL_START:.0f}: {'met' if ratio.median <= GOAL_START else 'missed'}"
    print_table(
        f"Start of a supervisor to its rank; medians of {starts.ROUNDS} rounds [quartiles]",
        ["case", "ms", "ratio", "goal"],
        [
            [
                name,
                f["seconds"].show(1, scale=1000),
                f["ratio"].show(),
                goal * (name == starts.OURS),
            ]
            for name, f in figures.items()
        ],
    )
    return figures, []


# -- status -----------------------------------------------------------------------------------


def _measure_status(cluster: Cluster, folder: Path) -> tuple[dict[str, Any], list[str]]:
    own = {**cluster.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    taken = measure_status(cluster, folder, environment=own, jobs=JOBS)
    figures = {name: _status_figures(taken, name) for name in taken}
    print_table(
        f"`tasuki status` of {JOBS} jobs; medians of {len(taken[ASKED])} rounds [quartiles]",
        ["case", "seconds", "CPU s", "ratio", "CPU ratio", "calls of squeue", "goal"],
        [
            [
                name,
                one["seconds"].show(2),
                one["cpu_s"].show(2),
                one["ratio"].show(1),
                one["cpu_ratio"].show(1),
                _calls(one["asked"]),
                _status_goal(name, one["asked"]),
            ]
            for name, one in figures.items()
        ],
    )
    broken = [
        f"{name}: squeue was called {_calls(one['asked'])} times"
        for name, one in figures.items()
        if "missed" in _status_goal(name, one["asked"])
    ]
    return {"jobs": JOBS, "cases": figures}, broken


def _status_figures(taken: dict[str, list[Answer]], name: str) -> dict[str, Any]:
    wall, cpu = ([a.wall_s for a in taken[name]], [a.cpu_s for a in taken[name]])
    base = taken[STATUS_BASELINE]
    return {
        "seconds": spread(wall),
        "cpu_s": spread(cpu),
        "ratio": ratios(wall, [a.wall_s for a in base]),
        "cpu_ratio": ratios(cpu, [a.cpu_s for a in base]),
        "asked": sorted({a.asked for a in taken[name]}),
    }


def _calls(asked: list[int]) -> str:
    return " or ".join(map(str, asked))


def _status_goal(name: str, asked: list[int]) -> str:
    wanted = {ASKED: 1, AGAIN: 0}
    if name not in wanted:
        return ""
    return f"{wanted[name]}: {'met' if asked == [wanted[name]] else 'missed'}"


_MEASURES: dict[str, Callable[[Cluster, Path], tuple[dict[str, Any], list[str]]]] = {
    "run": _measure_run,
    "starts": _measure_starts,
    "status": _measure_status,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
