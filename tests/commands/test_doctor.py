"""`tasuki doctor` without a cluster, and the rules by which it judges one."""

import json
import os
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import tasuki
from tasuki.cli.doctor import command
from tasuki.commands.doctor import (
    DoctorReport,
    SlurmFacts,
    check_machine,
    check_test_job,
    describe_machine,
    describe_partition,
    render_site,
)
from tasuki.commands.doctor_job import JobReport, NodeCheck, read_signals
from tasuki.errors import EXIT_DONE, EXIT_FAILED, SpecError, UsageError
from tasuki.slurm.text import parse_partitions, parse_settings
from tasuki.spec.site import load_site
from tests.commands.projects import until

PARTITION = """\
PartitionName={name}
   AllocNodes=ALL Default=NO QoS=N/A
   DefaultTime=00:10:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime={grace} Hidden=NO
   MaxNodes=UNLIMITED MaxTime=1-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   PriorityJobFactor=1 PriorityTier={tier} RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode={mode}
   State={state} TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE
"""


BY_TIER = "PreemptType             = preempt/partition_prio\nKillWait                = 30 sec\n"


JOB = JobReport(
    job="7",
    partition="p",
    node="n1",
    checks=[],
    signals=["SIGCONT", "SIGTERM"],
    kill_wait_s=33.0,
)


def describe(settings=BY_TIER, gpus=(), name="p", mode="REQUEUE", grace=0, **more):
    values = {"state": "UP", "tier": 1, **more}
    text = PARTITION.format(name=name, mode=mode, grace=grace, **values)
    text += "\n" + PARTITION.format(name="urgent", mode="OFF", grace=0, state="UP", tier=9)
    shown = parse_partitions(text)
    return describe_partition(shown[0], shown, dict(gpus), parse_settings(settings))


@pytest.mark.parametrize(
    ("partition", "preemption", "save_s", "words"),
    [
        ({}, "requeued", 30, "Slurm requeues a preempted job; 30s to save"),
        ({"grace": 120}, "requeues_itself", 150, "GraceTime 2m + KillWait 30s"),
        ({"grace": 120, "mode": "CANCEL"}, "cancelled", 150, "or submits a follow-up job"),
        ({"grace": 120, "mode": "OFF"}, "never", 30, "never preempted"),
        ({"tier": 9}, "never", 30, "never preempted"),
        ({"mode": "GANG,SUSPEND"}, "suspended", 30, "suspended without a signal"),
        ({"settings": "PreemptType = preempt/none\nKillWait = 60 sec"}, "never", 60, "1m to save"),
        ({"settings": "PreemptType = preempt/qos", "grace": 5}, "qos", 30, "the job's QOS"),
        ({"state": "DOWN"}, "requeued", 30, "NOT UP, no job starts there"),
    ],
)
def test_a_partition_shows_what_becomes_of_a_preempted_job(partition, preemption, save_s, words):
    facts = describe(**partition)
    assert (facts.preemption, facts.save_s) == (preemption, save_s)
    assert words in facts.message


def test_a_disk_or_memory_that_will_not_do_is_a_finding(tmp_path):
    good = msgspec.structs.replace(describe_machine(tmp_path), free_bytes=10**12, shm_bytes=1 << 30)

    def check(setup=None, **changes) -> list[str]:
        findings = check_machine(msgspec.structs.replace(good, **changes), setup)
        assert all(one.hint for one in findings)
        return [f"{one.level}: {one.message}" for one in findings]

    assert check() == []
    assert "advice: only 1 GB are free" in check(free_bytes=10**9)[0]
    assert "advice: /dev/shm has 67.1 MB" in check(shm_bytes=64 << 20)[0]
    assert "problem: the runs folder" in check(is_writable=False)[0]
    assert "problem: `cluster.setup`: no file" in check(setup=tmp_path / "env.sh")[0]


def test_what_does_not_work_on_a_node_is_a_finding():
    checks = [NodeCheck(name="torch", error="No module named 'torch'")]
    job = msgspec.structs.replace(JOB, checks=checks, signals=[], kill_wait_s=None)
    assert [(one.level, one.message) for one in check_test_job(job)] == [
        ("problem", "torch does not work on node n1: No module named 'torch'"),
        ("advice", "a cancelled job was killed without a SIGTERM to its srun step"),
    ]
    assert list(check_test_job(JOB)) == []


def test_the_kill_is_the_last_sign_of_life_after_the_first_sigterm():
    log = "100.000 SIGCONT\n100.100 SIGTERM\n101.000 SIGTERM\n102.350 alive\n102.4"
    assert read_signals(log) == (["SIGCONT", "SIGTERM", "SIGTERM"], 2.25)
    assert read_signals("100.000 SIGCONT\n") == (["SIGCONT"], None)
    assert read_signals("") == ([], None)


def test_a_node_records_every_signal_and_survives_until_the_kill(tmp_path):
    script = resources.files("tasuki.commands") / "doctor_node.py"
    (tmp_path / "checks.json").write_text('{"fine": "1", "wrong": "import nothing_there"}')
    node = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    try:
        until((tmp_path / "ready").exists)
        log = tmp_path / "signals.log"
        for number in range(1, 11):
            for name in (signal.SIGCONT, signal.SIGTERM):
                node.send_signal(name)
            until(lambda wanted=number: log.read_text().count("SIGTERM") == wanted)
        until(lambda: "alive" in log.read_text())
    finally:
        node.kill()
        node.wait()
    signals, kill_wait_s = read_signals(log.read_text())
    assert signals.count("SIGCONT") == signals.count("SIGTERM") == 10 and kill_wait_s > 0
    _, fine, wrong = json.loads((tmp_path / "facts.json").read_text())["checks"]
    assert fine["output"] == "ok" and "No module named 'nothing_there'" in wrong["error"]


def test_a_site_file_of_odd_names_reads_back(tmp_path):
    names = ["on", "123", "a: b", "gpu_8-a.x", "ok"]
    base = describe(gpus={"a100": 4, "": 2}, grace=120, mode="CANCEL")
    partitions = [msgspec.structs.replace(base, name=name) for name in names]
    partitions[0] = msgspec.structs.replace(partitions[0], preempt_mode="OFF", max_time_s=95430.0)
    path = tmp_path / "site.yaml"
    path.write_text(render_site(SlurmFacts(partitions=partitions)))
    site = load_site(environ={"TASUKI_SITE": str(path)})
    assert list(site.partitions) == names and site.warnings == ()
    assert site.partitions["on"].preempt_mode == "OFF"
    assert site.partitions["on"].longest_s == 95430.0
    assert site.partitions["ok"].save_s == 150.0
    assert list(site.gpus) == ["a100"] and site.gpus["a100"].gres == "gpu:a100"


# -- without Slurm --------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, on a machine without Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("TASUKI_SITE", "")
    return tmp_path


def test_without_slurm_it_describes_this_machine_and_changes_nothing(folder):
    said = CliRunner().invoke(command, [], standalone_mode=False)
    assert said.return_value == EXIT_DONE
    for words in ("CPUs", "/dev/shm", "Python", " free\n", "jobs run on this machine"):
        assert words in said.stdout
    assert list(folder.iterdir()) == []


def test_its_json_is_the_report_of_the_function(folder):
    said = CliRunner().invoke(command, ["--json", "--runs", "r"], standalone_mode=False)
    report = msgspec.json.decode(said.stdout, type=DoctorReport)
    again = tasuki.doctor(runs_dir="r")
    assert report.machine.runs_dir == str(folder / "r") and report.slurm is None
    assert (report.ok, report.findings) == (again.ok, again.findings)


def test_a_test_job_without_slurm_is_a_problem(folder):
    (problem,) = tasuki.doctor(test_job=True).findings
    assert "there is no `scontrol` here" in problem.message and problem.level == "problem"


@pytest.mark.parametrize(
    ("site", "words"), [("new.yaml", "no site file is written"), ("", "no home folder")]
)
def test_a_site_file_is_not_written_without_slurm(folder, monkeypatch, site, words):
    monkeypatch.setenv("TASUKI_SITE", site)
    with pytest.raises(UsageError, match=words) as error:
        tasuki.doctor(save=True)
    assert error.value.hint and list(folder.iterdir()) == []


def test_a_site_file_that_exists_is_not_replaced(folder, monkeypatch):
    (folder / "site.yaml").write_text("poll: 9s\n")
    monkeypatch.setenv("TASUKI_SITE", "site.yaml")
    with pytest.raises(UsageError, match=r"site\.yaml exists") as error:
        tasuki.doctor(save=True)
    assert "another one" in error.value.hint


def test_an_override_without_a_spec_is_not_ignored(folder):
    (problem,) = tasuki.doctor(overrides=["cluster.partition=gpu"]).findings
    assert "the spec cannot be used" in problem.message and "tasuki.yaml" in problem.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("experimnts: {}\n", "tasuki.yaml:1: unknown key `experimnts`"),
        (
            "recipe: a:B\nexperiments: {e: {data: d}}\ncluster: {backend: slurm}\n",
            "there is no `scontrol` here",
        ),
    ],
)
def test_a_spec_that_cannot_run_here_is_a_problem(folder, spec, words):
    (folder / "tasuki.yaml").write_text(spec)
    said = CliRunner().invoke(command, [], standalone_mode=False)
    assert said.return_value == EXIT_FAILED
    assert "problem: " in said.stdout and words in said.stdout


def test_a_broken_site_file_is_a_problem_and_the_spec_is_still_checked(folder, monkeypatch):
    (folder / "site.yaml").write_text("clustr: {}\n")
    (folder / "tasuki.yaml").write_text("experimnts: {}\n")
    monkeypatch.setenv("TASUKI_SITE", "site.yaml")
    site, spec = tasuki.doctor().findings
    assert "site.yaml:1: unknown key `clustr`" in site.message and site.level == "problem"
    assert "unknown key `experimnts`" in spec.message
    with pytest.raises(SpecError):
        load_site(environ=os.environ)
