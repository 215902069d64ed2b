"""A notice is seen whatever the main thread does, and acted upon once."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from tasuki.loop.watch import Watch
from tasuki.runs.values import Cause
from tasuki.runs.wire import Wire
from tasuki.signals import SignalPipe
from tasuki.testing import FakeClock

BEGIN = """
import ctypes, os, signal, sys, threading
from tasuki.clock import SystemClock
from tasuki.loop.watch import Watch
from tasuki.signals import NOTICES, SignalPipe
"""


def run(code: str, *, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout.strip()


def test_a_signal_is_seen_while_the_main_thread_is_in_a_c_call_that_does_not_return():
    """The call waits for a mutex that only the notice opens: seen later means seen never. Python's
    own handler is out of play, so that the pipe alone must do."""
    code = """
SignalPipe._on_signal = lambda self, number, frame: None
libc, mutex, said = ctypes.CDLL(None), ctypes.create_string_buffer(64), []
watch = Watch(None, SystemClock())
def on_notice():
    said.append("seen")
    libc.pthread_mutex_unlock(mutex)
watch.on_notice = on_notice
watch.install_handlers()
watch.hold_on()
watch.start()
libc.pthread_mutex_lock(mutex)
threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()
libc.pthread_mutex_lock(mutex)
said.append("over")
print(*said, watch.notice)
"""
    assert run(code) == "seen over interrupted"


def test_a_signal_is_seen_though_somebody_took_the_wakeup_descriptor():
    """As an event loop of asyncio does when it ends."""
    code = """
seen = threading.Event()
watch = Watch(None, SystemClock())
watch.on_notice = seen.set
watch.install_handlers()
watch.hold_on()
signal.set_wakeup_fd(-1)
watch.start()
os.kill(os.getpid(), signal.SIGUSR1)
print(seen.wait(60))
"""
    assert run(code) == "True"


def test_a_signal_just_before_the_first_step_is_seen_there_without_the_thread():
    """Else a loop of quick steps would do some of them first."""
    code = """
from tasuki.runs.values import Cause
watch = Watch(None, SystemClock())
watch.install_handlers()
os.kill(os.getpid(), signal.SIGTERM)
watch.before_leaving = lambda: (print("left", watch.notice), sys.stdout.flush(), os._exit(0))
watch.hold_on()
print("goes on")
"""
    assert run(code) == "left interrupted"


def test_what_a_forked_child_is_sent_is_no_notice_for_us_and_a_full_pipe_loses_none():
    code = """
import fcntl
pipe = SignalPipe()
pipe.install(signal.SIGCHLD)
fcntl.fcntl(pipe.reader, fcntl.F_SETPIPE_SZ, 4096)
pid = os.fork()
if pid == 0:
    for number in NOTICES:
        os.kill(os.getpid(), number)
    os._exit(0)
os.waitpid(pid, 0)
pipe.drain()
print(pipe.has_notice)
for _ in range(5000):
    os.kill(os.getpid(), signal.SIGCHLD)
os.kill(os.getpid(), signal.SIGHUP)
pipe.drain()
print(pipe.has_notice)
"""
    assert run(code).split() == ["False", "True"]


def test_signals_that_were_held_back_are_heard_and_held_back_again_at_the_end():
    """So starts a rank, and so ends a supervisor: a second must not kill it at its last word."""
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
os.kill(os.getpid(), signal.SIGTERM)
pipe = SignalPipe()
pipe.install()
pipe.drain()
print(pipe.has_notice)
pipe.restore()
for number in NOTICES:
    os.kill(os.getpid(), number)
print("alive")
"""
    assert run(code).split() == ["True", "alive"]


# -- with a clock that stands still ------------------------------------------------------------


class Line:
    """A watch between its steps, and the supervisor's end of its wire."""

    def __init__(self, **more) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.clock = FakeClock()
        self.supervisor = Wire(ours)
        self.watch = Watch(Wire(theirs), self.clock, **more)
        self.watch.step_s.extend([5.0] * 60)
        self.watch.save_s.append(0.1)
        self.watch.step_began_at = self.clock.monotonic()
        self.published: list[float | None] = []
        self.watch.publish = self.published.append
        self.watch.hold_on()

    def say(self, kind: str, **facts) -> None:
        self.supervisor.send(kind, **facts)
        self.watch.turn()

    def signal(self) -> None:
        self.watch._signals = SignalPipe()
        self.watch._signals.has_notice = True
        self.watch.turn()

    def pass_s(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.watch.turn()

    def heard(self) -> list[dict]:
        return self.supervisor.receive() or []

    def close(self) -> None:
        self.supervisor.sock.close()
        assert self.watch._wire is not None
        self.watch._wire.sock.close()


@pytest.fixture
def line():
    made = Line()
    yield made
    made.close()


def test_a_step_that_is_overdue_is_waited_for_until_the_last_moment(line):
    line.say("notice", cause="preempted", remaining_s=8.0)
    line.pass_s(7.0)
    assert line.published == []
    line.pass_s(0.5)
    assert line.published == [0.5]
    line.pass_s(0.1)
    assert line.published == [0.5]  # once


def test_when_one_rank_gives_up_its_step_the_others_do_too(line):
    line.say("notice", cause="preempted", remaining_s=30.0)
    assert line.published == []
    line.say("publish")
    assert line.published == [30.0]
    assert [message["kind"] for message in line.heard()] == ["publishing"]


def test_nothing_is_published_without_a_notice_or_once_the_loop_hands_over(line):
    line.pass_s(1000.0)
    loop = threading.Thread(target=line.watch.begin_handover)
    loop.start()
    loop.join()
    line.say("notice", cause="preempted", remaining_s=0.2)
    assert line.published == []


def test_a_loop_that_reaches_its_boundary_while_a_snapshot_is_published_waits(line):
    order = []

    def publish(_: float | None) -> None:
        loop.start()
        loop.join(0.05)
        order.append("published")

    def hand_over() -> None:
        line.watch.begin_handover()
        order.append("handed over")

    loop = threading.Thread(target=hand_over)
    line.watch.publish = publish
    line.say("notice", cause="limit", remaining_s=0.2)
    loop.join()
    assert order == ["published", "handed over"]


def test_a_snapshot_that_cannot_be_published_leaves_the_boundary_to_wait_for(line, capsys):
    def publish(_: float | None) -> None:
        raise OSError("no room")

    line.watch.publish = publish
    line.say("notice", cause="preempted", remaining_s=0.2)
    assert "no room" in capsys.readouterr().err
    line.watch.begin_handover()  # does not wait


def test_a_signal_that_comes_directly_counts_from_its_own_grace_and_is_told(line):
    line.say("deadline", remaining_s=1000.0, grace_s=9.0)
    line.signal()
    assert line.watch.notice is Cause.PREEMPTED
    assert line.watch.notice_remaining_s() == 9.0
    assert [message["kind"] for message in line.heard()] == ["signalled"]
    line.pass_s(1.0)
    assert line.heard() == []  # said once


def test_the_supervisor_knows_better_why_a_signal_came_and_when_the_end_is(line):
    line.say("deadline", remaining_s=None, grace_s=60.0)
    line.signal()
    line.say("notice", cause="limit", remaining_s=20.0)
    assert line.watch.notice is Cause.LIMIT
    assert line.watch.notice_remaining_s() == 20.0
    line.say("notice", cause="preempted", remaining_s=50.0)
    assert line.watch.notice is Cause.LIMIT  # it has said so
    assert line.watch.notice_remaining_s() == 20.0  # no notice makes the end later


def test_what_one_rank_guessed_is_mended_on_all_when_the_supervisor_is_told(line):
    line.say("notice", cause="preempted", remaining_s=20.0, is_guess=True)
    assert line.watch.notice is Cause.PREEMPTED
    line.say("notice", cause="interrupted", remaining_s=20.0)
    assert line.watch.notice is Cause.INTERRUPTED


def test_the_end_of_the_job_counts_where_it_comes_before_the_end_of_the_notice(line):
    line.say("deadline", remaining_s=10.0)
    line.say("notice", cause="preempted", remaining_s=60.0)
    assert line.watch.notice_remaining_s() == 10.0


def test_our_own_clock_gives_notice_when_a_step_and_a_save_would_not_fit_any_more(line):
    line.say("deadline", remaining_s=10.0)
    assert line.watch.notice is Cause.NONE
    line.pass_s(5.0)
    assert line.watch.notice is Cause.LIMIT


def test_every_word_of_the_loop_says_how_long_it_may_be_silent(line):
    line.watch.tell_step(3, 9, samples=24)
    line.watch.enter("validate")
    line.watch.enter("save")
    line.watch.knows_every_bucket = lambda: False
    line.watch.tell_step(4, 9, samples=32)
    told = [(m["kind"], m.get("phase"), m["limit_s"]) for m in line.heard()]
    assert told == [
        ("step", None, 600.0),
        ("phase", "validate", None),
        ("phase", "save", 600.0),
        ("step", None, None),
    ]


def test_who_is_leaving_at_a_notice_does_not_let_the_loop_complete_its_run_meanwhile():
    code = """
import time
watch, leaving = Watch(None, SystemClock()), threading.Event()
watch.before_leaving = lambda: (leaving.set(), time.sleep(0.2))
watch.install_handlers()
watch.start()
os.kill(os.getpid(), signal.SIGTERM)
leaving.wait()
watch.see_through()
print("completed", flush=True)
time.sleep(5)
"""
    assert run(code, status=75) == ""
