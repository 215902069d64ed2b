"""Asking a child process: its answer, its progress or its words come back; it never stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasuki.answers import ChildFailed, ChildLate, Progress, ask
from tasuki.errors import EXIT_FAILED, EXIT_USAGE

Ask = Callable[..., Any]


@pytest.fixture
def ask_child(tmp_path: Path) -> Ask:
    """Write a child's `work` and ask it."""

    def ask_it(body: str, order: object = None, **options: Any) -> Any:
        text = textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / "child_of_test.py").write_text(
            "import json, os, signal, sys, threading, time\n"
            "from tasuki.answers import answer\n"
            "from tasuki.errors import DataError, UsageError\n"
            f"def work(order, told):\n{text}\n"
            "if __name__ == '__main__':\n    answer(work)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return ask(
            "child_of_test",
            {"order": order},
            python=sys.executable,
            environment=environment,
            **options,
        )

    return ask_it


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    children = {child.pid for child in psutil.Process().children()}
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert {child.pid for child in psutil.Process().children()} <= children
    until = time.monotonic() + 10
    while len(os.listdir("/proc/self/fd")) > descriptors:
        assert time.monotonic() < until, os.listdir("/proc/self/fd")
        time.sleep(0.01)


def test_an_order_goes_there_and_the_answer_comes_back_as_they_are(ask_child: Ask) -> None:
    order = {"größe": [1, 2.5, None, True, "a\nb"], "deep": {"x": [[]]}}
    assert ask_child("return [order, os.getcwd()]", order, folder="/") == [{"order": order}, "/"]


def test_orders_and_answers_of_many_megabytes_arrive_whole(ask_child: Ask) -> None:
    order = list(range(300_000))
    assert ask_child("return order['order'] * 2", order) == order * 2


def test_progress_comes_before_the_answer_and_its_end_is_never_left_out(ask_child: Ask) -> None:
    heard: list[Progress] = []
    body = """
    for done in range(1, 1001):
        told.progress("reading", done, 1000)
    told.progress("thinking", 7, None)
    return "done"
    """
    assert ask_child(body, on_progress=heard.append) == "done"
    assert heard[:2] == [Progress("importing", 0, None), Progress("reading", 1, 1000)]
    assert Progress("reading", 1000, 1000) in heard
    assert len(heard) < 100  # a line for each of them would cost more than the work


def test_what_begins_is_told_however_soon_after_the_last_word(ask_child: Ask) -> None:
    heard: list[Progress] = []
    body = """
    told.begin("opening the data")
    told.begin("building the model")
    told.about("of small (2 of 12)").progress("tracing a step", 1, 9)
    """
    ask_child(body, on_progress=heard.append)
    assert [one.what for one in heard[1:]] == [
        "opening the data",
        "building the model",
        "tracing a step of small (2 of 12)",
    ]


def test_what_the_users_code_prints_disturbs_nothing(
    ask_child: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    print('{"answer": "wrong"}', flush=True)
    os.system("echo words from a shell")
    for _ in range(20_000):
        sys.stderr.write("a warning that nobody reads, again and again\\n")
    return "right"
    """
    assert ask_child(body) == "right"
    assert capfd.readouterr() == ("", "")


def test_the_words_the_hint_and_the_exit_code_of_our_errors_pass_through(ask_child: Ask) -> None:
    with pytest.raises(ChildFailed) as caught:
        ask_child("raise UsageError('`größe` is\\nwrong', hint='write 3')")
    assert (caught.value.message, caught.value.hint) == ("`größe` is\nwrong", "write 3")
    assert caught.value.exit_code == EXIT_USAGE
    with pytest.raises(ChildFailed) as caught:
        ask_child("raise DataError('no data')")
    assert (caught.value.hint, caught.value.exit_code) == ("", EXIT_FAILED)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("return {1, 2}", "TypeError: .*set is not JSON"),
        ("sys.exit(7)", r"ends the process: exit\(7\)"),
        ("sys.exit('the license is over')", "ends the process: exit.*the license is over"),
        ("os._exit(3)", "ended without an answer, at `importing`: exit code 3"),
        ("os.abort()", "ended without an answer"),
    ],
)
def test_a_child_that_fails_is_told_in_its_own_words(ask_child: Ask, body: str, words: str) -> None:
    with pytest.raises(ChildFailed, match=words):
        ask_child(body)


def test_a_module_that_cannot_be_imported_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="No module named no_such_module"):
        ask("no_such_module", {}, python=sys.executable, environment=dict(os.environ))


def test_a_child_that_is_killed_is_a_message_and_the_hint_thinks_of_memory(ask_child: Ask) -> None:
    with pytest.raises(ChildFailed, match=r"ended without an answer.*: exit code -9") as caught:
        ask_child("os.kill(os.getpid(), signal.SIGKILL)")
    assert "memory" in caught.value.hint


def test_a_child_that_is_killed_in_the_middle_of_its_answer_is_the_same_message(
    ask_child: Ask,
) -> None:
    body = """
    os.write(int(sys.argv[1]), b'{"answer": [1, 2,')
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with pytest.raises(ChildFailed, match=r"ended without an answer.*: exit code -9"):
        ask_child(body)


def test_a_child_that_does_not_read_its_order_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "deaf_child.py").write_text("import sys\nsys.exit('I will not listen')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with pytest.raises(ChildFailed, match="I will not listen"):
        ask("deaf_child", {"x": "y" * 10**6}, python=sys.executable, environment=environment)


def test_threads_of_the_users_code_do_not_keep_the_answer_waiting(ask_child: Ask) -> None:
    body = """
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 5
    """
    assert ask_child(body) == 5


def test_a_child_that_takes_too_long_is_ended(ask_child: Ask) -> None:
    with pytest.raises(TimeoutError, match=r"longer than 0\.5 s"):
        ask_child("time.sleep(600)", within_s=0.5)
    assert ask_child("return 'in time'", within_s=600) == "in time"


def test_a_listener_that_fails_ends_the_child(ask_child: Ask, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.total:
            raise KeyboardInterrupt

    body = f"""
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    told.progress("reading", 1, 2)
    time.sleep(600)
    """
    with pytest.raises(KeyboardInterrupt):
        ask_child(body, on_progress=stop)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_child_notices_when_nobody_listens_any_more(ask_child: Ask, tmp_path: Path) -> None:
    """Whoever asked was killed: the child leaves at its next word, without a traceback."""
    log = tmp_path / "err"
    body = f"""
    os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT), 2)
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, int(sys.argv[1]))
    told.progress("reading", 1, 2)
    """
    with pytest.raises(ChildFailed, match=r"ended without an answer.*: exit code (1|-9)"):
        ask_child(body)
    assert log.read_text() == ""


FORKS = """
if os.fork() == 0:
    time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for_end(pid: int) -> None:
    until = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < until, "it stays"
        time.sleep(0.01)


def test_what_a_child_forked_ends_with_it(ask_child: Ask) -> None:
    fork = "fork = os.fork()\nif fork == 0:\n    time.sleep(1000)\n"
    wait_for_end(ask_child(f"{fork}return fork"))


def test_a_fork_that_keeps_the_pipe_open_does_not_hide_that_the_child_is_gone(
    ask_child: Ask,
) -> None:
    with pytest.raises(ChildFailed, match="ended without an answer, at `reading`") as failed:
        ask_child(f"told.begin('reading'){FORKS}os._exit(0)")
    assert "os._exit" in failed.value.hint


def test_code_that_leaves_by_exit_is_named_with_its_line(ask_child: Ask) -> None:
    with pytest.raises(ChildFailed, match=r"exit\(3\) \(at child_of_test.py:5\)"):
        ask_child("sys.exit(3)")


def test_of_a_child_that_hangs_it_is_told_where_it_stands(ask_child: Ask, tmp_path: Path) -> None:
    with pytest.raises(ChildLate, match="`reading` for") as late:
        ask_child("told.begin('reading')\ntime.sleep(1000)", within_s=2.0, folder=str(tmp_path))
    assert late.value.progress == Progress("reading", 0, None)
    assert late.value.place == "in work (child_of_test.py:6), from <module> (child_of_test.py:8)"


def test_a_child_and_its_forks_go_when_whoever_asked_is_killed(tmp_path: Path) -> None:
    (tmp_path / "child_of_test.py").write_text(
        "import os, time\nfrom tasuki.answers import answer\n"
        "def work(order, told):\n    fork = os.fork()\n    if fork == 0: time.sleep(1000)\n"
        "    told.begin(f'{os.getpid()} {fork}')\n    time.sleep(1000)\n"
        "if __name__ == '__main__':\n    answer(work)\n"
    )
    asks = (
        "import os, sys\nfrom tasuki.answers import ask\n"
        "ask('child_of_test', {}, python=sys.executable, environment=os.environ,"
        " on_progress=lambda told: print(told.what, flush=True))\n"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", asks],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with asker:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "importing\n"
        pids = [int(pid) for pid in asker.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
        asker.kill()
    for pid in pids:
        wait_for_end(pid)
