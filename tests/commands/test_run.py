"""`tasuki run` ends in every way it can and goes on, with the spec that it was begun with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace

import psutil
import pytest

from tasuki.commands.compare import compare_runs
from tasuki.jobs.phase import Phase, Rank, make_wires
from tasuki.runs.attempts import read_attempt_ends, read_holder
from tasuki.runs.claims import list_claims
from tests.commands.projects import (
    Project,
    copy_project,
    finish,
    make_project,
    processes_about,
    until,
)

STAGES = [{"name": "one", "data": "d", "epochs": 8}]  # 48 steps
SLOW = {"recipe": "SlowAtFirst", "params": {"pause": 0.2}}
"""An attempt of 10 s, during which it is ended; what follows is quick."""
AB = [{"name": name, "data": "d", "epochs": 1} for name in "ab"]


def run_to_end(made: Project, *words: str) -> Project:
    said = made.type("run", *words)
    assert said.code == 0, f"{said}\n{made.logs()}"
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, warm_python) -> Project:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_to_end(make_project(folder / "p", python=warm_python, stages=STAGES))


@pytest.fixture
def slow(project) -> Project:
    return project(stages=STAGES, **SLOW)


def assert_undisturbed(made: Project, undisturbed: Project) -> None:
    assert made.run().is_complete(), made.logs()
    comparison = compare_runs(made.run(), undisturbed.run(), ["one"])
    assert [what for what, is_equal in comparison.checks if not is_equal] == []


# -- its ends -------------------------------------------------------------------------------------


def test_a_finished_run_ends_at_once_and_changes_nothing(undisturbed, here):
    before = undisturbed.tree()
    said = here(undisturbed.folder, "run", "--json")
    assert said.code == 0 and said.run["state"] == "complete", said
    assert undisturbed.tree() == before


def test_the_figures_by_which_runs_are_compared_are_able_to_differ(undisturbed, tmp_path):
    copy = replace(undisturbed.run(), path=tmp_path / "exp")
    shutil.copytree(undisturbed.run().path, copy.path)
    assert compare_runs(copy, undisturbed.run(), ["one"]).is_equal
    newest = max(copy.checkpoints.glob("step-*")) / "part-00000.safetensors"
    for path in (copy.stage("one").weights, newest):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    rows = copy.metrics / "1.jsonl"
    rows.write_text(rows.read_text().replace('"loss": ', '"loss": 1'))
    checks = compare_runs(copy, undisturbed.run(), ["one"]).checks
    assert [is_equal for _, is_equal in checks] == [False, False, False]


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


def test_a_cancelled_run_is_saved_and_stays_cancelled_until_the_user_says_run(
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
    # A supervisor that comes back without being asked for respects it.
    claims = list_claims(slow.run())
    by_hand = slow.supervise_by_hand()
    assert by_hand.code == 75, by_hand
    assert list_claims(slow.run()) == claims
    assert here(slow.folder, "status", "--json").run["state"] == "cancelled"
    assert here(slow.folder, "run").code == 0
    assert_undisturbed(slow, undisturbed)


def test_preempt_at_preempts_once_and_the_job_comes_back(slow, undisturbed, here):
    said = here(slow.folder, "run", "--preempt-at", "1800ms", "--json")
    assert said.code == 0, said
    assert said.run["preemptions"] == 1 and len(said.run["jobs"]) == 1
    assert [value["verdict"] for value in slow.outcomes()] == ["requeue", "end"]
    assert_undisturbed(slow, undisturbed)


@pytest.mark.long
def test_under_a_time_limit_every_job_ends_on_our_own_clock_and_the_run_completes(
    project, undisturbed, here
):
    """The limit leaves 5 s for a start. The attempt itself has its test in tests/resume."""
    slow = project(stages=STAGES, params={"pause": 0.2})
    # History tells the plan how long steps and start-up take: nothing is measured.
    assert here(slow.folder, "run", "--set", "experiments.exp.stages.0.epochs=1").code == 0
    said = here(slow.folder, "run", "--new", "--set", "cluster.time_limit=8s", "--json")
    assert said.code == 0, f"{said}\n{slow.logs()}"
    run = slow.run("exp-2")
    ends = read_attempt_ends(run)
    assert len(ends) >= 2
    *handed, last = ends.values()
    assert last["ending"] == "done"
    for claim, end in zip(ends, handed, strict=False):
        assert (end["ending"], end["cause"], end["message"]) == ("handed-over", "limit", "")
        assert end["at"] - read_holder(run, claim).at < 8.0
    assert "time limit" not in said.err, "the scheduler had to end a job"
    comparison = compare_runs(run, undisturbed.run(), ["one"])
    assert comparison.is_equal, comparison


def test_a_run_command_whose_run_was_taken_by_another_job_does_not_say_done(project, warm):
    made = project(recipe="SlowAtFirst", params={"pause": 0.5}, defaults__save={"every": "1 steps"})
    gate = made.folder / "gate"
    gate.touch()  # the other job must not be done before this command ends
    process = made.start("run")
    until(lambda: made.step() >= 1, made.logs)
    other = warm.start(made.jobs()[0].path)
    said = finish(process)
    gate.unlink()
    assert other.wait() == 0 and made.run().is_complete(), made.logs()
    assert said.code == 75, said


def test_settings_of_the_environment_are_frozen_at_the_first_start(project, here):
    made = project(stages=[{"name": "one", "data": "d"}])
    said = here(made.folder, "run", "--set", "seed=9", "--json", TASUKI_SET="epochs=1")
    assert said.code == 0 and said.run["total_steps"] == 6, said
    frozen = json.loads(made.run().spec.read_text())["spec"]["stages"][0]
    assert frozen["length"] == {"unit": "epochs", "count": 1} and frozen["seed"] == 9


def test_a_run_folder_that_is_damaged_ends_no_other_run_of_its_job_and_hides_none(project, here):
    stages = {"stages": [{"name": "one", "data": "d", "epochs": 3, "gpus": 1}]}
    made = project(
        recipe="Gated",
        cluster__gpus=2,
        cluster__cpus=2,
        defaults__log_every="1 steps",
        experiments={"bad": stages, "good": stages},
    )
    gate = made.folder / "gate"
    gate.touch()
    process = made.start("run")
    until(lambda: made.step("bad") and made.step("good"), made.logs)
    made.run("bad").spec.write_text("{")
    gate.unlink()
    said = finish(process)
    assert said.code == 1, said
    assert made.run("good").is_complete(), f"{said}\n{made.logs()}"
    told = here(made.folder, "status", "--json").json()["runs"]
    states = {run["experiment"]: (run["state"], run["step"]) for run in told}
    assert states == {"good": ("complete", 18), "bad": (None, None)}
    assert "unknown" in here(made.folder, "status").out


# -- with fresh interpreters: a KILL must reach what it is meant for ------------------------------


def test_a_killed_run_command_leaves_no_orphan_and_a_run_that_goes_on_bit_for_bit(
    real_project, warm_python, undisturbed, here
):
    made = real_project(stages=STAGES, **SLOW)
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


# -- a run that was begun -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_of_two(tmp_path_factory, warm_python) -> Project:
    """A run of two stages of which the first is done."""
    folder = tmp_path_factory.mktemp("begun")
    return run_to_end(make_project(folder / "p", python=warm_python, stages=AB), "--stages", "a")


@pytest.fixture
def begun(first_of_two, tmp_path) -> Project:
    """A copy of it, to go on with."""
    return copy_project(first_of_two, tmp_path / "p")


def frozen_stages(made: Project) -> list[dict]:
    return json.loads(made.run().spec.read_text())["spec"]["stages"]


def test_chosen_stages_end_with_0_and_without_the_marker_and_run_does_the_rest(
    begun, here, project
):
    said = here(begun.folder, "run", "--stages", "a", "--json")  # again: nothing to do
    assert said.code == 0, said
    assert [stage["is_trained"] for stage in said.run["stages"]] == [True, False]
    assert not begun.run().is_complete()
    # The run waits, but nobody goes on with it: its logs have an end.
    assert here(begun.folder, "status", "--json").run["state"] == "waiting"
    assert "Finished stage a" in here(begun.folder, "logs", "exp", "-f").out
    assert here(begun.folder, "run").code == 0 and begun.run().is_complete()
    whole = project("whole", stages=AB)
    assert here(whole.folder, "run").code == 0
    assert compare_runs(begun.run(), whole.run(), ["a", "b"]).is_equal


def test_a_change_of_what_is_learnt_is_refused_with_the_difference(begun, here):
    begun.change(defaults__lr=0.5)
    before = begun.tree()
    said = here(begun.folder, "run")
    assert said.code == 1 and said.out == "", said
    assert "was begun with another spec" in said.err
    assert "stages.a.lr: 0.001 → 0.5" in said.err and "stages.b.lr: 0.001 → 0.5" in said.err
    hint = said.err.partition("hint:")[2]
    assert "`--new`" in hint and "--accept-change stages.a.lr --accept-change stages.b.lr" in hint
    assert "Traceback" not in said.err
    begun.change(defaults__seed=9)  # accepting one change accepts no other
    said = here(begun.folder, "run", "--accept-change", "lr")
    assert said.code == 1 and "stages.a.seed: 5 → 9" in said.err and "lr:" not in said.err, said
    begun.change(defaults__lr=0.5, defaults__seed=5)
    assert {name: text for name, text in begun.tree().items() if name != "tasuki.yaml"} == {
        name: text for name, text in before.items() if name != "tasuki.yaml"
    }


def test_accept_change_goes_on_with_the_change(begun, here):
    begun.change(defaults__lr=0.5)
    said = here(begun.folder, "run", "--accept-change", "lr")
    assert said.code == 0, said
    assert "taken over: stages.b.lr: 0.001 → 0.5" in said.err
    assert begun.run().is_complete()
    assert [stage["lr"] for stage in frozen_stages(begun)] == [0.5, 0.5]


def test_new_begins_a_second_run_next_to_the_first(begun, here):
    begun.change(defaults__lr=0.5)
    said = here(begun.folder, "run", "--new", "--json")
    assert said.code == 0 and said.run["experiment"] == "exp-2", said
    assert begun.run("exp-2").is_complete() and not begun.run().is_complete()
    # Later verbs mean the newest one.
    assert here(begun.folder, "status", "exp", "--json").run["experiment"] == "exp-2"
    assert here(begun.folder, "run", "--json").run["experiment"] == "exp-2"


def test_a_harmless_change_is_taken_over_and_changed_code_is_not(begun, here):
    """Code is frozen once something was learnt from it."""
    begun.change(defaults__save={"every": "2 steps", "keep": 5}, cluster__grace="11s")
    path = begun.folder / "recipes.py"
    path.write_text(path.read_text() + "\nraise SystemError('later')\n")
    said = here(begun.folder, "run")
    assert said.code == 0, said
    assert "taken over: stages.b.save.keep: 3 → 5" in said.err
    assert begun.run().is_complete()
    assert frozen_stages(begun)[1]["save"]["keep"] == 5
