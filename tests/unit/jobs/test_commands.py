"""A command is a stage like any other: told of its end in time, ended with all that it started,
resumed until it is done, and held when it fails again and again."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import Any

import pytest

from tasuki.clock import SystemClock
from tasuki.commands.extend import extend_run
from tasuki.commands.freeze import freeze_run
from tasuki.commands.status import describe_run
from tasuki.errors import EXIT_DONE, EXIT_FAILED
from tasuki.jobs import command
from tasuki.jobs.command import CommandOrder, CommandPhase, order_command, start_command
from tasuki.jobs.job import JobOrder
from tasuki.jobs.local import Preemption
from tasuki.jobs.programs import Started, start_one
from tasuki.jobs.ranks import PhaseOrder
from tasuki.runs.atomic import read_json
from tasuki.runs.attempts import read_holder
from tasuki.runs.control import last_said
from tasuki.runs.events import read_events
from tasuki.runs.jobs import JobFolder
from tasuki.runs.ledger import make_ledger
from tests.harness.commands import Commands, is_alive, make_commands

pytestmark = pytest.mark.timeout(120)
DONE, PREEMPTED, LIMIT = ("done", "none"), ("handed-over", "preempted"), ("handed-over", "limit")


def once_begun(made: Commands, attempt: int = 1) -> Preemption:
    """When that attempt's script hears signals."""
    return Preemption(when=lambda: made.has_begun(attempt))


class Thrice:
    """Preempts the first three attempts, each as soon as its script hears signals."""

    at_s = None

    def __init__(self, made: Commands) -> None:
        self._made = made

    def when(self) -> bool:
        return False

    @property
    def every_s(self) -> float | None:
        over = len(self._made.ends())
        return 0.0 if over < 3 and self._made.has_begun(over + 1) else None


@pytest.mark.long
def test_a_script_that_saves_itself_gets_through_three_preemptions_and_a_limit(tmp_path):
    # Five seconds of steps: however quick the machine, a limit of four comes before their end.
    made = make_commands(tmp_path / "p", "500", "exit=75", cluster={"time_limit": "4s"})
    told: list[str] = []
    result = made.start(Thrice(made), on_event=lambda _, text: told.append(text))  # type: ignore[arg-type]
    assert result.exit_code == EXIT_DONE, made.logs()
    assert made.ends()[:4] == [*[PREEMPTED] * 3, LIMIT] and made.ends()[-1] == DONE, made.ends()
    assert made.steps() == list(range(500)), "a step was lost or done twice"
    assert made.run.is_complete()
    assert not [text for text in told if "time limit" in text], "told by us, before the scheduler"


@pytest.mark.long
def test_preemptions_that_leave_less_time_than_a_start_takes_do_not_go_on_for_ever(tmp_path):
    made = make_commands(tmp_path / "p", script="import time; time.sleep(1.2)")
    told: list[str] = []
    result = made.start(Preemption(every_s=0.4), on_event=lambda _, text: told.append(text))
    assert result.exit_code == EXIT_DONE, made.logs()
    assert made.ends()[:3] == [PREEMPTED] * 3 and made.ends()[-1] == DONE, made.ends()
    words = [text for text in told if "before they had saved anything" in text]
    assert words[0].endswith("`--preempt-every` leaves time for start and a save")
    assert "3 attempts in a row" in words[0] and "the next has 400ms × 2" in words[0]


def test_exit_0_under_a_notice_is_not_complete_and_the_command_comes_back(tmp_path):
    made = make_commands(tmp_path / "p", "20", "stays")
    assert made.start(once_begun(made)).exit_code == EXIT_DONE
    assert made.ends() == [PREEMPTED, DONE]
    assert made.steps() == list(range(20)), "a step was lost or done twice"
    assert "without its done-marker" in made.messages()[0]
    told = re.search(r"told to stop: preempted, (.+) s", made.logs())
    assert told is not None and float(told[1]) <= 20, "the deadline is that of the notice then"


def test_with_its_done_marker_exit_0_under_a_notice_is_complete(tmp_path):
    made = make_commands(tmp_path / "p", "20", "stays", "marks")
    assert made.start(once_begun(made)).exit_code == EXIT_DONE
    assert made.ends() == [DONE] or made.ends() == [("done", "preempted")]
    assert made.run.is_complete() and len(made.steps()) < 20


def test_a_notice_between_the_done_marker_and_the_end_of_the_script_costs_no_attempt(tmp_path):
    script = """import os, time
open(os.environ["TASUKI_DONE"], "w").close()
open("began.1", "w").close()
time.sleep(60)
"""
    made = make_commands(tmp_path / "p", script=script)
    assert made.start(once_begun(made)).exit_code == EXIT_DONE
    assert made.ends() == [DONE] and made.run.is_complete()


DEAF = """
import os, signal, subprocess, sys, time

if os.environ["TASUKI_ATTEMPT"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (0, 1):
        child = subprocess.Popen(["sleep", "600"], start_new_session=bool(number))
        open(f"child.{number}", "w").write(str(child.pid))
    open("began.1", "w").write(str(os.getpid()))
    time.sleep(600)
"""


def test_a_script_that_ignores_its_notice_is_killed_with_all_that_it_started(tmp_path):
    made = make_commands(tmp_path / "p", script=DEAF, cluster={"grace": "1s"})
    assert made.start(once_begun(made)).exit_code == EXIT_DONE, made.logs()
    assert made.ends() == [("failed", "preempted"), DONE]
    assert "because the notice was over: it did not end within" in made.messages()[0]
    assert not any(is_alive(made.pid(name)) for name in ("child.0", "child.1", "began.1"))


def test_what_a_command_leaves_behind_ends_with_it(tmp_path):
    made = make_commands(tmp_path / "p", "3", "leaves")
    assert made.start().exit_code == EXIT_DONE
    assert made.ends() == [DONE]
    assert not is_alive(made.pid("child.0")), "of its own process group"
    assert not is_alive(made.pid("child.1")), "one that had left it, as torchrun's workers do"


FORKS = """
import multiprocessing, os, signal, sys, time

if os.environ["TASUKI_ATTEMPT"] == "1":
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=time.sleep, args=(600,), daemon=True)
    worker.start()
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    open("began.1", "w").write("x")
    while not heard:
        time.sleep(0.01)
    time.sleep(0.3)
    open("worker", "w").write(str(worker.is_alive()))
    worker.kill()
    sys.exit(75)
"""


def test_a_notice_leaves_workers_of_a_data_loader_to_whoever_forked_them(tmp_path):
    made = make_commands(tmp_path / "p", script=FORKS)
    assert made.start(once_begun(made)).exit_code == EXIT_DONE
    assert (made.folder / "worker").read_text() == "True"


EXTENDED = """
import os, time

def ends():
    return float(open(os.environ["TASUKI_DEADLINE"]).read())

first = ends()
assert first - time.time() < 3600, first
open("began.1", "w").write("x")
while ends() < first + 3000:
    time.sleep(0.02)
"""


def test_the_deadline_of_a_running_command_follows_an_extension(tmp_path):
    made = make_commands(tmp_path / "p", script=EXTENDED, cluster={"time_limit": "1h"})
    extended = []

    def extend() -> None:
        if made.has_begun() and not extended:
            extended.append(extend_run(made.run, "+1h", clock=SystemClock()))

    assert made.start(on_tick=extend).exit_code == EXIT_DONE, made.logs()
    assert made.ends() == [DONE]


def test_a_command_that_fails_thrice_is_held_and_says_what_it_said_last(tmp_path):
    made = make_commands(tmp_path / "p", script="raise SystemExit('the data are not there')")
    assert made.start().exit_code == EXIT_FAILED
    said = last_said(made.run)
    assert said is not None and said.word == "hold"
    assert said.reason.startswith("3 attempts in a row failed")
    assert "exit code 1: the data are not there" in said.reason
    assert f"tasuki logs {made.run.name} --err" in said.hint


@pytest.mark.long
def test_a_command_that_somebody_kills_has_failed_and_is_tried_again(tmp_path):
    script = (
        "import os, signal\nif os.environ['TASUKI_ATTEMPT'] == '1': os.kill(os.getpid(), "
        "signal.SIGKILL)"
    )
    made = make_commands(tmp_path / "p", script=script)
    assert made.start().exit_code == EXIT_DONE
    assert made.ends() == [("failed", "none"), DONE]
    assert "was killed by SIGKILL without a word" in made.messages()[0]


def test_exit_75_without_a_notice_begins_anew(tmp_path):
    script = "import os, sys\nsys.exit(75 if int(os.environ['TASUKI_ATTEMPT']) < 3 else 0)"
    made = make_commands(tmp_path / "p", script=script)
    assert made.start().exit_code == EXIT_DONE
    assert made.ends() == [("handed-over", "none")] * 2 + [DONE]


@pytest.mark.long
def test_exit_75_soon_after_the_start_is_no_endless_loop(tmp_path):
    again = make_commands(tmp_path / "q", script="raise SystemExit(75)")
    assert again.start().exit_code == EXIT_FAILED
    said = last_said(again.run)
    assert said is not None and said.reason.startswith("3 attempts in a row asked to be resumed")


def test_a_program_that_is_gone_when_its_job_starts_fails_at_once(tmp_path):
    made = make_commands(tmp_path / "p")
    made.value["experiments"]["exp"]["command"] = ["./tool"]
    tool = made.folder / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    result = made.start(on_plan=lambda _: tool.unlink())
    assert result.exit_code == EXIT_FAILED
    said = last_said(made.run)
    assert said is not None and said.word == "fail"
    assert "`./tool` cannot be started" in said.reason
    tool.write_text("#!/bin/sh\ntouch ran\n")
    tool.chmod(0o755)
    made.value["experiments"]["exp"]["command"] = ["./tool", "now"]
    assert made.start().exit_code == EXIT_DONE, "nothing was begun: the spec may change"
    assert (made.folder / "ran").exists(), "it runs in the spec's folder"


def test_what_a_dead_supervisor_left_is_ended_before_the_command_starts_again(tmp_path):
    script = (
        "import os, time\nnow = os.environ['TASUKI_ATTEMPT']\n"
        "open(f'began.{now}', 'w').write(str(os.getpid()))\n"
        "if now == '1': time.sleep(600)\n"
        "there = f\"/proc/{open('began.1').read()}/stat\"\n"
        "state = open(there).read() if os.path.exists(there) else ') X'\n"
        "open('left', 'w').write(state.rpartition(')')[2].split()[0])\n"
    )
    made = make_commands(tmp_path / "p", script=script)
    killed = []

    def kill_supervisor() -> None:
        if made.has_begun() and (made.folder / "began.1").stat().st_size and not killed:
            holder = read_holder(made.run, 1)
            assert holder is not None
            killed.append(made.pid("began.1"))
            os.kill(holder.pid, signal.SIGKILL)

    assert made.start(on_tick=kill_supervisor).exit_code == EXIT_DONE, made.logs()
    assert killed and not is_alive(killed[0])
    assert (made.folder / "left").read_text() in "XZ", "two of them worked at once"


def test_a_stage_that_is_a_command_leaves_results_history_and_a_ledger_that_adds_up(tmp_path):
    script = (
        "import json, os, sys\nfrom pathlib import Path\n"
        "Path(sys.argv[1]).write_text('x')\n"
        "json.dump({'loss': 0.25, 'odd': [1]}, open(os.environ['TASUKI_METRICS'], 'w'))\n"
    )
    stage = {"evaluate": {"command": ["python", "train.py", "evaluated"]}}
    made = make_commands(tmp_path / "p", "trained", script=script, stage=stage)
    assert made.plan().jobs[0].expected_s is None
    assert made.start().exit_code == EXIT_DONE, made.logs()
    assert (made.folder / "trained").exists() and (made.folder / "evaluated").exists()
    results = read_json(made.run.final_results)
    assert (results["weights"], results["metrics"]) == (None, {"loss": 0.25})
    brief = read_json(made.run.final_metrics)["stages"]["train"]
    assert brief["last"] == {"loss": 0.25} and brief["command"][1] == "train.py"
    events = read_events(made.run)
    assert any(e["text"].endswith("left out: odd") for e in events if e["kind"] == "warning")
    ledger = make_ledger(events)
    assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert ledger.parts["step"] > 0 and ledger.parts["evaluate"] > 0
    planned = made.plan(is_new=True).jobs[0]
    trained, evaluated = planned.lanes[0].stages
    assert trained.source == "history" and trained.expected_s == pytest.approx(brief["wall_s"])
    assert evaluated.expected_s is not None and evaluated.expected_s > 0
    made.value["experiments"]["exp"]["expect"] = {"wall": "2h"}
    assert made.plan(is_new=True).jobs[0].lanes[0].stages[0].expected_s == 7200


def test_commands_packed_into_one_job_run_side_by_side_and_one_failure_ends_no_other(
    tmp_path, monkeypatch
):
    script = (
        "import os, sys, time\nfrom pathlib import Path\nme, other = sys.argv[1:]\n"
        "Path(me).touch()\nprint('threads', os.environ.get('OMP_NUM_THREADS'))\n"
        "while not Path(other).exists(): time.sleep(0.01)\n"
        "sys.exit(3 if me == 'b' else 0)\n"
    )
    two = {
        name: {"command": ["python", "train.py", name, other], "gpus": 1, "expect": {"wall": "9s"}}
        for name, other in (("a", "b"), ("b", "a"))
    }
    cluster = {"gpus": 2, "cpus": 4}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = make_commands(tmp_path / "p", script=script, experiments=two, cluster=cluster)
    [job] = made.plan().jobs
    assert len(job.lanes) == 2
    assert made.start().exit_code == EXIT_FAILED
    [log] = made.run_folder("a").logs.glob("*.log")
    assert "threads 2" in log.read_text(), "more than the lane's share of the CPUs"
    assert made.run_folder("a").is_complete() and not made.run_folder("b").is_complete()
    said = last_said(made.run_folder("b"))
    assert said is not None and said.word == "hold" and "exit code 3" in said.reason


def start_directly(made: Commands, *, ends_at: float | None = None, **more: Any) -> CommandPhase:
    """Attempt 9, without a supervisor."""
    freeze_run(made.run, made.request().experiments[0], made.request().spec, SystemClock())
    job = JobOrder(
        folder=JobFolder(made.folder / "job"),
        python=sys.executable,
        cwd=made.folder,
        backend="local",
        limit_s=None,
        grace_s=5.0,
        requeue=True,
        lanes=(),
        device="cuda",
    )
    phase = PhaseOrder(run=made.run, claim=9, kind="train", stage="train", number=1, world=2)
    words = ("python", "train.py")
    order = order_command(phase, words, job, gpus=(0, 2), ends_at=ends_at)
    environment = {**os.environ, **more}
    return start_command(order, job, clock=SystemClock(), environment=environment)


def test_a_command_sees_all_gpus_of_its_lane_and_none_of_the_others(tmp_path):
    script = "import os\nown = os.getpgrp() == os.getpid()\n"
    script += "print(os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd(), own)"
    made = make_commands(tmp_path / "p", script=script)
    gpus = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c", "TASUKI_SET": "lr=1"}
    started = start_directly(made, **gpus)
    while not started.has_ended:
        started.reap(SystemClock.monotonic())
    log = made.run.logs / "job.9.log"
    assert log.read_text().splitlines()[-1] == f"GPU-a,GPU-c {made.folder} True"


def test_the_deadline_of_a_command_is_there_before_its_first_line(tmp_path, monkeypatch):
    made = make_commands(tmp_path / "p", script="")
    seen = []

    def look_then_start(order: CommandOrder, *rest: Any) -> Started:
        seen.append(order.folder.deadline.read_text())
        return start_one(order, *rest)

    monkeypatch.setattr(command, "start_one", look_then_start)
    for ends_at in (SystemClock.monotonic() + 500, None):
        started = start_directly(made, ends_at=ends_at)
        while not started.has_ended:
            started.reap(SystemClock.monotonic())
    assert 400 < float(seen[0]) - SystemClock.wall() <= 500 and seen[1] == "never\n"


def test_what_a_command_is_given_as_a_secret_is_neither_logged_nor_told(tmp_path):
    words = ["python", "train.py", "3", "--password=hunter2hunter2", "--api-key", "sk-1234567890"]
    made = make_commands(tmp_path / "p", experiments={"a": {"command": words}})
    assert made.start().exit_code == 0
    run = made.run_folder("a")
    told = json.dumps(describe_run(run, now=SystemClock.wall()))
    logs = "".join(path.read_text() for path in run.logs.iterdir())
    assert "Starting stage" in logs and "(not shown)" in told
    for secret in ("hunter2hunter2", "sk-1234567890"):
        assert secret not in told and secret not in logs
