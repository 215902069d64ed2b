"""A project whose runs are given to a private cluster through the command line, as people do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tasuki.cli.main import run
from tasuki.commands.compare import compare_runs
from tasuki.runs.runs import RunFolder
from tasuki.testing.slurm import Cluster
from tests.harness.project import RECIPES
from tests.harness.traced import CODE, Attempt, attempts

ROOT = Path(__file__).parents[2]
WITHIN_S = 240.0
BRIEF = '''

class Brief(Traced):
    """Takes its time in the first attempt only, the one that is disturbed: minutes, so that the
    disturbance comes in time however slow the machine is."""

    def __init__(self, pause=0.0, **more):
        is_first = os.environ.get("TASUKI_ATTEMPT", "1") == "1"
        super().__init__(pause=pause if is_first else 0.0, **more)
'''


@dataclass(frozen=True)
class SlurmProject:
    folder: Path
    cluster: Cluster
    name: str = "exp"

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / self.name)

    @property
    def jobs(self) -> list[Path]:
        return sorted((self.folder / "runs" / ".jobs").glob("t-*"))

    @property
    def number(self) -> str:
        """Of the job that was submitted last."""
        newest = max(self.folder.glob("runs/.jobs/*/slurm.json"), key=lambda p: p.stat().st_mtime)
        return str(json.loads(newest.read_text())["number"])

    def tasuki(self, *words: str, code: int = 0, **environment: str) -> str:
        done = self.try_tasuki(*words, **environment)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def try_tasuki(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """As typed in the project's folder; in this process, where all is imported already."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with (
            patch.dict(os.environ, {**self.environment, **environment}, clear=True),
            patch.object(sys, "argv", ["tasuki", *words]),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run()
        told = []
        for stream in (out, err):
            stream.flush()
            told.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(words, code, *told)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{ROOT / 'src'}:{ROOT}"
        return {**self.cluster.environment, "PYTHONPATH": path, "COLUMNS": "140"}

    def status(self) -> dict:
        return json.loads(self.tasuki("status", "--json"))["runs"][0]

    def wait(self, is_so: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        wait(is_so, lambda: f"not {what}:\n{self.logs()}", within_s=within_s)

    def wait_until_complete(self, within_s: float = WITHIN_S) -> None:
        self.wait(self.run.is_complete, "complete", within_s)
        self.wait(lambda: not self.queued(), "out of the queue")

    def wait_for_step(self, attempt: int, *, more: int = 3) -> None:
        """Until that attempt has done some steps."""
        diary = self.run.path / f"diary.{attempt}"
        self.wait(lambda: diary.exists() and diary.stat().st_size >= more, f"in attempt {attempt}")

    def queued(self) -> list[str]:
        names = ",".join(path.name for path in self.jobs)
        return self.cluster.run("squeue", "-h", "-o", "%i %T", "-n", names).splitlines()

    def attempts(self) -> list[Attempt]:
        return attempts(self)  # type: ignore[arg-type]

    def ends(self) -> list[tuple[str, str]]:
        return [(attempt.ending, attempt.cause) for attempt in self.attempts()]

    def recomputed(self) -> int:
        """Steps that were done again, by the diaries of all attempts."""
        steps = sum(attempt.diary for attempt in self.attempts())
        done = json.loads(self.run.training_state.read_text())["step"]
        return steps - int(done)

    def states(self) -> list[str]:
        """How Slurm saw every life of the jobs end."""
        lines = (self.cluster.folder / "log" / "jobs.txt").read_text().splitlines()
        names = [path.name for path in self.jobs]
        own = [line for line in lines if any(f"Name={name} " in line for name in names)]
        return [line.partition("JobState=")[2].split()[0] for line in own]

    def logs(self) -> str:
        paths = [*self.run.logs.glob("*"), *self.folder.glob("runs/.jobs/*/*.log")]
        told = [f"== {path.name}\n{path.read_text()}" for path in sorted(paths)]
        return "\n".join([*told, self.cluster.run("squeue"), "\n".join(self.states())])


def make_slurm_project(
    cluster: Cluster,
    folder: Path,
    *,
    recipe: str = "Traced",
    params: dict | None = None,
    stages: list[dict] | None = None,
    defaults: dict | None = None,
    more: dict | None = None,
    evaluates: bool = True,
    **wanted: object,
) -> SlurmProject:
    """`wanted` goes into `cluster:`; a step takes 50 ms."""
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPES + CODE + BRIEF)
    asked = {"gpu": "cpu", "gpus": 1, "cpus": 1, "memory": "200M", "partition": "low", **wanted}
    value = {
        "project": "t",
        "recipe": f"recipes:{recipe}",
        "cluster": {"backend": "slurm", **asked},
        "defaults": {
            "params": {"pause": 0.05, "norm": "layer", **(params or {})},
            "effective_batch": 8,
            "seed": 5,
            "log_every": "3 steps",
            "save": {"every": "7 steps"},
            **(defaults or {}),
        },
        "experiments": {
            "exp": {
                "stages": stages or [{"name": "one", "data": "d", "epochs": 20}],
                **({"evaluate": {"data": "d"}} if evaluates else {}),
            }
        },
        **(more or {}),
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))
    return SlurmProject(folder, cluster)


def run_here(project: SlurmProject, folder: Path) -> SlurmProject:
    """The same, undisturbed, by the local backend, without pauses."""
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_bytes((project.folder / "recipes.py").read_bytes())
    spec = json.loads((project.folder / "tasuki.yaml").read_text())
    ranks = spec["cluster"].get("nodes", 1) * spec["cluster"]["gpus"]
    spec["cluster"] = {"gpu": "cpu", "gpus": ranks, "cpus": ranks}
    (folder / "tasuki.yaml").write_text(json.dumps(spec))
    twin = SlurmProject(folder, project.cluster)
    twin.tasuki("run", TASUKI_TEST_HURRY="1")
    return twin


def differences(one: SlurmProject, other: SlurmProject) -> list[str]:
    spec = json.loads(one.run.spec.read_text())
    names = [stage["name"] for stage in spec["stages"]]
    checks = compare_runs(one.run, other.run, names).checks
    return [what for what, is_equal in checks if not is_equal]


def wait(
    is_so: Callable[[], object],
    why: Callable[[], object] = lambda: "",
    *,
    within_s: float = WITHIN_S,
) -> None:
    """Until it is so; the one place where these tests wait."""
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, why()
        time.sleep(0.1)


def take_all_nodes(cluster: Cluster, folder: Path) -> str:
    """A job of a higher tier on every CPU: what is lower is preempted. It ends by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "high.sh"
    script.write_text("#!/bin/bash\nsleep 1\n")
    options = ["-p", "high", "-N4", "--exclusive", "-o", os.devnull]
    return cluster.run("sbatch", "--parsable", *options, str(script)).strip()
