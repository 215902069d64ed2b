"""Follows a page literally: types its commands in order, and looks whether what it shows is true.

Of a shown line only words count, in order: numbers, times, bars and plan ids differ from machine to
machine. `…` stands for any lines. A line `^C` in what is shown is a Ctrl-C, given when training has
begun. Everything runs in a shell, in a fresh folder, with a fresh HOME.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.docs.pages import Block, Page

from tests.commands.projects import user_environment

NEEDS_SLURM = "<!-- needs Slurm -->"
CTRL_C = "^C"
WITHIN_S = 480.0
"""Seconds on a quiet machine; on a busy one a command that trains takes minutes."""


@dataclass(frozen=True)
class Typed:
    """A command of a page, and what the page shows of its output."""

    block: Block
    command: str
    shown: tuple[str, ...]
    needs_slurm: bool

    @property
    def is_interrupted(self) -> bool:
        return CTRL_C in self.shown

    def __str__(self) -> str:
        return f"{self.block}: $ {self.command}"


def commands_of(page: Page) -> Iterator[Typed]:
    for block in page.blocks:
        if block.language != "console" or block.not_run:
            continue
        above = page.text.splitlines()[max(0, block.line - 3) : block.line]
        needs_slurm = NEEDS_SLURM in above
        for command, shown in split_block(block.text):
            yield Typed(block, command, shown, needs_slurm)


def split_block(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Commands, lines that go on with `> ` joined, each with the lines below it."""
    command: str | None = None
    shown: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, tuple(shown)
            command, shown = line[2:], []
        elif line.startswith("> ") and command is not None and not shown:
            command += "\n" + line[2:]
        elif command is not None:
            shown.append(line)
    if command is not None:
        yield command, tuple(shown)


def missing_from(shown: tuple[str, ...], real: str) -> list[str]:
    """Shown lines that did not come, in the order they should have."""
    lines = iter([words_of(line) for line in real.splitlines()])
    missing = []
    for line in shown:
        wanted = words_of(line)
        if not wanted or line == CTRL_C or _is_progress(line):
            continue
        if not any(_begins(found, wanted) for found in lines):
            missing.append(line)
            lines = iter([words_of(line) for line in real.splitlines()])
    return missing


def _begins(found: list[str], wanted: list[str]) -> bool:
    return found[: len(wanted)] == wanted


def _is_progress(line: str) -> bool:
    """Redrawn on a terminal, said now and then elsewhere."""
    return "░" in line and " left " in line


def words_of(line: str) -> list[str]:
    without_ids = re.sub(r"-[0-9a-f]{6}\b", "", line.partition("…")[0] or "")
    return re.findall(r"[A-Za-z_]{3,}", without_ids)


@dataclass
class Person:
    """Types in a shell, and stays where `cd` has led."""

    folder: Path
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = str(Path(sys.executable).parent)

    def type(self, typed: Typed) -> tuple[int, str]:
        """The exit code, and all that was printed, as a terminal would show it."""
        told = self.home.with_name("where")
        script = f'{typed.command}\ncode=$?\npwd > "{told}"\nexit $code'
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C reaches the whole group, and nobody else
        )
        try:
            if typed.is_interrupted:
                self._wait_for_training(process)
                os.killpg(process.pid, signal.SIGINT)
            out, _ = process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
        if told.exists():
            self.folder = Path(told.read_text().strip())
        return process.returncode, out

    def _environment(self) -> dict[str, str]:
        own = {
            "HOME": str(self.home),
            "COLUMNS": "100",
            "PYTHONUNBUFFERED": "1",  # what is said first stands first, as on a terminal
            "PATH": f"{self.path}:{os.environ.get('PATH', '')}",
        }
        return user_environment(**own) | dict(self.environment)

    def _wait_for_training(self, process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + WITHIN_S
        while not any(self.folder.glob("runs/*/checkpoints/step-*")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end, "training does not begin"
            time.sleep(0.02)


def follow(typed: Typed, person: Person) -> None:
    """Type it; the page must have told the truth."""
    code, out = person.type(typed)
    wanted = 75 if typed.is_interrupted else 0
    assert code == wanted, f"{typed}: exit code {code}\n{out}"
    missing = missing_from(typed.shown, out)
    assert not missing, f"{typed}: not printed:\n" + "\n".join(missing) + f"\n-- but\n{out}"
