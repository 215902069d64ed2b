"""`tasuki data …`: work on HDF5 files of samples, done by a child process with numpy and h5py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.answers import OnProgress, ask


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWork:
    """How the child is started, who hears it, and what it may do."""

    python: str
    environment: Mapping[str, str]
    on_progress: OnProgress = lambda _: None
    force: bool = False
    is_dry: bool = False

    def ask(self, verb: str, files: Sequence[str], **more: Any) -> dict[str, Any]:
        order = {"verb": verb, "files": list(files), "force": self.force, "dry_run": self.is_dry}
        answer: dict[str, Any] = ask(
            "tasuki.data.curate.work",
            order | more,
            python=self.python,
            environment=self.environment,
            on_progress=self.on_progress,
        )
        return answer


def merge_files(
    files: Sequence[str], output: Path, *, unique: bool, work: DataWork
) -> dict[str, Any]:
    """One file with the samples of all."""
    return work.ask("merge", files, output=str(output), unique=unique)


def split_files(
    files: Sequence[str], folder: Path | None, *, seed: int, parts: str, work: DataWork
) -> dict[str, Any]:
    """train.h5, val.h5 and test.h5."""
    where = str(folder) if folder is not None else None
    return work.ask("split", files, folder=where, seed=seed, parts=parts)


def check_files(
    files: Sequence[str],
    *,
    work: DataWork,
    fix: bool = False,
    output: Path | None = None,
    allow: Sequence[str] = (),
) -> dict[str, Any]:
    """What is wrong with samples; with `fix`, copies without them."""
    where = str(output) if output is not None else None
    return work.ask("check", files, fix=fix, output=where, allow=list(allow))
