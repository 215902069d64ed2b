"""From an empty folder to a finished run, as the README says."""

from __future__ import annotations

import sys

import pytest

from tests.commands.person import Project, kill_leftovers, person_environment


def test_a_new_project_is_planned_run_and_looked_at(tmp_path, warm_python):
    outside = Project(tmp_path, person_environment())
    try:
        said = outside.type("new", "first")
        assert said.code == 0, said
        made = ["first/tasuki.yaml", "first/recipe.py", "first/.gitignore"]
        assert said.out.splitlines() == made
        first = Project(tmp_path / "first", person_environment())
        _plan(first)
        _run(first, warm_python)
        _look(first)
    finally:
        kill_leftovers(tmp_path)


def test_new_says_what_it_would_write_and_writes_it_only_when_asked(here, tmp_path):
    dry = here(tmp_path, "new", "my project", "--dry-run", "--json")
    assert dry.code == 0 and list(tmp_path.iterdir()) == []
    made = here(tmp_path, "new", "my project", "--json")
    assert made.json() == dry.json()
    assert "project: my-project" in (tmp_path / "my project" / "tasuki.yaml").read_text()
    assert here(tmp_path / "my project", "plan", "--no-measure").code == 0


def _plan(first: Project) -> None:
    before = set(first.tree())
    said = first.type("plan", "--set", "cluster.cpus=1", COLUMNS="140")
    assert said.code == 0, said
    for words in ("train coarse", "train fine", "measured here", "0 – 4,800", "0 – 1,600"):
        assert words in said.out, said
    assert "measuring some steps of coarse, fine" in said.err
    # Python's own cache has a test of its own, below. What was measured is kept, and nothing else.
    new = {name for name in set(first.tree()) - before if "__pycache__" not in name}
    assert {name for name in new if not name.startswith("runs/.probes/")} <= {
        "runs",
        "runs/.probes",
    }


def _run(first: Project, warm_python: str) -> None:
    """In a warm interpreter, to save four imports of torch; test_going_on.py has fresh ones."""
    said = first.type("run", "--set", "cluster.cpus=1", "--set", f"cluster.python={warm_python}")
    assert said.code == 0 and "sine: complete" in said.out, f"{said}\n{first.logs()}"
    assert "coarse: 4,800 steps, loss" in said.out and "fine: 1,600 steps, loss" in said.out
    # It learnt something: evaluated without noise.
    run = first.type("status", "--json").run
    assert run["stages"][1]["metrics"]["loss"] < 0.02


def _look(first: Project) -> None:
    said = first.type("status")
    assert said.code == 0 and "sine" in said.out and "complete" in said.out, said
    said = first.type("logs", "sine", "-f")
    assert said.code == 0, said
    assert "Starting stage coarse" in said.out
    assert "Finished stage fine: 1,600 steps" in said.out and "Evaluated stage fine" in said.out
    said = first.type("run")
    assert said.code == 0 and "sine: complete" in said.out, said


@pytest.mark.long
def test_plan_tells_a_worker_side_mistake_as_an_error_with_a_hint(real_project):
    said = real_project(recipe="NoLoss").type("plan", "--json")
    assert said.code == 1 and said.out == "", said
    assert "error: experiment `exp`: recipe `recipes:NoLoss` has no method `loss`" in said.err
    assert "hint: a recipe needs" in said.err and "Traceback" not in said.err


def test_the_child_that_measures_is_told_to_write_no_bytecode(here, real_project, monkeypatch):
    """A child that imports the recipe leaves `__pycache__` beside it; this one tells how it was
    called instead."""
    made = real_project()
    fake = made.folder / "fake-python"
    fake.write_text('#!/bin/sh\necho "$@ B=$PYTHONDONTWRITEBYTECODE" > called\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(sys, "executable", str(fake))
    assert here(made.folder, "plan").code == 1
    called = (made.folder / "called").read_text().split()
    assert "-B" in called or "B=1" in called, called
