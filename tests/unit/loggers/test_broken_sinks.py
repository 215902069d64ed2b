"""A sink may raise, hang or take its process with it: the training is what it would have been."""

from __future__ import annotations

import json
import signal

import psutil
import pytest

from tests.harness.faulty import finish
from tests.harness.project import Project, differences, make_project
from tests.unit.loggers.test_tensorboard_runs import wait_for, wait_for_row, warnings

MINE = """
import os, time, tasuki

class Raises:
    def begin(self, run, history): pass
    def log(self, row): raise RuntimeError("planted: token=hunter2")
    def close(self): self.log(None)  # who begins late is given all rows with `begin`, and none then

class Hangs:
    def begin(self, run, history):
        open(run.path / "hangs", "w").close()
        time.sleep(1000)
    def log(self, row): pass
    def close(self): pass

class Dies:
    def __init__(self): os.abort()

class Leaves:
    def __init__(self): os._exit(0)

class Misses:
    def __init__(self): import a_client

class Loses:
    def log(self, row): pass

class Notes(tasuki.Sink):
    def __init__(self, name): self.name = name
    def begin(self, run, history):
        self.file = open(run.path / self.name, "a", buffering=1)
        self.file.write(f"begin {run.attempt} {[row.step for row in history]}\\n")
    def log(self, row): self.file.write(f"log {row.step}\\n")
    def close(self): self.file.write("close\\n"); self.file.close()
"""
LONG = [{"name": "one", "data": "d", "epochs": 9}]


def with_sinks(folder, sinks, *, pause: float = 0.02) -> Project:
    files = {"mine.py": MINE}
    return make_project(folder, files=files, stages=LONG, params={"pause": pause}, sinks=sinks)


def take_sinks_out(project: Project) -> None:
    """As when they are taken out of the spec: the next attempt has none."""
    value = json.loads(project.run.spec.read_text())
    project.run.spec.write_text(json.dumps(value | {"sinks": None}))


@pytest.fixture(scope="module")
def plain(warm, tmp_path_factory):
    """The same run without sinks."""
    project = with_sinks(tmp_path_factory.mktemp("ref") / "p", None)
    finish(warm, project)
    return project


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Leaves", "sinks are not fed any more: their process ended with 0"),
        pytest.param(
            "Misses",
            "is left alone for this attempt: no module `a_client` at mine.py:23;",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "Dies",
            "sinks are not fed any more: their process ended with -6",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "Loses",
            "`mine:Loses` has no method `begin` and no `close` (see tasuki.Sink)",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_broken_sink_does_the_run_no_harm_and_is_told_of_once(warm, tmp_path, plain, name, told):
    project = with_sinks(tmp_path / "p", [f"mine:{name}"])
    finish(warm, project)
    assert differences(plain, project) == []
    (said,) = warnings(project)
    assert told in said
    (log,) = project.run.logs.glob("*.sinks.txt")
    assert said.endswith(f"; see {log}")


def test_what_a_sink_raised_is_in_its_log_alone_and_told_once_in_all_attempts(
    warm, tmp_path, plain
):
    project = with_sinks(tmp_path / "p", ["mine:Raises"], pause=0.1)
    started = warm.start(project.job.path)
    wait_for(lambda: warnings(project), project.logs)
    started.kill(signal.SIGTERM)
    started.wait()
    finish(warm, project, TASUKI_TEST_HURRY="1")
    assert differences(plain, project) == []
    (said,) = warnings(project)
    assert "`mine:Raises` is left alone for this attempt: RuntimeError at mine.py:6;" in said
    logs = sorted(project.run.logs.glob("*.sinks.txt"))
    assert len(logs) == 2
    for log in logs:
        assert "hunter2" in log.read_text() and log.stat().st_mode & 0o777 == 0o600
    telling = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert {path for path in telling if b"hunter2" in path.read_bytes()} == set(logs)


@pytest.mark.long
def test_a_sink_that_hangs_delays_a_handover_by_seconds_at_most_and_hangs_alone(
    warm, tmp_path, plain
):
    project = with_sinks(
        tmp_path / "p", [{"mine:Notes": {"name": "notes"}}, "mine:Hangs"], pause=0.1
    )
    started = warm.start(project.job.path)
    wait_for_row(project, 3)
    wait_for((project.run.path / "hangs").exists, project.logs)
    wait_for((project.run.path / "notes").exists, project.logs)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    (said,) = warnings(project)
    assert "sinks were not closed within 3 s" in said
    lines = (project.run.path / "notes").read_text().splitlines()
    assert lines[0].startswith("begin 1 ") and lines[-1] == "close"
    take_sinks_out(project)
    finish(warm, project, TASUKI_TEST_HURRY="1")
    assert differences(plain, project) == []


def test_a_killed_supervisor_leaves_no_sink_behind_and_the_next_one_is_given_all_that_counts(
    warm, tmp_path
):
    project = with_sinks(tmp_path / "p", {"mine:Notes": {"name": "notes"}}, pause=0.1)
    notes = project.run.path / "notes"
    started = warm.start(project.job.path)
    wait_for(notes.exists, project.logs)
    wait_for_row(project, 12)
    children = psutil.Process(started.pid).children()
    beside = next(child for child in children if "tasuki.loggers" in child.cmdline())
    psutil.Process(started.pid).kill()
    started.wait()
    beside.wait(timeout=60)
    assert notes.read_text().endswith("close\n")
    finish(warm, project, TASUKI_TEST_HURRY="1")
    lines = notes.read_text().splitlines()
    second = lines[lines.index("close") + 1 :]
    assert second[0].startswith("begin 2 [3, 6, 9")
    given = [int(word) for word in second[0].partition("[")[2].rstrip("]").split(",")]
    given += [int(line.split()[1]) for line in second if line.startswith("log")]
    assert given == list(range(3, 55, 3)) and second[-1] == "close"
