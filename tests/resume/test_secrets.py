"""S3: 40 canary secrets in the environment and in a person's files are in nothing that we write."""

from __future__ import annotations

import gzip
import json
import stat
import sys
import uuid
from pathlib import Path

import pytest
from tests.commands.projects import make_project

NAMES = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    *("GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN", "SLACK_WEBHOOK_URL", "SLACK_TOKEN"),
    *("COMET_API_KEY", "NEPTUNE_API_TOKEN", "MLFLOW_TRACKING_PASSWORD", "KAGGLE_KEY"),
    *("PGPASSWORD", "MYSQL_PWD", "REDIS_PASSWORD", "DB_PASSWORD", "SMTP_PASSWORD"),
    *("AZURE_CLIENT_SECRET", "GOOGLE_API_KEY", "DOCKER_PASSWORD", "NPM_TOKEN", "MY_SECRET"),
    *("TASUKI_BOARD_TOKEN", "SLURM_JWT", "CI_JOB_TOKEN"),
)
IN_URLS = ("PIP_INDEX_URL", "HTTPS_PROXY", "DATABASE_URL", "WEBHOOK", "S3_ENDPOINT", "GIT_REMOTE")
FILES = {
    "env.sh": 'export TOKEN="{}"\nexport URL="https://me:{}@example.org/x"\n',
    "credentials.json": '{{"key": "{}"}}',
    ".env": "KEY={}\n",
}


class Canaries:
    """Like nothing else in the world."""

    def __init__(self) -> None:
        self.all: dict[str, str] = {}

    def make(self, where: str) -> str:
        return self.all.setdefault(where, f"canary{uuid.uuid4().hex}")

    def environment(self) -> dict[str, str]:
        plain = {name: self.make(name) for name in NAMES}
        urls = {name: f"https://me:{self.make(name)}@example.org/" for name in IN_URLS}
        return plain | urls

    def write_files(self, folder: Path) -> None:
        for name, text in FILES.items():
            words = [self.make(f"{name} {n}") for n in range(text.count("{}"))]
            (folder / name).write_text(text.format(*words))

    def found_in(self, data: bytes) -> list[str]:
        return [where for where, canary in self.all.items() if canary.encode() in data]


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def leaks(canaries: Canaries, folder: Path) -> dict[str, list[str]]:
    """Files below a folder, their names included, that hold any."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = str(path).encode()
        if path.is_file():
            data += path.read_bytes()
            data += gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else b""
        if told := canaries.found_in(data):
            found[str(path.relative_to(folder))] = told
    return found


VERBS = (
    *(("plan", "--new", "--json"), ("status",), ("status", "--json"), ("logs", "exp", "--err")),
    *(("history", "--json"), ("resume", "exp", "--dry-run"), ("doctor", "--json")),
    *(("checkpoint", "show", "exp", "--json"), ("evaluate", "exp", "--json"), ("cancel", "exp")),
)


def test_no_secret_of_40_is_in_a_file_a_log_or_an_answer(project, here, canaries):
    """A run that crashes until it is held, with sinks, an alert and a setup."""
    tell = "import sys; print(len(sys.stdin.read()))"
    made = project(
        params={"fail_at": 3},
        cluster__setup="env.sh",
        sinks=["tensorboard"],
        on={"held": [sys.executable, "-c", tell], "complete": [sys.executable, "-c", tell]},
    )
    canaries.write_files(made.folder)
    environment = canaries.environment()
    assert len(canaries.all) == 40
    said = [("run", made.type("run", "--json", **environment))]
    assert said[0][1].code == 1, "it was to fail: that is when most is told"
    said += [(" ".join(words), here(made.folder, *words, **environment)) for words in VERBS]
    for words, one in said:
        assert canaries.found_in((one.out + one.err).encode()) == [], words
    assert leaks(canaries, made.runs) == {}
    assert list(made.run().logs.glob("*.alerts.txt")), "everything of this run was written"
    assert (made.run().code / "recipes.py").is_file()


def test_the_search_finds_a_secret_that_a_script_prints_itself(tmp_path, canaries):
    """Or it would prove nothing; and what a person's own script says is theirs to say."""
    made = make_project(tmp_path / "p", recipe=None)
    code = "import os; print(os.environ['HF_TOKEN'])"
    made.change(command=["python", "-c", code], experiments={"exp": {"stages": [{"name": "one"}]}})
    environment = canaries.environment()
    said = made.type("run", **environment)
    assert said.code == 0, said
    (name,) = leaks(canaries, made.runs)
    assert name.startswith("exp/logs/") and name.endswith(".log")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_secret_is_in_a_check_a_profile_or_a_verified_resume(tmp_path, canaries):
    made = make_project(tmp_path / "p", cluster__setup="env.sh")
    canaries.write_files(made.folder)
    environment = canaries.environment()
    verbs = (("check", "--json"), ("verify", "resume", "--keep", "--json"))
    verbs += (
        ("run", "--profile", "--json"),
        ("tune", "--dry-run", "--json"),
        ("verify", "samples", "exp"),
    )
    for words in verbs:
        one = made.type(*words, within_s=300.0, **environment)
        assert canaries.found_in((one.out + one.err).encode()) == [], words
    assert leaks(canaries, made.runs) == {}
    assert list((made.runs / ".verify").glob("*/interrupted/logs/*.log")), "the runs were kept"


def test_files_of_passwords_are_left_out_of_the_copy_of_the_code_and_others_are_not(tmp_path):
    from tasuki.clock import SystemClock
    from tasuki.commands.freeze import freeze_run
    from tasuki.commands.resume import take_current_code
    from tasuki.spec.load import load_spec

    made = make_project(tmp_path / "p", cluster__setup="prepare/env.sh")
    (made.folder / "prepare").mkdir()
    secret = ("prepare/env.sh", "secrets.yaml", "Credentials.json", "password.txt", ".env.local")
    kept = ("tokens.py", "tokenizer.json", "prepare/other.sh", "secrets.py", "secretary.txt")
    for name in (*secret, *kept):
        (made.folder / name).write_text("x")
    run, spec = made.run(), load_spec(str(made.folder), environ={})
    freeze_run(run, spec.experiments[0], spec, SystemClock())
    for copy in (lambda: None, lambda: take_current_code(run, SystemClock())):
        copy()
        copied = {str(path.relative_to(run.code)) for path in run.code.rglob("*")}
        assert copied.isdisjoint(secret) and copied >= set(kept)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_slurm_a_setup_s_own_words_are_in_its_private_copy_alone(cluster, tmp_path, canaries):
    from tests.slurm.project import make_slurm_project

    made = make_slurm_project(cluster, tmp_path / "p", setup="env.sh", params={"pause": 0.0})
    canaries.write_files(made.folder)
    environment = canaries.environment()
    for words in (("submit", "--dry-run", "--json"), ("submit", "--json"), ("status", "--json")):
        done = made.try_tasuki(*words, **environment)
        assert done.returncode == 0, done
        assert canaries.found_in((done.stdout + done.stderr).encode()) == [], words
    made.wait_until_complete()
    found = leaks(canaries, made.folder / "runs")
    assert [Path(name).name for name in found] == ["setup.sh"]
    (path,) = (made.folder / "runs" / name for name in found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(next(iter(found.values()))) == {"env.sh 0", "env.sh 1"}
    assert json.loads(made.tasuki("status", "--json"))["runs"][0]["state"] == "complete"
