"""`tasuki watch`: what a terminal shows, its keys and its end; what is known from look to look."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import tasuki
import tasuki.commands.watch as watching
from tasuki.commands.queued import Known, RunsJob
from tasuki.commands.status import describe_run
from tasuki.commands.watch import Watch, Watched
from tasuki.runs.jobs import job_folder
from tasuki.slurm.text import QueuedJob
from tasuki.testing import FakeClock
from tasuki.views.watch import Window, draw_help, draw_list, draw_page
from tests.commands.projects import finish, until
from tests.commands.terminals import COLOUR, Pty, command_line
from tests.harness.written import WrittenRun

SLOW = {"pause": 0.1}


LONG = [{"name": "one", "data": "d", "epochs": 50}, {"name": "two", "data": "d", "epochs": 1}]


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
def test_a_running_run_is_shown_live_and_q_puts_the_terminal_back(project, terminal):
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


def test_several_runs_are_a_list_in_which_keys_choose_one_in_any_window(
    finished, tmp_path, terminal
):
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
    terminal.resize(columns=40, lines=8)
    until(lambda: "2 runs" in terminal.screen(), terminal.screen)
    until(lambda: max(map(len, terminal.screen().splitlines())) <= 40, terminal.screen)
    shutil.rmtree(tmp_path / "runs" / "other")  # while it is watched
    until(lambda: "exp  complete" in terminal.screen(), terminal.screen)
    terminal.press("Escape")
    until(lambda: "code=0" in terminal.screen(), terminal.screen)
    assert "Traceback" not in terminal.screen()


# -- its end ----------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["q", "ctrl-c", "SIGTERM", "SIGHUP"])
def test_however_it_ends_the_terminal_is_as_it_was(watched, way):
    shown = watched("exp")
    shown.read_until(lambda text: "complete" in text)
    assert "\x1b[?1049h" in shown.text and "\x1b[?25l" in shown.text
    match way:
        case "q" | "ctrl-c":
            shown.type({"q": b"q", "ctrl-c": b"\x03"}[way])
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


def test_the_function_gives_what_json_prints(finished, here):
    told = here(finished.folder, "watch", "--json").json()
    assert told == json.loads(json.dumps(tasuki.watch(runs=finished.runs)))
    (run,) = told["runs"]
    assert run["losses"] and run["events"][0]["words"] and run["state"] == "complete"


def test_no_colour_where_none_is_wanted_and_ascii_where_there_is_nothing_else(watched):
    dumb = watched("exp", TERM="dumb")
    assert dumb.end() == 0  # shown once
    assert "complete" in dumb.text and "\x1b[?1049h" not in dumb.text
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
    runs = [{**run, "experiment": f"run{number}"} for number in range(1000)]
    for selected in (0, 500, 999):
        lines = draw_list(runs, Window(width=80, height=10), selected=selected)
        assert any(line.plain.startswith(f"run{selected} ") for line in lines), "in sight"


# -- it reads little --------------------------------------------------------------------------
def test_finished_runs_are_looked_at_once_and_others_only_when_something_happened(
    finished, tmp_path
):
    clock = FakeClock()
    watch = Watch([], tmp_path / "runs", clock=clock)
    assert watch.look() is False and watch.watched == []
    shutil.copytree(finished.runs, tmp_path / "runs")
    clock.sleep(6)
    assert watch.look() is True
    assert [one.value["state"] for one in watch.watched] == ["complete"]
    shutil.rmtree(tmp_path / "runs" / "exp" / "events")  # nobody looks there any more
    clock.sleep(60)
    assert watch.look() is False and watch.watched[0].value["events"]


def test_a_loss_that_falls_by_more_than_a_power_of_ten_is_drawn_by_logarithm():
    from tasuki.views.blocks import sparkline

    assert sparkline([1000.0, 100.0, 10.0, 1.0], 4, is_ascii=False) == "█▆▃▁"
    assert sparkline([8.0, 4.0, 2.0, 1.0], 4, is_ascii=False) == "█▄▂▁", "within a power of ten"
    assert sparkline([100.0, 1.0, 0.0], 3, is_ascii=False) == "█▁▁", "0 has no logarithm"


WINDOW = Window(width=100, height=24)


QUEUED = QueuedJob(
    number="7",
    state="PENDING",
    reason="Priority",
    partition="p",
    starts=None,
    ends=None,
    comment="",
)


# -- what it knows of a run from one look to the next -----------------------------------------


@pytest.fixture
def described(monkeypatch, clock) -> list[str]:
    """Names of the runs that were looked at more closely, each of which takes a second."""
    names: list[str] = []
    describe = watching.describe_run

    def count(run, **more):
        names.append(run.name)
        clock.sleep(1.0)
        return describe(run, **more)

    monkeypatch.setattr(watching, "describe_run", count)
    return names


def queued(written: WrittenRun, **more: object) -> Known:
    """The run waits in a queue, as Slurm says."""
    job = RunsJob(folder=job_folder(written.run.path.parent, "j"), queued=replace(QUEUED, **more))
    return Known(by_run={written.run.name: (job,)}, at=written.clock.wall())


def test_a_run_that_waits_in_a_queue_is_described_again_only_when_something_changed(
    written, clock, described
):
    written.begin(job="j", is_alive=False)
    written.end(cause="preempted")
    known = queued(written)
    one = Watched(written.run, clock)
    for _ in range(9):
        one.look(known)
        assert one.value["state"] == "waiting" and "Priority" in one.value["reason"]
        clock.sleep(6.0)
    assert len(described) == 1
    one.look(queued(written))
    assert len(described) == 1, "Slurm said the same once more"
    clock.sleep(120.0)
    one.look(queued(written, reason="Resources"))
    assert len(described) == 2 and "Resources" in one.value["reason"]


def test_many_runs_that_change_at_once_keep_keys_waiting_no_longer_than_new_ones(
    tmp_path, clock, described, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    runs = [WrittenRun(tmp_path / "runs", clock, f"run{n}") for n in range(4)]
    watch = Watch([], tmp_path / "runs", clock=clock)
    for _ in runs:
        watch.look()
    assert watch.is_settled and len(watch.watched) == 4
    for run in runs:
        run.begin(is_alive=False)
        run.end()
    clock.sleep(200.0)
    described.clear()
    for count in range(1, 5):
        watch.look()
        assert len(described) == count
    assert sorted(described) == [run.run.name for run in runs]
    assert {one.value["state"] for one in watch.watched} == {"handed-over"}


def page_of(one: Watched) -> str:
    losses = one.losses()
    return "\n".join(line.plain for line in draw_page(one.value, WINDOW, losses=losses))


def test_a_stage_that_is_evaluated_is_no_start(written, clock):
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    clock.sleep(9.0)
    written.tell("worker-started", stage="train", phase="evaluate")
    clock.sleep(1.0)
    one = Watched(written.run, clock)
    one.look(None)
    assert one.value["doing"] == ["evaluating train", 1]
    page = page_of(one)
    assert "evaluating train, for 1s" in page and "starting" not in page
    status = describe_run(written.run, now=clock.wall())
    assert status["reason"] == "evaluating train, for 1s"
    written.tell("worker-ended", ending="done")
    one.look(None)
    assert one.value["doing"] is None
    assert describe_run(written.run, now=clock.wall())["reason"] == ""


def test_what_is_told_while_a_run_is_described_is_on_the_same_page(written, clock, monkeypatch):
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    describe = watching.describe_run

    def step_meanwhile(run, **more):
        clock.sleep(1.0)
        facts = {"stage": "train", "step": 121, "total_steps": 320, "loss": 0.5}
        written.tell("progress", who="rank0", **facts)
        return describe(run, **more)

    monkeypatch.setattr(watching, "describe_run", step_meanwhile)
    one = Watched(written.run, clock)
    one.look(None)
    assert one.value["doing"] is None and one.value["step"] == 121
    assert "121/320" in page_of(one) and "starting" not in page_of(one)


def test_step_and_loss_are_at_least_those_of_the_curve_beside_them(written, clock):
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    told = {"stage": "train", "step": 1, "total_steps": 960, "loss": None}
    written.tell("progress", who="rank0", **told)
    one = Watched(written.run, clock)
    one.look(None)
    for step in range(1, 481):
        written.log(step, loss=1 / step)
    assert "50% 480/960" in page_of(one) and "loss 0.002083" in page_of(one)
    clock.sleep(60.0)
    written.tell("progress", who="rank0", **{**told, "step": 490, "loss": 0.002})
    one.look(None)
    assert one.value["step"] == 490 and one.value["loss"] == 0.002


@pytest.mark.parametrize("few_bytes", [0, None])
def test_neither_validations_nor_earlier_attempts_are_taken_for_the_step_and_loss_of_now(
    written, clock, monkeypatch, few_bytes
):
    if few_bytes is not None:  # the end of a long file alone is read
        monkeypatch.setattr(watching, "_FEW_BYTES", few_bytes)
    written.begin(job="j")
    for step in range(1, 481):
        written.log(step, loss=1 / step)
    written.log(480, split="val", loss=777.0)
    written.end()
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    written.tell("progress", who="rank0", stage="train", step=400, total_steps=960, loss=0.5)
    one = Watched(written.run, clock)
    one.look(None)
    assert 777.0 not in one.losses()
    assert "400/960" in page_of(one) and one.value["loss"] == 0.5
