"""A line every half minute about what a lane uses; nothing that goes wrong with it ends a job."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasuki.jobs.figures import EVERY_S, Figures, lane_figures, own_gpus
from tasuki.jobs.job import read_job
from tasuki.jobs.phase import Launch, Phase, Rank, make_wires
from tasuki.jobs.pulse import state_of
from tasuki.runs.events import EventLog, read_events
from tasuki.runs.machine import Gpu, GpuAnswer
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock
from tests.harness.project import make_project
from tests.unit.jobs.supervised import supervise
from tests.unit.runs.fake_nvml import Card, FakeNvml

GIB = 1 << 30
WITHIN_S = 60.0
BURN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


@dataclass
class Stand:
    """A phase of one real process, a log, events, and a clock that the test moves."""

    run: RunFolder
    figures: Figures
    log: Path
    clock: FakeClock = field(default_factory=FakeClock)
    ends: list[Callable[[], Any]] = field(default_factory=list)
    phase: Phase | None = None

    def __post_init__(self) -> None:
        self.events = EventLog(self.run, claim=1, node=0, who="supervisor", clock=self.clock)
        self.log.parent.mkdir(parents=True)
        self.log.write_text("Hello\n")

    def begin_phase(self, code: str = SLEEP, *, kind: str = "train") -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code])
        wire, theirs = make_wires()
        self.ends += [process.kill, process.wait, wire.sock.close, theirs.close]
        self.phase = Phase(kind, "one", [Rank(0, process, wire, log=self.log)])
        self.look()
        return process

    def look(self, after_s: float = 0.0) -> None:
        self.clock.sleep(after_s)
        self.figures.look(self.clock.monotonic(), phase=self.phase, events=self.events)

    def say(self, samples: int, *, at: float) -> None:
        assert self.phase is not None
        message = {"kind": "step", "step": 1, "total": 9, "samples": samples, "at": at}
        self.phase.on_message(message, self.phase.ranks[0])
        self.look()

    def lines(self) -> list[str]:
        return [text for text in self.log.read_text().splitlines() if "[GPU Stats]" in text]

    def told(self) -> list[dict[str, Any]]:
        return [event for event in read_events(self.run) if event["kind"] == "machine"]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Callable[..., Stand]]:
    made: list[Stand] = []

    def make(gpus: tuple[str, ...] = (), **more: Any) -> Stand:
        run = RunFolder(tmp_path / "exp")
        made.append(Stand(run, Figures(gpus, **more), run.logs / "job.1.log"))
        return made[-1]

    yield make
    for one in made:
        for end in one.ends:
            end()
        one.events.close()


def until(is_true: Callable[[], Any]) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < end


def test_there_is_a_line_after_every_half_minute_and_none_before(stand):
    one = stand()
    one.begin_phase()
    for _ in range(119):
        one.look(0.25)
    assert one.lines() == [] and one.told() == []
    for _ in range(3 * 120 + 1):
        one.look(0.25)
    assert len(one.lines()) == len(one.told()) == 4
    at = [event["t"] for event in one.told()]
    assert [later - before for before, later in itertools.pairwise(at)] == [30.0] * 3
    assert one.log.read_text().startswith("Hello\n[GPU Stats] no GPU | Samples/sec: - | CPU: ")
    for _ in range(3):  # one that was stopped for an hour writes one line and no flood
        one.look(3600.0)
        one.look(0.25)
        one.look(2.0)
    assert len(one.lines()) == 7


def test_the_cpu_of_a_process_that_burns_one_core_is_about_its_share_of_the_window(stand):
    one = stand()
    process = one.begin_phase(BURN)
    burn(process.pid, 0.2)
    one.look(30.0)
    before = one.told()[-1]
    assert 0.2 <= before["cpu_percent"] / 100 * 30 < WITHIN_S
    burn(process.pid, cpu_s(process.pid) + 0.1)
    one.look(30.0)
    # The second window has only what came after the first: what was burnt before is not told again.
    both = sum(event["cpu_percent"] / 100 * 30 for event in one.told())
    assert both == pytest.approx(cpu_s(process.pid), abs=0.03)
    assert before["processes"] == 1 and before["host_bytes"] > before["rss_bytes"] > 1 << 20


def burn(pid: int, seconds: float) -> None:
    """Until it has used so much; it stands still afterwards."""
    os.kill(pid, signal.SIGCONT)
    until(lambda: cpu_s(pid) > seconds)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_samples_per_second_are_those_between_two_lines_by_the_ranks_own_clock(stand):
    one = stand()
    one.begin_phase()
    one.say(800, at=7.0)  # a resumed stage: these were used by an earlier attempt
    one.say(1000, at=17.0)
    one.say(1200, at=27.0)
    one.look(30.0)
    assert "| Samples/sec: 20 |" in one.lines()[-1]
    one.say(1500, at=57.0)
    one.look(30.0)
    assert "| Samples/sec: 10 |" in one.lines()[-1]
    one.look(30.0)  # a step longer than the interval: nothing new is known
    assert "| Samples/sec: - |" in one.lines()[-1]
    one.say(1800, at=117.0)
    one.look(30.0)
    assert "| Samples/sec: 5 |" in one.lines()[-1]
    one.say(1700, at=147.0)  # rolled back
    one.look(30.0)
    assert "| Samples/sec: - |" in one.lines()[-1]
    assert [event["samples_per_sec"] for event in one.told()] == [20.0, 10.0, None, 5.0, None]


def test_lines_keep_their_rhythm_over_phases_and_rates_never_mix_two(stand):
    one = stand()
    one.begin_phase()
    one.say(0, at=1.0)
    one.say(500, at=11.0)
    one.look(20.0)
    one.phase = None
    one.look(5.0)
    one.begin_phase(kind="evaluate")
    one.look(5.0)
    (event,) = one.told()
    assert (event["phase"], event["samples_per_sec"], event["window_s"]) == ("evaluate", None, 5.0)
    one.begin_phase()
    one.look(29.5)
    one.begin_phase()
    one.look(0.5)
    assert len(one.lines()) == 1  # a phase half a second old has no rates yet
    one.look(0.5)
    assert len(one.lines()) == 2


def test_gpus_are_told_with_their_sums_and_an_answer_that_comes_late_is_waited_for(stand):
    may_answer = threading.Event()
    gpus = tuple(Gpu(used_bytes=20 * GIB, total_bytes=80 * GIB, util=u) for u in (90.0, 70.0))

    def ask() -> GpuAnswer:
        may_answer.wait(WITHIN_S)
        return GpuAnswer(gpus=gpus)

    one = stand(("0", "1"), ask=ask)
    one.begin_phase()
    one.look(30.0)
    one.look(1.0)
    assert one.lines() == []
    may_answer.set()
    until(lambda: one.look() or one.lines())
    (line,) = one.lines()
    assert line.startswith("[GPU Stats] Memory: 40.0/160GB | Util: 80% | Samples/sec: - | CPU: ")
    assert [gpu["util"] for gpu in one.told()[0]["gpus"]] == [90.0, 70.0]
    assert one.figures.failures == 0


def test_a_driver_that_never_answers_costs_its_figures_only_and_is_not_asked_twice(stand):
    may_answer, asked = threading.Event(), []

    def ask() -> GpuAnswer:
        asked.append(1)
        may_answer.wait(WITHIN_S)
        return GpuAnswer(problem=f"answer {len(asked)}")

    one = stand(("0",), ask=ask)
    one.begin_phase()
    one.look(30.0)
    one.look(2.0)
    one.look(30.0)
    assert len(asked) == 1
    assert [line.partition(" | ")[0] for line in one.lines()] == [
        "[GPU Stats] GPU unknown (no answer from the driver)"
    ] * 2
    assert [event["failures"] for event in one.told()] == [1, 2]
    may_answer.set()
    assert one.figures._question is not None
    one.figures._question.join(WITHIN_S)
    one.clock.sleep(30.0)
    until(lambda: one.look() or len(one.lines()) == 3)
    assert "GPU unknown (answer 2)" in one.lines()[-1]  # asked anew: the old answer is stale


def test_whatever_fails_is_counted_and_the_next_line_comes(stand):
    def ask() -> GpuAnswer:
        raise RuntimeError("a bug of ours")

    one = stand(("0",), ask=ask)
    threading.excepthook, before = (lambda _: None), threading.excepthook
    try:
        process = one.begin_phase()
        one.clock.sleep(30.0)
        until(lambda: one.look() or one.lines())
        process.kill()
        process.wait()
        one.clock.sleep(30.0)
        until(lambda: one.look() or len(one.lines()) == 2)
        assert one.told()[-1]["processes"] == 0 and one.told()[-1]["cpu_percent"] == 0.0
        one.log.unlink()
        one.clock.sleep(30.0)
        until(lambda: one.look() or len(one.told()) == 3)
        one.look(1.0)
        assert not one.log.exists() and one.figures.failures == 4
    finally:
        threading.excepthook = before


@pytest.mark.parametrize(
    ("visible", "gpus", "own"),
    [
        ("0,1,2,3", [2, 3], ["2", "3"]),
        ("4,6", [0, 1], ["4", "6"]),
        ("GPU-a,GPU-b", [1], ["GPU-b"]),
        (None, [0, 1], ["0", "1"]),
        ("7", [0, 1], ["7"]),  # ranks beyond the list share what there is, and so do the figures
    ],
)
def test_a_lane_tells_of_its_own_gpus_only(visible, gpus, own):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert own_gpus(environment, device="cuda", gpus=gpus) == own
    assert own_gpus(environment, device="cpu", gpus=gpus) == []


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "nan"])
def test_an_interval_that_means_nothing_is_the_usual_one(text):
    made = lane_figures({"TASUKI_STATS_EVERY_S": text}, device="cpu", gpus=[0])
    assert made._every_s == EVERY_S


RANK = """
import json, os, sys, time
fd, samples = int(sys.argv[1]), 0
def say(kind, **facts):
    os.write(fd, json.dumps({"kind": kind, **facts}).encode() + b"\\n")
while "[GPU Stats]" not in open(sys.argv[2]).read():
    say("step", step=1, total=9, samples=samples, at=samples / 100, limit_s=None)
    samples += 16
    time.sleep(0.02)
say("saved", checkpoint="c", is_start=False)
say("done", ending="handed-over", cause="preempted")
sys.exit(75)
"""


def start_rank(launch: Launch) -> subprocess.Popen[bytes]:
    """One that says what ranks say until the line is in its log: 100 samples a second, by its own
    clock."""
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    launch.log.touch()
    command = [sys.executable, "-c", RANK, str(launch.fd), str(launch.log)]
    return subprocess.Popen(command, pass_fds=[launch.fd])


def test_the_lane_s_own_gpu_is_in_the_log_of_a_job_that_has_several(tmp_path, monkeypatch):
    project = make_project(tmp_path / "p")
    value = json.loads(project.job.lanes.read_text())
    value["device"], value["lanes"][0]["gpus"] = "cuda", [1]
    project.job.lanes.write_text(json.dumps(value))
    cards = [
        Card(f"GPU-{name}", used=n * GIB, total=80 * GIB, util=n)
        for n, name in ((9, "a"), (45, "b"))
    ]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(cards))
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "TASUKI_STATS_EVERY_S": "0.3"}
    assert supervise(read_job(project.job.path), start_rank, **environment) == 75
    lines = (project.run.logs / f"{project.job.name}.1.log").read_text().splitlines()
    assert lines[0].startswith(
        "[GPU Stats] Memory: 45.0/80GB | Util: 45% | Samples/sec: 100 | CPU: "
    )


LINE = re.compile(
    r"\[GPU Stats\] no GPU \| Samples/sec: (\S+) \| CPU: (\d+)% \| Host: \d+\.\d/\d+GB"
)


def test_a_run_has_the_lines_in_its_log_with_its_samples_per_second(warm, tmp_path):
    stages = [{"name": "one", "data": "d", "epochs": 12}]
    project = make_project(tmp_path / "p", params={"pause": 0.05}, stages=stages)
    status = warm.start(project.job.path, TASUKI_STATS_EVERY_S="0.5").wait()
    assert status == 0, project.logs()
    log = project.run.logs / f"{project.job.name}.1.log"
    found = [LINE.fullmatch(text) for text in log.read_text().splitlines() if "[GPU" in text]
    assert len(found) >= 3 and all(found), project.logs()
    # A step has 8 samples and takes more than the pause; ranks tell about once a second.
    rates = [float(match[1]) for match in found if match and match[1] != "-"]
    assert rates and all(0 < rate < 8 / 0.05 for rate in rates)
    told = [event for event in read_events(project.run) if event["kind"] == "machine"]
    assert len(told) == len(found) and all(event["processes"] >= 1 for event in told)
    assert {event["failures"] for event in told} == {0}
