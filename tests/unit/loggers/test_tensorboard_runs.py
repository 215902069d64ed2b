"""What TensorBoard shows of a run is its metrics, each number once, however the run was disturbed.

The event files are read whole, frame by frame; nothing that a reader would purge is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tasuki.runs.claims import highest_claim
from tasuki.runs.events import read_events
from tasuki.runs.metrics import read_metrics
from tests.harness.faulty import armed, finish
from tests.harness.project import Project, make_project
from tests.harness.tfevents import read_file, read_folder

TRAIN = ("LR", "Loss/train", "Memory/allocated_gb", "Throughput/samples_per_sec")
STAGES = [
    {"name": "one", "data": "d", "epochs": 5},
    {"name": "two", "data": "d", "epochs": 3, "lr": 0.003},
]


WAITS = """
import pathlib

class Seen(Learner):
    # Goes on with the 9th loss of an attempt when TensorBoard's file of this attempt is there.
    def loss(self, model, batch):
        if self.calls == 8:
            folder = pathlib.Path(os.environ["TASUKI_RUN"], "tensorboard")
            mark = f"*.tasuki-{int(os.environ['TASUKI_ATTEMPT']):06d}-*"
            while not list(folder.glob(mark)):
                time.sleep(0.01)
        return super().loss(model, batch)


class Held(Seen):
    # The first two attempts stand before their 11th loss until they may go on.
    def loss(self, model, batch):
        go = os.path.join(os.environ["TASUKI_RUN"], "go" + os.environ["TASUKI_ATTEMPT"])
        while self.calls == 10 and int(go[-1]) < 3 and not os.path.exists(go):
            time.sleep(0.01)
        return super().loss(model, batch)
"""


def shown(project: Project) -> list[tuple[str, int]]:
    """(tag, step), sorted: what is there twice is here twice."""
    found = read_folder(project.run.path / "tensorboard")
    return sorted((tag, step) for tag, step, _ in found)


def expected(*steps: int, tags: tuple[str, ...] = TRAIN) -> list[tuple[str, int]]:
    return sorted(itertools.product(tags, steps))


def warnings(project: Project) -> list[str]:
    return [event["text"] for event in read_events(project.run) if event["kind"] == "warning"]


def wait_for(is_so: Callable[[], Any], why: Callable[[], Any], *, within_s: float = 60) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, why()
        time.sleep(0.01)


def wait_for_row(project: Project, step: int) -> None:
    wait_for(lambda: any(row["step"] >= step for row in read_metrics(project.run)), project.logs)


def start_and_stop(warm, project: Project, *, step: int, number: int) -> None:
    """When it is as far, and shows it."""
    started = warm.start(project.job.path)
    wait_for_row(project, step)
    wait_for(lambda: step in [at for _, at in shown_so_far(project)], project.logs)
    started.kill(number)
    (project.run.path / f"go{highest_claim(project.run)}").touch()
    assert started.wait() != 0


def shown_so_far(project: Project) -> list[tuple[str, int]]:
    """While it is written: a frame may not be whole yet, and a file be removed."""
    with contextlib.suppress(AssertionError, struct.error, FileNotFoundError):
        return shown(project)
    return []


def test_two_stages_with_validation_and_evaluation_make_one_line_of_steps(warm, tmp_path):
    more = {"validate": {"every": "2 epochs"}, "evaluate": {"data": "d", "after": "each_stage"}}
    project = make_project(
        tmp_path / "p", stages=STAGES, defaults=more, sinks={"tensorboard": None}
    )
    finish(warm, project)
    wanted = expected(*range(3, 31, 3), *(30 + step for step in range(3, 19, 3)))
    # Validated at the start, every 2 epochs of 6 steps, and at each end; the second stage's start
    # has the step of the first one's end, and is left out.
    wanted += [("Loss/val", step) for step in (0, 12, 24, 30, 42, 48)]
    wanted += [("Eval/loss", 30), ("Eval/loss", 48)]
    assert shown(project) == sorted(wanted)
    rows = {(r["stage"], r["step"]): r for r in read_metrics(project.run) if r["split"] == "train"}
    values = {(t, s): v for t, s, v in read_folder(project.run.path / "tensorboard")}
    assert values["Loss/train", 36] == pytest.approx(rows["two", 6]["loss"])
    assert values["LR", 36] == pytest.approx(rows["two", 6]["lr"])
    assert warnings(project) == []
    # A TensorBoard that runs is told to forget what it has read.
    (file,) = (project.run.path / "tensorboard").iterdir()
    first, second, *rest = read_file(file)
    assert first.file_version == "brain.Event:2"
    assert (second.session_log.status, second.step) == (second.session_log.START, 0)
    assert all(event.HasField("summary") for event in rest)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_after_a_preemption_and_after_a_kill_no_step_is_missing_or_there_twice(
    warm, tmp_path, number
):
    project = make_project(
        tmp_path / "p",
        recipe="Held",
        code=WAITS,
        stages=STAGES,
        sinks=["tensorboard"],
    )
    # The saves are at steps 7, 14, …: a kill has shown what will be void.
    for step in (9, 15):
        start_and_stop(warm, project, step=step, number=number)
    (before,) = os.listdir(project.run.path / "tensorboard")
    assert before.endswith(".tasuki-000002-001")
    finish(warm, project)
    assert shown(project) == expected(*range(3, 49, 3))
    assert len(os.listdir(project.run.path / "tensorboard")) == 1
    assert warnings(project) == []


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_stays(warm, tmp_path):
    project = make_project(tmp_path / "p", params={"pause": 0.02}, sinks=["tensorboard"])
    started = warm.start(project.job.path)
    wait_for_row(project, 3)
    for process in psutil.Process(started.pid).children():
        if "tasuki.loggers" in process.cmdline():
            process.kill()
    wait_for_row(project, 9)
    started.kill(signal.SIGTERM)
    started.wait()
    assert any("sinks are not fed any more" in text for text in warnings(project))
    folder = project.run.path / "tensorboard"
    folder.mkdir(exist_ok=True)
    torn = folder / ".tasuki-1-1.tmp"
    torn.write_bytes(b"half a frame")
    (folder / "events.out.tfevents.1.somebody").write_bytes(b"")
    finish(warm, project)
    assert shown(project) == expected(*range(3, 25, 3))
    names = sorted(os.listdir(folder))
    assert not torn.exists() and "events.out.tfevents.1.somebody" in names and len(names) == 2


def test_a_roll_back_takes_back_what_was_shown(warm, tmp_path):
    more = {"on_nan": "roll_back", "log_every": "1 steps"}
    project = make_project(
        tmp_path / "p", recipe="Seen", code=WAITS, defaults=more, sinks=["tensorboard"]
    )
    finish(warm, project, **armed({"at": "step.loss", "do": "nan", "count": 12}))
    assert [e["to_step"] for e in read_events(project.run) if e["kind"] == "rolled-back"]
    assert shown(project) == expected(*(row["step"] for row in read_metrics(project.run)))
    files = list((project.run.path / "tensorboard").iterdir())
    assert [path.name.rpartition(".")[2] for path in files] == ["tasuki-000001-002"]


@pytest.mark.long
def test_with_two_ranks_one_of_them_is_shown(warm, tmp_path):
    project = make_project(
        tmp_path / "p", ranks=2, params={"norm": "layer"}, sinks={"tensorboard": {"folder": "tb"}}
    )
    finish(warm, project)
    found = read_folder(project.folder / "tb" / "exp")
    assert sorted((tag, step) for tag, step, _ in found) == expected(*range(3, 25, 3))
    assert not (project.run.path / "tensorboard").exists()
