"""The harness itself: what it does not see, it does not test."""

from __future__ import annotations

import pytest
from tests.harness import strace, syscalls

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure


@pytest.mark.skipif(strace.why_not() is not None, reason=strace.why_not() or "")
@pytest.mark.usefixtures("held_calls")
@pytest.mark.long
def test_every_call_on_the_run_folder_that_strace_sees_is_held(bench):
    for phase, (held, seen) in bench.do("tests.resume.storage.witness:compare").items():
        assert held == seen, phase
        assert held, phase


@pytest.mark.usefixtures("held_calls")
def test_a_kind_of_call_that_nobody_has_thought_of_is_an_error(tmp_path):
    import os

    path = tmp_path / "a"
    path.write_bytes(b"1234")
    fd = os.open(path, os.O_RDWR)
    child = syscalls.fork_watched(lambda _: os.setxattr(path, "user.a", b"b"), tmp_path)
    with pytest.raises(syscalls.Uncovered, match="system call 188"):
        child.run()
    child = syscalls.fork_watched(lambda _: os.sync() or os.sendfile(fd, fd, 0, 4), tmp_path)
    with pytest.raises(syscalls.Uncovered, match="system call 40"):
        child.run()
    os.close(fd)


def test_code_that_is_executed_from_data_and_files_outside_are_noticed(bench):
    seen = bench.do("tests.resume.storage.evil:be_careless")
    assert {"pickle.find_class", "os.system", "exec", "open"} <= set(seen)
    assert seen.count("open") == 1
