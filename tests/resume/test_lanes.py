"""Several lanes of one job side by side: whatever happens to one run, the others go on, and each
ends as if it had been alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.harness.packed import Packed, make_packed

from tasuki.clock import SystemClock
from tasuki.commands.cancel import cancel_run
from tasuki.commands.status import state_of
from tasuki.jobs.job import read_job
from tasuki.jobs.local import LocalBackend, LocalJob, Preemption
from tasuki.jobs.local_allocation import give_cause
from tasuki.runs.attempts import read_attempt_end, write_attempt_end
from tasuki.runs.claims import list_claims, take_claim
from tasuki.runs.control import last_said
from tasuki.runs.jobs import make_smaller, write_outcome
from tasuki.runs.values import Cause

CLOCK = SystemClock()
LONG = [{"name": "one", "data": "d", "epochs": 1000}]
"""6000 steps, which no test waits for."""


def items(*names: str, **more: object) -> list[dict]:
    return [{"run": name, **more} for name in names]


def experiment(pause: float = 0.0, **more: object) -> dict:
    """24 steps, unless asked otherwise."""
    params = {"pause": pause, "norm": "layer", **more.pop("params", {})}  # type: ignore[dict-item]
    return {"params": params, **more}


def training(seed: int, pause: float = 0.0) -> dict:
    """180 steps: with a pause there is time enough to disturb them."""
    return experiment(pause, seed=seed, stages=[{"name": "one", "data": "d", "epochs": 30}])


def preempt(packed: Packed, started) -> int:
    give_cause(packed.job, start=1, cause=Cause.PREEMPTED)
    started.kill(signal.SIGTERM)
    return started.wait()


@pytest.fixture(scope="module")
def alone(warm, tmp_path_factory):
    """The runs one by one, each by its own job."""
    folder = tmp_path_factory.mktemp("alone") / "p"
    packed = make_packed(folder, {name: training(n) for n, name in enumerate("abc")})
    for job in packed.alone.values():
        assert warm.start(job.path).wait() == 0, packed.logs()
    return packed


def test_lanes_run_side_by_side_a_notice_reaches_all_and_each_run_ends_as_if_it_were_alone(
    warm, tmp_path, alone
):
    packed = make_packed(tmp_path / "p", {name: training(n, 0.05) for n, name in enumerate("abc")})
    lanes = [([0], [*items("a", start_s=0), *items("c", start_s=9)]), ([1], items("b", start_s=0))]
    packed.pack(lanes)
    started = warm.start(packed.job.path)
    packed.wait(lambda: packed.steps("a") > 3 and packed.steps("b") > 3, "in both lanes")
    assert preempt(packed, started) == 75, packed.logs()
    assert packed.outcome()["verdict"] == "requeue"
    assert {lane["action"] for lane in packed.outcome()["lanes"]} == {"handover"}
    assert list_claims(packed.runs["c"]) == [], "it was not begun"
    for name in "ab":
        end = read_attempt_end(packed.runs[name], 1)
        assert end is not None and (end["ending"], end["cause"]) == ("handed-over", "preempted")
        assert packed.attempts(name)[0]["gpus"] == 1
    assert warm.start(packed.job.path, TASUKI_TEST_HURRY="1").wait() == 0, packed.logs()
    assert packed.outcome()["verdict"] == "end"
    assert packed.steps("a") == packed.steps("b") == 180, "steps were done twice"
    assert packed.differences(alone) == {}


def test_a_lane_that_fails_is_held_and_the_others_do_not_notice(warm, tmp_path, alone):
    packed = make_packed(
        tmp_path / "p",
        {
            "a": training(0),
            "bad": experiment(params={"fail_at": 1}),
            "lost": experiment(),
            "damaged": experiment(),
            "b": training(1),
        },
    )
    shutil.rmtree(packed.runs["lost"].path)
    packed.runs["damaged"].spec.write_text("{")
    lanes = [([0], items("a")), ([1], items("lost", "bad", "damaged", "b"))]
    packed.pack(lanes)
    assert warm.start(packed.job.path).wait() == 1, packed.logs()
    assert list_claims(packed.runs["bad"]) == [1, 2, 3]
    said = last_said(packed.runs["bad"])
    assert said is not None and said.word == "hold" and "planted failure" in said.reason
    told = {lane["run"]: lane["action"] for lane in packed.outcome()["lanes"]}
    assert told == {"a": "leave", "lost": "hold", "bad": "hold", "damaged": "hold", "b": "leave"}
    assert list_claims(packed.runs["a"]) == [1]
    for name in "ab":
        assert packed.runs[name].is_complete()
    assert packed.runs["b"].stage("one").weights.read_bytes() == (
        alone.runs["b"].stage("one").weights.read_bytes()
    )


def test_what_starts_from_a_run_that_failed_is_never_begun_and_says_why(warm, tmp_path):
    after = [{"name": "one", "data": "d", "epochs": 1, "init_from": "bad/one"}]
    packed = make_packed(
        tmp_path / "p",
        {"bad": experiment(params={"fail_at": 0}), "next": experiment(stages=after)},
    )
    packed.pack([([0], items("bad")), ([1], items("next", after=[0]))])
    assert warm.start(packed.job.path).wait() == 1, packed.logs()
    assert list_claims(packed.runs["next"]) == []
    state, reason = state_of(packed.runs["next"], now=CLOCK.wall())
    assert state == "waiting"
    assert reason.startswith(
        "stage `one` starts from `bad/one`, which is held: `tasuki resume bad`"
    )
    assert packed.outcome()["verdict"] == "end"


def test_cancel_of_one_run_ends_its_lane_alone_and_resume_takes_it_up_again(warm, here, tmp_path):
    packed = make_packed(
        tmp_path / "p", {"a": experiment(0.05, stages=LONG), "b": experiment(0.05, stages=LONG)}
    )
    packed.pack([([0], items("a")), ([1], items("b"))])
    started = warm.start(packed.job.path)
    packed.wait(lambda: packed.steps("a") > 3 and packed.steps("b") > 3, "in both lanes")
    answer = cancel_run(packed.runs["a"], clock=CLOCK, wait_s=60)
    assert (answer["state"], answer["was_live"]) == ("cancelled", True)
    end = read_attempt_end(packed.runs["a"], 1)
    assert end is not None and (end["ending"], end["cause"]) == ("handed-over", "cancelled")
    before = packed.steps("b")
    packed.wait(lambda: packed.steps("b") > before + 3, "going on")
    done = packed.steps("a")
    said = here(packed.folder, "resume", "a", "--json")
    assert json.loads(said.out) == {"format": 1, "experiment": "a", "job": packed.job.name}, said
    packed.wait(lambda: packed.steps("a") > done + 3, "going on again")
    cancel_run(packed.runs["b"], clock=CLOCK, wait_s=60)
    cancel_run(packed.runs["a"], clock=CLOCK, wait_s=60)  # alone: the job itself is told
    assert started.wait() == 75
    assert packed.outcome()["verdict"] == "end"


@pytest.mark.long
def test_a_wide_training_gives_its_gpus_back_before_it_is_evaluated(warm, tmp_path):
    evaluated = experiment(seed=0, evaluate={"data": "d"})
    packed = make_packed(tmp_path / "p", {"a": evaluated, "b": experiment()})
    trains = items("a", until="one", trains_only=True, start_s=0, seconds=60)
    evaluates = items("a", after=[0], start_s=60, seconds=60)
    packed.pack([([0, 1], trains), ([0], evaluates), ([1], items("b", start_s=60, seconds=60))])
    assert warm.start(packed.job.path).wait() == 0, packed.logs()
    assert [told["gpus"] for told in packed.attempts("a")] == [2, 1]
    assert packed.runs["a"].stage("one").evaluation.exists()
    assert [told["gpus"] for told in packed.attempts("b")] == [1]


def test_what_is_left_of_a_job_goes_on_with_as_many_gpus_as_it_can_use(warm, tmp_path):
    """Three lanes of four GPUs: two runs are done and one GPU is used when the notice comes."""
    packed = make_packed(
        tmp_path / "p",
        {"a": experiment(0.05, stages=LONG), "b": experiment(seed=1), "c": experiment(seed=2)},
    )
    packed.pack([([0, 1], items("b", cpus=4)), ([2], items("c")), ([3], items("a"))], cpus=8)
    started = warm.start(packed.job.path)
    runs = packed.runs
    packed.wait(lambda: runs["b"].is_complete() and runs["c"].is_complete(), "done, but for a")
    packed.wait(lambda: packed.steps("a") > 3, "in lane a")
    assert preempt(packed, started) == 75, packed.logs()
    threads = [json.loads(runs[name].frozen.read_text())["threads"] for name in "abc"]
    assert threads == [1, 2, 1], "each lane has its own CPUs"
    told = packed.outcome()
    assert (told["verdict"], told["gpus"], told["cpus"]) == ("successor", 1, 2)
    assert make_smaller(packed.job, gpus=told["gpus"], cpus=told["cpus"])
    order = read_job(packed.job.path)
    assert (order.gpus, order.cpus) == (1, 2)
    started = warm.start(packed.job.path)
    done = packed.steps("a")
    packed.wait(lambda: packed.steps("a") > done + 3, "going on")
    give_cause(packed.job, start=2, cause=Cause.PREEMPTED)
    started.kill(signal.SIGTERM)
    started.wait()
    assert packed.outcome()["verdict"] == "requeue", "it cannot become smaller"
    assert [len(list_claims(packed.runs[name])) for name in "abc"] == [2, 1, 1]


def test_a_supervisor_that_is_killed_brings_back_what_was_not_done_and_blames_nobody_else(
    warm, tmp_path
):
    packed = make_packed(
        tmp_path / "p",
        {"a": experiment(0.05, stages=LONG), "b": experiment(seed=1), "c": experiment(seed=2)},
    )
    packed.pack([([0], items("a")), ([1], items("b")), ([1], items("c", after=[0]))])
    failed = {"ending": "failed", "cause": "none", "has_progressed": False, "has_stepped": True}
    for _ in range(2):  # a third failure would hold it, but it only waits
        write_attempt_end(packed.runs["c"], take_claim(packed.runs["c"]), failed)
    started = warm.start(packed.job.path)
    packed.wait(packed.runs["b"].is_complete, "done, but for a")
    packed.wait(lambda: packed.steps("a") > 3, "in lane a")
    started.kill(signal.SIGKILL)
    started.wait()
    after = [sys.executable, "-m", "tasuki.jobs", str(packed.job.path), "--after"]
    assert subprocess.run(after, timeout=600, check=False).returncode == 75
    assert packed.outcome()["verdict"] == "requeue"
    end = read_attempt_end(packed.runs["a"], 1)
    assert end is not None and "died without a word" in end["message"]
    assert [last_said(run) for run in packed.runs.values()] == [None, None, None]


@pytest.mark.parametrize(("b_ended", "code"), [("done", 0), ("superseded", 75)])
def test_a_run_that_was_done_in_a_job_that_others_outlasted_is_no_unfinished_business(
    tmp_path, b_ended, code
):
    """Job 1 ends 75 as `a` goes on in job 2; `b` was done in it."""
    packed = make_packed(tmp_path / "p", {"a": experiment(), "b": experiment()})
    ends = {packed.job: 75, packed.alone["a"]: 0}
    jobs = []
    for folder, exit_code in ends.items():
        folder.path.mkdir(exist_ok=True)
        names = "ab" if folder is packed.job else "a"
        lane = {"run": "b", "action": "leave", "state": b_ended}
        lanes = [lane] if folder is packed.job else []
        write_outcome(folder, 1, {"verdict": "end", "exit_code": exit_code, "lanes": lanes})
        runs = tuple(packed.runs[name] for name in names)
        jobs.append(LocalJob(folder=folder, after=(), runs=runs, limit_s=None, grace_s=9, gpus=2))
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\nexit 0\n")
    stub.chmod(0o755)
    backend = LocalBackend(clock=CLOCK, python=str(stub), slots=4, environment=dict(os.environ))
    assert backend.run(jobs) == code


@pytest.mark.long
def test_the_local_backend_gives_back_the_slots_that_a_smaller_job_does_not_need(tmp_path):
    packed = make_packed(
        tmp_path / "p",
        {
            "a": experiment(0.05, stages=[{"name": "one", "data": "d", "epochs": 30}]),
            "b": experiment(seed=1),
            "c": experiment(seed=2),
            "d": experiment(seed=3),
        },
    )
    packed.pack([([0], items("a")), ([1], items("b")), ([2], items("c"))])
    runs, told = packed.runs, []
    backend = LocalBackend(
        clock=CLOCK,
        slots=3,
        environment=dict(os.environ),
        preemption=Preemption(
            when=lambda: (
                runs["b"].is_complete() and runs["c"].is_complete() and packed.steps("a") > 3
            )
        ),
        on_event=lambda kind, text: told.append((kind, text)),
    )
    jobs = [
        LocalJob(
            folder=folder,
            after=(),
            runs=tuple(runs[name] for name in names),
            limit_s=None,
            grace_s=30.0,
            gpus=gpus,
        )
        for folder, names, gpus in ((packed.job, "abc", 3), (packed.alone["d"], "d", 1))
    ]
    assert backend.run(jobs) == 0, packed.logs()
    assert ("job-requeued", f"job {packed.job.name} goes on with 1 of 3 GPUs") in told
    assert all(run.is_complete() for run in runs.values())
    assert packed.steps("a") == 180, "steps were done twice"
    assert packed.at("d", "attempt-started") < packed.at("a", "complete"), "slots stayed taken"
