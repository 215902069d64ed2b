"""`tasuki resume`: changed data and code, a fix for a held run, and going back with `--from`."""

from __future__ import annotations

import json
import re

import pytest

import tasuki
from tasuki.commands.compare import compare_runs
from tasuki.runs.claims import list_claims
from tasuki.runs.events import read_events
from tests.commands.projects import Project, copy_project, make_project

# -- a run that is held ---------------------------------------------------------------------------


@pytest.fixture
def failing(held, tmp_path) -> Project:
    """A copy of a run that is held because its second step failed."""
    return copy_project(held, tmp_path / "p")


@pytest.fixture
def stopped(failing) -> Project:
    """The same; the cause is mended."""
    (failing.folder / "trap").unlink()
    return failing


def test_resume_refuses_changed_data_and_goes_on_when_they_are_accepted(stopped: Project, here):
    (stopped.folder / "d").write_bytes(b"the DATA" * 100)
    said = here(stopped.folder, "resume", "exp")
    assert said.code == 1, said
    words = " ".join(f"{said.out} {said.err}".split())
    assert "the data of stage `one` changed since the last checkpoint: the content of its" in words
    assert "`tasuki resume exp --accept-change data`" in words
    said = here(stopped.folder, "resume", "exp", "--accept-change", "data")
    assert said.code == 0 and stopped.run().is_complete(), f"{said}\n{stopped.logs()}"
    assert "accepted: the data of run `exp` may differ from the last checkpoint" in said.err
    told = json.loads(stopped.run().spec.read_text())["accepted"]
    assert set(told) == {"data"}
    assert "data-changed" in [event["kind"] for event in read_events(stopped.run())]


def test_data_put_back_as_they_were_need_no_word(stopped: Project, here):
    (stopped.folder / "d").write_bytes(b"the DATA" * 100)
    assert here(stopped.folder, "resume", "exp").code == 1
    (stopped.folder / "d").write_bytes(b"the data" * 100)
    assert here(stopped.folder, "resume", "exp").code == 0, stopped.logs()


def test_an_edited_copy_of_the_code_is_refused_before_anything_is_started(stopped: Project, here):
    path = stopped.run().code / "recipes.py"
    path.write_text(path.read_text() + "\nX = 1\n")
    before = stopped.tree()
    said = here(stopped.folder, "resume", "exp")
    assert said.code == 1 and said.out == "" and stopped.tree() == before, said
    assert "recipes.py was edited" in said.err
    assert "--accept-change code" in said.err and "--code current" in said.err
    said = here(stopped.folder, "resume", "exp", "--accept-change", "code")
    assert said.code == 0, said
    assert "goes on with the code as it was edited there" in said.err


def test_a_spec_or_a_text_that_changed_is_not_taken_for_changed_code(stopped: Project, here):
    (stopped.folder / "NOTES.md").write_text("# today\n")
    stopped.change(defaults__save={"every": "5 steps"})
    said = here(stopped.folder, "run")
    assert said.code == 1 and "held" in said.err, said  # only `resume` lifts a hold
    said = here(stopped.folder, "resume", "exp")
    assert said.code == 0 and "goes on with the code it began with" not in said.err, said


def test_resume_code_current_takes_a_fix_into_a_held_run(failing, here):
    refused = here(failing.folder, "run")
    assert refused.code == 1 and "error: run `exp` is held" in refused.err, refused
    path = failing.folder / "recipes.py"
    path.write_text(path.read_text().replace("raise ValueError(f", "print(f"))
    words = ("resume", str(failing.run().path), "--code", "current", "--dry-run")
    said = here(failing.folder.parent, *words)  # where no spec is
    assert said.code == 0 and "train one" in said.out, said
    assert list_claims(failing.run()) == [1, 2, 3]
    # The frozen code is still the broken one.
    again = here(failing.folder, "resume", "exp")
    assert again.code == 1 and "planted failure" in again.out, again
    # The project's code also takes the place of a copy that was edited.
    frozen = failing.run().code / "recipes.py"
    frozen.write_text("raise SystemError('edited')\n")
    fixed = here(failing.folder, "resume", "exp", "--code", "current", "--json")
    assert fixed.code == 0 and fixed.run["state"] == "complete", fixed
    assert frozen.read_text() == path.read_text()
    (change,) = [e for e in read_events(failing.run()) if e["kind"] == "code-changed"]
    assert change["before"] != change["after"]


# -- going back -----------------------------------------------------------------------------------

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
    return copy_project(undisturbed, tmp_path / "p")


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


def test_resume_from_a_step_trains_on_here_and_warns_of_what_became_void(done, undisturbed, here):
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
    assert (status["state"], status["attempts"]) == ("complete", 2), "going back is no attempt"
    assert "exp: complete, 2 attempts" in why
    attempts = here(done.folder, "why", "exp", "--json").json()["attempts"]
    numbers = [one["attempt"] for one in attempts if not one["is_word"]]
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
