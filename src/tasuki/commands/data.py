"""`tasuki data …`: work on files of samples and tokens, done by a child process with numpy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.errors import DataError
from tasuki.runs.nearby import look_beside
from tasuki.subprocesses import ProgressCallback

_SAMPLES = "tasuki.data.curate.work:work"
_TOKENS = "tasuki.data.tokens.work:work"
_TEXT = (".jsonl", ".json", ".txt", ".md", ".parquet")
_HDF5 = (".h5", ".hdf5")
_PATTERN = "*?["


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWork:
    """How the child is started, who hears it, and what it may do."""

    python: str
    environment: Mapping[str, str]
    on_progress: ProgressCallback = lambda _: None
    force: bool = False
    is_dry: bool = False

    def ask(
        self, verb: str, files: Sequence[str], *, target: str = _SAMPLES, **more: Any
    ) -> dict[str, Any]:
        order = {"verb": verb, "files": list(files), "force": self.force, "dry_run": self.is_dry}
        answer: dict[str, Any] = subprocesses.run(
            target,
            order | more,
            python=self.python,
            environment=self.environment,
            progress=self.on_progress,
            result=dict[str, Any],
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
    """What is wrong with samples; with `fix`, copies without them. Folders of tokens are told
    apart by their index."""
    where = str(output) if output is not None else None
    tokens = [file for file in files if (Path(file) / "index.json").is_file()]
    samples = [file for file in files if file not in tokens]
    _refuse_text(samples)
    _refuse_folders_of_tokens(samples)
    found = []
    if tokens:
        found.append(work.ask("check", tokens, target=_TOKENS, fix=fix))
    if samples:
        found.append(work.ask("check", samples, fix=fix, output=where, allow=list(allow)))
    return found[0] if len(found) == 1 else _join_checks(*found)


def _refuse_text(files: Sequence[str]) -> None:
    for file in files:
        if file.endswith(_TEXT) and Path(file).is_file():
            raise DataError(
                f"`{file}` is text: HDF5 files of samples and folders of tokens are checked",
                hint=f"`tasuki data tokenize {file} -o tokens` makes a folder of tokens, and names "
                "each line that is broken",
            )


def _refuse_folders_of_tokens(files: Sequence[str]) -> None:
    """A level too high, as `data/tokens` above `data/tokens/train`."""
    for file in map(Path, files):
        if not file.is_dir() or any(path.suffix in _HDF5 for path in file.iterdir()):
            continue
        if below := sorted(path.parent for path in file.glob("*/index.json")):
            raise DataError(
                f"`{file}` holds no samples, but folders of tokens: "
                f"{', '.join(path.name for path in below)}",
                hint=f"`tasuki data check {shlex.join(map(str, below))}` checks them",
            )


def _refuse_missing_text(files: Sequence[str]) -> None:
    for file in files:
        if not any(sign in file for sign in _PATTERN) and not Path(file).exists():
            raise DataError(
                f"text `{file}` does not exist; {look_beside(Path(file))}",
                hint="name files of text (.txt, .jsonl, .parquet), a folder of them or a pattern",
            )


def _join_checks(tokens: dict[str, Any], samples: dict[str, Any]) -> dict[str, Any]:
    files = [*tokens["files"], *samples["files"]]
    return samples | {"clean": tokens["clean"] and samples["clean"], "files": files}


def tokenize_files(
    files: Sequence[str],
    output: Path,
    *,
    work: DataWork,
    tokenizer: Path | None = None,
    train: int | None = None,
    takes_bytes: bool = False,
    documents: str = "file",
    field: str = "text",
    chunk: int = 32768,
    shard_size: str = "512M",
    end_token: str | None = None,
    special_tokens: bool = False,
    on_broken: str = "stop",
    workers: int | None = None,
) -> dict[str, Any]:
    """A folder of packed tokens."""
    _refuse_missing_text(files)
    return work.ask(
        "tokenize",
        files,
        target=_TOKENS,
        output=str(output),
        tokenizer=str(tokenizer) if tokenizer is not None else None,
        train=train,
        bytes=takes_bytes,
        documents=documents,
        field=field,
        chunk=chunk,
        shard_size=shard_size,
        end_token=end_token,
        special_tokens=special_tokens,
        on_broken=on_broken,
        workers=workers,
    )
