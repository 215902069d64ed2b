"""Who is told of runs on a real cluster: by `on`, and by Slurm's own mail."""

from __future__ import annotations

import json
import sys

import pytest

from tests.slurm.project import make_slurm_project

TELL = 'import sys; open("told.jsonl", "a").write(sys.stdin.read())'
ON = {key: [sys.executable, "-c", TELL] for key in ("complete", "held", "deadline-risk")}


def told(project) -> list[dict]:
    path = project.folder / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_that_slurm_preempted_tells_of_its_end_once(cluster, tmp_path):
    project = make_slurm_project(cluster, tmp_path / "p", recipe="Brief", more={"on": ON})
    project.tasuki("submit")
    project.wait_for_step(1)
    cluster.run("scontrol", "requeue", project.number)  # looks like a preemption, and is one
    project.wait_until_complete()
    project.wait(lambda: told(project), "told")
    (one,) = told(project)
    assert (one["outcome"], one["attempt"], one["job"]) == ("complete", 2, project.jobs[0].name)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_mistake_on_a_node_is_told_from_there_and_mail_is_slurms(cluster, tmp_path):
    project = make_slurm_project(
        cluster,
        tmp_path / "p",
        params={"norm": "no such norm"},
        more={"on": ON},
        mail="somebody@example.org",
    )
    project.tasuki("submit")
    shown = cluster.run("scontrol", "show", "job", project.number)
    assert "MailUser=somebody@example.org" in shown
    assert "MailType=END,FAIL" in shown
    project.wait(lambda: told(project), "told")
    (one,) = told(project)
    assert (one["outcome"], one["state"]) == ("held", "failed")
    assert "no such norm" in one["reason"]


def test_of_a_chain_of_jobs_only_the_last_one_s_end_is_worth_a_mail(cluster, tmp_path):
    stages = [{"name": n, "data": "d", "epochs": 1, "expect": {"wall": "40m"}} for n in "abc"]
    project = make_slurm_project(
        cluster, tmp_path / "p", stages=stages, time_limit="1h", mail="me@example.org"
    )
    value = json.loads(project.tasuki("submit", "--dry-run", "--json"))
    types = [
        next(line for line in job["submit"].splitlines() if "mail-type" in line).split("=")[1]
        for job in value["jobs"]
    ]
    assert [one.split()[0].rstrip("\\") for one in types] == ["FAIL", "FAIL", "END,FAIL"]
