"""`run`: a run on a private cluster, preempted and killed in turn.

The run trains the model of _tiny.py, as a job that `tasuki submit` gave to a real Slurm. Steps are
counted in the notes of the model, one file for each attempt: a step that one attempt began and that
comes after the checkpoint from which the next one resumes is done twice. Kills are SIGKILL to the
supervisor and its rank, or to the rank alone, at random moments of a fixed seed.

A preemption hits two jobs alike: ours, and a plain one that sleeps and leaves at once. The second
measures how long the scheduler alone takes to bring a job back. Importing torch and loading a
checkpoint of the same size are measured right after, in an srun step of a bare job, while our
training stands still (a file `halt` in its folder). Slurm counts whole seconds from a job's end, so
a job that leaves a fifth of a second later comes back as early, or a second later. So the
difference is given twice: as it was, and as if a job came back later by just what it left later.
A part of slurm.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from _peers import BENCH, ROOT, environment, say

sys.path.insert(0, str(ROOT))

from tests.slurm.project import SlurmProject, take_all_nodes

from _measure import Figure, sized, spread
from _tiny import SEED, read_notes, steps_of
from tasuki.runs.events import read_events
from tasuki.testing.slurm import Cluster

STEPS = 400
SAVE_EVERY = 7
BATCH = 4
STEP_S = 0.05
TINY = {"samples": 1_000, "width": 256, "depth": 2}
NOTICE, KILLED_STEP, KILLED_RANK = "preempted", "srun step killed", "rank killed"
INTERRUPTIONS = sized(
    (NOTICE, KILLED_STEP, NOTICE, KILLED_RANK) * 2 + (NOTICE, KILLED_STEP), smoke=(NOTICE,)
)
GOAL_S = 0.5
"""From a preemption to training again, more than the scheduler and a bare script take."""
_WITHIN_S = 120.0
_RECIPE = f'''
import os, sys, time
sys.path.insert(0, {str(BENCH)!r})
from _tiny import Notes, Samples, Tiny, read_tiny


class Bench:
    """The model of bench/_tiny.py; its notes are in the run's folder, a file for each attempt."""

    def __init__(self):
        notes = os.environ["TASUKI_RUN"] + "/notes." + os.environ["TASUKI_ATTEMPT"]
        self.tiny = {{**read_tiny("settings.json"), "notes": notes}}
        self.notes = Notes(self.tiny)

    def build_model(self):
        return Tiny(self.tiny, self.notes)

    def build_dataset(self, source, split):
        return Samples(self.tiny)

    def loss(self, model, batch):
        while os.path.exists("halt"):
            time.sleep(0.02)
        return model(**batch)["loss"]
'''
_PLAIN = """\
#!/bin/bash
echo "life $EPOCHREALTIME" >> "$1"
trap 'echo "term $EPOCHREALTIME" >> "$1"; exit 0' TERM
sleep 3600 & wait
"""
_BARE = """\
#!/bin/bash
echo "life $EPOCHREALTIME" >> "$1"
shift
srun --ntasks-per-node=1 "$@"
"""


def measure(cluster: Cluster, folder: Path) -> list[Figure]:
    """All interruptions, then to the end of the run."""
    bare = BareJob(cluster, folder / "bare")
    run = InterruptedRun(cluster, folder / "interrupted")
    plain = PlainJob(cluster, folder)
    run.submit()
    with run.halted():
        bare()  # the first is not counted
    returns = []
    for number, kind in enumerate(INTERRUPTIONS, 1):
        run.wait_for_a_moment()
        if number == len(INTERRUPTIONS):
            _configure(run.project, pause_s=0.0)  # the last attempt runs to the end
        if kind == NOTICE:
            returns.append(_preempt(run, plain, bare))
        else:
            run.kill(kind)
            run.attempt += 1
            if number < len(INTERRUPTIONS):
                run.wait_for_steps(1)
        say(f"interruption {number} of {len(INTERRUPTIONS)}: {kind}")
    run.project.wait_until_complete(_WITHIN_S)
    cluster.run("scancel", plain.number)
    return [*_figures_of_steps(run), *_figures_of_returns(returns)]


def _figures_of_steps(run: InterruptedRun) -> list[Figure]:
    figures = []
    for kind in dict.fromkeys(INTERRUPTIONS):
        attempts = [number for number, one in enumerate(INTERRUPTIONS, 1) if one == kind]
        most = max(run.steps_done_twice(attempt) for attempt in attempts)
        allowed = 0 if kind == NOTICE else SAVE_EVERY
        if most > allowed:
            sys.exit(f"error: {most} steps were done twice after: {kind}")
        what = f"steps done twice, {kind} {len(attempts)} times: at most"
        against = f"a save every {SAVE_EVERY} steps"
        figures.append(Figure(what, against, float(most), "", float(allowed), digits=0))
    return figures


def _figures_of_returns(returns: list[Return]) -> list[Figure]:
    over = spread([one.over_s for one in returns])
    unrounded = spread([one.over_s - one.later_s + one.left_later_s for one in returns])
    against = "the scheduler's delay + bare import, load and a step"
    return [
        Figure("preemption to training again", against, over, "s more", GOAL_S),
        Figure("… without Slurm's rounding to seconds", against, unrounded, "s more"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """How a preempted job came back, in seconds."""

    over_s: float
    """TERM to the first new step, less what the scheduler and a bare script take."""
    later_s: float
    """It came back later than the plain job by this."""
    left_later_s: float
    """It left later than the plain job by this."""


def _preempt(run: InterruptedRun, plain: PlainJob, bare: BareJob) -> Return:
    num_terms, num_lives = len(plain.times("term")), len(plain.times("life"))
    num_own_lives = len(_times(run.lives, "life"))
    run.preempt()
    run.attempt += 1
    run.wait_for_steps(1)
    _wait_for(lambda: len(plain.times("life")) > num_lives, "next life of the plain job")
    with run.halted():
        bare_s = bare()
    term, plain_life = plain.times("term")[num_terms], plain.times("life")[num_lives]
    life = _times(run.lives, "life")[num_own_lives]
    # Notes have monotonic time, shells and events the time of day.
    to_wall = time.time() - time.monotonic()
    stepped = run.steps(run.attempt)[0]["t"] + to_wall
    left, plain_left = (
        _left_at(run.cluster, number, term) for number in (run.project.number, plain.number)
    )
    return Return(
        over_s=(stepped - term) - (plain_life - term) - bare_s,
        later_s=life - plain_life,
        left_later_s=left - plain_left,
    )


# -- the jobs ---------------------------------------------------------------------------------


class PlainJob:
    """Sleeps; leaves at a TERM; comes back as Slurm lets it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        script = folder / "plain.sh"
        script.write_text(_PLAIN)
        self._times = folder / "plain.txt"
        options = ["-p", "low", "-n1", "--requeue", "-o", os.devnull]
        self.number = cluster.run(
            "sbatch", "--parsable", *options, str(script), str(self._times)
        ).strip()

    def times(self, word: str) -> list[float]:
        """When it started (`life`), when it got the signal (`term`)."""
        return _times(self._times, word)


class BareJob:
    """`_tools.py torch` in an srun step: imports, loads, steps once."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder, self._count = cluster, folder, 0
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "bare.sh").write_text(_BARE)
        command = self._command("first.notes", leave_at=2, save_every=1)
        subprocess.run(command, env=environment(), check=True, timeout=_WITHIN_S)

    def __call__(self) -> float:
        """Seconds from its script to its first step."""
        self._count += 1
        notes, lives = (self._folder / f"{self._count}.{kind}" for kind in ("notes", "txt"))
        options = ["-p", "low", "-n1", "-o", str(self._folder / "bare.log")]
        script = [str(self._folder / "bare.sh"), str(lives)]
        command = self._command(notes.name, leave_at=1, resume=True)
        self._cluster.run("sbatch", "--parsable", *options, *script, *command)
        _wait_for(lambda: steps_of(read_notes(notes)), "step of the bare job")
        [step] = steps_of(read_notes(notes))
        [started] = _times(lives, "life")
        return float(step["t"]) + time.time() - time.monotonic() - started

    def _command(
        self, notes: str, *, leave_at: int, resume: bool = False, save_every: int | None = None
    ) -> list[str]:
        order = {
            "folder": str(self._folder / "checkpoints"),
            "steps": STEPS,
            "batch": BATCH,
            "resume": resume,
            "save_every": save_every,
            "tiny": {**TINY, "notes": str(self._folder / notes), "leave_at": leave_at},
        }
        return [sys.executable, str(BENCH / "_tools.py"), "torch", json.dumps(order)]


class InterruptedRun:
    """The run, and what is done to it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        self.lives = folder / "lives.txt"
        folder.mkdir()
        setup = folder / "setup.sh"
        setup.write_text(f'echo "life $EPOCHREALTIME" >> {self.lives}\n')
        settings = {"backend": "slurm", "partition": "low", "memory": "200M", "setup": str(setup)}
        self.project = make_project(cluster, folder / "run", settings, pause_s=STEP_S)
        self.attempt = 1
        self._moments = random.Random(SEED)

    def submit(self) -> None:
        self.project.tasuki("submit")
        self.wait_for_steps(1)

    def steps(self, attempt: int) -> list[dict[str, Any]]:
        return steps_of(read_notes(self.project.run.path / f"notes.{attempt}"))

    def wait_for_steps(self, number: int) -> None:
        """Until the present attempt has begun this many."""

        def has_begun() -> bool:
            if self.project.run.is_complete():
                sys.exit("error: the run is complete before the last interruption: more STEPS")
            return len(self.steps(self.attempt)) >= number

        what = f"step {number} of attempt {self.attempt}"
        _wait_for(has_begun, what, self.project.logs)

    @contextlib.contextmanager
    def halted(self) -> Iterator[None]:
        """Its training stands still."""
        halt = self.project.folder / "halt"
        halt.touch()
        try:
            yield
        finally:
            halt.unlink()

    def wait_for_a_moment(self) -> None:
        """Somewhere between two saves, and in a step."""
        self.wait_for_steps(self._moments.randrange(2, 2 + 2 * SAVE_EVERY))
        time.sleep(self._moments.random() * STEP_S)

    def preempt(self) -> None:
        take_all_nodes(self.cluster, self._folder / "high")

    def kill(self, kind: str) -> None:
        """SIGKILL, as from a guard of the node's memory."""
        modules = ["tasuki.train"] if kind == KILLED_RANK else ["tasuki.jobs", "tasuki.train"]
        for module in modules:
            pids = _find_processes(module, self.project.folder)
            if not pids:
                sys.exit(f"error: no process of {module} to kill\n{self.project.logs()[-4000:]}")
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

    def steps_done_twice(self, attempt: int) -> int:
        """Steps that the attempt began and the next one did again."""
        begun = self._resumed_at(attempt) + len(self.steps(attempt))
        return begun - self._resumed_at(attempt + 1)

    def _resumed_at(self, attempt: int) -> int:
        events = read_events(self.project.run)
        steps = [e["step"] for e in events if e["kind"] == "restored" and e["claim"] == attempt]
        return int(steps[-1])


def make_project(
    cluster: Cluster, folder: Path, settings: dict[str, Any], *, pause_s: float = 0.0
) -> SlurmProject:
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(_RECIPE)
    value = {
        "project": "t",
        "recipe": "recipes:Bench",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": 1, **settings},
        "defaults": {
            "effective_batch": BATCH,
            "seed": SEED,
            "lr": 0.001,
            "log_every": "10 steps",
            "save": {"every": f"{SAVE_EVERY} steps"},
        },
        "experiments": {"exp": {"stages": [{"name": "one", "data": "made", "steps": STEPS}]}},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))  # JSON is YAML
    project = SlurmProject(folder, cluster)
    _configure(project, pause_s=pause_s)
    return project


def _configure(project: SlurmProject, *, pause_s: float) -> None:
    """How the next start of its model behaves."""
    settings = {**TINY, "pause_s": pause_s}
    (project.folder / "settings.json").write_text(json.dumps(settings))


# -- clocks and processes ---------------------------------------------------------------------


def _times(path: Path, word: str) -> list[float]:
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [float(at) for name, at in lines if name == word]


def _left_at(cluster: Cluster, number: str, after: float) -> float:
    """When a node was next done with a job's batch script, by its own log."""
    mark = f"] [{number}.batch] done with job"
    found = [
        datetime.fromisoformat(line[1:].partition("]")[0]).timestamp()
        for path in (cluster.folder / "log").glob("node*.log")
        for line in path.read_text(errors="replace").splitlines()
        if mark in line
    ]
    return min(at for at in found if at > after)


def _find_processes(module: str, folder: Path) -> list[int]:
    """The processes of `python -m module` that work on a folder; neither srun nor the shell."""
    pids = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode().split("\0")
            is_ours = any(str(folder) in word for word in words)
            if words[1:4] == ["-P", "-m", module] and is_ours and "--after" not in words:
                pids.append(int(process.name))
    return pids


def _wait_for(is_so: Callable[[], object], what: str, explain: Callable[[], str] = str) -> None:
    until = time.monotonic() + _WITHIN_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"error: no {what} within {_WITHIN_S:.0f} s\n{explain()[-6000:]}")
        time.sleep(0.02)
