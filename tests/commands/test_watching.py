"""What `tasuki watch` knows of a run from one look to the next, and how much it reads for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tasuki.commands.watch as watching
from tasuki.commands.queued import Known, RunsJob
from tasuki.commands.status import describe_run
from tasuki.commands.watch import Watch, Watched
from tasuki.runs.jobs import job_folder
from tasuki.slurm.text import QueuedJob
from tasuki.testing import FakeClock
from tasuki.views.watch import Window, draw_page
from tests.harness.written import WrittenRun

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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def written(tmp_path, clock, monkeypatch) -> WrittenRun:
    monkeypatch.chdir(tmp_path)
    return WrittenRun(tmp_path / "runs", clock)


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


def test_a_start_that_is_over_is_not_told_until_the_next_longer_look(written, clock):
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    one = Watched(written.run, clock)
    one.look(None)
    assert "starting: importing" in page_of(one)
    clock.sleep(1.0)
    written.tell("progress", who="rank0", stage="train", step=1, total_steps=320, loss=0.5)
    one.look(None)
    assert "1/320" in page_of(one) and "starting" not in page_of(one)


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


def test_the_loss_of_a_validation_is_not_taken_for_that_of_training_where_the_end_alone_is_read(
    written, clock, monkeypatch
):
    monkeypatch.setattr(watching, "_FEW_BYTES", 0)
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    written.tell("progress", who="rank0", stage="train", step=1, total_steps=9, loss=None)
    for step in range(1, 6):
        written.log(step, loss=0.25)
    written.log(5, split="val", loss=777.0)
    one = Watched(written.run, clock)
    one.look(None)
    assert 777.0 not in one.losses() and one.value["loss"] == 0.25


def test_lines_of_an_earlier_attempt_make_no_step_of_the_one_that_goes_on_behind_them(
    written, clock
):
    written.begin(job="j")
    for step in range(1, 481):
        written.log(step, loss=1 / step)
    written.end()
    written.begin(job="j")
    written.tell("worker-started", stage="train", phase="train")
    written.tell("progress", who="rank0", stage="train", step=400, total_steps=960, loss=0.5)
    one = Watched(written.run, clock)
    one.look(None)
    assert "400/960" in page_of(one) and one.value["loss"] == 0.5
