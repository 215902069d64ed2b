"""Ctrl-C in verbs that only look: one line that says what is so, exit code 75, nobody left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tasuki.cli.main import GROUPS, stopped_in_words
from tests.commands.person import Project, finish, make_project, processes_about, until

HANGS = """

import time

time.sleep(1000)
"""


@pytest.fixture
def hanging(tmp_path) -> Project:
    project = make_project(tmp_path / "p")
    recipe = project.folder / "recipes.py"
    recipe.write_text(recipe.read_text() + HANGS)
    return project


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """As a terminal does it: to all of the group."""
    os.killpg(process.pid, signal.SIGINT)


LOOKING = [
    "plan",
    "check",
    *(pytest.param(verb, marks=pytest.mark.long) for verb in ("estimate", "inspect", "tune")),
    pytest.param("verify gradients", marks=pytest.mark.long),
]


@pytest.mark.parametrize("verb", LOOKING)
def test_ctrl_c_while_a_verb_looks_says_that_nothing_was_changed(hanging, verb):
    before = hanging.tree()
    process = subprocess.Popen(
        [sys.executable, "-m", "tasuki", *verb.split()],
        cwd=hanging.folder,
        env=hanging.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: psutil.Process(process.pid).children() or process.poll() is not None)
    press_ctrl_c(process)
    said = finish(process)
    assert said.code == 75 and "Traceback" not in said.err, said
    assert said.err.splitlines()[-1] == "stopped; nothing was changed", said
    assert said.out == "" and processes_about(hanging.folder) == []
    assert hanging.tree() == before


def test_what_is_said_is_true_to_the_verb():
    verbs = [verb for group in GROUPS.values() for verb in group]
    assert all(stopped_in_words([verb]).startswith("stopped") for verb in verbs)
    assert "goes on" in stopped_in_words(["data", "merge", "a.h5", "-o", "b.h5"])
    assert stopped_in_words(["data", "check", "a.h5"]) == "stopped; nothing was changed"
    assert "not submitted yet" in stopped_in_words(["--debug", "submit"])
    assert stopped_in_words(["export", "a"]) == stopped_in_words([]) == "stopped"
