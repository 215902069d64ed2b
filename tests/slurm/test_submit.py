"""Each job of a plan is submitted once, whatever gets lost on the way."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tasuki.clock import SystemClock
from tasuki.slurm.client import Answer, Slurm, SlurmSilent
from tasuki.slurm.script import SlurmJob
from tasuki.slurm.submit import Order, linked_with, submit_jobs, write_order
from tasuki.testing import FakeClock

USER = str(os.getuid())


def make_jobs(folder: Path, after: dict[str, tuple[str, ...]], **more) -> list[Order]:
    made = []
    for name, before in after.items():
        (folder / name).mkdir(parents=True)
        command = ("sleep", "600")
        job = SlurmJob(name=name, folder=folder / name, command=command, after=before, limit_s=60)
        made.append(write_order(replace(job, **more)))
    return made


class Losing:
    """A controller that does what it is told, and whose answers to some requests get lost."""

    def __init__(self, *, lost: tuple[int, ...] = (), deaf: tuple[int, ...] = ()) -> None:
        self.jobs: list[tuple[str, list[str]]] = []
        self.requests, self.lost, self.deaf = 0, lost, deaf

    def __call__(self, command, environment, within_s):
        if command[0] == "squeue":
            comments = [option.partition("=")[2] for _, words in self.jobs for option in words[2:3]]
            lines = [f"{100 + n}|PENDING|None|low|N/A|N/A|{c}" for n, c in enumerate(comments)]
            return Answer(0, "\n".join(lines) + "\n", "")
        self.requests += 1
        if self.requests not in self.deaf:
            self.jobs.append((str(100 + len(self.jobs)), list(command[1:])))
        if self.requests in self.lost + self.deaf:
            raise TimeoutError("late")
        return Answer(0, f"{self.jobs[-1][0]};cluster\n", "")


def submit(controller: Losing, jobs: list[Order]) -> dict[str, str]:
    clock = FakeClock()
    slurm = Slurm(environment={}, clock=clock, run=controller)
    return submit_jobs(slurm, jobs, user=USER, clock=clock)


CHAIN = {"p-01": (), "p-02": ("p-01",), "p-03": ("p-01", "p-02")}


def test_jobs_wait_for_those_before_them_by_their_numbers(tmp_path):
    controller = Losing()
    numbers = submit(controller, make_jobs(tmp_path, CHAIN))
    assert numbers == {"p-01": "100", "p-02": "101", "p-03": "102"}
    told = [[w for w in words if "dependency" in w] for _, words in controller.jobs]
    assert told == [[], ["--dependency=afterany:100"], ["--dependency=afterany:100:101"]]


def test_an_answer_that_is_lost_is_found_in_the_queue_and_nothing_submitted_twice(tmp_path):
    controller = Losing(lost=(2,))
    numbers = submit(controller, make_jobs(tmp_path, CHAIN))
    assert list(numbers.values()) == ["100", "101", "102"] and len(controller.jobs) == 3


def test_a_request_that_was_not_heard_is_said_and_the_next_try_goes_on_from_there(tmp_path):
    controller = Losing(deaf=(2,))
    jobs = make_jobs(tmp_path, CHAIN)
    with pytest.raises(SlurmSilent):
        submit(controller, jobs)
    numbers = submit(controller, jobs)
    assert list(numbers.values()) == ["100", "101", "102"] and len(controller.jobs) == 3


def test_who_was_killed_before_it_could_write_the_number_finds_its_job_again(tmp_path):
    controller = Losing()
    jobs = make_jobs(tmp_path, CHAIN)
    submit(controller, jobs)
    (tmp_path / "p-02" / "slurm.json").unlink()
    assert submit(controller, jobs)["p-02"] == "101"
    assert len(controller.jobs) == 3


@pytest.mark.parametrize(
    ("queued", "linked"),
    [
        ([], ""),
        (["a-1"], "a-1 a-2 a-3"),
        (["a-3"], "a-1 a-2 a-3"),
        (["b-1"], "b-1"),
        (["of another plan"], ""),
    ],
)
def test_jobs_that_wait_for_each_other_belong_together(tmp_path, queued, linked):
    after = {"a-1": (), "b-1": (), "a-2": ("a-1",), "a-3": ("a-2",)}
    orders = make_jobs(tmp_path, after)
    assert linked_with(queued, orders) & after.keys() == set(linked.split())


@pytest.mark.long
def test_on_a_real_cluster_a_plan_of_fifty_jobs_has_the_graph_it_should_have(cluster, tmp_path):
    after: dict[str, tuple[str, ...]] = {}
    for number in range(50):
        before = [f"q-{n:02d}" for n in (number - 1, number - 7) if n >= 0]
        after[f"q-{number:02d}"] = tuple(before)
    jobs = make_jobs(tmp_path, after, extra={"hold": True})
    slurm = Slurm(environment=cluster.environment, clock=SystemClock())
    numbers = submit_jobs(slurm, jobs, user=USER, clock=SystemClock())
    again = submit_jobs(slurm, jobs, user=USER, clock=SystemClock())
    told = cluster.run("squeue", "-h", "-o", "%i|%E", "-n", ",".join(after))
    cluster.run("scancel", *numbers.values())
    assert again == numbers and len(set(numbers.values())) == 50
    found = dict(line.split("|") for line in told.splitlines())
    for name, before in after.items():
        wanted = {f"afterany:{numbers[one]}(unfulfilled)" for one in before}
        assert set(found[numbers[name]].split(",")) == (wanted or {"(null)"})
