"""What people get wrong on a cluster: each has its message, and what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.slurm.project import make_slurm_project


@pytest.mark.parametrize(
    ("wanted", "error", "hint"),
    [
        ({"partition": "lwo"}, "there is no partition `lwo`", "did you mean `low`?"),
        ({"account": "nobodys", "extra": {"gres": "x"}}, "has a key of its own", "cluster.gpus"),
        ({"setup": "nowhere.sh"}, "nowhere.sh, which cannot be read", "shell commands"),
        ({"memory": "900G"}, "sbatch` says", "no node has that"),
    ],
    ids=["known before", "extra", "setup", "sbatch"],
)
def test_a_wish_that_this_cluster_cannot_fulfil_is_refused_in_words_and_changes_nothing(
    cluster, tmp_path, wanted, error, hint
):
    project = make_slurm_project(cluster, tmp_path / "p", **wanted)
    said = project.try_tasuki("submit")
    assert said.returncode in (1, 2), said
    assert error in said.stderr and hint in said.stderr, said.stderr
    assert project.queued() == [] if project.jobs else True


def test_a_wish_for_which_a_job_would_wait_for_ever_is_said(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p", cpus=64)
    said = project.tasuki("submit", "--dry-run")
    assert "as things are, no node can run this" in said and "cpus" in said


def test_without_slurm_submit_says_where_to_go(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p")
    said = project.try_tasuki("submit", PATH="/nowhere")
    assert said.returncode == 1
    assert "there is no `" in said.stderr and "login node" in said.stderr
    assert not (project.folder / "runs").exists()


def test_run_on_a_login_node_asks_for_here(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p")
    said = project.try_tasuki("run")
    assert said.returncode == 2 and "tasuki submit" in said.stderr and "--here" in said.stderr


def test_a_dry_run_shows_scripts_and_what_waits_for_what_and_changes_nothing(cluster, tmp_path):
    stages = [
        {"name": name, "data": "d", "epochs": 2, "expect": {"wall": "50m"}} for name in ("a", "b")
    ]
    wanted = {"time_limit": "1h", "mail": "me@example.org"}
    project = make_slurm_project(cluster, tmp_path / "p", stages=stages, **wanted)
    said = project.tasuki("submit", "--dry-run", "--extra", "nice=3", "--memory", "300M")
    assert "srun --ntasks-per-node=1" in said and "--nice=3" in said and "--mem=300M" in said
    assert " after t-" in said
    assert not (project.folder / "runs").exists()
    value = json.loads(project.tasuki("submit", "--dry-run", "--json"))
    first, second = value["jobs"]
    assert second["after"] == [first["name"]] and first["number"] is None
    # Of a chain of jobs only the last one's end is worth a mail.
    mails = [re.findall(r"--mail-(?:user|type)=(\S+)", job["submit"]) for job in (first, second)]
    assert [set(mail) for mail in mails] == [
        {"me@example.org", "FAIL"},
        {"me@example.org", "END,FAIL"},
    ]


def test_limits_given_at_submission_and_by_exported_variables_reach_sbatch(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p")
    words = ("submit", "--dry-run", "--json", "--time", "90m", "--memory", "250M")
    value = json.loads(
        project.tasuki(*words, TASUKI_SET="cluster.partition=grace; effective_batch=4")
    )
    (job,) = value["jobs"]
    assert {"--time=90", "--mem=250M", "--partition=grace"} <= set(job["submit"].split())
    (piece, _) = value["plan"]["jobs"][0]["lanes"][0]["stages"]
    assert piece["effective_batch"] == 4


def test_a_job_that_vanished_without_a_word_is_said_with_its_log(cluster, tmp_path):
    """Its Python is none: neither the supervisor nor what looks after it can be started."""
    project = make_slurm_project(cluster, tmp_path / "p", python="/bin/false")
    project.tasuki("submit")
    project.wait(lambda: not project.queued(), "out of the queue")
    said = project.jobs[0] / "slurm.json"
    said.touch()
    os.utime(said, (1, 1))  # long ago
    status = project.status()
    assert status["state"] == "waiting" and "without a word" in status["reason"], status
    assert f"slurm-{project.number}.log" in status["reason"]


def test_a_folder_that_a_node_does_not_see_is_said_in_the_jobs_log(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p")
    project.tasuki("submit", "--extra", "hold=true")
    job, log = project.jobs[0], tmp_path / "log"
    number = project.number
    cluster.run("scontrol", "update", f"jobid={number}", f"StdOut={log}")
    away = job.rename(tmp_path / "away")
    cluster.run("scontrol", "release", number)
    project.wait(
        lambda: not cluster.run("squeue", "-h", "-j", number).strip(), "out of the queue", 60
    )
    assert "is not visible on" in log.read_text() and "all nodes share" in log.read_text()
    away.rename(job)


def test_what_is_mended_under_a_submitted_run_is_taken_once_its_job_is_cancelled(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p")
    hold = ("--extra", "hold=true")
    project.tasuki("submit", *hold)
    copy = project.run.code / "recipes.py"
    recipes = project.folder / "recipes.py"
    recipes.write_text(recipes.read_text() + "MENDED = True\n")
    said = project.try_tasuki("resume", "exp", "--code", "current")
    assert f"is submitted already: job {project.number} (PENDING)" in said.stderr, said
    assert "it goes on without `--code current`" in said.stderr
    assert "`tasuki cancel exp`, then the same command, takes it" in said.stderr
    assert "MENDED" not in copy.read_text()
    project.tasuki("cancel", "exp")
    said = project.try_tasuki("submit", *hold)  # nothing was learnt with the old code
    assert said.returncode == 0 and "it began with" not in said.stderr, said
    assert "MENDED" in copy.read_text()
    cluster.run("scancel", project.number)


def test_a_cancel_that_slurm_does_not_hear_keeps_the_job_that_waits_from_beginning(
    cluster, tmp_path
):
    project = make_slurm_project(cluster, tmp_path / "p")
    project.tasuki("submit", "--extra", "hold=true")
    conf = (cluster.folder / "slurm.conf").read_text()
    away = tmp_path / "slurm.conf"  # of a controller that nobody reaches
    conf = re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", conf)
    away.write_text(re.sub(r"MessageTimeout=\d+", "MessageTimeout=1", conf))
    said = project.try_tasuki("cancel", "exp", SLURM_CONF=str(away))
    assert said.returncode == 1, said
    assert "run `exp` is to end, but its job cannot be told: Slurm does not answer" in said.stderr
    assert "it will not be started again; `tasuki cancel` again when Slurm answers" in said.stderr
    cluster.run("scontrol", "release", project.number)
    project.wait(lambda: not project.queued(), "out of the queue")
    assert project.status()["state"] == "cancelled" and project.attempts() == [], project.logs()


def test_who_submits_another_stage_of_a_queued_run_hears_where_its_job_ends(cluster, tmp_path):
    stages = [{"name": name, "data": "d", "epochs": 20} for name in ("one", "two")]
    project = make_slurm_project(cluster, tmp_path / "p", stages=stages)
    project.tasuki("submit", "--stages", "one", "--extra", "hold=true")
    said = project.try_tasuki("submit", "--stages", "two")
    assert "is submitted already" in said.stderr, said
    assert "it ends with stage `one`: submit what follows when that is done" in said.stderr
    project.tasuki("cancel", "exp")
    project.tasuki("submit", "--stages", "one", "two", "--extra", "hold=true")
    said = project.try_tasuki("submit")
    project.tasuki("cancel", "exp")
    assert "is submitted already" in said.stderr and "it ends with stage" not in said.stderr, said


@pytest.mark.long
def test_two_terminals_that_submit_at_once_submit_one_job(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p")
    words = [sys.executable, "-m", "tasuki", "submit", "--extra", "hold=true"]
    more = {"cwd": project.folder, "env": project.environment, "stderr": subprocess.DEVNULL}
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **more) for _ in range(2)]
    told = [process.communicate(timeout=120)[0] for process in both]
    queued = project.queued()
    cluster.run("scancel", project.number)
    assert len(queued) == 1, queued
    assert sum("is submitted already" in text for text in told) == 1, told
