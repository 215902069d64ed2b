"""Durable files are whole or not there: after kills, limits, full disks and races."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from tasuki.errors import NewerFormat, StoreError
from tasuki.runs.atomic import (
    FORMAT,
    create_exclusive,
    make_folder,
    read_json,
    read_json_or_none,
    to_json,
    translated,
    write_bytes,
    write_json,
)
from tests.unit.runs.processes import NUM_RACERS, python, race

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None,
    reason="needs strace: `make system` as root on Debian, or install it",
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- whole or not there -------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    value = {"name": "größe\n", "x": [1, None, 0.1]}
    write_json(tmp_path / "a.json", {"longer than": ["what", "comes", "after"] * 99})
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert to_json(value).count(b"\n") == 1
    assert os.listdir(tmp_path) == ["a.json"]


KILLED = """
import os, random, signal, sys
from pathlib import Path
from tasuki.runs.atomic import write_bytes
path, rounds = Path(sys.argv[1]), int(sys.argv[2])
random.seed(7)
contents = [b"%08d" % number * 250_000 for number in range(8)]
spin = 0
for round in range(rounds):
    acknowledged, teller = os.pipe()
    child = os.fork()
    if child == 0:
        number = 0
        while True:
            number += 1
            write_bytes(path, contents[number % 8])
            os.write(teller, b"%d\\n" % number)
    os.close(teller)
    told = b""
    while told.count(b"\\n") < 1 + round % 2:
        told += os.read(acknowledged, 100)
    for _ in range(random.randrange(60_000)):
        spin += 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(acknowledged, "rb") as rest:
        told += rest.read()
    last = int(told.split()[-1])
    found = path.read_bytes()
    assert found in contents, f"torn at {len(found)} bytes"
    assert contents.index(found) in (last % 8, (last + 1) % 8), "an acknowledged write is lost"
print("whole")
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file_and_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    assert python(KILLED, tmp_path / "a", 25) == "whole\n"


LIMITED = """
import resource, sys
from pathlib import Path
from tasuki.errors import StoreError
from tasuki.runs.atomic import create_exclusive, write_bytes
folder = Path(sys.argv[1])
write_bytes(folder / "a", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for act in (write_bytes, create_exclusive):
    try:
        act(folder / ("a" if act is write_bytes else "b"), b"x" * 5000)
    except StoreError as error:
        print(error)
"""


def test_a_write_over_the_file_size_limit_keeps_the_old_file_and_names_the_error(
    tmp_path: Path,
) -> None:
    told = python(LIMITED, tmp_path).splitlines()
    assert [("EFBIG" in line, str(tmp_path) in line) for line in told] == [(True, True)] * 2
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only folder")
def test_a_read_only_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    write_bytes(folder / "a", b"old")
    folder.chmod(0o500)
    try:
        with pytest.raises(StoreError, match=re.escape(f"{folder / 'a'}: Permission denied (EACC")):
            write_bytes(folder / "a", b"new")
        with pytest.raises(StoreError, match="EACCES"):
            make_folder(folder / "b")
        assert (folder / "a").read_bytes() == b"old"
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_need_and_free_space(tmp_path: Path, number: int) -> None:
    with pytest.raises(StoreError) as caught, translated(tmp_path / "a", need=5_000_000):
        raise OSError(number, os.strerror(number))
    told = caught.value.message
    assert f"{tmp_path / 'a'}: " in told and f"({errno.errorcode[number]})" in told
    assert "needs 5 MB" in told and told.endswith(" free")
    assert "nothing that was committed is lost" in caught.value.hint


# -- the order of system calls ------------------------------------------------------------------

CALLS = "openat,write,fsync,rename,renameat,renameat2,link,linkat,unlink"
WRITE = "import sys, pathlib, tasuki.runs.atomic as a; a.{act}(pathlib.Path(sys.argv[1]), b'new')"


def traced(folder: Path, act: str) -> list[str]:
    """The calls that touch the target's folder, as `name what`."""
    log = folder.parent / "strace"
    python(
        WRITE.format(act=act),
        folder / "a",
        prefix=("strace", "-y", "-o", str(log), "-e", f"trace={CALLS}"),
    )
    found = []
    for line in log.read_text().splitlines():
        if str(folder) in line:
            on_folder = re.search(
                rf"(<{re.escape(str(folder))}>|\"{re.escape(str(folder))}\")", line
            )
            found.append(f"{line.split('(')[0]} {'folder' if on_folder else 'file'}")
    return found


@needs_strace
def test_a_file_is_synced_then_renamed_then_its_folder_is_synced(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "f")
    assert traced(folder, "write_bytes") == [
        "openat file",
        "write file",
        "fsync file",
        "rename file",
        "openat folder",
        "fsync folder",
    ]


@needs_strace
def test_an_exclusive_file_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    calls = traced(make_folder(tmp_path / "f"), "create_exclusive")
    assert calls[:4] == ["openat file", "write file", "fsync file", "link file"]
    assert calls[-1] == "fsync folder"


FAULTY = """
import sys
from pathlib import Path
from tasuki.errors import StoreError
from tasuki.runs.atomic import write_bytes
try:
    write_bytes(Path(sys.argv[1]), b"new")
except StoreError as error:
    print(error)
else:
    print("acknowledged")
"""


@needs_strace
@pytest.mark.parametrize(
    ("call", "name", "content"),
    [
        ("write", "ENOSPC", "old"),
        ("fsync", "EIO", "old"),
        ("rename", "EROFS", "old"),
        ("fsync:when=2", "EIO", "new"),
    ],
)
def test_a_failing_call_is_never_acknowledged(
    tmp_path: Path, call: str, name: str, content: str
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    call, _, when = call.partition(":")
    fault = f"inject={call}:error={name}:{when or 'when=1'}"
    told = python(
        FAULTY, path, prefix=("strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", fault)
    )
    assert f"{path}: " in told and f"({name})" in told
    assert path.read_text() == content  # whole in any case
    assert os.listdir(tmp_path) == ["a"]


# -- exclusive files ----------------------------------------------------------------------------


def test_exactly_one_of_eight_processes_creates_each_file(tmp_path: Path) -> None:
    act = """
from tasuki.runs.atomic import create_exclusive
result = [create_exclusive(folder / str(n), b"%d" % racer * 9999) for n in range(40)]
result = [n for n, won in enumerate(result) if won]
result = [racer, result]"""
    won = race(tmp_path, act.strip())
    assert sorted(n for _, numbers in won for n in numbers) == list(range(40))
    for racer, numbers in won:
        for n in numbers:
            assert (tmp_path / str(n)).read_bytes() == b"%d" % racer * 9999
    assert len(os.listdir(tmp_path)) == 40
    assert len(won) == NUM_RACERS


# -- folders ------------------------------------------------------------------------------------


def test_folders_and_files_are_private_whatever_the_umask(tmp_path: Path, no_umask: None) -> None:
    made = make_folder(tmp_path / "a" / "b" / "c")
    assert [mode(folder) for folder in (made, made.parent, made.parent.parent)] == [0o700] * 3
    write_json(made / "f.json", {})
    create_exclusive(made / "g", b"")
    assert [mode(made / "f.json"), mode(made / "g")] == [0o600] * 2


def test_a_folder_that_exists_keeps_its_mode_and_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o750)
    (tmp_path / "a" / "f").touch()
    before = mode(tmp_path / "a")
    make_folder(tmp_path / "a")
    assert mode(tmp_path / "a") == before
    assert (tmp_path / "a" / "f").exists()


def test_a_file_in_the_way_of_a_folder_or_its_parent_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(StoreError, match="ENOTDIR"):
        make_folder(tmp_path / "a" / "b")
    with pytest.raises(StoreError):
        make_folder(tmp_path / "a")


# -- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have_are_refused_and_the_old_file_stays(
    tmp_path: Path, number: float
) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"x": [number]})
    assert read_json(tmp_path / "a.json") == {"x": 1}


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(NewerFormat) as caught:
        read_json(tmp_path / "a.json")
    assert f"{tmp_path / 'a.json'} has format {FORMAT + 1}" in caught.value.message
    assert f"reads up to {FORMAT}" in caught.value.message
    assert "newer" in caught.value.hint


@pytest.mark.parametrize("value", [{}, {"format": FORMAT}, {"format": FORMAT - 1}])
def test_this_format_and_older_ones_are_read(tmp_path: Path, value: dict[str, int]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert read_json(tmp_path / "a.json") == value


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    brackets = b"[" * 100_000
    for raw in (b"", b"{", b'{"a": 1', b"[]", b"1", b"null", b"\xff\xfe{", b"\0", brackets):
        path.write_bytes(raw)
        with pytest.raises(StoreError, match=re.escape(str(path))):
            read_json(path)


def test_a_missing_file_is_none_or_an_error_as_the_reader_wants(tmp_path: Path) -> None:
    assert read_json_or_none(tmp_path / "a.json") is None
    with pytest.raises(StoreError, match="ENOENT"):
        read_json(tmp_path / "a.json")


def test_text_with_bytes_that_are_no_utf_8_can_be_written(tmp_path: Path) -> None:
    message = "no such file: " + os.fsdecode(b"d\xe4ten.h5")
    write_json(tmp_path / "a.json", {"message": message})
    assert "ten.h5" in read_json(tmp_path / "a.json")["message"]
