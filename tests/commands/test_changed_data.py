"""Data and code that change under a run: refused with what to do, or accepted and written down."""

from __future__ import annotations

import json

import pytest

from tasuki.runs.events import read_events
from tests.commands.person import Project


@pytest.fixture
def stopped(project, here) -> Project:
    """A run that is held because its second step failed; the cause is mended."""
    made = project(params={"fail_at": 1, "fail_file": "trap"})
    (made.folder / "d").write_bytes(b"the data" * 100)
    (made.folder / "trap").touch()
    said = here(made.folder, "run")
    assert said.code == 1, f"{said}\n{made.logs()}"
    (made.folder / "trap").unlink()
    return made


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


def test_the_project_s_code_takes_the_place_of_an_edited_copy(stopped: Project, here):
    path = stopped.run().code / "recipes.py"
    path.write_text("raise SystemError('edited')\n")
    said = here(stopped.folder, "resume", "exp", "--code", "current")
    assert said.code == 0 and stopped.run().is_complete(), said
    assert path.read_text() == (stopped.folder / "recipes.py").read_text()


def test_a_spec_or_a_text_that_changed_is_not_taken_for_changed_code(stopped: Project, here):
    (stopped.folder / "NOTES.md").write_text("# today\n")
    stopped.change(defaults__save={"every": "5 steps"})
    said = here(stopped.folder, "run")
    assert said.code == 1 and "held" in said.err, said  # only `resume` lifts a hold
    said = here(stopped.folder, "resume", "exp")
    assert said.code == 0 and "goes on with the code it began with" not in said.err, said
