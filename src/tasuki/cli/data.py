"""`tasuki data merge | split | check | tokenize`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tasuki.cli.options import json_option, print_json
from tasuki.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from tasuki.commands.data import DataWork

F = TypeVar("F", bound=Callable[..., Any])

_FILES = click.argument("files", nargs=-1, required=True, metavar="FILE…")
_FORCE = click.option("--force", is_flag=True, help="Replace outputs that exist.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")


@click.group(
    epilog="""\b
Example:  tasuki data check data/small.h5
          tasuki data merge data/a.h5 data/b.h5 -o data/all.h5
          tasuki data split data/all.h5
          tasuki data tokenize corpus.jsonl -o tokens --train 32000
"""
)
def command() -> None:
    """Check, merge and split HDF5 files of samples, and tokenise text, however large.

    FILE is a file, a folder or a pattern. Outputs get their names when they are complete, and a
    command that was interrupted goes on when it is typed again.
    """


@command.command(
    "merge", epilog="Example:  tasuki data merge data/a.h5 data/b.h5 -o data/all.h5 --unique"
)
@_FILES
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write."
)
@click.option("--unique", is_flag=True, help="Leave out samples that came before.")
@_FORCE
@_DRY_RUN
@json_option
def merge(
    files: tuple[str, ...], output: Path, unique: bool, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Put the samples of several files into one, in the order of the files.

    All files need the same data sets. Samples with the same content are reported; `--unique` keeps
    the first of them. Files with samples that cannot be read are refused.
    """
    from tasuki.commands.data import merge_files

    with _working(force=force, is_dry=dry_run) as work:
        merged = merge_files(files, output, unique=unique, work=work)
    if as_json:
        print_json(merged)
        return
    from tasuki.views.data import show_merged

    show_merged(merged)


@command.command("split", epilog="Example:  tasuki data split data/all.h5 --seed 7")
@_FILES
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="The folder to write to (default: beside the file, named as it).",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--parts", default="0.8,0.1,0.1", show_default=True, help="Shares of train, val and test."
)
@_FORCE
@_DRY_RUN
@json_option
def split(
    files: tuple[str, ...],
    folder: Path | None,
    seed: int,
    parts: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write train.h5, val.h5 and test.h5.

    The part of a sample follows from the seed and its content alone: it stays when samples are
    added, and equal samples are never on both sides. Shares hold for each size on average; what
    came out is shown.
    """
    from tasuki.commands.data import split_files

    with _working(force=force, is_dry=dry_run) as work:
        made = split_files(files, folder, seed=seed, parts=parts, work=work)
    if as_json:
        print_json(made)
        return
    from tasuki.views.data import show_split

    show_split(made)


@command.command("check", epilog="Example:  tasuki data check data/ --fix")
@_FILES
@click.option("--fix", is_flag=True, help="Write copies without the bad samples.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The copy (default: NAME.clean.h5 beside the file).",
)
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["duplicate", "empty", "nan"]),
    help="Not a finding here: duplicates, samples without rows, NaN or infinity.",
)
@_FORCE
@_DRY_RUN
@json_option
def check(
    files: tuple[str, ...],
    fix: bool,
    output: Path | None,
    allow: tuple[str, ...],
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Find bad samples: duplicates (over all files), NaN and infinity, parts that cannot be read,
    offsets and sizes that cannot be, samples without rows, groups unlike the others.

    `--fix` writes a copy without them; the original stays as it is. Of folders of tokens (`tasuki
    data tokenize`) sizes and hashes are checked.

    Exit codes: 0 nothing was found, or all copies were written; 1 something was found.
    """
    from tasuki.commands.data import check_files

    with _working(force=force, is_dry=dry_run) as work:
        found = check_files(files, fix=fix, output=output, allow=allow, work=work)
    if as_json:
        print_json(found)
    else:
        from tasuki.views.data import show_checked

        show_checked(found)
    return EXIT_DONE if found["clean"] or found["fixed"] else EXIT_FAILED


@command.command(
    "tokenize",
    epilog="""\b
Example:  tasuki data tokenize corpus.jsonl -o tokens --train 32000
          tasuki data tokenize data/*.parquet -o tokens --tokenizer tokenizer.json --field content
          tasuki data tokenize book.txt -o tokens --bytes --documents blank --chunk 1024
""",
)
@_FILES
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write."
)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json.")
@click.option("--train", type=int, metavar="SIZE", help="Train a byte-level BPE of this size.")
@click.option("--bytes", "takes_bytes", is_flag=True, help="Bytes are the tokens.")
@click.option(
    "--documents",
    type=click.Choice(["file", "blank", "line"]),
    default="file",
    show_default=True,
    help="A document of a .txt: the file, what blank lines separate, or a line.",
)
@click.option("--field", default="text", show_default=True, help="Of jsonl and parquet.")
@click.option("--chunk", type=int, default=32768, show_default=True, help="Tokens of a chunk.")
@click.option("--shard-size", default="512M", show_default=True, help="Bytes of a shard, at most.")
@click.option("--end-token", help="What documents end with, by name (default: found by name).")
@click.option(
    "--special-tokens", is_flag=True, help="Special tokens that stand in a text are no text."
)
@click.option(
    "--on-broken",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="At a line that is no document.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes (default: one per CPU).")
@_FORCE
@_DRY_RUN
@json_option
def tokenize(
    files: tuple[str, ...],
    output: Path,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Tokenise documents of .txt, .jsonl (both also .gz) and .parquet files into packed chunks.

    Each document is followed by an end token; documents run on from chunk to chunk. The last chunk
    is filled up with end tokens, and how many is written down. Recipes read the folder with
    `tasuki.TokenDataset`.
    """
    from tasuki.commands.data import tokenize_files

    with _working(force=force, is_dry=dry_run) as work:
        made = tokenize_files(files, output, work=work, **options)
    if as_json:
        print_json(made)
        return
    from tasuki.views.data import show_tokenized

    show_tokenized(made)


@contextmanager
def _working(*, force: bool, is_dry: bool) -> Iterator[DataWork]:
    """Work whose progress is shown on stderr."""
    from tasuki.clock import SystemClock
    from tasuki.commands.data import DataWork
    from tasuki.views.data import Hearing

    with Hearing(clock=SystemClock()) as hearing:
        yield DataWork(
            python=sys.executable,
            environment=dict(os.environ),
            on_progress=hearing,
            force=force,
            is_dry=is_dry,
        )
