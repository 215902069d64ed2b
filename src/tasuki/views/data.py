"""What became of files of samples: merged, split, checked; of texts: tokenised. Fed with the values
of `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasuki.clock import Clock
from tasuki.subprocesses import Progress
from tasuki.units import format_bytes
from tasuki.views.text import count, neutral, say, warn
from tasuki.views.waiting import Waiting

_MOST_SIZES = 20


class Hearing:
    """While a child works: its sentences at once, its progress when it takes long. On stderr."""

    def __init__(self, *, clock: Clock) -> None:
        self._console = Console(stderr=True)
        self._waiting = Waiting(clock=clock, console=self._console)

    def __enter__(self) -> Hearing:
        self._waiting.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._waiting.__exit__(kind, error)

    def __call__(self, progress: Progress) -> None:
        if progress.total == 0:  # a sentence (tasuki.data.curate.talk)
            self._console.print(Text(neutral(progress.what)), highlight=False, soft_wrap=True)
        else:
            self._waiting(progress)


def show_merged(merged: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    has = "would have" if merged["dry_run"] else "has"
    size = format_bytes(merged["bytes"])
    say(console, f"{merged['output']} {has} {_samples(merged['samples'])}, {size}")
    for file in merged["files"]:
        say(console, f"  {count(file['samples'])} of {file['path']}")
    repeated = merged["duplicates"]
    if repeated["samples"]:
        what = "left out" if repeated["left_out"] else "kept; `--unique` leaves them out"
        say(console, f"{_samples(repeated['samples'])} came before ({what}):")
        for pair in repeated["first"]:
            say(
                console,
                f"  sample {pair['sample']} of {pair['file']} is sample {pair['same_sample']} "
                f"of {pair['same_file']}",
            )
        _and_more(console, repeated["samples"] - len(repeated["first"]))
    _warn(console, merged["warnings"])


def show_split(made: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    parts = ", ".join(f"{count(number)} {name}" for name, number in made["samples"].items())
    what = "would be split into" if made["dry_run"] else "split into"
    say(console, f"{count(sum(made['samples'].values()))} samples {what} {parts}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("size", "samples", *made["samples"]):
        table.add_column(name, justify="right")
    for one in made["sizes"][:_MOST_SIZES]:
        table.add_row(*(count(one[name]) for name in ("size", "samples", *made["samples"])))
    console.print(table)
    if (more := len(made["sizes"]) - _MOST_SIZES) > 0:
        say(console, f"and {count(more)} sizes more (`--json` has all)")
    for path in made["outputs"]:
        say(console, path)
    _warn(console, made["warnings"])


def show_checked(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for file in found["files"]:
        if file["error"] is not None:
            say(console, f"{file['path']}: {file['error']}", style="red")
            if file["hint"]:
                say(console, f"  hint: {file['hint']}")
            continue
        state = f"{count(file['bad'])} bad" if file["bad"] else "clean"
        colour = "yellow" if file["bad"] else "green"
        has_tokens = file.get("holds") == "tokens"
        num = _chunks(file["samples"]) if has_tokens else _samples(file["samples"])
        say(console, f"{file['path']}: {num}, {state}", style=colour)
        for finding in file["findings"]:
            if has_tokens:
                say(console, f"  {finding['kind']}: {finding['first'][0]['why']}")
            else:
                _print_finding(finding, console)
        if file["output"]:
            has = "would have" if found["dry_run"] else "has"
            say(console, f"  {file['output']} {has} the {count(file['kept'])} others")
        _warn(console, file["warnings"])


def show_tokenized(made: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    if made["dry_run"]:
        total = sum(source["bytes"] for source in made["sources"])
        num = len(made["sources"])
        say(
            console,
            f"{made['output']} would have the tokens of {count(num)} file{'s' if num > 1 else ''}, "
            f"{format_bytes(total)}, in chunks of {count(made['chunk'])} ({made['dtype']})",
        )
        return
    shards = len(made["shards"])
    say(
        console,
        f"{made['output']} has {count(made['tokens'])} tokens of {count(made['documents'])} "
        f"document{'' if made['documents'] == 1 else 's'}: {_chunks(made['chunks'])} of "
        f"{count(made['chunk'])} in {count(shards)} shard{'' if shards == 1 else 's'}, "
        f"{format_bytes(made['bytes'])}",
    )
    say(
        console,
        f"  vocabulary {count(made['vocab'])} ({made['dtype']}), end token {made['end_token']}",
    )
    if made["padding"]:
        tokens = f"{count(made['padding'])} end token{'' if made['padding'] == 1 else 's'}"
        say(console, f"  the last chunk is filled up with {tokens}")
    if made["skipped"]:
        lines = "line was" if made["skipped"] == 1 else "lines were"
        say(console, f"{count(made['skipped'])} broken {lines} skipped:", style="yellow")
        for one in made["first_skipped"]:
            say(console, f"  {one['file']}:{one['row']}: {one['why']}")
        _and_more(console, made["skipped"] - len(made["first_skipped"]))
    _warn(console, made["warnings"])


def _print_finding(finding: dict[str, Any], console: Console) -> None:
    where = f" in `{finding['dataset']}`" if finding["dataset"] else ""
    say(console, f"  {finding['kind']}{where}: {_samples(finding['samples'])}")
    for one in finding["first"]:
        say(console, f"    sample {one['sample']}: {one['why']}")
    _and_more(console, finding["samples"] - len(finding["first"]), indent="    ")


def _chunks(number: int) -> str:
    return f"{count(number)} chunk{'' if number == 1 else 's'}"


def _samples(number: int) -> str:
    return f"{count(number)} sample{'' if number == 1 else 's'}"


def _and_more(console: Console, number: int, indent: str = "  ") -> None:
    if number > 0:
        say(console, f"{indent}and {count(number)} more")


def _warn(console: Console, warnings: Sequence[str]) -> None:
    for warning in warnings:
        warn(console, warning)
