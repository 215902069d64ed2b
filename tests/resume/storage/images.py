"""Power cuts for real: a file system in a file, copied while a run saves into it, then mounted.

The copy holds what the file system had sent to its disk, and nothing of what it still had in mind:
what a disk looks like when the power goes. Two copies in a row that are equal are one moment; other
copies are torn, which no disk does, and are taken again. Needs root, loop devices and mkfs.ext4.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.syscalls import Call, fork_watched
from tests.resume.storage.driver import live
from tests.resume.storage.pessimist import find_problems, tell

from tasuki.runs.runs import RunFolder

_SIZE = 12 * 2**20
_READS = (
    "newfstatat", "getdents64", "read", "readv", "lseek", "ioctl", "fcntl", "close", "statx",
)  # fmt: skip


def why_not() -> str | None:
    """Why images cannot be cut on this machine, if so."""
    if os.geteuid() != 0:
        return "needs root, for mounts"
    if not all(shutil.which(program) for program in ("mkfs.ext4", "mount", "umount")):
        return "needs mkfs.ext4, mount and umount"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(make_image(Path(folder) / "image"), Path(folder) / "mount"):
                return None
        except subprocess.CalledProcessError as error:
            return f"cannot mount a file here: {error.stderr.strip()[:80]}"


def make_image(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(_SIZE)
    _do("mkfs.ext4", "-q", "-F", "-b", "1024", "-J", "size=1", "-m", "0", str(path))
    return path


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    _do("mount", "-o", "loop,noatime", str(image), str(at))
    try:
        yield at
    finally:
        _do("umount", str(at))


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


def cut_power(*, cuts: int, seed: int) -> dict[str, Any]:
    """Cut at evenly spread calls of a run, and a quarter of them while it runs on."""
    memory = Path("/dev/shm")
    done = {"cuts": 0, "torn": 0, "problems": []}
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        calls = _count_calls(folder)
        num_held = cuts - cuts // 4
        chosen = {round((number + 0.5) * calls / num_held) for number in range(num_held)}
        _cut_held(folder, chosen, done)
        chance = random.Random(seed)
        while done["cuts"] < cuts:
            _cut_running(folder, chance, cuts, done)
    return done


@contextmanager
def _living(folder: Path) -> Iterator[tuple[Path, Any]]:
    """A run on a file system of its own."""
    image = make_image(folder / f"image-{os.urandom(4).hex()}")
    with mounted(image, folder / "live") as disk:
        run = RunFolder(disk / "runs" / "exp")
        run.path.parent.mkdir()
        child = fork_watched(lambda teller: live(run, lambda text: tell(teller, text)), disk)
        try:
            yield image, child
        finally:
            child.kill()
    image.unlink()


def _count_calls(folder: Path) -> int:
    with _living(folder) as (_, child):
        number = 0
        while (call := child.next()) is not None:
            number += _is_worth_a_cut(call)
            call.go_on()
        assert child.lines[-1] == "marker", child.lines
    return number


def _is_worth_a_cut(call: Call) -> bool:
    return call.kind not in _READS


def _cut_held(folder: Path, chosen: set[int], done: dict[str, Any]) -> None:
    with _living(folder) as (image, child):
        number = 0
        while (call := child.next()) is not None:
            if _is_worth_a_cut(call):
                number += 1
                if number in chosen:
                    place = f"held at {call.kind}({', '.join(call.paths)})"
                    _cut(folder, image, child.lines, place, done)
            call.go_on()
        _cut(folder, image, child.lines, "at the end", done)


def _cut_running(folder: Path, chance: random.Random, cuts: int, done: dict[str, Any]) -> None:
    """A thread answers the calls, as if nobody held them."""
    import threading

    with _living(folder) as (image, child):
        runner = threading.Thread(target=child.run)
        runner.start()
        while runner.is_alive() and done["cuts"] < cuts:
            runner.join(chance.uniform(0.001, 0.05))
            _cut(folder, image, child.lines, "running", done)
        child.signal(signal.SIGKILL)
        runner.join()


def _cut(folder: Path, image: Path, told: list[str], place: str, done: dict[str, Any]) -> None:
    """`told` was acknowledged before the copy began, so it must be on the disk."""
    first, second = image.read_bytes(), image.read_bytes()
    if first != second:
        done["torn"] += 1
        if place == "running":
            return
        while first != second:
            first, second = second, image.read_bytes()
    copy = folder / f"cut-{done['cuts']:04d}"
    copy.write_bytes(first)
    done["cuts"] += 1
    with mounted(copy, folder / "after") as disk:
        found = find_problems(RunFolder(disk / "runs" / "exp"), told)
    done["problems"] += [f"{place}, after {told[-1:]}: {text}" for text in found]
    copy.unlink()
