"""Verbs of data: merge, split, check and tokenise files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.commands.data import DataWork, check_files, merge_files, split_files, tokenize_files


def data_merge(
    *files: str | Path, output: str | Path, unique: bool = False, force: bool = False
) -> dict[str, Any]:
    """Put the samples of several HDF5 files into one; `unique` keeps the first of equal ones."""
    words = [str(file) for file in files]
    return merge_files(words, Path(output), unique=unique, work=_data_work(force))


def data_split(
    *files: str | Path,
    folder: str | Path | None = None,
    seed: int = 0,
    parts: str = "0.8,0.1,0.1",
    force: bool = False,
) -> dict[str, Any]:
    """Write train.h5, val.h5 and test.h5; each sample's part follows from seed and content."""
    where = Path(folder) if folder is not None else None
    words = [str(file) for file in files]
    return split_files(words, where, seed=seed, parts=parts, work=_data_work(force))


def data_check(
    *files: str | Path,
    fix: bool = False,
    output: str | Path | None = None,
    allow: Sequence[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Find bad samples of HDF5 files; `fix` writes copies without them."""
    where = Path(output) if output is not None else None
    words = [str(file) for file in files]
    return check_files(words, fix=fix, output=where, allow=allow, work=_data_work(force))


def data_tokenize(
    *files: str | Path,
    output: str | Path,
    tokenizer: str | Path | None = None,
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
    force: bool = False,
) -> dict[str, Any]:
    """Make a folder of packed tokens of documents in txt, jsonl or parquet files."""
    return tokenize_files(
        [str(file) for file in files],
        Path(output),
        tokenizer=Path(tokenizer) if tokenizer is not None else None,
        train=train,
        takes_bytes=takes_bytes,
        documents=documents,
        field=field,
        chunk=chunk,
        shard_size=shard_size,
        end_token=end_token,
        special_tokens=special_tokens,
        on_broken=on_broken,
        workers=workers,
        work=_data_work(force),
    )


def _data_work(force: bool) -> DataWork:
    return DataWork(python=sys.executable, environment=dict(os.environ), force=force)
