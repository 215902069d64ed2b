"""One run on a private cluster, preempted and killed in turn; and what the same preemptions cost a
job that has nothing to save.

The run trains the model of _tiny.py, as a job that `tasuki submit` gave to a real Slurm. Whoever
counts its steps reads the notes of its model, one file for each attempt: a step that was begun in
one attempt and lies behind the checkpoint from which the next one goes on is done again.

A preemption hits two jobs alike: ours, and a plain one that sleeps and leaves at once. The second
says how long the scheduler alone takes to bring a job back. What importing torch and loading a
checkpoint of the same size take is measured right after, in an srun step of a job of its own, while
our training stands still (a file `halt` in its folder). Used by slurm.py.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from _peers import BENCH, ROOT, environment, say

sys.path.insert(0, str(ROOT))

from tests.slurm.project import SlurmProject, differences, take_all_nodes

from _tiny import SEED, read_notes, steps_of
from tasuki.runs.events import read_events
from tasuki.runs.ledger import make_ledger
from tasuki.testing.slurm import Cluster

STEPS = 400
SAVE_EVERY = 7
BATCH = 4
STEP_S = 0.05
TINY = {"samples": 1_000, "width": 256, "depth": 2}
NOTICE, KILLED_STEP, KILLED_RANK = "preempted", "srun step killed", "rank killed"
INTERRUPTIONS = (NOTICE, KILLED_STEP, NOTICE, KILLED_RANK) * 2 + (NOTICE, KILLED_STEP)
"""The last life of the run is in a hurry."""
_STAGE = "one"
_WITHIN_S = 120.0
_RECIPE = f'''
import os, sys, time
sys.path.insert(0, {str(BENCH)!r})
from _tiny import Notes, Samples, Tiny, read_tiny


class Bench:
    """The model of bench/_tiny.py; its notes lie in the run's folder, one file for each attempt."""

    def __init__(self):
        notes = os.environ["TASUKI_RUN"] + "/notes." + os.environ["TASUKI_ATTEMPT"]
        self.tiny = {{**read_tiny("what.json"), "notes": notes}}
        self.notes = Notes(self.tiny)

    def build_model(self):
        return Tiny(self.tiny, self.notes)

    def build_dataset(self, source, split):
        return Samples(self.tiny, self.notes)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """What one of them cost."""

    kind: str
    begun: int
    """Steps that the attempt had begun, counted over the whole run."""
    resumed_at: int
    """The step from which the next attempt went on."""

    @property
    def recomputed(self) -> int:
        return self.begun - self.resumed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """How a preempted job came back, in seconds."""

    whole_s: float
    """TERM to the first new step."""
    plain_s: float
    """TERM to the start of the plain job's next life."""
    bare_s: float
    """Start of a bare job's script to its first step: torch imported, checkpoint loaded."""
    life_s: float
    """TERM to the start of our next life."""
    attempt_s: float
    """From there to the attempt: srun, and the supervisor's imports."""
    rank_s: float
    """From there until the rank exists."""
    step_s: float
    """From there to its first new step."""
    bare_process_s: float
    """Start of the bare job's script until its Python exists: srun."""
    bare_step_s: float
    """From there to its first step."""
    left_s: float
    """TERM to the end of our job: saved, written down, settled with Slurm."""
    plain_left_s: float
    """TERM to the end of the plain one."""
    saved_s: float
    """TERM to the end of our attempt: the last step, its save, the rank's end."""
    cpu_s: float
    """What the rank computed until its first new step."""
    bare_cpu_s: float

    @property
    def over_s(self) -> float:
        return self.whole_s - self.plain_s - self.bare_s

    @property
    def later_s(self) -> float:
        """Came back later than the plain job by. Slurm counts whole seconds from a job's end."""
        return self.life_s - self.plain_s

    @property
    def left_later_s(self) -> float:
        return self.left_s - self.plain_left_s

    @property
    def unrounded_s(self) -> float:
        """As `over_s`, if a job that left later came back later by just that."""
        return self.over_s - self.later_s + self.left_later_s


class Found(NamedTuple):
    interruptions: list[Interruption]
    returns: list[Return]
    differences: list[str]
    """From the undisturbed run."""
    ledger: dict[str, float]
    steps: int


class PlainJob:
    """Sleeps; leaves at a TERM; comes back as Slurm lets it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        script = folder / "plain.sh"
        script.write_text(_PLAIN)
        self._told = folder / "plain.txt"
        options = ["-p", "low", "-n1", "--requeue", "-o", os.devnull]
        self.number = cluster.run(
            "sbatch", "--parsable", *options, str(script), str(self._told)
        ).strip()

    def times(self, word: str) -> list[float]:
        """When it started (`life`), when it was told to go (`term`)."""
        return _times(self._told, word)


class BareJob:
    """`_tools.py torch` in an srun step: imports, loads, steps once."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "bare.sh").write_text(_BARE)
        command = self._command("first.notes", leave_at=2, save_every=1)
        subprocess.run(command, env=environment(), check=True, timeout=_WITHIN_S)
        self._count = 0

    def __call__(self) -> tuple[float, float, float]:
        """Script to Python, Python to the first step; the CPU time of the latter."""
        self._count += 1
        name = f"{self._count}.notes"
        lives = self._folder / f"{self._count}.txt"
        options = ["-p", "low", "-n1", "-o", str(self._folder / "bare.log")]
        script = [str(self._folder / "bare.sh"), str(lives)]
        command = self._command(name, leave_at=1, is_age_told=True, resume=True)
        self._cluster.run("sbatch", "--parsable", *options, *script, *command)
        _wait_for(lambda: steps_of(read_notes(self._folder / name)), "a step of the bare job")
        [step] = steps_of(read_notes(self._folder / name))
        [began] = _times(lives, "life")
        exists = _wall(step["t"]) - step["age_s"]
        return exists - began, step["age_s"], step["cpu_s"]

    def _command(self, notes: str, *, resume: bool = False, save_every: int | None = None, **tiny):
        order = {
            "folder": str(self._folder / "checkpoints"),
            "steps": STEPS,
            "batch": BATCH,
            "resume": resume,
            "save_every": save_every,
            "tiny": {**TINY, "notes": str(self._folder / notes), **tiny},
        }
        return [sys.executable, str(BENCH / "_tools.py"), "torch", json.dumps(order)]


class DisturbedRun:
    """The run, and what is done to it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        self.lives = folder / "lives.txt"
        setup = folder / "setup.sh"
        setup.write_text(f'echo "life $EPOCHREALTIME" >> {self.lives}\n')
        asked = {"backend": "slurm", "partition": "low", "memory": "200M", "setup": str(setup)}
        self.project = make_project(cluster, folder / "run", asked, pause_s=STEP_S)
        self.attempt = 1
        self._moments = random.Random(SEED)

    def submit(self) -> None:
        self.project.tasuki("submit")
        self.wait_for_steps(1)

    def steps(self, attempt: int) -> list[dict[str, Any]]:
        return steps_of(read_notes(self.project.run.path / f"notes.{attempt}"))

    def wait_for_steps(self, number: int) -> None:
        """Until the present attempt has begun so many."""
        _wait_for(
            lambda: self._is_running() and len(self.steps(self.attempt)) >= number,
            f"step {number} of attempt {self.attempt}",
            self.project.logs,
        )

    def _is_running(self) -> bool:
        if self.project.run.is_complete():
            sys.exit("error: the run is complete before it was interrupted so often: more STEPS")
        return True

    @contextlib.contextmanager
    def halted(self):
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
            pids = _find(module, self.project.folder)
            if not pids:
                sys.exit(f"error: there is no {module} to kill\n{self.project.logs()[-4000:]}")
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

    def events(self, kind: str, attempt: int) -> list[dict[str, Any]]:
        told = read_events(self.project.run)
        return [e for e in told if e["kind"] == kind and e["claim"] == attempt]

    def resumed_at(self, attempt: int) -> int:
        return int(self.events("restored", attempt)[-1]["step"])

    def read_interruption(self, kind: str, attempt: int) -> Interruption:
        """The attempt that was interrupted, beside the next one."""
        return Interruption(
            kind=kind,
            begun=self.resumed_at(attempt) + len(self.steps(attempt)),
            resumed_at=self.resumed_at(attempt + 1),
        )


def interrupt_run(cluster: Cluster, folder: Path) -> Found:
    """All INTERRUPTIONS, then to the end of the run."""
    bare = BareJob(cluster, _made(folder / "bare"))
    disturbed = DisturbedRun(cluster, _made(folder / "disturbed"))
    plain = PlainJob(cluster, folder)
    disturbed.submit()
    with disturbed.halted():
        bare()  # the first is thrown away
    returns = []
    for number, kind in enumerate(INTERRUPTIONS, 1):
        disturbed.wait_for_a_moment()
        if number == len(INTERRUPTIONS):
            _say(disturbed.project, pause_s=0.0)
        if kind == NOTICE:
            returns.append(_preempt(disturbed, plain, bare))
        else:
            disturbed.kill(kind)
            disturbed.attempt += 1
            if number < len(INTERRUPTIONS):
                disturbed.wait_for_steps(1)
        say(f"interruption {number} of {len(INTERRUPTIONS)}: {kind}")
    project = disturbed.project
    project.wait_until_complete(_WITHIN_S)
    cluster.run("scancel", plain.number)
    twin = make_project(cluster, folder / "twin", {}, pause_s=0.0)
    twin.tasuki("run")
    return Found(
        interruptions=[
            disturbed.read_interruption(kind, attempt)
            for attempt, kind in enumerate(INTERRUPTIONS, 1)
        ],
        returns=returns,
        differences=differences(twin, project),
        ledger=make_ledger(read_events(project.run)).parts,
        steps=STEPS,
    )


def _preempt(disturbed: DisturbedRun, plain: PlainJob, bare: BareJob) -> Return:
    terms, lives = len(plain.times("term")), len(plain.times("life"))
    own_lives = len(_times(disturbed.lives, "life"))
    disturbed.preempt()
    disturbed.attempt += 1
    disturbed.wait_for_steps(1)
    _wait_for(lambda: len(plain.times("life")) > lives, "the plain job's next life")
    with disturbed.halted():
        bare_process_s, bare_step_s, bare_cpu_s = bare()
    term = plain.times("term")[terms]
    life = _times(disturbed.lives, "life")[own_lives]
    attempt = float(disturbed.events("attempt-started", disturbed.attempt)[0]["t"])
    ended = float(disturbed.events("attempt-ended", disturbed.attempt - 1)[0]["t"])
    step = disturbed.steps(disturbed.attempt)[0]
    stepped = _wall(step["t"])
    rank = stepped - step["age_s"]
    return Return(
        whole_s=stepped - term,
        plain_s=plain.times("life")[lives] - term,
        bare_s=bare_process_s + bare_step_s,
        life_s=life - term,
        attempt_s=attempt - life,
        rank_s=rank - attempt,
        step_s=stepped - rank,
        bare_process_s=bare_process_s,
        bare_step_s=bare_step_s,
        left_s=_left_at(disturbed.cluster, disturbed.project.number, term) - term,
        plain_left_s=_left_at(disturbed.cluster, plain.number, term) - term,
        saved_s=ended - term,
        cpu_s=step["cpu_s"],
        bare_cpu_s=bare_cpu_s,
    )


def as_json(found: Found) -> dict[str, Any]:
    return {
        "interruptions": [
            {**asdict(one), "recomputed": one.recomputed} for one in found.interruptions
        ],
        "returns": [
            {**asdict(one), "over_s": one.over_s, "unrounded_s": one.unrounded_s}
            for one in found.returns
        ],
        "differences": found.differences,
        "ledger_s": found.ledger,
        "steps": found.steps,
        "save_every": SAVE_EVERY,
    }


# -- parts ------------------------------------------------------------------------------------


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_project(
    cluster: Cluster, folder: Path, asked: dict[str, Any], *, pause_s: float
) -> SlurmProject:
    _made(folder)
    (folder / "recipes.py").write_text(_RECIPE)
    value = {
        "project": "t",
        "recipe": "recipes:Bench",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": 1, **asked},
        "defaults": {
            "effective_batch": BATCH,
            "seed": SEED,
            "lr": 0.001,
            "log_every": "10 steps",
            "save": {"every": f"{SAVE_EVERY} steps"},
        },
        "experiments": {"exp": {"stages": [{"name": _STAGE, "data": "made", "steps": STEPS}]}},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))  # JSON is YAML
    project = SlurmProject(folder, cluster)
    _say(project, pause_s=pause_s)
    return project


def _say(project: SlurmProject, *, pause_s: float) -> None:
    """How the next start of its model is to behave."""
    what = {**TINY, "pause_s": pause_s, "is_age_told": True}
    (project.folder / "what.json").write_text(json.dumps(what))


def _times(path: Path, word: str) -> list[float]:
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [float(at) for told, at in lines if told == word]


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


def _wall(monotonic: float) -> float:
    """The notes of a model tell monotonic time, shells and events the time of day."""
    return monotonic + time.time() - time.monotonic()


def _find(module: str, folder: Path) -> list[int]:
    """The processes of `python -m module` that work on a folder; neither srun nor the shell."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode().split("\0")
            is_ours = any(str(folder) in word for word in words)
            if words[1:4] == ["-P", "-m", module] and is_ours and "--after" not in words:
                found.append(int(process.name))
    return found


def _wait_for(is_so: Callable[[], object], what: str, explain: Callable[[], str] = str) -> None:
    until = time.monotonic() + _WITHIN_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"error: there is no {what}\n{explain()[-6000:]}")
        time.sleep(0.02)
