"""`tasuki doctor` on a real cluster: what it reads is so, and a job lives through what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasuki.clock import SystemClock
from tasuki.commands.doctor import DoctorRequest, examine
from tasuki.spec.site import load_site

SPEC = """
recipe: mine:Recipe
experiments: {e: {data: d}}
cluster: {partition: low, time_limit: 1h, grace: 2s, gpu: cpu}
"""
RECIPE = "import os\nassert os.environ['PREPARED'] == 'yes'\nclass Recipe: pass\n"


class Person:
    """Types `tasuki doctor` in a folder, on a login node of the cluster."""

    def __init__(self, cluster, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.cluster = folder, cluster

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tasuki", "doctor", *words],
            cwd=self.folder,
            env={**self.cluster.environment, "TASUKI_SITE": "", "COLUMNS": "400"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def type(self, *words: str) -> tuple[int, str, str]:
        return finish(self.start(*words))


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.fixture
def person(cluster, tmp_path) -> Person:
    return Person(cluster, tmp_path / "p")


@pytest.fixture(scope="module")
def probed(cluster, tmp_path_factory) -> dict[str, tuple[int, Any, str, Person]]:
    """Probe jobs side by side: each takes as long as a requeue and a kill."""
    folder = tmp_path_factory.mktemp("probed")
    words = {
        "low": ["--write-site", "site.yaml"],
        "cancel": ["--partition", "cancel"],
        "refused": ["--set", "cluster.requeue=false"],
        "python": ["--set", "cluster.python=/nowhere/python"],
        "held": ["--set", "cluster.extra={hold: true}", "--within", "6s"],
    }
    people = {name: Person(cluster, folder / name) for name in words}
    for name, one in people.items():
        one.write("tasuki.yaml", SPEC.replace("gpu: cpu", "gpu: cpu, setup: env.sh"))
        one.write("env.sh", "export PREPARED=yes\n")
        one.write("mine.py", RECIPE if name != "cancel" else "import nothing_of_that_name\n")
    running = {name: people[name].start("--live", "--json", *more) for name, more in words.items()}
    told = {name: finish(process) for name, process in running.items()}
    return {
        name: (code, json.loads(out) if out else None, err, people[name])
        for name, (code, out, err) in told.items()
    }


def findings(report: dict[str, Any], level: str) -> list[str]:
    return [one["what"] for one in report["findings"] if one["level"] == level]


def test_every_partition_is_shown_with_what_becomes_of_a_job_there(person):
    code, out, err = person.type("--json")
    assert code == 0, err
    slurm = json.loads(out)["slurm"]
    found = {
        one["name"]: (one["after_preemption"], one["save_s"], one["longest_s"], one["preempt_mode"])
        for one in slurm["partitions"]
    }
    assert found == {
        "low": ("slurm", 2.0, 86400.0, "REQUEUE"),
        "grace": ("itself", 22.0, 86400.0, "REQUEUE"),
        "cancel": ("itself-or-successor", 2.0, 86400.0, "CANCEL"),
        "short": ("slurm", 2.0, 120.0, "REQUEUE"),
        "high": ("never", 2.0, 86400.0, "OFF"),
    }
    assert [one["name"] for one in slurm["partitions"] if one["is_default"]] == ["low"]
    assert all(one["gpus"] == {"": 4} and one["nodes"] == 4 for one in slurm["partitions"])
    assert slurm["settings"]["KillWait"] == "2 sec" and slurm["settings"]["MaxArraySize"]
    assert slurm["version"].split(".")[0].isdecimal() and slurm["commands"]["sbatch"]


def test_a_person_reads_it_in_plain_words_and_nothing_is_changed(person):
    code, out, _ = person.type()
    assert code == 0
    out = " ".join(out.split())
    assert "requeue themselves during the grace: Slurm would not; 22s to save" in out
    assert "it requeues itself, or leaves a successor job where that is refused" in out
    assert "hint: write `cluster: {grace: 2s}`" in out
    assert "Nothing here stops a job." in out and list(person.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "is_problem", "words", "hint"),
    [
        ("partition=lwo", True, "there is no partition `lwo`", "did you mean `low`?"),
        (
            "partition=short",
            True,
            "`cluster.time_limit` is 1h, but a job on `short` may last 2m",
            "write `time_limit: 2m`, or choose `low`, `grace`, `cancel` or `high`",
        ),
        (
            "grace=30s",
            False,
            "`cluster.grace` is 30s, but a job on `low` is killed 2s after its notice",
            "write `cluster: {grace: 2s}`",
        ),
        (
            "cpus=64",
            True,
            "`cluster.cpus` asks for 64 CPUs on a node, but a node of `low` has 4 CPUs at most",
            "`cluster.cpus` is per node",
        ),
        (
            "memory=900G",
            True,
            "of memory on a node, but a node of `low` has 4.19 GB",
            "ask for less",
        ),
        ("gpus=5", True, "`cluster.gpus` asks for 5 CPUs", "per node"),
        ("nodes=9", True, "`cluster.nodes` is 9, but `low` has 4", "fewer nodes"),
        ("setup=nope.sh", True, "`cluster.setup`: there is no file", "relative to the spec"),
        ("partitions=low", True, "the spec cannot be used", "did you mean `partition`?"),
    ],
)
def test_what_a_spec_asks_for_and_a_partition_does_not_give_is_said(
    person, change, is_problem, words, hint
):
    spec = person.write("tasuki.yaml", SPEC)
    report = examine(
        DoctorRequest(
            source=str(spec),
            here=person.folder,
            python=sys.executable,
            environment={**person.cluster.environment, "TASUKI_SITE": ""},
            clock=SystemClock(),
            settings=[f"cluster.{change}"],
        )
    )
    (found,) = [one for one in report["findings"] if words in one["what"]]
    assert hint in found["hint"] and report["ok"] == (not is_problem), found
    assert found["level"] == ("problem" if is_problem else "advice")


def test_programs_of_slurm_that_know_no_controller_are_told_in_one_way(person):
    environment = dict(person.cluster.environment)
    del environment["SLURM_CONF"]
    person.cluster = SimpleNamespace(environment=environment)
    code, out, err = person.type()
    assert code == 1 and "Slurm is here, but it does not answer" in out, err
    assert "No Slurm here" not in out and "problem: `sinfo` says" in out
    assert "is SLURM_CONF right?" in out


@pytest.mark.long
def test_a_probe_finds_requeueing_allowed_and_measures_the_time_until_the_kill(probed):
    for name in ("low", "cancel"):
        _, report, err, _ = probed[name]
        live = report["live"]
        assert live["problem"] is None and live["partition"] == name, err
        assert live["requeue"]["is_allowed"] and live["requeue"]["has_returned"]
        assert live["scontrol"]["ok"] and live["runs"] == {"is_visible": True, "words": ""}
        told = {(one["who"], one["signal"]) for one in live["signals"]}
        assert {("batch", "TERM"), ("step", "TERM")} <= told
        # KillWait is 2 s; Slurm looks for what is left, and kills, a few seconds later.
        for who in ("batch", "step"):
            assert 1.9 <= live["kill_after_s"][who] < 15, live
        (here,) = [one for one in report["slurm"]["partitions"] if one["name"] == name]
        assert here["kill_wait_s"] == 2.0 and here["measured_s"] == live["kill_after_s"]["step"]
        assert "waits to come back" in err and "is cancelled" in err


@pytest.mark.long
def test_a_probe_imports_the_recipe_on_a_node_after_the_setup(probed):
    code, report, _, person = probed["low"]
    assert code == 0 and report["ok"] and report["live"]["recipe"]["ok"], report["findings"]
    assert report["live"]["python"] == sys.executable
    code, report, _, person = probed["cancel"]
    assert code == 1 and not (person.folder / "runs").exists()
    (words,) = findings(report, "problem")
    assert "recipe `mine:Recipe` cannot be imported" in words
    assert "No module named 'nothing_of_that_name'" in words


def test_what_was_measured_becomes_a_site_file_that_specs_begin_with(probed):
    _, report, _, person = probed["low"]
    path = person.folder / "site.yaml"
    assert report["site"]["written"] == str(path) and "measured on" in path.read_text()
    site = load_site(environ={"TASUKI_SITE": str(path)})
    assert site.partitions["low"].save_s == 2.0
    assert site.partitions["grace"].save_s == 22.0
    assert site.partitions["short"].longest_s == 120.0
    code, _, err = person.type("--write-site", "site.yaml")
    assert code == 2 and "there is a site file already" in err and "--force" in err
    before = path.read_text()
    code, _, err = person.type("--write-site", "site.yaml", "--force")
    assert code == 0 and (person.folder / "site.yaml.old").read_text() == before, err
    assert "measured on" not in path.read_text()


def test_a_job_that_may_not_requeue_itself_is_still_measured(probed):
    code, report, err, _ = probed["refused"]
    live = report["live"]
    assert code == 0 and live["problem"] is None, err
    assert live["requeue"]["is_allowed"] is False and live["requeue"]["words"]
    assert live["kill_after_s"]["step"] >= 1.9


def test_a_job_that_cannot_start_is_told_in_the_words_of_its_log(probed):
    code, report, _, _ = probed["python"]
    (words,) = findings(report, "problem")
    assert code == 1 and "ended too early" in words and "/nowhere/python" in words
    assert Path(report["live"]["folder"]).is_dir()


def test_a_job_that_does_not_come_to_its_end_is_given_up_and_cancelled(probed, cluster):
    code, report, _, _ = probed["held"]
    (words,) = findings(report, "problem")
    assert code == 1 and "did not come to its end within 6s" in words, words
    assert "waits in the queue" in words
    job = report["live"]["job"]
    assert cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip() == "CANCELLED"


def test_ctrl_c_leaves_neither_a_job_nor_a_folder(person, cluster):
    held = ["--set", "cluster.extra={hold: true}"]
    person.write("tasuki.yaml", SPEC)
    process = person.start("--live", *held)
    assert process.stderr is not None
    job = process.stderr.readline().split()[1]
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 75 and not (person.folder / "runs").exists()
    until = time.monotonic() + 30
    while cluster.run("squeue", "-h", "-j", job):
        assert time.monotonic() < until
        time.sleep(0.05)
