"""A project whose stages are commands: scripts that save themselves, or do not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.clock import SystemClock
from tasuki.commands.plan import PlanRequest, make_plan
from tasuki.commands.run import RunRequest, RunResult, run_here
from tasuki.jobs.local import Preemption
from tasuki.planning.values import Plan
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tests.harness.project import all_of

SCRIPT = '''
"""Counts to a goal, a step every 10 ms, and goes on where it was saved. Every step is written down
once: what is lost or done twice shows."""
import os, signal, sys, time

goal, *wishes = sys.argv[1:]
stop = False


def on_term(*_):
    global stop
    stop = True


signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in wishes else on_term)
done = len(open("steps").read().split()) if os.path.exists("steps") else 0
began = done
open(f"began.{os.environ['TASUKI_ATTEMPT']}", "w").write(str(os.getpid()))
if "leaves" in wishes and os.environ["TASUKI_ATTEMPT"] == "1":
    import subprocess
    for is_apart in (False, True):
        child = subprocess.Popen(["sleep", "600"], start_new_session=is_apart)
        open(f"child.{int(is_apart)}", "w").write(str(child.pid))
while done < int(goal) and not stop:
    time.sleep(0.01)
    if "stays" in wishes and done == int(goal) - 1 and os.environ["TASUKI_ATTEMPT"] == "1":
        continue  # the first attempt does not end before it is told to
    with open("steps", "a") as file:
        file.write(f"{done}\\n")
    done += 1
if done == int(goal) and "waits" in wishes:  # whatever it could do is done, but nobody says so
    time.sleep(0.3)
if "marks" in wishes:
    open(os.environ["TASUKI_DONE"], "w").close()
if stop:
    until = time.time() + 10
    while not os.path.exists(os.environ["TASUKI_NOTICE"]) and time.time() < until:
        time.sleep(0.01)  # Slurm's own signal may be quicker
    said = open(os.environ["TASUKI_NOTICE"]).read().strip()
    left = float(open(os.environ["TASUKI_DEADLINE"]).read()) - time.time()
    print(f"told to stop: {said}, {left:.1f} s")
sys.exit(next((int(w[5:]) for w in wishes if w.startswith("exit=")), 0) if stop else 0)
'''


@dataclass
class Commands:
    """A folder with a spec whose stages are commands."""

    folder: Path
    value: dict[str, Any]

    def run_folder(self, name: str = "exp") -> RunFolder:
        return RunFolder(self.folder / "runs" / name)

    @property
    def run(self) -> RunFolder:
        return self.run_folder()

    def request(self, **more: Any) -> PlanRequest:
        (self.folder / "tasuki.yaml").write_text(json.dumps(self.value))
        spec = load_spec(str(self.folder), environ={})
        return all_of(spec, **more)

    def plan(self, **more: Any) -> Plan:
        return make_plan(self.request(**more))

    def start(self, preemption: Preemption | None = None, **more: Any) -> RunResult:
        return run_here(
            RunRequest(plan=self.request(), clock=SystemClock(), preemption=preemption, **more)
        )

    def ends(self) -> list[tuple[str, str]]:
        ends = read_attempt_ends(self.run).values()
        return [(end["ending"], end["cause"]) for end in ends if end is not None]

    def messages(self) -> list[str]:
        return [end["message"] for end in read_attempt_ends(self.run).values() if end is not None]

    def steps(self) -> list[int]:
        return [int(step) for step in (self.folder / "steps").read_text().split()]

    def has_begun(self, attempt: int = 1) -> bool:
        return (self.folder / f"began.{attempt}").exists()

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def logs(self) -> str:
        paths = sorted(self.folder.rglob("*.log")) + sorted(self.folder.rglob("*.err"))
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in paths)


def make_commands(folder: Path, *words: str, script: str = SCRIPT, **more: Any) -> Commands:
    """One experiment `exp` that runs `python train.py WORDS`; `more` goes into the spec."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(script)
    cluster = {"gpu": "cpu", "gpus": 1, "cpus": 1, "grace": "20s", **more.pop("cluster", {})}
    stage = {"command": ["python", "train.py", *words], **more.pop("stage", {})}
    experiments = more.pop("experiments", {"exp": stage})
    value = {"project": "t", "cluster": cluster, "experiments": experiments, **more}
    return Commands(folder, value)


def is_alive(pid: int) -> bool:
    """Zombies are dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
