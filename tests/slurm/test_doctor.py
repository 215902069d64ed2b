"""`tasuki doctor` on a real cluster: partitions are as it says, and a test job tries a node."""

import os
import shutil

import pytest

import tasuki
from tasuki.errors import PlanError
from tasuki.spec.load import load_spec

SPEC = """
recipe: mine:Recipe
experiments: {e: {data: d}}
cluster: {partition: low, time_limit: 1h, grace: 2s, gpu: cpu, setup: env.sh}
"""
RECIPE = "import os\nassert os.environ['PREPARED'] == 'yes'\nclass Recipe: pass\n"


@pytest.fixture
def folder(cluster, tmp_path, monkeypatch):
    """A project, which is the working directory on a login node."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TASUKI_SITE", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasuki.yaml").write_text(SPEC)
    (tmp_path / "env.sh").write_text("export PREPARED=yes\n")
    (tmp_path / "mine.py").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def closed(cluster):
    """A partition that is down."""
    cluster.run("scontrol", "create", "PartitionName=closed", "Nodes=ALL", "State=DOWN")
    yield
    cluster.run("scontrol", "delete", "PartitionName=closed")


def test_each_partition_shows_what_becomes_of_a_job(folder, closed):
    report = tasuki.doctor()
    partitions = {one.name: one for one in report.slurm.partitions}
    found = {name: (one.preemption, one.save_s, one.is_up) for name, one in partitions.items()}
    assert found == {
        "low": ("requeued", 10.0, True),
        "grace": ("requeues_itself", 30.0, True),
        "cancel": ("cancelled", 10.0, True),
        "short": ("requeued", 10.0, True),
        "high": ("never", 10.0, True),
        "closed": ("requeued", 10.0, False),
    }
    assert [name for name, one in partitions.items() if one.is_default] == ["low"]
    low = partitions["low"]
    assert (low.num_nodes, low.max_gpus, low.preempt_mode) == (4, {"": 4}, "REQUEUE")
    assert report.slurm.settings["KillWait"] == "10 sec" and report.slurm.version[0].isdecimal()
    assert report.ok


@pytest.mark.parametrize(
    ("change", "level", "message", "hint"),
    [
        ("partition=lwo", "problem", "there is no partition `lwo`", "did you mean `low`?"),
        ("partition=closed", "problem", "partition `closed` is down", "sinfo -s"),
        ("cpus=64", "problem", "Requested node configuration is not available", "`cpus`"),
        ("nodes=9", "problem", "`cluster.nodes` is 9, but `low` has 4", "fewer nodes"),
        ("grace=30s", "advice", "on `low` is killed after 10s", "{grace: 10s}"),
    ],
)
def test_a_request_that_a_partition_does_not_meet_is_a_finding(
    folder, closed, change, level, message, hint
):
    report = tasuki.doctor(overrides=[f"cluster.{change}"])
    (found,) = [one for one in report.findings if message in one.message]
    assert found.level == level and hint in found.hint
    assert report.ok == (level == "advice")


def test_plan_reads_the_site_file_that_was_saved(folder, monkeypatch):
    monkeypatch.setenv("TASUKI_SITE", str(folder / "site.yaml"))
    report = tasuki.doctor(save=True)
    assert report.ok and report.saved == str(folder / "site.yaml")
    (folder / "tasuki.yaml").write_text(SPEC.replace("low", "grace").replace("grace: 2s, ", ""))
    assert load_spec("tasuki.yaml", environ=os.environ).cluster.grace_s == 30.0
    with pytest.raises(PlanError, match="2m"):
        tasuki.plan("tasuki.yaml", settings=["cluster.partition=short", "expect.wall=1h"])


def test_slurm_without_a_controller_is_a_problem(folder, monkeypatch):
    monkeypatch.delenv("SLURM_CONF")
    report = tasuki.doctor()
    assert not report.ok and report.slurm.partitions == []
    assert any("SLURM_CONF" in one.hint for one in report.findings)


@pytest.mark.long
def test_a_test_job_tries_a_node_and_leaves_nothing(folder):
    report = tasuki.doctor(test_job=True)
    job = report.test_job
    assert report.ok, report.findings
    checks = {check.name: check.output for check in job.checks if not check.error}
    assert list(checks) == ["Python", "tasuki", "torch", "recipe"]
    assert checks["tasuki"] == tasuki.__version__
    assert "SIGTERM" in job.signals
    # KillWait is 10 s, less one step of the log in which the job notes that it lives.
    assert job.kill_wait_s > 9 and job.partition == "low" and job.node.startswith("node")
    assert list((folder / "runs").iterdir()) == []


@pytest.mark.long
def test_what_fails_on_the_node_is_named_and_the_kill_is_still_measured(folder):
    # The GPUs of this cluster are links to /dev/null.
    wrong = ["cluster.gpu=a100", "recipe=nothing_there:Recipe"]
    report = tasuki.doctor(test_job=True, overrides=wrong)
    errors = {check.name: check.error for check in report.test_job.checks if check.error}
    assert list(errors) == ["GPU", "recipe"] and report.test_job.kill_wait_s > 9
    assert "No module named 'nothing_there'" in errors["recipe"]
    assert [one.level for one in report.findings] == ["problem", "problem"] and not report.ok


@pytest.mark.long
def test_a_broken_python_on_the_node_is_a_problem(folder):
    report = tasuki.doctor(test_job=True, overrides=["cluster.python=/nowhere/python"])
    (problem,) = [one for one in report.findings if one.level == "problem"]
    assert "ended too early" in problem.message and "/nowhere/python" in problem.message
    assert "cluster.python" in problem.hint and report.test_job is None


@pytest.mark.long
def test_a_runs_folder_that_the_node_does_not_have_is_a_problem(folder, cluster):
    def hide_folder(message: str) -> None:
        """Start the held job only when its folder is gone."""
        if "(JobHeldUser)" in message:
            shutil.rmtree(folder / "runs")
            cluster.run("scontrol", "release", message.split()[1])

    overrides = ["cluster.extra={hold: true}"]
    report = tasuki.doctor(test_job=True, overrides=overrides, progress=hide_folder)
    (problem,) = [one for one in report.findings if one.level == "problem"]
    assert "left nothing in" in problem.message and "all nodes share" in problem.hint


def test_ctrl_c_and_a_timeout_leave_neither_a_job_nor_files(folder, cluster):
    hold = ["cluster.extra={hold: true}"]
    report = tasuki.doctor(test_job=True, timeout_s=0.0, overrides=hold)
    (problem,) = [one for one in report.findings if one.level == "problem"]
    assert "did not finish within" in problem.message
    seen = [problem.message.split("job ")[-1].split()[0]]

    def interrupt(message: str) -> None:
        seen.append(message.split()[1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tasuki.doctor(test_job=True, overrides=hold, progress=interrupt)
    states = cluster.run("squeue", "-h", "-t", "all", "-j", ",".join(seen), "-o", "%T").split()
    assert states == ["CANCELLED"] * 2 and not list((folder / "runs").iterdir())
