"""Record what a version of Slurm prints, for the tests of the parsers.

    python -m tools.record_slurm FOLDER

A private cluster of the Slurm that is first on PATH is brought into each state that matters, asked,
and its words are written below FOLDER/<version>. Names and paths of the machine are replaced; else
nothing is changed. tests/slurm/recorded/README.md says how the recordings here were made.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tasuki.slurm.client import plain_environment
from tasuki.slurm.text import QUEUE_FORMAT, parse_version
from tasuki.testing.slurm import Cluster, Shape
from tasuki.testing.slurm.cluster import CONTROLLER, MUNGE

PREFIX = "tasuki-record-"
WITHIN_S = 150.0
"""A limit of one minute may end 30 s late, and a kill takes its time."""
SLEEPER = "#!/bin/bash\nexec sleep 600\n"
STUBBORN = "#!/bin/bash\ntrap '' TERM\nwhile true; do sleep 1; done\n"
FAILING = "#!/bin/bash\nexit 3\n"
NOTICED = """#!/bin/bash
srun -N1 -n1 bash -c '
  trap "scontrol show job $SLURM_JOB_ID >half-$SLURM_JOB_ID
    mv half-$SLURM_JOB_ID shown-$SLURM_JOB_ID; exit" TERM
  touch ready-$SLURM_JOB_ID
  while true; do sleep 0.05; done'
"""
SCRIPTS = {"j.sh": SLEEPER, "stubborn.sh": STUBBORN, "fail.sh": FAILING, "noticed.sh": NOTICED}
SETTINGS = (("EnforcePartLimits", "ALL"),)
"""As on many clusters: what exceeds a partition's limits is refused instead of never started."""


class Recorder:
    """Brings jobs into states and keeps what is said of them."""

    def __init__(self, cluster: Cluster, project: Path, folder: Path) -> None:
        self.cluster, self._project, self._folder = cluster, project, folder
        self._environment = plain_environment(cluster.environment)
        self._answers: dict[str, dict[str, object]] = {}

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self._environment,
            cwd=self._project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def submit(self, *options: str, script: str = "j.sh") -> str:
        told = self.ask("sbatch", "--parsable", "-o", "/dev/null", *options, script)
        assert told.returncode == 0, told.stderr
        return told.stdout.strip()

    def show(self, job: str) -> str:
        return self.ask("scontrol", "show", "job", job).stdout

    def save(self, name: str, text: str) -> None:
        (self._folder / f"{name}.txt").write_text(self._plain(text))

    def save_when(self, name: str, job: str, *marks: str) -> None:
        """`scontrol show job` as soon as it says all of that."""
        self.save(f"show_job_{name}", wait_for(lambda: self.show(job), *marks))

    def save_queue_when(self, name: str, *marks: str) -> None:
        command = ("squeue", "-h", "-r", "-o", QUEUE_FORMAT)
        self.save(name, wait_for(lambda: self.ask(*command).stdout, *marks))

    def answer(self, name: str, *command: str) -> None:
        """What a command says that cannot do its work."""
        told = self.ask(*command)
        self._answers[name] = {
            "command": [self._plain(word) for word in command],
            "status": told.returncode,
            "out": self._plain(told.stdout),
            "err": self._plain(told.stderr),
        }
        text = json.dumps(self._answers, indent=1, ensure_ascii=False)
        (self._folder / "answers.json").write_text(text + "\n")

    def seen(self, name: str) -> bool:
        return (self._project / name).exists()

    def taken(self, name: str) -> str:
        return (self._project / name).read_text()

    def _plain(self, text: str) -> str:
        """Nothing of this machine, always the same words instead."""
        text = text.replace(str(self.cluster.folder), "/cluster")
        text = text.replace(str(self._project), "/project")
        text = re.sub(r"\b(UserId|GroupId)=[^(\s]+\(\d+\)", r"\1=user(1000)", text)
        text = re.sub(r"\b(AllocNode:Sid)=\S+", r"\1=login:1", text)
        return re.sub(rf"\b{re.escape(socket.gethostname().partition('.')[0])}\b", "login", text)


def wait(is_so: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)


def wait_for(told: Callable[[], str], *marks: str) -> str:
    """What is told as soon as one answer has all these marks."""
    until = time.monotonic() + WITHIN_S
    while True:
        words = told()
        if all(mark in words for mark in marks):
            return words
        if time.monotonic() > until:
            raise TimeoutError(f"no {marks} in\n{words}")
        time.sleep(0.05)


def record_states(to: Recorder) -> None:
    """A job's life, and a queue with jobs of all kinds."""
    named = ("-J", "a b", "--comment=plan 1|x ")
    first = to.submit("-w", "node1", "-t30", *named, "--gres=gpu:2")
    after = to.submit(f"--dependency=afterany:{first}")
    held = to.submit("-H", "--comment=p-2 State=x|y")
    later = to.submit("--begin=now+1hour", "-t", "1-00:00:00")
    array = to.submit("--array=0-2%1", "--comment=array")
    wide = to.submit("-N2", "-n2", "-t", "90", "-p", "grace")
    lines = to.submit("--comment=one\ntwo|x\n\nthree", "-H")
    parts = to.submit("-H", "--comment=parts", ":", "-n1")
    to.save_when("running", first, "JobState=RUNNING", "RunTime=00:00:02")
    to.save_when("pending", after, "JobState=PENDING", "Reason=Dependency")
    to.save_when("held", held, "JobState=PENDING", "Reason=JobHeldUser")
    to.save_when("begin", later, "JobState=PENDING", "Reason=BeginTime")
    to.save_when("array_task", f"{array}_0", "JobState=RUNNING")
    to.save_when("array", array, "JobState=RUNNING", "JobState=PENDING")
    to.save_when("two_nodes", wide, "JobState=RUNNING", "NumNodes=2")
    to.save_queue_when("queue", "|RUNNING|")
    to.ask("scontrol", "requeue", first)
    to.save_when("requeued", first, "JobState=PENDING", "Restarts=1")
    to.save_when("second_run", first, "JobState=RUNNING", "Restarts=1")
    to.ask("scancel", first)
    to.save_when("cancelled", first, "JobState=CANCELLED")
    failed = to.submit(script="fail.sh")
    to.save_when("failed", failed, "JobState=FAILED")
    stubborn = to.submit(script="stubborn.sh")
    wait(lambda: "JobState=RUNNING" in to.show(stubborn))
    to.ask("scancel", stubborn)
    to.save_queue_when("queue_completing", "|COMPLETING|")
    to.save_when("completing", stubborn, "JobState=COMPLETING")
    for job in (after, held, later, array, wide, lines, parts):
        to.ask("scancel", job)
    wait(lambda: not to.ask("squeue", "-h").stdout)


def record_notices(to: Recorder) -> None:
    """What a step is told that asks at once when TERM comes, for each cause."""
    everything = ("-N4", "--exclusive", "--requeue")
    for name, partition, how in (
        ("preempted", "low", "outrank"),
        ("preempted_grace", "grace", "outrank"),
        ("preempted_cancel", "cancel", "outrank"),
        ("scancel", "low", "scancel"),
        ("scancel_grace", "grace", "scancel"),
        ("signal", "low", "signal"),
        ("limit", "high", "limit"),
    ):
        limit = "1" if how == "limit" else "5"
        job = to.submit(*everything, "-p", partition, "-t", limit, script="noticed.sh")
        wait(lambda job=job: to.seen(f"ready-{job}"))
        jobs = [job]
        if how == "outrank":
            jobs.append(to.submit(*everything, "-p", "high"))
        elif how == "scancel":
            to.ask("scancel", job)
        elif how == "signal":
            to.ask("scancel", "-s", "TERM", job)
        wait(lambda job=job: to.seen(f"shown-{job}"))
        to.save(f"notice_{name}", to.taken(f"shown-{job}"))
        if how == "limit":
            to.save_when("timeout", job, "JobState=TIMEOUT")
        to.ask("scancel", *jobs)
        wait(lambda: not to.ask("squeue", "-h").stdout)


def record_refusals(to: Recorder) -> None:
    job, running = to.submit("-H", "-t", "10"), to.submit("-t", "10")
    for name, options in (
        ("partition", ["-p", "nowhere"]),
        ("time_limit", ["-p", "short", "-t", "60"]),
        ("gpus", ["--gres=gpu:99"]),
        ("nodes", ["-N", "99"]),
        ("memory", ["--mem=9T"]),
        ("dependency", ["--dependency=afterok:999999"]),
        ("gres", ["--gres=nothing:1"]),
        ("constraint", ["-C", "nothing"]),
        ("option", ["--nothing"]),
        ("time_format", ["-t", "soon"]),
    ):
        to.answer(f"sbatch_{name}", "sbatch", "--parsable", *options, "j.sh")
    to.answer("sbatch_no_script", "sbatch", "--parsable", "nothing.sh")
    to.answer("show_no_job", "scontrol", "show", "job", "999999")
    to.answer("show_no_number", "scontrol", "show", "job", "abc")
    to.answer("requeue_no_job", "scontrol", "requeue", "999999")
    to.answer("requeue_pending", "scontrol", "requeue", job)
    to.answer("update_no_job", "scontrol", "update", "jobid=999999", "TimeLimit=+01:00:00")
    wait(lambda: "JobState=RUNNING" in to.show(running))
    to.answer("update_more_time", "scontrol", "update", f"jobid={running}", "TimeLimit=+01:00:00")
    to.answer("scancel_no_job", "scancel", "999999")
    to.answer("squeue_no_job", "squeue", "-h", "-j", "999999", "-o", QUEUE_FORMAT)
    to.answer("squeue_no_user", "squeue", "-h", "-r", "-u", "nobody-here", "-o", QUEUE_FORMAT)
    to.answer("sacct", "sacct", "-X", "-n", "--parsable2", "-o", "JobID,State,ExitCode")
    to.ask("scancel", job)
    to.answer("requeue_cancelled", "scontrol", "requeue", job)
    to.answer("scancel_ended", "scancel", job)
    to.ask("scancel", running)
    wait(lambda: "JobState=CANCELLED" in to.show(running))
    to.answer("update_ended", "scontrol", "update", f"jobid={running}", "TimeLimit=+01:00:00")


def record_silence(to: Recorder) -> None:
    to.cluster.end(MUNGE)
    to.answer("no_munge_sbatch", "sbatch", "--parsable", "j.sh")
    to.answer("no_munge_squeue", "squeue", "-h", "-r", "-u", "0", "-o", QUEUE_FORMAT)
    to.cluster.end(CONTROLLER)
    to.answer("down_sbatch", "sbatch", "--parsable", "j.sh")
    to.answer("down_show", "scontrol", "show", "job", "1")
    to.answer("down_partition", "scontrol", "show", "partition")
    to.answer("down_config", "scontrol", "show", "config")
    to.answer("down_requeue", "scontrol", "requeue", "1")
    to.answer("down_scancel", "scancel", "1")
    to.answer("down_squeue", "squeue", "-h", "-r", "-u", "0", "-o", QUEUE_FORMAT)


def record(cluster: Cluster, project: Path, folder: Path) -> Path:
    told = cluster.run("sinfo", "--version")
    major, minor, _ = parse_version(told)
    own = folder / f"{major}.{minor:02}"
    own.mkdir(parents=True, exist_ok=True)
    for name, text in SCRIPTS.items():
        (project / name).write_text(text)
    to = Recorder(cluster, project, own)
    to.save("version", told)
    to.save("partitions", to.ask("scontrol", "show", "partition").stdout)
    to.save("settings", to.ask("scontrol", "show", "config").stdout)
    record_states(to)
    record_notices(to)
    record_refusals(to)
    record_silence(to)
    return own


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        project = Path(name) / "project"
        project.mkdir()
        Path(name).chmod(0o755)  # commands and jobs may run as another user than the daemons
        project.chmod(0o777)
        with Cluster(Path(name) / "cluster", Shape(settings=SETTINGS)) as cluster:
            own = record(cluster, project, folder.absolute())
    sys.stdout.write(f"{own}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
