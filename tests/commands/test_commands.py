"""`tasuki run -- python train.py …`: a script without a spec, as people type it."""

from __future__ import annotations

import json

import pytest

from tests.commands.person import Project, kill_leftovers, until

SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
with open("calls", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if "--slow" in sys.argv and os.environ["TASUKI_ATTEMPT"] == "1":
    time.sleep(600)
"""


@pytest.fixture
def person(tmp_path):
    import os

    from tests.commands.person import NOT_A_PERSONS

    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if k not in NOT_A_PERSONS}
    yield Project(folder, {**environment, "COLUMNS": "120"})
    kill_leftovers(tmp_path)


def calls(person: Project) -> list[str]:
    path = person.folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_a_typed_command_runs_to_its_end_and_typed_again_it_ends_at_once(person, here):
    words = ("--set", "cluster.gpu=cpu", "--", "python", "train.py", "--lr", "3e-4")
    first = person.type("run", "--json", *words)
    assert first.code == 0, f"{first}\n{person.logs()}"
    assert (first.run["experiment"], first.run["state"]) == ("train", "complete")
    again = here(person.folder, "run", *words)
    assert again.code == 0 and "train: complete" in again.out
    assert "its command took" in again.out
    assert calls(person) == ["--lr 3e-4"]
    other = here(person.folder, "run", *words[:-1], "1e-3")
    assert other.code == 1 and "was begun with another spec" in other.err
    assert calls(person) == ["--lr 3e-4"], "a finished run stays as it is"
    for words, says in (
        (("export",), "where the script has put them"),
        (("verify", "samples"), "must train in `tasuki.open_run`"),
    ):
        told = here(person.folder, *words, "train")
        assert told.code == 2 and "runs a command" in told.err and says in told.err


def test_a_command_is_interrupted_resumed_and_keeps_to_the_words_it_began_with(person, here):
    words = ("--name", "mine", "--set", "cluster.gpu=cpu", "--", "python", "train.py", "--slow")
    process = person.start("run", *words)
    until(lambda: len(calls(person)) == 1)
    status = here(person.folder, "status", "--json").run
    assert (status["state"], status["stage"], status["step"]) == ("running", "train", None)
    assert status["reason"].startswith("runs its command, for")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 75, person.logs()
    changed = here(person.folder, "run", *words, "--more")
    assert changed.code != 0 and "--accept-change stages.train.command" in changed.err
    resumed = here(person.folder, "resume", "mine", "--json")
    assert resumed.code == 0, f"{resumed}\n{person.logs()}"
    assert resumed.run["attempts"] == 2 and calls(person) == ["--slow", "--slow"]


def test_a_typed_command_is_planned_and_says_what_it_cannot_have(person, here):
    words = (
        "--set",
        "cluster.time_limit=1h",
        "--set",
        "expect.wall=90m",
        "--",
        "python",
        "train.py",
    )
    told = here(person.folder, "run", "--dry-run", "--json", *words)
    plan = json.loads(told.out)
    assert [job["expected_s"] for job in plan["jobs"]] == pytest.approx([3599, 1801])
    pieces = [piece for job in plan["jobs"] for lane in job["lanes"] for piece in lane["stages"]]
    assert {piece["source"] for piece in pieces} == {"given"}
    assert {piece["batch_source"] for piece in pieces} == {"command"}
    assert not person.runs.exists()
    refused = here(person.folder, "run", "--config", "small", "--", "python", "train.py")
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
def test_who_forgets_the_dashes_is_shown_the_whole_command_with_them(person, here, typed, meant):
    said = here(person.folder, *typed.split())
    assert said.code == 2 and f"hint: `tasuki {meant}`" in said.err, said
    assert "comes after `--`" in said.err and not (person.folder / "runs").exists()


def test_a_word_that_is_no_command_stays_a_spec(person, here):
    for typed in ("run sh", "run spec.yaml --new", "run nothing", "submit specs.py:make"):
        said = here(person.folder, *typed.split())
        assert said.code != 0 and "comes after `--`" not in said.err, said
