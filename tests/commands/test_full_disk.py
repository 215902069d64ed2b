"""A disk that is full: nothing committed is lost, and the run goes on when there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasuki.checkpoint.lineage import find_latest
from tasuki.commands.compare import compare_runs
from tests.commands.person import Project, finish, until

PAGE = 4096


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], None]]:
    """Puts a folder on a disk of 2 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk: run the tests as root in a container")
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=True)


def fill(folder: Path, *, leave: int) -> Path:
    filler = folder / "filler"
    with filler.open("wb") as file:
        file.write(b"\0" * (shutil.disk_usage(folder).free // PAGE * PAGE - leave))
    return filler


@pytest.mark.parametrize("leave", [16 * PAGE, 0])
def test_a_disk_that_fills_up_does_not_end_the_run_which_saves_again_when_there_is_room(
    project, small_disk, leave
):
    """With a little room for words but not for a checkpoint of 120 kB, or with none at all."""
    made: Project = project(recipe="Heavy", params={"pause": 0.05})
    small_disk(made.runs)
    process = made.start("run")
    until(lambda: made.step() >= 7, made.logs)
    filler = fill(made.runs, leave=leave)
    until(lambda: process.poll() is not None or "is not saved" in made.logs(), made.logs)
    assert process.poll() is None, made.logs()
    if leave:
        assert " needs " in made.logs() and " free" in made.logs(), made.logs()
    # What was committed is whole.
    latest = find_latest(made.run(), lambda name, error: pytest.fail(f"{name}: {error}"))
    assert latest is not None and latest.manifest.position.stage_step >= 7
    filler.unlink()
    said = finish(process)
    assert said.code == 0, f"{said}\n{made.logs()}"
    undisturbed: Project = project("ref", recipe="Heavy")
    assert undisturbed.type("run").code == 0
    assert compare_runs(made.run(), undisturbed.run(), ["one"]).is_equal


def test_a_disk_that_is_full_at_the_first_start_is_told_with_a_hint(project, small_disk, here):
    made: Project = project()
    small_disk(made.runs)
    fill(made.runs, leave=0)
    said = here(made.folder, "run")
    assert said.code == 1 and "error:" in said.err and "make room" in said.err, said


def test_a_first_start_that_found_the_disk_full_is_repeated_by_run(project, small_disk):
    made: Project = project()
    small_disk(made.runs)
    filler = fill(made.runs, leave=0)
    assert made.type("run").code == 1
    filler.unlink()
    assert made.type("run").code == 0, made.logs()


def test_tokens_that_find_the_disk_full_leave_no_output_and_go_on_when_there_is_room(
    tmp_path, small_disk, here
):
    disk = tmp_path / "disk"
    small_disk(disk)
    (tmp_path / "a.txt").write_text("nothing but words\n" * 150_000)
    words = ("data", "tokenize", str(tmp_path / "a.txt"), "--bytes", "--chunk", "1024")
    said = here(tmp_path, *words, "-o", "disk/t")
    assert said.code == 1 and "No space left on device" in said.err, said
    assert "hint: make room there" in said.err and "Traceback" not in said.err
    assert not (disk / "t").exists()
    bigger = ["mount", "-o", "remount,size=20m", str(disk)]
    subprocess.run(bigger, timeout=20, check=True)
    said = here(tmp_path, *words, "-o", "disk/t")
    assert said.code == 0 and [path.name for path in disk.iterdir()] == ["t"], said
    assert here(tmp_path, *words, "-o", "ref").code == 0
    for path in (tmp_path / "ref").iterdir():
        assert (disk / "t" / path.name).read_bytes() == path.read_bytes()
