"""A full disk at the first start, and under `tasuki data tokenize`. Saves: tests/resume."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def mount_small_disk() -> Iterator[Callable[[Path], None]]:
    """Puts a folder on a disk of 2 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk: run the tests as root in a container")
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=60, check=True)


def test_a_first_start_on_a_full_disk_is_told_with_a_hint_and_repeated_by_run(
    project, mount_small_disk, here
):
    made = project(stages=[{"name": "one", "data": "d", "steps": 1}])
    mount_small_disk(made.runs)
    filler = made.runs / "filler"
    filler.write_bytes(b"\0" * shutil.disk_usage(made.runs).free)
    said = here(made.folder, "run")
    assert said.code == 1 and "error:" in said.err and "make room" in said.err, said
    filler.unlink()
    assert here(made.folder, "run").code == 0, made.logs()


def test_tokens_that_find_the_disk_full_leave_no_output_and_go_on_when_there_is_room(
    tmp_path, mount_small_disk, here
):
    disk = tmp_path / "disk"
    mount_small_disk(disk)
    (tmp_path / "a.txt").write_text("nothing but words\n" * 150_000)
    words = ("data", "tokenize", str(tmp_path / "a.txt"), "--bytes", "--chunk", "1024")
    said = here(tmp_path, *words, "-o", "disk/t")
    assert said.code == 1 and "No space left on device" in said.err, said
    assert "hint: make room there" in said.err and "Traceback" not in said.err
    assert not (disk / "t").exists()
    bigger = ["mount", "-o", "remount,size=20m", str(disk)]
    subprocess.run(bigger, timeout=60, check=True)
    said = here(tmp_path, *words, "-o", "disk/t")
    assert said.code == 0 and [path.name for path in disk.iterdir()] == ["t"], said
    assert here(tmp_path, *words, "-o", "ref").code == 0
    for path in (tmp_path / "ref").iterdir():
        assert (disk / "t" / path.name).read_bytes() == path.read_bytes()
