"""A `tasuki submit` that is killed at any moment, and typed again: every experiment is queued once.

Counted in Slurm's own queue, by the comments of its jobs and the runs that their folders name.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tasuki.runs.jobs import job_folder
from tests.slurm.project import SlurmProject, make_slurm_project

SEED = 20_251
TRIALS = 40
AND_THEN_S = 0.03
"""About as long as one sbatch."""
EXPERIMENTS = ("first", "second", "third")


def make_project(cluster, folder: Path) -> SlurmProject:
    """Three experiments, each a job of its own, which Slurm holds: none starts."""
    stages = [{"name": "one", "data": "d", "epochs": 2}]
    experiments = {name: {"stages": stages} for name in EXPERIMENTS}
    wanted = {"extra": {"hold": True}}
    return make_slurm_project(cluster, folder, more={"experiments": experiments}, **wanted)


def start_submit(project: SlurmProject, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tasuki", "submit"],
        cwd=project.folder,
        env={**project.environment, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_over(process: subprocess.Popen[str], *, within_s: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=within_s)
    return process.returncode is not None


def count_queued(project: SlurmProject) -> Counter[str]:
    """Jobs in the queue of each run of the project."""
    runs = project.folder / "runs"
    counts: Counter[str] = Counter()
    for line in project.cluster.run("squeue", "-h", "-o", "%i|%k").splitlines():
        folder = job_folder(runs, line.partition("|tasuki ")[2])
        if folder.lanes.exists():
            lanes = json.loads(folder.lanes.read_text())["lanes"]
            counts.update({item["run"] for lane in lanes for item in lane["items"]})
    return counts


def hold_second_sbatch(folder: Path) -> dict[str, str]:
    """PATH with an sbatch that at the second job writes its pid and waits for a line in `gate`."""
    folder.mkdir()
    os.mkfifo(folder / "gate")
    program = folder / "sbatch"
    program.write_text(f"""\
#!/bin/bash
cd {folder}
if [[ "$*" != *--test-only* ]] && echo >> calls && [ "$(wc -l < calls)" = 2 ]; then
  echo $$ > pid.part && mv pid.part pid
  read -r < gate
fi
exec {shutil.which("sbatch")} "$@"
""")
    program.chmod(0o700)
    return {"PATH": f"{folder}:{os.environ['PATH']}:/usr/sbin:/sbin"}


def kill_in_second_sbatch(project: SlurmProject, folder: Path) -> int:
    """The pid of an sbatch that has lost its submit and was not heard yet."""
    killed = start_submit(project, **hold_second_sbatch(folder))
    project.wait((folder / "pid").exists, "at its second job")
    killed.kill()
    killed.communicate()
    return int((folder / "pid").read_text())


def test_a_submit_waits_for_the_sbatch_of_one_that_was_killed(cluster, tmp_path):
    project = make_project(cluster, tmp_path / "p")
    kill_in_second_sbatch(project, tmp_path / "bin")
    again = start_submit(project)
    lines = iter(again.stdout.readline, "")
    notes = next((line for line in lines if "is at work: waiting for it" in line), "")
    assert notes or again.wait() == 0
    (tmp_path / "bin" / "gate").write_text("go\n")
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert count_queued(project) == dict.fromkeys(EXPERIMENTS, 1)
    cluster.run("scancel", "-u", str(os.getuid()))


def test_what_was_ordered_and_never_submitted_is_withdrawn(cluster, tmp_path):
    project = make_project(cluster, tmp_path / "p")
    os.kill(kill_in_second_sbatch(project, tmp_path / "bin"), signal.SIGKILL)
    project.tasuki("submit")
    assert count_queued(project) == dict.fromkeys(EXPERIMENTS, 1)
    marks = [path for path in project.jobs if (path / "withdrawn.json").exists()]
    assert len(marks) == 2
    # An sbatch of another host that nobody could wait for: Slurm starts the job all the same.
    for mark in marks:
        for more in ([], ["--after"]):
            done = subprocess.run(
                [sys.executable, "-m", "tasuki.jobs", str(mark), *more],
                env={**project.environment, "SLURM_JOB_ID": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0 and "withdrawn" in done.stderr
        assert not (mark / "starts").exists() and not list(mark.glob("outcome.*"))
    assert not list(project.folder.glob("runs/*/claims"))
    cluster.run("scancel", "-u", str(os.getuid()))


@pytest.mark.long
def test_a_chain_of_which_a_part_is_in_the_queue_is_finished_with_its_dependencies(
    cluster, tmp_path
):
    stages = [{"name": n, "data": "d", "epochs": 2, "expect": {"wall": "50m"}} for n in ("a", "b")]
    wanted = {"extra": {"hold": True}, "partition": "grace", "time_limit": "1h"}
    project = make_slurm_project(cluster, tmp_path / "p", stages=stages, **wanted)
    os.kill(kill_in_second_sbatch(project, tmp_path / "bin"), signal.SIGKILL)
    project.tasuki("submit")
    assert [path.name[-2:] for path in project.jobs] == ["01", "02"]
    orders = [json.loads((path / "slurm.json").read_text())["number"] for path in project.jobs]
    told = cluster.run("squeue", "-h", "-o", "%i %E", "-j", ",".join(orders)).splitlines()
    assert sorted(told) == [f"{orders[0]} (null)", f"{orders[1]} afterany:{orders[0]}(unfulfilled)"]
    cluster.run("scancel", *orders)


def count_written(project: SlurmProject) -> int:
    """Orders and numbers: a submit writes one of each for each job."""
    names = ("sbatch.json", "slurm.json")
    return sum(len(list(project.folder.glob(f"runs/.jobs/*/{name}"))) for name in names)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_forty_kills_at_random_moments_leave_every_experiment_queued_once(cluster, tmp_path):
    draw = random.Random(SEED)
    wrong, between = [], 0
    for trial in range(TRIALS):
        project = make_project(cluster, tmp_path / f"p{trial}")
        killed = start_submit(project)
        # By its files, not by the clock: a submit that takes longer today is hit as often.
        moment = draw.randint(0, 2 * len(EXPERIMENTS))
        while count_written(project) < moment and not is_over(killed, within_s=0.001):
            pass
        is_over(killed, within_s=draw.uniform(0, AND_THEN_S))
        killed.kill()
        killed.communicate()
        between += len(EXPERIMENTS) < count_written(project) < 2 * len(EXPERIMENTS)
        project.tasuki("submit")
        counts = count_queued(project)
        if counts != dict.fromkeys(EXPERIMENTS, 1):
            wrong.append(f"trial {trial}: {dict(counts)}")
        cluster.run("scancel", "-u", str(os.getuid()))
    print(f"{TRIALS - len(wrong)} of {TRIALS} right; {between} were killed between two sbatch")
    assert not wrong, "\n".join(wrong)
