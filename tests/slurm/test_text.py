"""What Slurm prints is understood: recorded output, a live cluster, and hostile names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.scheduler.slurm.text import (
    QUEUE_FORMAT,
    UnknownWords,
    parse_duration,
    parse_job,
    parse_partitions,
    parse_queue,
    parse_settings,
    parse_time,
    parse_version,
)

RECORDED = Path(__file__).parent / "recorded" / "22.05"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def test_of_a_running_job_the_time_left_follows_from_one_answer():
    job = parse_job(recorded("show_job_running"))
    assert (job.number, job.state, job.reason, job.restarts) == ("1", "RUNNING", "", 0)
    assert (job.run_s, job.limit_s, job.is_preempted) == (2.0, 1800.0, False)
    assert job.remaining_s == 1798.0


def test_of_a_pending_job_nobody_knows_the_end():
    job = parse_job(recorded("show_job_pending"))
    assert (job.state, job.reason, job.remaining_s) == ("PENDING", "Dependency", None)


def test_a_cancelled_job_has_no_time_of_preemption():
    job = parse_job(recorded("show_job_cancelled"))
    assert job.state == "CANCELLED" and not job.is_preempted


def test_partitions_tell_their_limits_graces_and_what_preemption_does():
    found = {partition.name: partition for partition in parse_partitions(recorded("partitions"))}
    assert list(found) == ["low", "grace", "cancel", "short", "high"]
    assert [name for name, partition in found.items() if partition.is_default] == ["low"]
    assert (found["low"].longest_s, found["short"].longest_s) == (86400.0, 120.0)
    assert (found["grace"].grace_s, found["cancel"].preempt_mode) == (20.0, "CANCEL")
    assert found["high"].tier > found["low"].tier and found["low"].nodes == 4


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


def test_versions_of_debian_and_of_the_makers_are_read():
    assert parse_version(recorded("version")) == (22, 5, 8)
    assert parse_version("slurm 24.11.1\n") == (24, 11, 1)
    with pytest.raises(UnknownWords, match="not understood"):
        parse_version("command not found")


def test_settings_are_read_line_by_line():
    text = "Configuration data as of 2026\nKillWait                = 2 sec\nAuthInfo = a=b,c=d\n"
    assert parse_settings(text) == {"KillWait": "2 sec", "AuthInfo": "a=b,c=d"}


HOSTILE = st.text(
    st.characters(blacklist_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60
) | st.sampled_from(["x JobState=COMPLETED", "Reason=None", "a|b|c", " = ", "EndTime=now"])


@given(HOSTILE, HOSTILE)
def test_no_name_or_comment_is_mistaken_for_a_field(name, comment):
    text = recorded("show_job_running")
    text = text.replace("JobName=a b", f"JobName={name}")
    text = text.replace("Comment=plan 1|x", f"Comment={comment}")
    assert parse_job(text) == parse_job(recorded("show_job_running"))


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
    until = time.monotonic() + 30
    while parse_job(cluster.run("scontrol", "show", "job", job)).state != "RUNNING":
        assert time.monotonic() < until
        time.sleep(0.05)
    shown = parse_job(cluster.run("scontrol", "show", "job", job))
    assert shown.remaining_s is not None and 1700 < shown.remaining_s <= 1800
    (queued,) = parse_queue(cluster.run("squeue", "-h", "-j", job, "-o", QUEUE_FORMAT))
    assert (queued.number, queued.state, queued.partition) == (job, "RUNNING", "low")
    assert queued.comment == comment and queued.ends == shown.ends
    names = [p.name for p in parse_partitions(cluster.run("scontrol", "show", "partition"))]
    assert names == [partition.name for partition in cluster.shape.partitions]
    assert parse_settings(cluster.run("scontrol", "show", "config"))["KillWait"] == "2 sec"
    assert parse_version(cluster.run("sinfo", "--version")) >= (20, 0, 0)
    cluster.run("scancel", job)


def test_times_are_seconds_or_nothing():
    assert parse_time("Unknown") is None
    one, other = parse_time("2026-11-16T07:16:38"), parse_time("2026-11-16T07:46:38")
    assert one is not None and other is not None and other - one == 1800.0
