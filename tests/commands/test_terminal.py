"""What a terminal shows: the live view, narrow windows, NO_COLOR, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tasuki.cli.main import GROUPS, stopped_in_words
from tests.commands.projects import (
    finish,
    make_project,
    processes_about,
    until,
)
from tests.commands.terminals import COLOUR, command_line, on_terminal


def test_the_live_view_shows_a_bar_fits_40_columns_and_ctrl_c_hands_over(project, terminal):
    made = project(params={"pause": 0.1}, stages=[{"name": "one", "data": "d", "epochs": 50}])
    terminal.open(command_line("run"), folder=made.folder, columns=100)
    line = re.compile(r"exp  stage 1/1 one  █*░+  \d+/300  .* left  loss [\d.]+  attempt 1")
    until(lambda: line.search(terminal.screen()), terminal.screen)
    assert "plan t-" in terminal.screen() and "started (start 1)" in terminal.screen()
    terminal.resize(columns=40)
    until(lambda: max(map(len, terminal.screen().splitlines())) <= 40, terminal.screen)
    until(lambda: re.search(r"\d+/300", terminal.screen()), terminal.screen)
    terminal.press("C-c")
    until(lambda: "code=75" in terminal.screen(), terminal.screen)
    screen = terminal.screen()
    assert "exp: handed-over" in screen and "Traceback" not in screen, screen
    assert not line.search(screen), "the bar was to go when the run ended"


def test_a_terminal_gets_colours_unless_no_color_is_set_and_a_pipe_none(finished):
    assert COLOUR.search(on_terminal(finished, "status"))
    for words, told in ((("status",), "complete"), (("run", "nowhere.yaml"), "error:")):
        shown = on_terminal(finished, *words, NO_COLOR="1")
        assert told in shown and not COLOUR.search(shown)
    assert "\x1b" not in finished.type("status").out
    assert "\x1b" not in finished.type("run", "nowhere.yaml").err


@pytest.mark.parametrize(
    ("words", "told"),
    [(("status",), ["exp", "complete"]), (("plan", "--new"), ["small", "large"]), (("run",), [])],
    ids=str,
)
def test_nothing_is_wider_than_a_window_of_40_columns(finished, here, words, told):
    said = here(finished.folder, *words, COLUMNS="40")
    assert said.code == 0 and all(word in said.out for word in told), said
    table = [line for line in said.out.splitlines() if "tasuki.jobs" not in line]
    assert max(len(line) for line in table) <= 40, said


@pytest.mark.parametrize("columns", ["78", "140"])
def test_status_leaves_out_its_bar_before_anything_it_has_to_say(finished, here, columns):
    said = here(finished.folder, "status", COLUMNS=columns)
    for word in ("state", "stage", "step", "loss", "attempts", "goodput", "100%"):
        assert word in said.out, said
    assert max(map(len, said.out.splitlines())) <= int(columns), said
    assert ("█" in said.out) == (columns == "140")


# -- Ctrl-C in verbs that only look ---------------------------------------------------------------
HANGS = """
import time
from pathlib import Path

Path(__file__).parents[1].joinpath("hangs").touch()
time.sleep(1000)
"""
LOOKING = [
    "plan",
    *(pytest.param(verb, marks=pytest.mark.long) for verb in ("check", "estimate", "inspect")),
    *(pytest.param(verb, marks=pytest.mark.long) for verb in ("tune", "verify gradients")),
]


@pytest.mark.parametrize("verb", LOOKING)
def test_ctrl_c_while_a_verb_looks_says_that_nothing_was_changed(tmp_path, verb):
    project = make_project(tmp_path / "p")
    recipe = project.folder / "recipes.py"
    recipe.write_text(HANGS + recipe.read_text())
    before = project.tree()
    process = subprocess.Popen(
        [sys.executable, "-m", "tasuki", *verb.split()],
        cwd=project.folder,
        env=project.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: (tmp_path / "hangs").exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all of the group
    said = finish(process)
    assert said.code == 75 and "Traceback" not in said.err, said
    assert said.err.splitlines()[-1] == "stopped; nothing was changed", said
    assert said.out == "" and processes_about(project.folder) == []
    assert project.tree() == before


def test_what_is_said_is_true_to_the_verb():
    verbs = [verb for group in GROUPS.values() for verb in group]
    assert all(stopped_in_words([verb]).startswith("stopped") for verb in verbs)
    assert "goes on" in stopped_in_words(["data", "merge", "a.h5", "-o", "b.h5"])
    assert stopped_in_words(["data", "check", "a.h5"]) == "stopped; nothing was changed"
    assert "not submitted yet" in stopped_in_words(["--debug", "submit"])
    assert stopped_in_words(["export", "a"]) == stopped_in_words([]) == "stopped"
