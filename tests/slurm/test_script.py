"""Scripts of jobs: readable, the same for all, and nothing that a user writes is run by them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tasuki.errors import UsageError
from tasuki.slurm.script import (
    SlurmJob,
    render_script,
    render_submit,
    sbatch_options,
    submit_arguments,
)
from tasuki.slurm.succession import smaller_options
from tasuki.slurm.text import QUEUE_FORMAT, parse_job, parse_queue
from tests.slurm.project import wait

JOB = SlurmJob(
    name="demo-01",
    folder=Path("/project/runs/.jobs/p-01"),
    command=("/env/bin/python", "-P", "-m", "tasuki.jobs", "/project/runs/.jobs/p-01"),
    limit_s=8 * 3600.0,
    gres="gpu:a100:2",
    cpus=8,
    memory_bytes=96 * 2**30,
    partition="preempt",
    after=("p-00",),
    extra={"reservation": "class", "exclusive": True, "nice": 5, "hold": False},
)


def test_what_sbatch_is_told_reads_like_the_spec():
    assert sbatch_options(JOB) == [
        "--job-name=demo-01",
        "--comment=tasuki p-01",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--time=480",
        "--gres=gpu:a100:2",
        "--cpus-per-task=8",
        "--mem=98304M",
        "--partition=preempt",
        "--output=/project/runs/.jobs/p-01/slurm-%j.log",
        "--open-mode=append",
        "--requeue",
        "--reservation=class",
        "--exclusive",
        "--nice=5",
    ]


def test_a_job_of_seconds_asks_for_a_minute_and_a_part_of_one_for_all_of_it():
    times = {90.0: "2", 5.0: "1", 3600.0: "60", 3601.0: "61"}
    for seconds, minutes in times.items():
        assert f"--time={minutes}" in sbatch_options(replace(JOB, limit_s=seconds))
    assert not any("--time" in word for word in sbatch_options(replace(JOB, limit_s=None)))


def test_the_script_is_the_same_for_every_job_and_a_shell_understands_it(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(render_script())
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert not any(word in render_script() for word in ("demo-01", "a100", "/project"))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("time", "cluster.time_limit"),
        ("mem", "cluster.memory"),
        ("output", "leave it out"),
        ("--wrap", "without dashes"),
        ("a b", "without dashes"),
        ("", "without dashes"),
    ],
)
def test_further_options_that_the_plan_hangs_on_are_refused(key, words):
    with pytest.raises(UsageError) as caught:
        replace(JOB, extra={key: "1"})
    assert words in caught.value.hint


def hostile(canary: Path) -> list[str]:
    """Values that would leave a file behind if any of them were run."""
    act = f"touch {canary}"
    frames = [
        *("{}", "$({})", "`{}`", "; {} ;", "| {}", "& {} &", "\n{}\n", "\n#SBATCH --wrap={}\n"),
        *("'; {} ;'", '"; {} ;"', "a' $({}) 'b", 'a" $({}) "b', "\\\n{}", "<({})", "$(<{})"),
        *("%j $({})", "${{IFS}}{}", "\r\n{}\r\n", "--wrap={}", "-- {}", "\t{}", "!{}", "~{}"),
        *("x\n\n{}\nexit 0\n", "#!/bin/bash\n{}", "}} {} {{", "*; {}", "\u2028{}\u2028", "é {}"),
    ]
    return [frame.format(act) for frame in frames]


def test_by_hand_the_command_means_the_same_arguments_whatever_they_hold(tmp_path):
    """`sbatch` is a program that prints its arguments here: what a shell makes of the file."""
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
    fake.chmod(0o755)
    canary = tmp_path / "canary"
    fields = ("name", "gres", "partition", "account", "qos", "constraint", "mail")
    environment = {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    submit = tmp_path / "submit.sh"
    for value in hostile(canary):
        folder = JOB.folder / value.replace("/", "_")
        all_fields = dict.fromkeys(fields, value)
        job = replace(JOB, **all_fields, folder=folder, extra={"reservation": value})
        submit.write_text(render_submit(job))
        told = subprocess.run(["bash", submit], env=environment, capture_output=True, check=True)
        words = told.stdout.decode().split("\0")[:-1]
        assert words == [*sbatch_options(job), *submit_arguments(job)]
    assert not canary.exists()


def submitted(cluster, job: SlurmJob) -> str:
    for name, text in (("job.sh", render_script()), ("submit.sh", render_submit(job))):
        (job.folder / name).write_text(text)
    return cluster.run("bash", str(job.folder / "submit.sh")).split()[-1]


def wait_for_end(cluster, number: str) -> str:
    def state() -> str:
        return parse_job(cluster.run("scontrol", "show", "job", number)).state

    wait(lambda: state() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), state)
    return state()


def make_job(folder: Path, *command: str, **more) -> SlurmJob:
    return SlurmJob(name="t", folder=folder, command=command, limit_s=300, **more)


def test_on_a_real_cluster_the_command_runs_on_each_node_with_its_gpus_after_the_setup(
    cluster, tmp_path
):
    folder = tmp_path / "runs with space" / "100%j"
    folder.mkdir(parents=True)
    (folder / "setup.sh").write_text("export FROM_SETUP=yes; echo ${NOT_SET-}\n")
    words = ("bash", "-c", 'echo "$SLURM_NODEID $CUDA_VISIBLE_DEVICES $FROM_SETUP $1"', "-", "a  b")
    job = make_job(folder, *words, nodes=2, gres="gpu:2", cpus=2, memory_bytes=2**30)
    number = submitted(cluster, job)
    assert wait_for_end(cluster, number) == "COMPLETED"
    log = (folder / f"slurm-{number}.log").read_text()
    assert sorted(log.split("\n")[1:3]) == ["0 0,1 yes a  b", "1 0,1 yes a  b"], log


def test_on_a_real_cluster_no_hostile_value_runs_and_each_arrives_as_it_is(cluster, tmp_path):
    values = hostile(tmp_path / "canary")
    write = ("bash", "-c", f'printf "%s\\0" "$@" >{tmp_path}/told', "-", *values)
    numbers = []
    for count, name in enumerate([values[1], values[6], values[-2]]):
        folder = tmp_path / str(count)
        folder.mkdir()
        numbers.append(submitted(cluster, replace(make_job(folder, *write), name=name)))
    listed = parse_queue(cluster.run("squeue", "-h", "-t", "all", "-o", QUEUE_FORMAT))
    assert set(numbers) <= {job.number for job in listed}
    for number in numbers:
        assert wait_for_end(cluster, number) == "COMPLETED"
    told = (tmp_path / "told").read_bytes().decode().split("\0")
    assert told[: len(values)] == values
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--gres=gpu:4", "--gres=gpu:1"),
        ("--gres=gpu:a100-80g:4", "--gres=gpu:a100-80g:1"),
        ("--cpus-per-task=32", "--cpus-per-task=8"),
        ("--mem=1001M", "--mem=251M"),
        ("--time=60", "--time=60"),
        ("--comment=gres:4", "--comment=gres:4"),
    ],
)
def test_a_smaller_job_asks_for_its_share_and_for_nothing_else(before, after):
    assert smaller_options([before], gpus=1, before=4, cpus=8) == [after]
