"""A function called in a child process: values both ways, errors as here, nothing left behind."""

from __future__ import annotations

import math
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

from tasuki import subprocesses
from tasuki.errors import EXIT_FAILED, EXIT_USAGE, UsageError
from tasuki.subprocesses import Progress, SubprocessError, SubprocessTimeoutError, run

RunBody = Callable[..., Any]

_HEAD = """\
import os, signal, sys, threading, time
from pathlib import Path
import msgspec
from tasuki.errors import UsageError
from tasuki.subprocesses import Progress

class Point(msgspec.Struct):
    x: float
    where: Path

def mirror(point: Point, points: list[Point]) -> list[Point]:
    assert isinstance(point, Point) and isinstance(point.where, Path)
    return [*points, point]

"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "targets.py").write_text(_HEAD)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.fixture
def run_body(tmp_path: Path, environment: dict[str, str]) -> RunBody:
    """Write the body of a target function and call it."""

    def run_it(body: str, *arguments: Any, result: Any = Any, **options: Any) -> Any:
        text = textwrap.indent(textwrap.dedent(body), "    ")
        target = f"def work(argument=None, *, progress=None):\n{text}\n"
        (tmp_path / "targets.py").write_text(_HEAD + target)
        return run("targets:work", *arguments, result=result, environment=environment, **options)

    return run_it


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    children = {child.pid for child in psutil.Process().children()}
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert {child.pid for child in psutil.Process().children()} <= children
    assert len(os.listdir("/proc/self/fd")) == descriptors


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 60
    while _is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} stays"
        time.sleep(0.01)


def test_arguments_and_result_arrive_with_their_types(tmp_path, environment, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    from targets import Point

    points = [Point(math.nan, Path("a")), Point(math.inf, Path("b"))]
    back = run("targets:mirror", points[0], points[1:], result=list[Point], environment=environment)
    assert back[0] == points[1]
    assert math.isnan(back[1].x) and back[1].where == Path("a")


def test_many_megabytes_arrive_complete(run_body):
    numbers = list(range(1_000_000))
    assert run_body("return argument * 2", numbers, result=list[int]) == numbers * 2


def test_wrong_types_and_numbers_of_values_are_errors(run_body):
    with pytest.raises(ValueError, match="Expected `int`, got `str`"):
        run_body("return 'three'", result=int)
    with pytest.raises(SubprocessError, match="TypeError: too many positional arguments"):
        run_body("return 3", 1, 2, 3, result=int)


def test_progress_is_reported_and_its_end_never_left_out(run_body):
    reported: list[Progress] = []
    body = """
    for done in range(1, 1001):
        progress(Progress("reading", done, 1000))
    progress(Progress("thinking"))
    """
    run_body(body, result=None, progress=reported.append)
    assert reported[:2] == [Progress("starting"), Progress("reading", 1, 1000)]
    assert reported[-2:] == [Progress("reading", 1000, 1000), Progress("thinking")]
    assert len(reported) < 100  # a message for each would cost more than the work


def test_what_the_child_prints_reaches_neither_result_nor_terminal(run_body, capfd):
    body = """
    print("a line of the user", flush=True)
    os.system("echo a line of a shell")
    for _ in range(20_000):
        sys.stderr.write("a warning, again and again\\n")
    return "right"
    """
    assert run_body(body) == "right"
    assert capfd.readouterr() == ("", "")


def test_an_error_of_tasuki_keeps_its_class_hint_and_exit_code(run_body):
    with pytest.raises(UsageError, match="'größe' is\nwrong") as caught:
        run_body("raise UsageError(\"'größe' is\\nwrong\", hint='write 3')")
    assert (caught.value.hint, caught.value.exit_code) == ("write 3", EXIT_USAGE)
    assert "targets.py" in caught.value.__notes__[0]  # for --debug


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"ZeroDivisionError: division by zero \(at targets.py:16\)"),
        ("return object()", "TypeError: a object cannot be sent"),
        ("sys.exit(7)", r"your code ends the process: exit\(7\) \(at targets.py:16\)"),
        ("os._exit(3)", "ended without a result, during 'starting': exit code 3"),
        ("os.write(2, b'no licence\\n'); os.abort()", "ended without a result.*: no licence"),
    ],
)
def test_a_failing_child_is_an_error_with_the_users_line(run_body, body, message):
    with pytest.raises(SubprocessError, match=message) as caught:
        run_body(body)
    assert caught.value.exit_code == EXIT_FAILED


def test_a_killed_child_may_have_had_too_little_memory(run_body):
    # In the middle of a message: its length is there, the rest is not.
    body = """
    os.write(int(sys.argv[1]), (100).to_bytes(8, "big") + b"half")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with pytest.raises(SubprocessError, match=r"ended without a result.*: exit code -9") as caught:
        run_body(body)
    assert "memory" in caught.value.hint


def test_a_module_or_interpreter_that_is_not_there_is_an_error(environment):
    with pytest.raises(SubprocessError, match="No module named 'no_such_module'"):
        run("no_such_module:f", result=int, environment=environment)
    with pytest.raises(SubprocessError, match="cannot start '/no/python': No such file"):
        run("no_such_module:f", result=int, environment=environment, python="/no/python")


def test_threads_of_the_users_code_do_not_keep_the_result_waiting(run_body):
    body = """
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 5
    """
    assert run_body(body) == 5


def test_a_child_that_hangs_is_killed(run_body):
    with pytest.raises(SubprocessTimeoutError, match=r"targets:work took longer than 0\.5 s: '"):
        run_body("time.sleep(600)", timeout_s=0.5)


def test_ctrl_c_reports_where_the_users_code_is(run_body, monkeypatch):
    monkeypatch.setattr(subprocesses, "_STACK_TIMEOUT_S", 60.0)

    def interrupt(progress: Progress) -> None:
        if progress.what == "reading":
            raise KeyboardInterrupt

    body = """
    progress(Progress("reading"))
    time.sleep(600)
    """
    with pytest.raises(
        KeyboardInterrupt, match=r"'reading' for \d+ s, in work \(targets.py:\d+\)$"
    ):
        run_body(body, progress=interrupt)


def test_a_callback_that_raises_ends_the_child(run_body):
    pids = []

    def stop(progress: Progress) -> None:
        if progress.total:
            pids.append(progress.total)
            raise ValueError("enough")

    body = """
    progress(Progress("reading", 0, os.getpid()))
    time.sleep(600)
    """
    with pytest.raises(ValueError, match="enough"):
        run_body(body, progress=stop)
    assert not _is_alive(pids[0])


def test_a_fork_of_the_child_neither_stays_nor_hides_its_end(run_body):
    fork = "fork = os.fork()\nif fork == 0: time.sleep(600)\n"
    _wait_for_end(run_body(f"{fork}return fork"))
    with pytest.raises(SubprocessError, match="ended without a result") as caught:
        run_body(f"{fork}os._exit(0)")
    assert "os._exit" in caught.value.hint


def test_the_child_and_its_forks_end_with_the_caller(tmp_path, environment):
    (tmp_path / "targets.py").write_text(
        _HEAD + "def work(progress):\n"
        "    fork = os.fork()\n"
        "    if fork == 0: time.sleep(600)\n"
        "    progress(Progress(f'{os.getpid()} {fork}'))\n"
        "    time.sleep(600)\n"
    )
    caller = (
        "from tasuki.subprocesses import run\n"
        "run('targets:work', result=int, progress=lambda p: print(p.what, flush=True))\n"
    )
    command = [sys.executable, "-c", caller]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(_is_alive, pids))
        process.kill()
    for pid in pids:
        _wait_for_end(pid)
