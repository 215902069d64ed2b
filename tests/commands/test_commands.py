"""`tasuki run -- python train.py …`: a script without a spec."""

from __future__ import annotations

import json

import pytest

from tests.commands.projects import Project, kill_leftovers, until, user_environment

SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
with open("calls", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if "--slow" in sys.argv and os.environ["TASUKI_ATTEMPT"] == "1":
    time.sleep(600)
"""


@pytest.fixture
def scripts(tmp_path):
    """A folder with a script and no spec."""
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    yield Project(folder, user_environment(COLUMNS="120"))
    kill_leftovers(tmp_path)


def calls(scripts: Project) -> list[str]:
    path = scripts.folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_a_typed_command_runs_to_its_end_and_typed_again_it_ends_at_once(scripts, here):
    words = ("--set", "cluster.gpu=cpu", "--", "python", "train.py", "--lr", "3e-4")
    first = here(scripts.folder, "run", "--json", *words)
    assert first.code == 0, f"{first}\n{scripts.logs()}"
    assert (first.run["experiment"], first.run["state"]) == ("train", "complete")
    again = here(scripts.folder, "run", *words)
    assert again.code == 0 and "train: complete" in again.out
    assert "its command took" in again.out
    assert calls(scripts) == ["--lr 3e-4"]
    other = here(scripts.folder, "run", *words[:-1], "1e-3")
    assert other.code == 1 and "was begun with another spec" in other.err
    assert calls(scripts) == ["--lr 3e-4"], "a finished run stays as it is"
    for words, says in (
        (("export",), "where the script has put them"),
        (("verify", "samples"), "must train in `tasuki.open_run`"),
    ):
        told = here(scripts.folder, *words, "train")
        assert told.code == 2 and "runs a command" in told.err and says in told.err


def test_a_command_is_interrupted_resumed_and_keeps_to_the_words_it_began_with(scripts, here):
    words = ("--name", "mine", "--set", "cluster.gpu=cpu", "--", "python", "train.py", "--slow")
    process = scripts.start("run", *words)
    until(lambda: len(calls(scripts)) == 1)
    status = here(scripts.folder, "status", "--json").run
    assert (status["state"], status["stage"], status["step"]) == ("running", "train", None)
    assert status["reason"].startswith("runs its command, for")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 75, scripts.logs()
    changed = here(scripts.folder, "run", *words, "--more")
    assert changed.code != 0 and "--accept-change stages.train.command" in changed.err
    resumed = here(scripts.folder, "resume", "mine", "--json")
    assert resumed.code == 0, f"{resumed}\n{scripts.logs()}"
    assert resumed.run["attempts"] == 2 and calls(scripts) == ["--slow", "--slow"]


def test_a_typed_command_is_planned_and_says_what_it_cannot_have(scripts, here):
    words = (
        "--set",
        "cluster.time_limit=1h",
        "--set",
        "expect.wall=90m",
        "--",
        "python",
        "train.py",
    )
    told = here(scripts.folder, "run", "--dry-run", "--json", *words)
    plan = json.loads(told.out)
    assert [job["expected_s"] for job in plan["jobs"]] == pytest.approx([3599, 1801])
    pieces = [piece for job in plan["jobs"] for lane in job["lanes"] for piece in lane["stages"]]
    assert {piece["source"] for piece in pieces} == {"given"}
    assert {piece["batch_source"] for piece in pieces} == {"command"}
    assert not scripts.runs.exists()
    refused = here(scripts.folder, "run", "--config", "small", "--", "python", "train.py")
    assert refused.code == 2 and "`--config` and a command after `--`" in refused.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run python train.py --lr 3e-4", "run -- python train.py --lr 3e-4"),
        ("submit --name mine train.py --new", "submit --name mine -- python train.py --new"),
        ("run torchrun --nproc-per-node 2 train.py", "run -- torchrun --nproc-per-node 2 train.py"),
        ("run train.py", "run -- python train.py"),
        ("run sh -c true", "run -- sh -c true"),
    ],
)
def test_who_forgets_the_dashes_is_shown_the_whole_command_with_them(scripts, here, typed, meant):
    said = here(scripts.folder, *typed.split())
    assert said.code == 2 and f"hint: `tasuki {meant}`" in said.err, said
    assert "comes after `--`" in said.err and not (scripts.folder / "runs").exists()


def test_a_word_that_is_no_command_stays_a_spec(scripts, here):
    for typed in ("run sh", "run spec.yaml --new", "run nothing", "submit specs.py:make"):
        said = here(scripts.folder, *typed.split())
        assert said.code != 0 and "comes after `--`" not in said.err, said
