"""What Slurm prints is understood: recorded output, a live cluster, and hostile names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.slurm.text import (
    QUEUE_FORMAT,
    ShownNodes,
    UnknownWords,
    most_gpus,
    parse_duration,
    parse_job,
    parse_nodes,
    parse_partitions,
    parse_queue,
    parse_settings,
    parse_time,
    parse_version,
)
from tests.slurm.project import wait
from tests.slurm.recordings import VERSIONS, recorded

of_each_version = pytest.mark.parametrize("version", VERSIONS)


@of_each_version
def test_of_a_running_job_the_time_left_follows_from_one_answer(version):
    job = parse_job(recorded(version, "show_job_running"))
    assert (job.state, job.reason, job.restarts) == ("RUNNING", "", 0) and job.number.isdecimal()
    assert (job.run_s, job.limit_s, job.is_preempted) == (2.0, 1800.0, False)
    assert job.remaining_s == 1798.0


@of_each_version
@pytest.mark.parametrize(("name", "reason"), [("pending", "Dependency"), ("held", "JobHeldUser")])
def test_of_a_pending_job_nobody_knows_the_end(version, name, reason):
    job = parse_job(recorded(version, f"show_job_{name}"))
    assert (job.state, job.reason, job.remaining_s) == ("PENDING", reason, None)


@of_each_version
def test_a_job_that_begins_later_has_its_whole_limit(version):
    job = parse_job(recorded(version, "show_job_begin"))
    assert (job.state, job.reason) == ("PENDING", "BeginTime")
    assert job.limit_s == job.remaining_s == 86400.0


@of_each_version
def test_a_task_of_an_array_and_a_job_on_two_nodes_are_jobs_like_others(version):
    task = parse_job(recorded(version, "show_job_array_task"))
    assert (task.state, task.limit_s) == ("RUNNING", 600.0) and task.number.isdecimal()
    wide = parse_job(recorded(version, "show_job_two_nodes"))
    assert (wide.state, wide.limit_s) == ("RUNNING", 5400.0) and not wide.is_preempted


@of_each_version
def test_a_requeued_job_counts_its_restarts(version):
    waiting = parse_job(recorded(version, "show_job_requeued"))
    again = parse_job(recorded(version, "show_job_second_run"))
    assert (waiting.state, waiting.restarts) == ("PENDING", 1)
    assert (again.state, again.restarts) == ("RUNNING", 1) and again.number == waiting.number
    assert again.remaining_s is not None and 1790 <= again.remaining_s <= 1800


@of_each_version
@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("completing", "COMPLETING", ""),
        ("cancelled", "CANCELLED", ""),
        ("failed", "FAILED", "NonZeroExitCode"),
        ("timeout", "TIMEOUT", "TimeLimit"),
    ],
)
def test_a_job_that_ended_says_how_and_has_no_time_of_preemption(version, name, state, reason):
    job = parse_job(recorded(version, f"show_job_{name}"))
    assert (job.state, job.reason, job.is_preempted) == (state, reason, False)
    assert job.remaining_s is not None and job.remaining_s <= 0


@of_each_version
def test_the_queue_lists_each_job_with_its_comment(version):
    queued = parse_queue(recorded(version, "queue"))
    known = {job.comment: job for job in queued}
    first, held = known["plan 1|x "], known["p-2 State=x|y"]
    assert (first.state, first.reason, first.partition) == ("RUNNING", "", "low")
    assert first.starts is not None and first.ends == first.starts + 1800.0
    assert (held.state, held.reason, held.ends) == ("PENDING", "JobHeldUser", None)
    assert known["one\ntwo|x\n\nthree"].state == "PENDING"
    plain = {(job.reason, job.partition) for job in queued if not job.comment}
    assert plain >= {("Dependency", "low"), ("BeginTime", "low"), ("", "grace")}


@of_each_version
def test_the_queue_lists_tasks_of_an_array_and_parts_of_a_job_by_their_own_names(version):
    queued = parse_queue(recorded(version, "queue"))
    tasks = sorted(job.number for job in queued if job.comment == "array")
    assert [task.partition("_")[2] for task in tasks] == ["0", "1", "2"]
    parts = sorted(job.number for job in queued if "+" in job.number)
    assert [part.partition("+")[2] for part in parts] == ["0", "1"]


@of_each_version
def test_a_job_that_is_being_ended_is_still_in_the_queue(version):
    states = [job.state for job in parse_queue(recorded(version, "queue_completing"))]
    assert "COMPLETING" in states


@of_each_version
def test_partitions_tell_their_limits_graces_and_what_preemption_does(version):
    found = {one.name: one for one in parse_partitions(recorded(version, "partitions"))}
    assert list(found) == ["low", "grace", "cancel", "short", "high"]
    assert [name for name, partition in found.items() if partition.is_default] == ["low"]
    assert all(partition.is_up for partition in found.values())
    assert (found["low"].longest_s, found["short"].longest_s) == (86400.0, 120.0)
    assert (found["grace"].grace_s, found["cancel"].preempt_mode) == (20.0, "CANCEL")
    assert found["high"].tier > found["low"].tier and found["low"].nodes == 4


def test_what_nodes_of_partitions_have_is_read_from_what_sinfo_prints():
    nodes = parse_nodes(
        "gpu|2|64|500000|gpu:a100:4(S:0-1),gpu:h100:8\ngpu|1|32+|250000+|gpu:a100:2\n"
        "cpu|9|16|64000|(null)\nold|1|8|32000|gpu:2,craynetwork:4\nodd|0|0|0|gpu\n"
    )
    assert nodes[1] == ShownNodes(
        partition="gpu", count=1, cpus=32, memory_bytes=250000 << 20, gpus={"a100": 2}
    )
    with pytest.raises(UnknownWords):
        parse_nodes("gpu|many|64|500000|")
    assert most_gpus(nodes) == {
        "gpu": {"a100": 4, "h100": 8},
        "cpu": {},
        "old": {"": 2},
        "odd": {"": 1},
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("29:58", 1798.0),
        ("5", 300.0),
        ("2-12", 216000.0),
        ("1-00:30", 88200.0),
        ("UNLIMITED", None),
        ("INVALID", ValueError),
        ("-5", ValueError),
        ("٣:٠٠", ValueError),
    ],
)
def test_durations_mean_what_slurms_manual_says(text, seconds):
    if seconds is ValueError:
        with pytest.raises(ValueError, match="no duration"):
            parse_duration(text)
    else:
        assert parse_duration(text) == seconds


@of_each_version
def test_a_version_is_read_as_it_was_recorded(version):
    major, minor, _ = parse_version(recorded(version, "version"))
    assert f"{major}.{minor:02}" == version


def test_versions_of_the_makers_are_read_and_nothing_else():
    assert parse_version("slurm 24.11.1\n") == (24, 11, 1)
    with pytest.raises(UnknownWords, match="not understood"):
        parse_version("command not found")


@of_each_version
def test_settings_of_a_real_cluster_are_read(version):
    settings = parse_settings(recorded(version, "settings"))
    assert (settings["KillWait"], settings["PreemptMode"]) == ("2 sec", "REQUEUE")
    assert settings["PreemptType"] == "preempt/partition_prio"


def test_settings_are_read_line_by_line():
    text = "Configuration data as of 2026\nKillWait                = 2 sec\nAuthInfo = a=b,c=d\n"
    assert parse_settings(text) == {"KillWait": "2 sec", "AuthInfo": "a=b,c=d"}


HOSTILE = st.text(
    st.characters(blacklist_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60
) | st.sampled_from(["x JobState=COMPLETED", "Reason=None", "a|b|c", " = ", "EndTime=now"])


@of_each_version
@given(HOSTILE, HOSTILE)
def test_no_name_or_comment_is_mistaken_for_a_field(version, name, comment):
    text = recorded(version, "show_job_running")
    hostile = text.replace("JobName=a b", f"JobName={name}")
    hostile = hostile.replace("Comment=plan 1|x", f"Comment={comment}")
    hostile = hostile.replace("-J a b", f"-J {name}")  # newer ones repeat what sbatch was told
    assert parse_job(hostile) == parse_job(text)


@given(st.text(max_size=300))
def test_anything_else_is_refused_with_one_error(text):
    for parse in (parse_job, parse_partitions, parse_queue, parse_version):
        try:
            parse(text)
        except UnknownWords as error:
            assert "not understood" in error.message and error.hint


def test_a_live_clusters_words_are_understood(cluster, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nexec sleep 600\n")
    comment = "plan|1 State=x"
    options = ("--parsable", "-o", "/dev/null", "-t", "30", f"--comment={comment}", "-J", "a b")
    job = cluster.run("sbatch", *options, str(script)).strip()
    show = ("scontrol", "show", "job", job)
    wait(lambda: parse_job(cluster.run(*show)).state == "RUNNING")
    shown = parse_job(cluster.run(*show))
    assert shown.remaining_s is not None and 1700 < shown.remaining_s <= 1800
    (queued,) = parse_queue(cluster.run("squeue", "-h", "-j", job, "-o", QUEUE_FORMAT))
    assert (queued.number, queued.state, queued.partition) == (job, "RUNNING", "low")
    assert queued.comment == comment and queued.ends == shown.ends
    names = [p.name for p in parse_partitions(cluster.run("scontrol", "show", "partition"))]
    assert names == [partition.name for partition in cluster.shape.partitions]
    assert parse_settings(cluster.run("scontrol", "show", "config"))["KillWait"] == "10 sec"
    assert parse_version(cluster.run("sinfo", "--version")) >= (20, 0, 0)
    cluster.run("scancel", job)


def test_times_are_seconds_or_nothing():
    assert parse_time("Unknown") is None
    one, other = parse_time("2026-11-16T07:16:38"), parse_time("2026-11-16T07:46:38")
    assert one is not None and other is not None and other - one == 1800.0
