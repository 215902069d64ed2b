"""Who holds a run, and whether that process still lives: never by its pid alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasuki.runs.attempts import (
    Holder,
    host_id,
    process_birth,
    read_attempt_end,
    read_attempt_ends,
    read_holder,
    write_attempt_end,
    write_holder,
)
from tasuki.runs.claims import take_claim
from tasuki.runs.runs import RunFolder


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is told otherwise."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def holder_of(process: subprocess.Popen[bytes]) -> Holder:
    born = process_birth(process.pid)
    return Holder(1, host_id(), process.pid, born, "plan-01", 1, 0.0)


def test_a_holder_that_runs_is_alive(child: subprocess.Popen[bytes]) -> None:
    assert holder_of(child).is_alive() is True


def test_a_holder_that_is_gone_is_dead(child: subprocess.Popen[bytes]) -> None:
    holder = holder_of(child)
    child.kill()
    child.wait()
    assert holder.is_alive() is False


def test_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    holder = holder_of(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended; nobody reaped it
    assert Path(f"/proc/{child.pid}").exists()
    assert holder.is_alive() is False


def test_a_recycled_pid_is_another_process(child: subprocess.Popen[bytes]) -> None:
    holder = holder_of(child)
    assert replace(holder, born=str(int(holder.born) - 1)).is_alive() is False


def test_nobody_can_tell_about_a_process_on_another_host(child: subprocess.Popen[bytes]) -> None:
    assert replace(holder_of(child), host="node17:0badcafe").is_alive() is None


def test_a_holder_is_dead_after_its_host_was_booted_again(child: subprocess.Popen[bytes]) -> None:
    name = host_id().partition(":")[0]
    assert replace(holder_of(child), host=f"{name}:0badcafe").is_alive() is False


def test_this_process_was_born_and_a_pid_that_cannot_be_was_not() -> None:
    assert process_birth(os.getpid()).isdecimal()
    assert process_birth(2**22 + 1) == ""


@pytest.mark.parametrize("name", ["a) Z 1 (b", "aプロセスプ"])
def test_a_process_name_with_brackets_or_cut_inside_a_letter_does_not_hide_its_birth(
    tmp_path: Path, name: str
) -> None:
    found = shutil.which("cat")
    assert found is not None
    (tmp_path / name).symlink_to(found)
    with subprocess.Popen([tmp_path / name], stdin=subprocess.PIPE) as process:
        try:
            raw = Path(f"/proc/{process.pid}/stat").read_bytes()
            by_kernel = raw.rpartition(b")")[2].split()[19].decode()
            assert process_birth(process.pid) == by_kernel
        finally:
            process.kill()


# -- in the run folder --------------------------------------------------------------------------


def test_a_holder_is_read_as_it_was_written(run: RunFolder) -> None:
    claim = take_claim(run)
    assert read_holder(run, claim) is None
    write_holder(run, claim, job="plan-01", start=3, at=17.5)
    holder = read_holder(run, claim)
    assert holder is not None
    assert (holder.claim, holder.pid, holder.job, holder.start) == (1, os.getpid(), "plan-01", 3)
    assert holder.at == 17.5
    assert holder.is_alive() is True


def test_how_every_attempt_ended_is_known_and_silence_is_none(run: RunFolder) -> None:
    for claim in (take_claim(run), take_claim(run), take_claim(run)):
        if claim != 2:
            write_attempt_end(run, claim, {"ending": "failed"})
    ends = read_attempt_ends(run)
    assert list(ends) == [1, 2, 3]
    assert ends[2] is None
    assert ends[3] == read_attempt_end(run, 3) == {"format": 1, "claim": 3, "ending": "failed"}
