"""`tasuki run` is ended in every way it can be, and goes on; the result is the undisturbed one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess

import psutil
import pytest

from tasuki.clock import SystemClock
from tasuki.commands.compare import compare_runs
from tasuki.commands.logs import follow_logs
from tasuki.jobs.phase import Phase, Rank, make_wires
from tasuki.runs.attempts import read_attempt_ends, read_holder, write_attempt_end
from tasuki.runs.claims import list_claims, take_claim
from tasuki.runs.runs import RunFolder
from tests.commands.person import Project, finish, make_project, processes_about, until

STAGES = [{"name": "one", "data": "d", "epochs": 8}]  # 48 steps
SLOW = {"pause": 0.05}
"""2.4 s at least: times below are shorter than that, and longer than a start takes."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, warm_python) -> Project:
    made = make_project(tmp_path_factory.mktemp("ref") / "p", python=warm_python, stages=STAGES)
    said = made.type("run")
    assert said.code == 0, f"{said}\n{made.logs()}"
    return made


@pytest.fixture
def slow(project) -> Project:
    return project(stages=STAGES, params=SLOW)


def assert_undisturbed(made: Project, undisturbed: Project) -> None:
    assert made.run().is_complete(), made.logs()
    comparison = compare_runs(made.run(), undisturbed.run(), ["one"])
    assert [what for what, is_equal in comparison.checks if not is_equal] == []


def test_a_finished_run_ends_at_once_and_changes_nothing(undisturbed):
    before = undisturbed.tree()
    said = undisturbed.type("run", "--json")
    assert said.code == 0 and said.run["state"] == "complete", said
    assert undisturbed.tree() == before


def test_the_compared_figures_are_able_to_differ(project, undisturbed, here):
    other = project(stages=STAGES, defaults__seed=6)
    assert here(other.folder, "run").code == 0
    assert not compare_runs(other.run(), undisturbed.run(), ["one"]).is_equal


def test_ctrl_c_hands_over_and_run_goes_on_bit_for_bit(slow, undisturbed, here):
    process = slow.start("run")
    until(lambda: slow.step() >= 5, slow.logs)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 75, said
    assert "exp: handed-over" in said.out and "interrupted" in said.out
    assert "handing over" in said.err and "Traceback" not in said.err
    run = here(slow.folder, "status", "--json").run
    assert run["state"] == "handed-over" and 5 <= run["last_checkpoint_step"] < 48
    assert here(slow.folder, "run").code == 0
    assert f"Resuming from epoch {run['epoch']} step {run['step']}" in slow.logs()
    assert_undisturbed(slow, undisturbed)


def test_a_cancelled_run_is_saved_and_stays_cancelled_until_a_person_says_run(
    slow, undisturbed, here
):
    process = slow.start("run")
    until(lambda: slow.step() >= 3, slow.logs)
    assert "would cancel exp (running)" in here(slow.folder, "cancel", "exp", "--dry-run").out
    said = here(slow.folder, "cancel", "exp")
    assert said.code == 0 and "exp is cancelled" in said.out, said
    ended = finish(process)
    assert ended.code == 75 and "exp: cancelled" in ended.out, ended
    run = here(slow.folder, "status", "--json").run
    assert run["state"] == "cancelled" and run["last_checkpoint_step"] >= 3
    # A supervisor that nobody asked for respects it.
    claims = list_claims(slow.run())
    by_hand = slow.supervise_by_hand()
    assert by_hand.code == 75, by_hand
    assert list_claims(slow.run()) == claims
    assert here(slow.folder, "status", "--json").run["state"] == "cancelled"
    assert here(slow.folder, "run").code == 0
    assert_undisturbed(slow, undisturbed)


def test_a_cancel_does_not_lift_a_hold(project, here):
    made = project()
    made.change(cluster__python="/bin/false")
    assert here(made.folder, "run").code == 1
    assert here(made.folder, "cancel", "exp", "--json").json()["was_live"] is False
    assert here(made.folder, "status", "--json").run["state"] == "held"
    assert here(made.folder, "run").code == 1


def test_preempt_at_preempts_once_and_the_job_comes_back(slow, undisturbed, here):
    said = here(slow.folder, "run", "--preempt-at", "1800ms", "--json")
    assert said.code == 0, said
    assert said.run["preemptions"] == 1 and len(said.run["jobs"]) == 1
    assert [value["verdict"] for value in slow.outcomes()] == ["requeue", "end"]
    assert_undisturbed(slow, undisturbed)


def test_preempt_every_preempts_every_start_and_the_run_completes(slow, undisturbed, here):
    said = here(slow.folder, "run", "--preempt-every", "2s", "--json")
    assert said.code == 0, said
    assert said.run["preemptions"] >= 1
    assert said.run["attempts"] == said.run["preemptions"] + 1
    assert_undisturbed(slow, undisturbed)


def test_under_a_time_limit_every_job_ends_on_our_own_clock_and_the_run_completes(
    slow, undisturbed, here
):
    # History tells the plan how long steps and start-up take: nothing is measured.
    assert here(slow.folder, "run", "--set", "experiments.exp.stages.0.epochs=1").code == 0
    said = here(slow.folder, "run", "--new", "--set", "cluster.time_limit=2800ms", "--json")
    assert said.code == 0, f"{said}\n{slow.logs()}"
    run = slow.run("exp-2")
    ends = read_attempt_ends(run)
    assert len(ends) >= 2
    *handed, last = ends.values()
    assert last["ending"] == "done"
    for claim, end in zip(ends, handed, strict=False):
        assert (end["ending"], end["cause"], end["message"]) == ("handed-over", "limit", "")
        assert end["at"] - read_holder(run, claim).at < 2.8
    assert "time limit" not in said.err, "the scheduler had to end a job"
    comparison = compare_runs(run, undisturbed.run(), ["one"])
    assert comparison.is_equal, comparison


def test_chosen_stages_end_with_0_and_without_the_marker_and_run_does_the_rest(project, here):
    stages = [{"name": name, "data": "d", "epochs": 2} for name in "ab"]
    made = project(stages=stages)
    said = here(made.folder, "run", "--stages", "a", "--json")
    assert said.code == 0, said
    assert [stage["is_trained"] for stage in said.run["stages"]] == [True, False]
    assert not made.run().is_complete() and said.run["state"] != "complete"
    assert here(made.folder, "run", "--stages", "a").code == 0  # again: nothing to do
    assert here(made.folder, "run").code == 0 and made.run().is_complete()
    whole = project("whole", stages=stages)
    assert here(whole.folder, "run").code == 0
    assert compare_runs(made.run(), whole.run(), ["a", "b"]).is_equal


def test_settings_of_the_environment_are_frozen_at_the_first_start(project, here):
    made = project(stages=[{"name": "one", "data": "d"}])
    said = here(made.folder, "run", "--set", "seed=9", "--json", TASUKI_SET="epochs=2")
    assert said.code == 0 and said.run["total_steps"] == 12, said
    frozen = json.loads(made.run().spec.read_text())["spec"]["stages"][0]
    assert frozen["length"] == {"unit": "epochs", "count": 2} and frozen["seed"] == 9


def test_resume_code_current_takes_a_fix_into_a_held_run(project, here):
    made = project(params={"fail_at": 9}, defaults__save={"every": "100 steps"})
    said = here(made.folder, "run")
    assert said.code == 1 and "exp: held" in said.out, said
    refused = here(made.folder, "run")
    assert refused.code == 1 and "error: run `exp` is held" in refused.err, refused
    path = made.folder / "recipes.py"
    path.write_text(path.read_text().replace("raise ValueError(f", "print(f"))
    # The frozen code is still the broken one.
    again = here(made.folder, "resume", "exp")
    assert again.code == 1 and "planted failure" in again.out, again
    fixed = here(made.folder, "resume", "exp", "--code", "current", "--json")
    assert fixed.code == 0 and fixed.run["state"] == "complete", fixed
    events = [json.loads(line) for p in made.run().events.glob("*") for line in p.open()]
    (change,) = [event for event in events if event["kind"] == "code-changed"]
    assert change["before"] != change["after"]


def test_resume_needs_no_spec_beside_it(project, tmp_path, warm_python, here):
    made = project(params={"fail_at": 9}, defaults__save={"every": "100 steps"})
    assert here(made.folder, "run").code == 1
    path = made.folder / "recipes.py"
    path.write_text(path.read_text().replace("raise ValueError(f", "print(f"))
    said = here(made.folder, "resume", str(made.run().path), "--code", "current", "--dry-run")
    assert said.code == 0 and "train one" in said.out, said
    assert list_claims(made.run()) == [1, 2, 3]


def test_a_run_command_whose_run_was_taken_by_another_job_does_not_say_done(project, warm):
    slow = project(params={"pause": 0.12})  # the other must start before this one is done
    process = slow.start("run")
    until(lambda: slow.step() >= 1, slow.logs)
    other = warm.start(slow.jobs()[0].path)
    said = finish(process)
    assert other.wait() == 0 and slow.run().is_complete(), slow.logs()
    assert said.code == 75, said


def test_logs_follow_a_run_to_its_end(project):
    slow = project(params=SLOW)
    process = slow.start("run")
    until(lambda: slow.step() >= 1, slow.logs)
    follower = slow.start("logs", "exp", "-f")
    assert finish(process).code == 0
    said = finish(follower)
    assert said.code == 0 and "Starting stage one" in said.out, said
    assert "Finished stage one: 24 steps" in said.out


def test_logs_follow_a_run_over_a_preemption(tmp_path):
    run = RunFolder(tmp_path / "exp")
    run.logs.mkdir(parents=True)
    (run.logs / "j.1.log").write_text("first")
    facts = {"ending": "handed-over", "cause": "preempted", "has_progressed": True}
    write_attempt_end(run, take_claim(run), facts)

    class RequeueClock(SystemClock):
        """The second attempt comes, and completes the run, while the follower waits."""

        @staticmethod
        def sleep(seconds: float) -> None:
            take_claim(run)
            (run.logs / "j.2.log").write_text("second")
            run.marker.touch()

    assert [text for _, text in follow_logs(run, clock=RequeueClock())] == ["first", "second"]


@pytest.mark.long
def test_logs_follow_a_run_over_attempts_and_jobs_to_its_end(project):
    made = project(params={"pause": 0.05}, stages=STAGES)
    first = made.start("run", "--preempt-at", "1500ms")
    until(lambda: made.step() >= 1, made.logs)
    follower = made.start("logs", "exp", "-f")
    until(lambda: len(list_claims(made.run())) >= 2 and made.step() >= 30, made.logs)
    first.send_signal(signal.SIGINT)
    assert finish(first).code == 75
    second = made.start("run")  # another job, before the follower has given up
    assert finish(second).code == 0
    said = finish(follower)
    assert said.code == 0 and said.out.count("Resuming from epoch") == 2, said
    assert "Finished stage one: 48 steps" in said.out
    attempts = re.findall(r"==> (\S+)\.(\d+)\.log", said.err)
    assert [number for _, number in attempts] == ["1", "2", "3"], said.err
    assert len({job for job, _ in attempts}) == 2


def test_logs_of_a_run_that_nobody_goes_on_with_end(project, here):
    """Some stages were asked for: the run waits, but for nobody."""
    stages = [{"name": name, "data": "d", "epochs": 1} for name in "ab"]
    made = project(stages=stages)
    assert here(made.folder, "run", "--stages", "a").code == 0
    assert here(made.folder, "status", "--json").run["state"] == "waiting"
    said = made.type("logs", "exp", "-f")
    assert said.code == 0 and "Finished stage a" in said.out, said


def test_logs_of_one_attempt_end_with_it_and_the_run_may_go_on(tmp_path):
    run = RunFolder(tmp_path / "exp")
    run.logs.mkdir(parents=True)
    facts = {"ending": "handed-over", "cause": "preempted", "has_progressed": True}
    for number in (1, 2):
        claim = take_claim(run)
        (run.logs / f"j.{number}.log").write_text(f"of {number}")
        if number == 1:
            write_attempt_end(run, claim, facts)
    assert [text for _, text in follow_logs(run, clock=SystemClock(), attempt=1)] == ["of 1"]


def test_a_character_that_is_written_in_two_parts_is_followed_whole(tmp_path):
    run = RunFolder(tmp_path / "exp")
    run.logs.mkdir(parents=True)
    run.spec.write_text('{"stages": []}')
    path = run.logs / "j.1.log"
    path.write_bytes("né".encode()[:2])

    class Writing(SystemClock):
        """The other half comes, and the run is complete."""

        @staticmethod
        def sleep(seconds: float) -> None:
            path.write_bytes("né".encode())
            run.marker.touch()

    assert "".join(text for _, text in follow_logs(run, clock=Writing())) == "né"


def test_logs_that_are_deleted_while_they_are_followed_end_nothing(tmp_path):
    run = RunFolder(tmp_path / "exp")
    run.logs.mkdir(parents=True)
    run.spec.write_text('{"stages": []}')
    (run.logs / "j.1.log").write_text("first")

    class Deleting(SystemClock):
        @staticmethod
        def sleep(seconds: float) -> None:
            shutil.rmtree(run.logs, ignore_errors=True)
            run.marker.touch()

    assert [text for _, text in follow_logs(run, clock=Deleting())] == ["first"]


# -- with fresh interpreters: a KILL must reach what it is meant for ------------------------------


def test_a_killed_run_command_leaves_no_orphan_and_a_run_that_goes_on_bit_for_bit(
    real_project, warm_python, undisturbed, here
):
    made = real_project(stages=STAGES, params=SLOW)
    process = made.start("run")
    until(lambda: made.step() >= 1, made.logs)
    process.kill()
    process.communicate()
    until(lambda: processes_about(made.folder) == [], lambda: processes_about(made.folder))
    (end,) = read_attempt_ends(made.run()).values()
    assert (end["ending"], end["cause"]) == ("handed-over", "interrupted"), made.logs()
    run = here(made.folder, "status", "--json").run
    assert run["state"] == "handed-over" and run["last_checkpoint_step"] >= 1
    made.change(cluster__python=warm_python)
    assert here(made.folder, "run").code == 0
    assert_undisturbed(made, undisturbed)


@pytest.mark.long
def test_a_worker_that_ignores_the_notice_is_killed_when_the_grace_is_over(
    real_project, warm_python, undisturbed, here
):
    made = real_project(
        stages=STAGES, recipe="Sleeper", cluster__grace="2s", defaults__save={"every": "1 step"}
    )
    trap = made.folder / "trap"
    trap.touch()
    process = made.start("run")
    until(lambda: not trap.exists(), made.logs)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 75, said
    (end,) = read_attempt_ends(made.run()).values()
    assert (end["ending"], end["cause"]) == ("failed", "interrupted")
    assert processes_about(made.folder) == []
    made.change(cluster__python=warm_python)
    assert here(made.folder, "run").code == 0, made.logs()
    weights = [p.run().stage("one").weights.read_bytes() for p in (made, undisturbed)]
    assert weights[0] == weights[1]


def test_a_worker_killed_after_the_grace_is_said_to_be_killed_by_the_supervisor():
    wire, theirs = make_wires()
    with subprocess.Popen(["sleep", "100"]) as worker:
        theirs.close()
        phase = Phase("train", "one", [Rank(0, worker, wire)])
        phase.kill_by(1.0, "the notice was over")
        phase.tick(1.0)
        worker.wait()
        phase.reap(2.0)
        phase.close()
    message = phase.ending().message
    assert message == "killed by the supervisor because the notice was over"


def test_a_supervisor_that_does_not_answer_is_killed_with_its_worker_after_the_grace(
    real_project, here
):
    made = real_project(cluster__grace="1s")
    process = made.start("run")
    pid = wait_for_holder(made, 1)
    os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 75, said
    assert not psutil.pid_exists(pid)
    until(lambda: processes_about(made.folder) == [], lambda: processes_about(made.folder))
    (end,) = read_attempt_ends(made.run()).values()
    assert end["cause"] == "interrupted" and "without a word" in end["message"]
    assert here(made.folder, "status", "--json").run["state"] in ("handed-over", "waiting")


def test_a_second_ctrl_c_kills_at_once(real_project):
    made = real_project(cluster__grace="10m")
    process = made.start("run")
    os.kill(wait_for_holder(made, 1), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    until(lambda: made.jobs()[0].notice(1).exists())
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 75 and "Traceback" not in said.err, said
    until(lambda: processes_about(made.folder) == [], lambda: processes_about(made.folder))


def test_a_supervisor_killed_three_times_without_progress_holds_the_run(real_project, here):
    made = real_project()
    process = made.start("run")
    for claim in (1, 2, 3):
        os.kill(wait_for_holder(made, claim), signal.SIGKILL)
    said = finish(process)
    assert said.code == 1 and "exp: held after 3 attempts" in said.out, said
    assert list_claims(made.run()) == [1, 2, 3]
    run = here(made.folder, "status", "--json").run
    assert run["state"] == "held" and "3 attempts in a row failed" in run["reason"]
    until(lambda: processes_about(made.folder) == [], lambda: processes_about(made.folder))
    by_hand = made.supervise_by_hand()
    assert by_hand.code == 1, by_hand
    assert list_claims(made.run()) == [1, 2, 3]


def wait_for_holder(made: Project, claim: int) -> int:
    until(lambda: list_claims(made.run())[-1:] == [claim], made.logs)
    until(lambda: read_holder(made.run(), claim) is not None, made.logs)
    holder = read_holder(made.run(), claim)
    assert holder is not None
    return holder.pid
