"""Read a script that people gave to sbatch before: its options, its preparations, its one command.

Pure. What cannot be taken apart without a shell is left whole: bash runs the script then, to which
`#SBATCH` lines are comments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_SHORT = {
    "t": "time",
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "G": "gpus",
    "c": "cpus-per-task",
    "N": "nodes",
    "n": "ntasks",
    "J": "job-name",
    "o": "output",
    "e": "error",
    "a": "array",
    "d": "dependency",
    "w": "nodelist",
    "x": "exclude",
    "D": "chdir",
    "i": "input",
    "M": "clusters",
    "L": "licenses",
    "b": "begin",
}
_FLAGS = ("exclusive", "requeue", "no-requeue", "overcommit", "hold", "parsable", "verbose")
_PREPARES = ("module", "ml", "source", ".", "conda", "mamba", "export", "set", "ulimit", "unset")
_TALKS = ("echo", "date", "hostname", "nvidia-smi", "pwd", "printf", "env", "which", "wait")
_NEEDS_SHELL = re.compile(r"[$`|&;<>(){}*?~!\[\]]")
_STRUCTURE = re.compile(r"(if|for|while|until|case|function|select)\b|[{(]")


@dataclass(frozen=True, slots=True)
class Option:
    """`--time=8:00:00` and where it stands; without a value: an empty text. A word that is no
    option has no name."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class BatchScript:
    """What a script asks for and does."""

    options: tuple[Option, ...]
    late: tuple[Option, ...]
    """Below the first command, where sbatch does not read them."""
    setup: tuple[str, ...]
    command: tuple[str, ...]
    """Empty: it takes a shell to know."""
    why_whole: str = ""


def read_batch_script(text: str) -> BatchScript:
    """`text` may hold anything."""
    options: list[Option] = []
    late: list[Option] = []
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"#SBATCH\s+(.*)", line):
            (late if body else options).extend(_options(match[1], number))
        elif line.strip() and not line.lstrip().startswith("#"):
            body.append(line)
    setup, command, why = _take_apart(body)
    return BatchScript(tuple(options), tuple(late), setup, command, why)


def _options(text: str, line: int) -> Iterator[Option]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and word[1:2] in _SHORT:
            name, value = _SHORT[word[1]], word[2:].removeprefix("=")
            equals = value
        else:
            name, equals, value = "", "=", word
        if not equals and name not in _FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield Option(name, value, line)


def _take_apart(body: list[str]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """(setup, command, why it stays whole)."""
    lines = _joined(body)
    if any(_STRUCTURE.match(line) or "<<" in line for line in lines):
        return (), (), "it has loops, conditions or texts of its own"
    works = [place for place, line in enumerate(lines) if _first(line) not in _PREPARES + _TALKS]
    if not works:
        return (), (), "it has no command"
    if len(works) > 1:
        return (), (), "it has several commands"
    before = lines[: works[0]]
    if any(_first(line) in _PREPARES for line in lines[works[0] + 1 :]):
        return (), (), "something comes after its command"
    command = lines[works[0]]
    words = _split(command)
    if _NEEDS_SHELL.search(command) or not words:
        return (), (), "its command needs a shell"
    if words[0] == "srun":
        words = words[1:]
        if not words or words[0].startswith("-"):
            return (), (), "its srun has options"
    if "=" in words[0]:
        return (), (), "its command sets a variable"
    return tuple(line for line in before if _first(line) in _PREPARES), tuple(words), ""


def _joined(body: list[str]) -> list[str]:
    """Lines that end with a backslash go on in the next."""
    text = "\n".join(body)
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def _first(line: str) -> str:
    return next(iter(_split(line)), "")


def _split(line: str) -> list[str]:
    """As a shell does; nothing where a quote is never closed."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []
