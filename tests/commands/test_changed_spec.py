"""A run goes on with the spec it was begun with, or says what changed."""

from __future__ import annotations

import json

import pytest

from tests.commands.person import Project


@pytest.fixture
def begun(project, here) -> Project:
    """A run of two stages of which the first is done."""
    stages = [{"name": "a", "data": "d", "epochs": 1}, {"name": "b", "data": "d", "epochs": 1}]
    made = project(stages=stages)
    said = here(made.folder, "run", "--stages", "a")
    assert said.code == 0, f"{said}\n{made.logs()}"
    return made


def frozen_stages(made: Project) -> list[dict]:
    return json.loads(made.run().spec.read_text())["spec"]["stages"]


def test_a_change_of_what_is_learnt_is_refused_with_the_difference(begun, here):
    begun.change(defaults__lr=0.5)
    before = begun.tree()
    said = here(begun.folder, "run")
    assert said.code == 1 and said.out == "", said
    assert "was begun with another spec" in said.err
    assert "stages.a.lr: 0.001 → 0.5" in said.err and "stages.b.lr: 0.001 → 0.5" in said.err
    hint = said.err.partition("hint:")[2]
    assert "`--new`" in hint and "--accept-change stages.a.lr --accept-change stages.b.lr" in hint
    assert "Traceback" not in said.err
    assert begun.tree() == before


def test_accept_change_goes_on_with_the_change(begun, here):
    begun.change(defaults__lr=0.5)
    said = here(begun.folder, "run", "--accept-change", "lr")
    assert said.code == 0, said
    assert "taken over: stages.b.lr: 0.001 → 0.5" in said.err
    assert begun.run().is_complete()
    assert [stage["lr"] for stage in frozen_stages(begun)] == [0.5, 0.5]


def test_accepting_one_change_does_not_accept_another(begun, here):
    begun.change(defaults__lr=0.5, defaults__seed=9)
    said = here(begun.folder, "run", "--accept-change", "lr")
    assert said.code == 1 and "stages.a.seed: 5 → 9" in said.err and "lr:" not in said.err, said


def test_new_begins_a_second_run_beside_the_first(begun, here):
    begun.change(defaults__lr=0.5)
    said = here(begun.folder, "run", "--new", "--json")
    assert said.code == 0 and said.run["experiment"] == "exp-2", said
    assert begun.run("exp-2").is_complete() and not begun.run().is_complete()
    # Later verbs mean the newest one.
    assert here(begun.folder, "status", "exp", "--json").run["experiment"] == "exp-2"
    assert here(begun.folder, "run", "--json").run["experiment"] == "exp-2"


def test_a_harmless_change_is_taken_over(begun, here):
    begun.change(defaults__save={"every": "2 steps", "keep": 5}, cluster__grace="11s")
    said = here(begun.folder, "run")
    assert said.code == 0, said
    assert "taken over: stages.b.save.keep: 3 → 5" in said.err
    assert begun.run().is_complete()
    assert frozen_stages(begun)[1]["save"]["keep"] == 5


def test_the_code_is_frozen_once_something_was_learnt_from_it(begun, here):
    path = begun.folder / "recipes.py"
    path.write_text(path.read_text() + "\nraise SystemError('later')\n")
    assert here(begun.folder, "run").code == 0
