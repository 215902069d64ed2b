"""What `tasuki watch` knows of a run from one look to the next, and how much it reads for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tasuki.actions.watch as watching
from tasuki.actions.queued import Known, RunsJob
from tasuki.actions.watch import Watch, Watched
from tasuki.scheduler.slurm.text import QueuedJob
from tasuki.store.jobs import job_folder
from tasuki.testing import FakeClock
from tests.harness.written import WrittenRun

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
