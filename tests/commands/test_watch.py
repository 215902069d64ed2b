"""`tasuki watch` in a real terminal: what it shows, its keys, its end; elsewhere one snapshot."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tasuki
from tasuki.commands.watch import Watch
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock
from tasuki.views.watch import Window, draw_help, draw_list, draw_page
from tests.commands.person import Project, finish, until
from tests.commands.test_escapes import hostile_run
from tests.commands.test_terminal import COLOUR, command_line, terminal  # noqa: F401

SLOW = {"pause": 0.1}
LONG = [{"name": "one", "data": "d", "epochs": 50}, {"name": "two", "data": "d", "epochs": 1}]


class Pty:
    """A command on a terminal whose every byte is kept."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # So that Ctrl-C is a signal there; no thread of this process is in the way.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self.data = b""

    def read_until(self, is_there: Callable[[str], object]) -> str:
        end = time.monotonic() + 60
        while not is_there(self.text):
            assert time.monotonic() < end and self.process.poll() is None, self.text
            self._read(0.1)
        return self.text

    def _read(self, seconds: float) -> None:
        if select.select([self._ours], [], [], seconds)[0]:
            with suppress(OSError):
                self.data += os.read(self._ours, 65536)

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        """All that it said until then: a terminal gives some kilobytes at a time."""
        end = time.monotonic() + 60
        while (code := self.process.poll()) is None:
            assert time.monotonic() < end, self.text
            self._read(0.1)
        size = -1
        while size < len(self.data):
            size = len(self.data)
            self._read(0.1)
        return code

    def modes(self) -> list:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def watched(finished) -> Iterator[Callable[..., Pty]]:
    """Watches the finished run on a terminal of its own."""
    made: list[Pty] = []

    def start(*words: str, **more: str) -> Pty:
        environment = finished.environment | {"TERM": "xterm-256color"} | more
        command = (sys.executable, "-m", "tasuki", "watch", *words)
        made.append(Pty(finished.folder, environment, *command))
        return made[-1]

    yield start
    for one in made:
        one.close()


# -- live -------------------------------------------------------------------------------------


def test_a_running_run_is_shown_live_and_q_puts_the_terminal_back(project, terminal):  # noqa: F811
    made = project(params=SLOW, stages=LONG)
    process = made.start("run", TASUKI_STATS_EVERY_S="1")
    until(lambda: made.step() >= 1, made.logs)
    line = f"echo before; {command_line('watch', 'exp', '--every', '200ms')}"
    terminal.open(line, folder=made.folder, columns=100)

    def step() -> int:
        """None is shown where a look meets the screen half drawn."""
        found = re.search(r"one +█*░+ +\d+% (\d+)/300", terminal.screen())
        return int(found[1]) if found else -1

    until(lambda: step() >= 0, terminal.screen)
    first = step()
    until(lambda: step() > max(0, first) + 5, terminal.screen)
    for words in (r"memory [\d.]+ [MG]B", r"loss [\d.]+ [▁▂▃▄▅▆▇█]+", "left "):
        until(lambda words=words: re.search(words, terminal.screen()), terminal.screen)
    screen = terminal.screen()
    assert re.search(r"exp  running  attempt 1", screen), screen
    assert re.search(r"\d\d:\d\d:\d\d attempt 1 begins", screen), screen
    assert "before" not in screen, "it has a screen of its own"
    terminal.press("q")
    until(lambda: "code=0" in terminal.screen(), terminal.screen)
    assert "before" in terminal.screen() and "░" not in terminal.screen()
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 75


def test_several_runs_are_a_list_in_which_keys_choose_one(finished, tmp_path, terminal):  # noqa: F811
    shutil.copytree(finished.runs / "exp", tmp_path / "runs" / "exp")
    shutil.copytree(finished.runs / "exp", tmp_path / "runs" / "other")
    terminal.open(command_line("watch"), folder=tmp_path, columns=80)
    until(lambda: "2 runs: 2 complete" in terminal.screen(), terminal.screen)
    terminal.press("?")
    until(lambda: "this help" in terminal.screen(), terminal.screen)
    terminal.press("?")
    until(lambda: "2 runs" in terminal.screen(), terminal.screen)
    terminal.press("Down")
    terminal.press("Enter")
    until(lambda: "other  complete" in terminal.screen(), terminal.screen)
    assert "last events" in terminal.screen()
    terminal.press("Up")
    until(lambda: "exp  complete" in terminal.screen(), terminal.screen)
    terminal.press("Escape")
    until(lambda: "2 runs" in terminal.screen(), terminal.screen)
    shutil.rmtree(tmp_path / "runs" / "other")  # while it is watched
    until(lambda: "exp  complete" in terminal.screen(), terminal.screen)
    terminal.press("Escape")
    until(lambda: "code=0" in terminal.screen(), terminal.screen)
    assert "Traceback" not in terminal.screen()


def test_a_window_that_changes_its_size_is_drawn_anew(finished, terminal):  # noqa: F811
    terminal.open(command_line("watch", "exp"), folder=finished.folder, columns=100)
    until(lambda: "100% 18 steps" in terminal.screen(), terminal.screen)
    terminal._tmux("resize-window", "-x", "40", "-y", "8")
    until(lambda: max(map(len, terminal.screen().splitlines())) <= 40, terminal.screen)
    until(lambda: "exp  complete" in terminal.screen().splitlines()[0], terminal.screen)
    terminal.press("C-c")
    until(lambda: "code=0" in terminal.screen(), terminal.screen)


def test_a_hostile_run_does_nothing_to_the_terminal(tmp_path, terminal):  # noqa: F811
    text = "\x1b]2;owned\x07\x1b[2J\x1b[?1049l\x9b31m\rgone"
    hostile_run(tmp_path / "runs", "evil", text)
    terminal.open(command_line("watch", "evil"), folder=tmp_path, columns=80)
    until(lambda: "evil  held" in terminal.screen(), terminal.screen)
    assert "marked" in terminal.screen()
    assert "owned" not in terminal._tmux("display-message", "-p", "#{pane_title}")
    terminal.press("q")
    until(lambda: "code=0" in terminal.screen(), terminal.screen)


# -- its end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["q", "escape", "ctrl-c", "SIGINT", "SIGTERM", "SIGHUP"])
def test_however_it_ends_the_terminal_is_as_it_was(watched, way):
    shown = watched("exp")
    shown.read_until(lambda text: "complete" in text)
    assert "\x1b[?1049h" in shown.text and "\x1b[?25l" in shown.text
    match way:
        case "q" | "escape" | "ctrl-c":
            shown.type({"q": b"q", "escape": b"\x1b", "ctrl-c": b"\x03"}[way])
        case _:
            shown.process.send_signal(getattr(signal, way))
    assert shown.end() == 0
    assert shown.text.endswith("\x1b[?25h\x1b[?1049l")
    assert shown.modes() == shown.before


BROKEN = """
import sys
from tasuki.views.watch_screen import Screen
show, shown = Screen.show, []
def fail(self, live):
    shown.append(show(self, live))
    if len(shown) > 1:
        raise RuntimeError("planted")
Screen.show = fail
sys.argv = ["tasuki", "watch", "exp"]
from tasuki.cli.main import run
sys.exit(run())
"""


def test_an_error_of_ours_puts_the_terminal_back_too(finished):
    environment = finished.environment | {"TERM": "xterm-256color"}
    shown = Pty(finished.folder, environment, sys.executable, "-c", BROKEN)
    shown.read_until(lambda text: "complete" in text)
    shown.type(b"?")
    assert shown.end() == 1
    assert shown.text.index("\x1b[?1049l") < shown.text.index("RuntimeError: planted")
    assert shown.modes() == shown.before
    shown.close()


# -- where nobody watches ---------------------------------------------------------------------


def test_without_a_terminal_it_shows_everything_once_and_ends(finished, here):
    said = here(finished.folder, "watch")
    assert said.code == 0 and "\x1b" not in said.out, said
    assert re.search(r"small +█+ 100% 18 steps +loss", said.out) and "last events" in said.out
    assert "exp  complete" in here(finished.folder, "watch", "exp", "--once").out


def test_once_and_a_dumb_terminal_show_it_once(watched):
    for shown in (watched("exp", "--once"), watched("exp", TERM="dumb")):
        assert shown.end() == 0
        assert "complete" in shown.text and "\x1b[?1049h" not in shown.text


def test_the_function_gives_what_json_prints(finished, here):
    told = here(finished.folder, "watch", "--json").json()
    assert told == json.loads(json.dumps(tasuki.watch(runs=finished.runs)))
    (run,) = told["runs"]
    assert run["losses"] and run["events"][0]["words"] and run["state"] == "complete"


def test_no_colour_where_none_is_wanted_and_ascii_where_there_is_nothing_else(watched):
    plain = watched("exp", NO_COLOR="1")
    plain.read_until(lambda text: "complete" in text)
    assert not COLOUR.search(plain.text)
    ascii_only = watched("exp", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    ascii_only.read_until(lambda text: "100%" in text)
    assert ascii_only.data.isascii() and "####" in ascii_only.text


def test_an_empty_folder_and_a_name_that_is_not_there(tmp_path, here):
    assert "no runs yet" in here(tmp_path, "watch").out
    said = here(tmp_path, "watch", "nobody")
    assert said.code == 2 and "no run `nobody`" in said.err


@pytest.mark.parametrize("gone", ["events", "claims", "metrics", "stages", "training_state.json"])
def test_a_run_that_is_half_deleted_is_still_shown(finished, tmp_path, here, gone):
    shutil.copytree(finished.runs, tmp_path / "runs")
    path = tmp_path / "runs" / "exp" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    said = here(tmp_path, "watch")
    assert said.code == 0 and "exp  complete" in said.out, said


# -- what is drawn fits -----------------------------------------------------------------------


@pytest.mark.parametrize("is_ascii", [False, True])
def test_whatever_the_window_nothing_is_wider_or_longer_than_it(finished, is_ascii):
    (run,) = tasuki.watch(runs=finished.runs)["runs"]
    live = {**run, "state": "running", "reason": "why " * 60, "hint": "do " * 90, "doing": ["x", 3]}
    live |= {"machine": {"cpu_percent": 99.0, "gpus": [{"util": 1.0}] * 8}, "eta_s": 7.0}
    odd = {**live, "experiment": "名" * 90, "loss": "nan", "step": "x", "total_steps": None}
    for width in (1, 7, 40, 80, 200):
        for height in (1, 2, 5, 24):
            window = Window(width=width, height=height, is_ascii=is_ascii)
            for lines in (
                draw_list([run, live, odd] * 9, window, selected=20),
                draw_page(live, window, losses=[1.0, None, 2.0] * 99),
                draw_page(odd, window),
                draw_help(window),
            ):
                assert len(lines) <= max(height, 3), (width, height)
                assert all(line.cell_len <= width for line in lines), (width, height)
                assert not is_ascii or all(line.plain.isascii() for line in lines)


def test_a_selected_run_is_in_sight_however_many_there_are(finished):
    (run,) = tasuki.watch(runs=finished.runs)["runs"]
    runs = [{**run, "experiment": f"run{number}"} for number in range(1000)]
    for selected in (0, 500, 999):
        lines = draw_list(runs, Window(width=80, height=10), selected=selected)
        assert any(line.plain.startswith(f"run{selected} ") for line in lines)


# -- it reads little --------------------------------------------------------------------------


def test_finished_runs_are_looked_at_once_and_others_only_when_something_happened(
    finished, tmp_path
):
    shutil.copytree(finished.runs, tmp_path / "runs")
    clock = FakeClock()
    watch = Watch([RunFolder(tmp_path / "runs" / "exp")], tmp_path / "runs", clock=clock)
    assert watch.look() is True
    shutil.rmtree(tmp_path / "runs" / "exp" / "events")  # nobody looks there any more
    clock.sleep(60)
    assert watch.look() is False and watch.watched[0].value["events"]


def test_a_run_in_a_list_is_seen_when_it_comes(finished, tmp_path):
    clock = FakeClock()
    watch = Watch([], tmp_path / "runs", clock=clock)
    assert watch.look() is False and watch.watched == []
    shutil.copytree(finished.runs, tmp_path / "runs")
    clock.sleep(6)
    assert watch.look() is True
    assert [one.value["state"] for one in watch.watched] == ["complete"]


def test_a_run_that_cannot_be_read_ends_no_watching_of_the_others(finished, tmp_path, here):
    shutil.copytree(finished.runs, tmp_path / "runs")
    for name in ("bad", "worse"):
        shutil.copytree(finished.runs / "exp", tmp_path / "runs" / name)
    (tmp_path / "runs" / "bad" / "spec.json").write_text('{"format": 99, "stages": []}')
    shutil.rmtree(tmp_path / "runs" / "worse" / "events")
    (tmp_path / "runs" / "worse" / "events").touch()
    (tmp_path / "runs" / "worse" / "metrics" / "7.jsonl").mkdir()
    (tmp_path / "runs" / "worse" / "training_complete.marker").unlink()
    said = here(tmp_path, "watch", "--json")
    assert said.code == 0, said
    states = {run["experiment"]: run["state"] for run in said.json()["runs"]}
    assert states["exp"] == "complete" and set(states) == {"exp", "bad", "worse"}
    bad = next(run for run in said.json()["runs"] if run["experiment"] == "bad")
    assert bad["state"] is None and "format 99" in bad["reason"]
    assert "cannot be read" in here(tmp_path, "watch").out


def test_watching_imports_neither_torch_nor_numpy(finished: Project):
    code = (
        "import sys; sys.argv = ['tasuki', 'watch']\n"
        "from tasuki.cli.main import run; run()\n"
        "print({'torch', 'numpy'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=finished.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "set()\n"


def test_a_loss_that_falls_by_more_than_a_power_of_ten_is_drawn_by_logarithm():
    from tasuki.views.blocks import sparkline

    assert sparkline([1000.0, 100.0, 10.0, 1.0], 4, is_ascii=False) == "█▆▃▁"
    assert sparkline([8.0, 4.0, 2.0, 1.0], 4, is_ascii=False) == "█▄▂▁", "within a power of ten"
    assert sparkline([100.0, 1.0, 0.0], 3, is_ascii=False) == "█▁▁", "0 has no logarithm"
