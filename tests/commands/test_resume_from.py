"""`tasuki resume RUN --from`: what is typed, what is shown, and what is refused (B11)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import tasuki
from tasuki.commands.compare import compare_runs
from tests.commands.person import Project, finish, make_project, until

STAGES = [
    {"name": "one", "data": "d", "epochs": 2},  # 12 steps
    {"name": "two", "data": "d", "epochs": 1},  # 6 more
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, warm_python) -> Project:
    made = make_project(tmp_path_factory.mktemp("ref") / "p", python=warm_python, stages=STAGES)
    made.change(defaults__save={"every": "4 steps", "keep": 9})
    said = made.type("run")
    assert said.code == 0, f"{said}\n{made.logs()}"
    return made


@pytest.fixture
def done(undisturbed, tmp_path) -> Project:
    folder = shutil.copytree(undisturbed.folder, tmp_path / "p")
    spec = folder / "runs" / "exp" / "spec.json"
    value = json.loads(spec.read_text())
    spec.write_text(
        json.dumps(value | {"folder": str(folder), "file": str(folder / "tasuki.yaml")})
    )
    return Project(folder, undisturbed.environment)


def told_why(made: Project, here) -> list[dict]:
    return json.loads(here(made.folder, "why", "exp", "--json").out)["attempts"]


def assert_undisturbed(made: Project, undisturbed: Project) -> None:
    comparison = compare_runs(made.run(), undisturbed.run(), ["one", "two"])
    assert [what for what, is_equal in comparison.checks if not is_equal] == []


def test_a_dry_run_tells_what_would_be_void_and_changes_nothing(done, here):
    before = done.tree()
    words = ("resume", "exp", "--from", "step-4", "--accept-change", "complete", "--dry-run")
    said = here(done.folder, *words)
    assert said.code == 0, said
    assert "goes back to step 4 of the run (stage one: step 4) by step-000000004.c1" in said.out
    assert "the results of stage one, the results of stage two, the completion marker" in said.out
    assert "tasuki checkpoint prune exp" in said.out
    told = here(done.folder, *words, "--json").json()
    assert told["back"]["void"] == ["one", "two"] and told["back"]["step"] == 4
    pieces = [piece for job in told["jobs"] for lane in job["lanes"] for piece in lane["stages"]]
    assert [(p["stage"], p["from_step"]) for p in pieces] == [("one", 4), ("two", 0)]
    assert done.tree() == before


def test_resume_from_a_step_trains_on_here_and_says_aloud_what_became_void(done, undisturbed, here):
    refused = here(done.folder, "resume", "exp", "--from", "step-8")
    assert refused.code == 1 and "--accept-change complete" in refused.err, refused
    words = ("resume", "exp", "--from", "8", "--accept-change", "complete", "--here")
    said = here(done.folder, *words)
    assert said.code == 0, f"{said}\n{done.logs()}"
    assert "goes back to step 8" in said.err and "put aside into" in said.err, said
    assert "Resuming from epoch 1 step 8" in done.logs()
    assert_undisturbed(done, undisturbed)
    why = here(done.folder, "why", "exp").out
    assert "a person went back: step 8 of the run (stage one: step 8)" in " ".join(why.split())
    status = here(done.folder, "status", "--json").run
    assert (status["state"], status["attempts"]) == ("complete", 2), "a person's word is none"
    assert "exp: complete, 2 attempts" in why
    numbers = [one["attempt"] for one in told_why(done, here) if not one["is_word"]]
    assert numbers == [1, 3] and status["attempt"] == 3, "a number is its claim, everywhere"
    assert "exp  complete  attempt 3" in here(done.folder, "watch", "exp").out
    assert here(done.folder, "logs", "exp", "--attempt", "3").out
    undo = re.search(r"`tasuki (resume exp --from \S+ [^`]*)` undoes this", said.err)
    assert undo and here(done.folder, *undo[1].split(), "--dry-run").code == 0


def test_as_a_python_function_and_from_best_where_nothing_was_validated(
    done, undisturbed, monkeypatch
):
    monkeypatch.chdir(done.folder)
    with pytest.raises(tasuki.TasukiError, match="knows no best"):
        tasuki.resume("exp", runs=done.runs, from_="best", accepted=["complete"])
    told = tasuki.resume("exp", runs=done.runs, from_="step-12", accepted=["complete"])
    assert told["exit_code"] == 0
    words = "goes back to step 12 of the run (stage two: step 0)"
    assert any(words in note for note in told["notes"])
    assert_undisturbed(done, undisturbed)


def test_a_running_run_is_refused_and_left_alone(project, here):
    slow = project(stages=STAGES, params={"pause": 0.05}, defaults__save={"every": "2 steps"})
    process = slow.start("run")
    until(lambda: slow.step() >= 3, slow.logs)
    said = here(slow.folder, "resume", "exp", "--from", "2")
    assert said.code == 1 and "is live" in said.err, said
    assert [p.name for p in (slow.run().claims).iterdir()] == ["1"]
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 75


def test_stopped_before_its_first_step_the_next_run_still_goes_on_from_there(
    done, undisturbed, here
):
    """The command is killed when the word is written: no job was made yet."""
    words = ("resume", "exp", "--from", "step-4", "--accept-change", "complete")
    script = (
        "import os, sys\n"
        "import tasuki.commands.run as run\n"
        "run.write_runner = lambda _: os.kill(os.getpid(), 9)\n"
        f"sys.argv = ['tasuki', *{words!r}]\n"
        "from tasuki.cli.main import run as main\n"
        "main()\n"
    )
    killed = _python(done.folder, script)
    assert killed == -signal.SIGKILL
    state = here(done.folder, "status", "--json").run
    assert (state["state"], state["stage"], state["step"]) == ("handed-over", "one", 4)
    assert "a person went back" in state["reason"]
    assert here(done.folder, "run").code == 0, done.logs()
    assert "Resuming from epoch 0 step 4 (sample 32) of stage one, attempt 3" in done.logs()
    assert_undisturbed(done, undisturbed)


def _python(folder: Path, script: str) -> int:
    import subprocess
    import sys

    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=dict(os.environ), check=False
    ).returncode
