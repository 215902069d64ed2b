"""What a terminal shows: the live view, narrow windows, NO_COLOR, and no escapes from logs."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tasuki.views.text import neutral
from tests.commands.person import Project, person_environment, until

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m")


class Terminal:
    """A window of tmux, as a person sees it."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")

    def open(self, command: str, *, folder: Path, columns: int, lines: int = 24) -> None:
        size = ["-x", str(columns), "-y", str(lines)]
        self._tmux("new-session", "-d", *size, "-c", str(folder), command)
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            env=person_environment(TERM="xterm-256color", LC_ALL="C.UTF-8"),
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):  # it ends by itself with its last window
            self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here: `apt-get install tmux` (or `conda install tmux`) brings it")
    made = Terminal(tmp_path)
    yield made
    made.close()


def command_line(*words: str) -> str:
    """Types a command, shows its exit code, and leaves the window open."""
    return f"{sys.executable} -m tasuki {' '.join(words)}; echo code=$?; sleep 100"


def test_the_live_view_shows_a_bar_and_ctrl_c_hands_over(project, terminal):
    made = project(params={"pause": 0.1}, stages=[{"name": "one", "data": "d", "epochs": 50}])
    terminal.open(command_line("run"), folder=made.folder, columns=100)
    line = re.compile(r"exp  stage 1/1 one  █*░+  \d+/300  .* left  loss [\d.]+  attempt 1")
    until(lambda: line.search(terminal.screen()), terminal.screen)
    assert "plan t-" in terminal.screen() and "started (start 1)" in terminal.screen()
    terminal.press("C-c")
    until(lambda: "code=75" in terminal.screen(), terminal.screen)
    screen = terminal.screen()
    assert "exp: handed-over" in screen and "Traceback" not in screen, screen
    assert not line.search(screen), "the bar was to go when the run ended"


def test_the_live_view_fits_a_terminal_of_40_columns(project, terminal):
    made = project(params={"pause": 0.1}, stages=[{"name": "one", "data": "d", "epochs": 50}])
    terminal.open(command_line("run"), folder=made.folder, columns=40)
    until(lambda: re.search(r"\d+/300", terminal.screen()), terminal.screen)
    terminal.press("C-c")
    until(lambda: "code=75" in terminal.screen(), terminal.screen)
    assert "handed-over" in terminal.screen()


def on_terminal(project: Project, *words: str, **environment: str) -> str:
    """Everything a command sends to a terminal, escapes included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tasuki", *words],
        cwd=project.folder,
        env=project.environment | {"TERM": "xterm-256color"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    data = b""
    with suppress(OSError):  # EIO: the other side is closed
        while part := os.read(ours, 65536):
            data += part
    os.close(ours)
    process.wait(timeout=60)
    return data.decode()


def test_a_terminal_gets_colours_and_a_pipe_none(finished):
    assert COLOUR.search(on_terminal(finished, "status"))
    assert "\x1b" not in finished.type("status").out
    assert "\x1b" not in finished.type("run", "nowhere.yaml").err


def test_no_color_takes_the_colours_away(finished):
    shown = on_terminal(finished, "status", NO_COLOR="1")
    assert "complete" in shown and not COLOUR.search(shown)


def test_no_color_takes_the_colours_of_errors_away(finished):
    shown = on_terminal(finished, "run", "nowhere.yaml", NO_COLOR="1")
    assert "error:" in shown and not COLOUR.search(shown)


@pytest.mark.parametrize("words", [("status",), ("plan", "--new"), ("run",)], ids=" ".join)
def test_nothing_is_wider_than_a_window_of_40_columns(finished, words):
    said = finished.type(*words, COLUMNS="40")
    assert said.code == 0, said
    table = [line for line in said.out.splitlines() if "tasuki.jobs" not in line]
    assert max(len(line) for line in table) <= 40, said


def test_status_at_40_columns_still_says_which_run_is_in_which_state(finished):
    said = finished.type("status", COLUMNS="40")
    assert re.search(r"\bexp\b", said.out) and "complete" in said.out, said


@pytest.mark.parametrize("columns", ["78", "140"])
def test_status_leaves_out_its_bar_before_anything_it_has_to_say(finished, columns):
    said = finished.type("status", COLUMNS=columns)
    for word in ("state", "stage", "step", "loss", "attempts", "goodput", "100%"):
        assert word in said.out, said
    assert max(map(len, said.out.splitlines())) <= int(columns), said
    assert ("█" in said.out) == (columns == "140")


def test_plan_at_40_columns_still_says_which_stages_are_in_it(finished):
    said = finished.type("plan", "--new", COLUMNS="40")
    assert "small" in said.out and "large" in said.out, said


def test_terminal_escapes_in_what_a_run_printed_are_made_harmless_by_logs(finished):
    raw = "".join(path.read_text() for path in finished.run().logs.glob("*.log"))
    assert "\x1b[31mred" in raw and "\x1b]0;owned\x07" in raw
    for words in (("logs", "exp"), ("logs", "exp", "-f"), ("logs", "exp/small")):
        said = finished.type(*words)
        assert "red" in said.out and "done" in said.out, said
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", said.out), said
        assert "owned" not in said.out


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b(B", "\x1bc", "\x9b2J", "\x1b"],
)
def test_no_kind_of_escape_gets_through(text: str):
    shown = neutral(f"before{text}after")
    assert shown.startswith("before�") and not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)


def test_an_escape_torn_by_following_is_harmless_too(tmp_path):
    """`logs -f` may read half of an escape."""
    assert [neutral(part) for part in ("a\x1b", "[31mb")] == ["a�", "[31mb"]
