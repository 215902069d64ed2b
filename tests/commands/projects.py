"""A person at a shell: a project on disk, commands typed in it, and what came back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Any

import psutil

from tasuki.runs.events import read_events
from tasuki.runs.jobs import JobFolder
from tasuki.runs.runs import RunFolder
from tests.harness.project import RECIPES

WITHIN_S = 60.0
"""No wait of a test is longer; on a quiet machine none takes more than a few seconds."""

NOT_A_USERS = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "NO_COLOR", "FORCE_COLOR")
"""What test machines set and people do not."""

SECRETS = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "WANDB_API_KEY"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN"),
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "COMET_API_KEY", "NEPTUNE_API_TOKEN"),
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "KAGGLE_KEY", "CLEARML_API_KEY"),
    *("AZURE_CLIENT_SECRET", "AZURE_STORAGE_KEY", "GOOGLE_API_KEY", "GCP_PRIVATE_KEY"),
    *("DOCKER_PASSWORD", "NPM_TOKEN", "PYPI_TOKEN", "TWINE_PASSWORD", "SLACK_TOKEN"),
    *("SLACK_WEBHOOK", "DISCORD_TOKEN", "TELEGRAM_TOKEN", "SMTP_PASSWORD", "PGPASSWORD"),
    *("MYSQL_PWD", "REDIS_PASSWORD", "MONGO_URI", "DATABASE_URL", "SECRET_KEY"),
    *("SSH_PASSPHRASE", "VAULT_TOKEN", "SINGULARITY_DOCKER_PASSWORD", "MY_PRIVATE_NOTE"),
)


@cache
def secrets() -> dict[str, str]:
    """What users have in their environment and want to see nowhere: 40 of them."""
    return {name: f"canary-{md5(name.encode()).hexdigest()[:12]}" for name in SECRETS}


MORE_RECIPES = '''

class NoLoss:
    def build_model(self):
        return nn.Linear(6, 1)

    def build_dataset(self, source, split):
        return Noisy(16)


class NoData(Learner):
    def build_dataset(self, source, split):
        with open(source):
            return Noisy(16)


class Strange(torch.optim.SGD):
    """Keeps a function in its state, as some optimizers do."""

    def state_dict(self):
        value = super().state_dict()
        value["state"][0] = {"rule": lambda x: x}
        return value


class Unstorable(Learner):
    def build_optimizer(self, model):
        return Strange(model.parameters(), lr=0.01)


class FewRows(Learner):
    """Tokens beyond its embedding."""

    def loss(self, model, batch):
        rows = nn.functional.embedding(torch.tensor([7]), torch.zeros(4, 2))
        return rows.sum() + sum(p.sum() for p in model.parameters())


class Talker(Learner):
    """Prints what a terminal would obey: colour, window title, clear screen, bell, backspace."""

    def build_dataset(self, source, split):
        print("\\033[31mred\\033[0m \\033]0;owned\\007 \\033[2J done\\a\\b", flush=True)
        return super().build_dataset(source, split)


class Gated(Learner):
    """Waits in its third step for as long as the file `gate` is there."""

    def loss(self, model, batch):
        while self.calls == 2 and os.path.exists("gate"):
            time.sleep(0.01)
        return super().loss(model, batch)


class SlowAtFirst(Learner):
    """Pauses in the first attempt only: there is time to end it, and the next one is quick.

    Later attempts wait for as long as the file `gate` is there.
    """

    def loss(self, model, batch):
        if os.environ["TASUKI_ATTEMPT"] != "1":
            self.pause = 0.0
            while os.path.exists("gate"):
                time.sleep(0.01)
        return super().loss(model, batch)


class Sleeper(Learner):
    """Blocks in its third step for as long as the file `trap` exists when it gets there."""

    def loss(self, model, batch):
        if self.calls == 2 and os.path.exists("trap"):
            os.unlink("trap")
            time.sleep(1000)
        return super().loss(model, batch)
'''


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def run(self) -> dict[str, Any]:
        """The one run in `--json` output."""
        (run,) = self.json()["runs"]
        return run

    def __str__(self) -> str:
        return f"exit code {self.code}\n-- stdout\n{self.out}\n-- stderr\n{self.err}"


@dataclass(frozen=True)
class Project:
    """A folder with a spec, and a person in it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def python(self) -> str:
        return sys.executable

    def run(self, name: str = "exp") -> RunFolder:
        return RunFolder(self.runs / name)

    def jobs(self) -> list[JobFolder]:
        return [JobFolder(path) for path in sorted((self.runs / ".jobs").glob("*"))]

    def outcomes(self) -> list[dict[str, Any]]:
        """What the supervisors wrote at the end of each start, in the order of jobs and starts."""
        values = [json.loads(p.read_text()) for j in self.jobs() for p in j.path.glob("outcome.*")]
        return sorted(values, key=lambda value: (value["job"], value["start"]))

    def change(self, **values: Any) -> None:
        """Write other values into the spec, key by key (`a__b` is `a.b`)."""
        path = self.folder / "tasuki.yaml"
        spec = json.loads(path.read_text())
        for key, value in values.items():
            *parents, last = key.split("__")
            place = spec
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        path.write_text(json.dumps(spec, indent=1))

    def type(self, *words: str, within_s: float = WITHIN_S, **environment: str) -> Said:
        """Run a command to its end."""
        process = self.start(*words, **environment)
        try:
            return finish(process, within_s=within_s)
        finally:
            process.kill()

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tasuki", *words],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def supervise_by_hand(self) -> Said:
        """The command that `tasuki plan` prints, for the last job."""
        newest = max(self.jobs(), key=lambda job: job.lanes.stat().st_mtime_ns)
        done = subprocess.run(
            [sys.executable, "-m", "tasuki.jobs", str(newest.path)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def step(self, name: str = "exp") -> int:
        """How far a run has come, from its own events."""
        told = read_events(self.run(name))
        return max((e["step"] for e in told if e["kind"] in ("progress", "committed")), default=0)

    def logs(self) -> str:
        paths = [*self.runs.rglob("*.err"), *self.runs.rglob("*.log")]
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in paths)

    def tree(self) -> dict[str, str]:
        """Every file with its content; every folder."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes().hex() if path.is_file() else "/"
            for path in sorted(self.folder.rglob("*"))
        }


def copy_project(project: Project, folder: Path) -> Project:
    """A project with its runs in another folder, to be changed: their specs name the new place."""
    shutil.copytree(project.folder, folder)
    copy = Project(folder, project.environment)
    for path in copy.runs.glob("*/spec.json"):
        value = json.loads(path.read_text())
        place = {"folder": str(folder), "file": str(folder / "tasuki.yaml")}
        path.write_text(json.dumps(value | place))
    return copy


def finish(process: subprocess.Popen[str], *, within_s: float = WITHIN_S) -> Said:
    out, err = process.communicate(timeout=within_s)
    return Said(process.returncode, out, err)


def until(is_true: Callable[[], Any], why: Callable[[], object] = lambda: "") -> None:
    """Look again and again; fail after a while."""
    end = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < end, why()
        time.sleep(0.02)


def processes_about(folder: Path) -> list[psutil.Process]:
    """Every living process, but this one, whose command or working directory lies in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_about = str(folder) in f"{' '.join(process.cmdline())} {process.cwd()}"
            is_dead = process.status() == psutil.STATUS_ZOMBIE
            if is_about and not is_dead and process.pid != os.getpid():
                found.append(process)
    return found


def kill_leftovers(folder: Path) -> None:
    """After a failed test: only processes that work in its own folder."""
    for process in processes_about(folder):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def user_environment(**more: str) -> dict[str, str]:
    """As at a person's shell: nothing of pytest's, nothing of this machine's."""
    dropped = (*NOT_A_USERS, "COLUMNS", "LINES")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return kept | more


def make_project(
    folder: Path,
    *,
    python: str | None = None,
    recipe: str | None = "Learner",
    params: Mapping[str, Any] | None = None,
    stages: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Project:
    """A written project; nothing started. Keys as for `Project.change`."""
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPES + MORE_RECIPES)
    value = {
        "project": "t",
        "recipe": f"recipes:{recipe}" if recipe and ":" not in recipe else recipe,
        "cluster": {"gpu": "cpu", "cpus": 1, "grace": "20s", "python": python},
        "defaults": {
            "params": dict(params or {}),
            "effective_batch": 8,
            "seed": 5,
            "log_every": "3 steps",
            "save": {"every": "7 steps"},
        },
        "experiments": {"exp": {"stages": stages or [{"name": "one", "data": "d", "epochs": 4}]}},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))
    project = Project(folder, user_environment())
    project.change(**more)
    return project
