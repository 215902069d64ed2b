"""What becomes of a run whose attempts fail: the rules of relay, with real processes."""

from __future__ import annotations

import json
import signal
import time

import pytest
from tests.harness.project import differences, make_project

from tasuki.runs.atomic import read_json
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    project = make_project(tmp_path_factory.mktemp("ref") / "p")
    assert warm.start(project.job.path).wait() == 0, project.logs()
    return project


@pytest.mark.parametrize("step", [0, 7])
def test_a_run_that_always_fails_is_held_after_exactly_three_attempts(warm, tmp_path, step):
    project = make_project(
        tmp_path / "p", params={"fail_at": step}, defaults={"save": {"every": "100 steps"}}
    )
    assert warm.start(project.job.path).wait() == 1
    assert list_claims(project.run) == [1, 2, 3]
    said = last_said(project.run)
    assert said is not None and said.word == "hold"
    assert f"planted failure in call {step + 1}" in said.reason
    # Held means held: another start does nothing.
    assert warm.start(project.job.path).wait() == 1
    assert list_claims(project.run) == [1, 2, 3]


def test_a_failure_that_goes_away_costs_nothing_but_time(warm, tmp_path, undisturbed):
    trap = tmp_path / "trap"
    trap.touch()
    project = make_project(tmp_path / "p", params={"fail_at": 9, "fail_file": str(trap)})
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not list_claims(project.run)[1:]:
        assert time.monotonic() < until, project.logs()
        time.sleep(0.005)
    trap.unlink()
    assert started.wait() == 0, project.logs()
    assert differences(undisturbed, project) == []


def test_a_run_preempted_before_its_first_step_starts_over_and_says_so(warm, tmp_path, undisturbed):
    project = make_project(tmp_path / "p")
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not list_claims(project.run):
        assert time.monotonic() < until, project.logs()
    started.kill(signal.SIGTERM)
    started.wait()
    assert warm.start(project.job.path).wait() == 0, project.logs()
    said = "No checkpoint found: starting stage one from the beginning"
    again = "Resuming from epoch 0 step 0 (sample 0) of stage one, attempt"
    assert said in project.logs() or again in project.logs()
    assert differences(undisturbed, project) == []


def test_ten_preemptions_with_progress_never_stop_a_run(warm, tmp_path, undisturbed):
    project = make_project(
        tmp_path / "p", params={"pause": 0.02}, stages=[{"name": "one", "data": "d", "epochs": 4}]
    )
    for _ in range(10):
        before = len(list(project.run.checkpoints.glob("step-*")))
        started = warm.start(project.job.path)
        until = time.monotonic() + 30
        while (
            not project.run.is_complete()
            and len([e for e in _events(project) if e["kind"] == "progress"]) <= before
            and time.monotonic() < until
        ):
            time.sleep(0.01)
        started.kill(signal.SIGTERM)
        started.wait()
    while not project.run.is_complete():
        assert warm.start(project.job.path).wait() in (0, 75), project.logs()
    weights = [p.run.stage("one").weights.read_bytes() for p in (project, undisturbed)]
    assert weights[0] == weights[1]


def test_an_attempt_on_a_finished_run_ends_at_once_and_changes_nothing(warm, tmp_path):
    project = make_project(tmp_path / "p")
    assert warm.start(project.job.path).wait() == 0
    before = {p: p.stat().st_mtime_ns for p in project.run.path.rglob("*") if p.is_file()}
    assert warm.start(project.job.path).wait() == 0
    after = {p: p.stat().st_mtime_ns for p in project.run.path.rglob("*") if p.is_file()}
    assert before == after


def test_a_damaged_newest_checkpoint_is_fallen_past_loudly_and_the_result_is_the_same(
    warm, tmp_path, undisturbed
):
    trap = tmp_path / "trap"
    trap.touch()
    project = make_project(
        tmp_path / "p",
        params={"fail_at": 15, "fail_file": str(trap)},
        defaults={"save": {"every": "4 steps"}},
    )
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not (project.run.checkpoints / "step-000000012.c1").exists():
        assert time.monotonic() < until, project.logs()
        time.sleep(0.002)
    started.kill(signal.SIGKILL)
    started.wait()
    newest = project.run.checkpoints / "step-000000012.c1" / "part-00000.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    trap.unlink()
    assert warm.start(project.job.path).wait() == 0, project.logs()
    assert "step-000000012.c1 is damaged, falling back" in project.logs()
    weights = [p.run.stage("one").weights.read_bytes() for p in (project, undisturbed)]
    assert weights[0] == weights[1]


def test_a_run_whose_checkpoints_are_all_damaged_is_held_and_never_starts_over(warm, tmp_path):
    project = make_project(
        tmp_path / "p", params={"pause": 0.02}, defaults={"save": {"every": "3 steps"}}
    )
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not list(project.run.checkpoints.glob("step-*.c1")):
        assert time.monotonic() < until, project.logs()
        time.sleep(0.002)
    started.kill(signal.SIGKILL)
    started.wait()
    for path in project.run.checkpoints.glob("*/part-00000.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    assert warm.start(project.job.path).wait() == 1
    said = last_said(project.run)
    assert said is not None and said.word == "hold", project.logs()


def test_a_loss_that_is_not_finite_fails_at_once_and_keeps_the_last_good_checkpoint(warm, tmp_path):
    project = make_project(
        tmp_path / "p", defaults={"lr": 1e30, "clip": 0, "schedule": "constant", "warmup": 0}
    )
    assert warm.start(project.job.path).wait() == 1
    assert list_claims(project.run) == [1]
    said = last_said(project.run)
    assert said is not None and said.word == "fail" and "became" in said.reason
    from tasuki.checkpoint.lineage import find_latest

    assert find_latest(project.run, lambda *_: None) is not None


def test_a_zombie_whose_run_was_taken_cannot_commit_any_more(warm, tmp_path, undisturbed):
    project = make_project(tmp_path / "p", params={"pause": 0.02})
    zombie = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not list(project.run.checkpoints.glob("step-*.c1")):
        assert time.monotonic() < until, project.logs()
        time.sleep(0.002)
    zombie.kill(signal.SIGSTOP)
    assert warm.start(project.job.path).wait() == 0, project.logs()
    before = sorted(p.name for p in project.run.checkpoints.iterdir())
    zombie.kill(signal.SIGCONT)
    zombie.wait()
    assert sorted(p.name for p in project.run.checkpoints.iterdir()) == before
    assert read_json(project.run.marker)["attempt"] == 2
    weights = [p.run.stage("one").weights.read_bytes() for p in (project, undisturbed)]
    assert weights[0] == weights[1]


def test_every_attempt_writes_down_how_it_ended(warm, tmp_path):
    project = make_project(tmp_path / "p", params={"fail_at": 3})
    warm.start(project.job.path).wait()
    ends = read_attempt_ends(project.run)
    assert [end["ending"] for end in ends.values() if end] == ["failed"] * 3
    state = read_json(project.run.training_state)
    assert state["state"] == "held" and state["attempt"] == 3


def _events(project):
    for path in project.run.events.glob("*.jsonl") if project.run.events.is_dir() else ():
        for line in path.read_text().splitlines():
            yield json.loads(line)
