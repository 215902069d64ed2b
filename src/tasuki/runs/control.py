"""What was said about a run, in order: cancel, hold, fail, lift.

Numbered files made exclusively, so that the order needs no clock; the last word counts. Hold and
fail are words of an attempt and count only while it is the newest: one that lost the run may have
written its word in that very moment, and no check before writing could rule that out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import (
    FORMAT,
    create_exclusive,
    list_folder,
    make_folder,
    read_json,
    shaped,
    to_json,
)
from tasuki.runs.claims import is_superseded
from tasuki.runs.runs import RunFolder


class Word(StrEnum):
    CANCEL = "cancel"
    """A person wants no more of it, for now."""
    HOLD = "hold"
    """Something a person must look at; only `resume` lifts it."""
    FAIL = "fail"
    """A user's mistake: trying again without a change is pointless."""
    LIFT = "lift"
    """A person wants it to go on."""


@dataclass(frozen=True, slots=True)
class Said:
    word: Word
    reason: str
    hint: str
    claim: int
    """Of hold and fail the attempt that said it, else the highest claim at that time: failures up
    to it are forgiven by a lift."""
    facts: dict[str, Any]


def say(
    run: RunFolder,
    word: Word,
    *,
    reason: str,
    claim: int,
    hint: str = "",
    facts: dict[str, Any] | None = None,
) -> None:
    """Add a word. It is durable when this returns."""
    make_folder(run.control)
    value = {
        "format": FORMAT,
        "word": word,
        "reason": reason,
        "hint": hint,
        "claim": claim,
        **(facts or {}),
    }
    is_said = False
    while not is_said:
        try:
            path = run.control / f"{_count(run) + 1:06d}.json"
            is_said = create_exclusive(path, to_json(value))
        except StoreError as error:
            # An attempt that began in this moment has swept the temporary file.
            if not isinstance(error.__cause__, FileNotFoundError) or not run.control.is_dir():
                raise


def everything_said(run: RunFolder) -> list[Said]:
    """All words, oldest first."""
    said = []
    for number in range(1, _count(run) + 1):
        path = run.control / f"{number:06d}.json"
        value = read_json(path)
        known = {"word", "reason", "hint", "claim", "format"}
        if str(value.get("word")) not in set(Word):
            raise StoreError(f"{path} is damaged: there is no word {value.get('word')!r}")
        with shaped(path):
            said.append(
                Said(
                    word=Word(value["word"]),
                    reason=str(value.get("reason", "")),
                    hint=str(value.get("hint", "")),
                    claim=int(value.get("claim", 0)),
                    facts={k: v for k, v in value.items() if k not in known},
                )
            )
    return said


def last_said(run: RunFolder) -> Said | None:
    """The word that counts."""
    return word_that_counts(run, everything_said(run))


def word_that_counts(run: RunFolder, said: Sequence[Said]) -> Said | None:
    for entry in reversed(said):
        if entry.word not in (Word.HOLD, Word.FAIL) or not is_superseded(run, entry.claim):
            return entry
    return None


def is_wanted(run: RunFolder) -> bool:
    """Neither complete nor cancelled, held or failed."""
    said = last_said(run)
    return not run.is_complete() and (said is None or said.word is Word.LIFT)


def _count(run: RunFolder) -> int:
    names = [path.name for path in list_folder(run.control, "*.json")]
    numbers = [int(name[:6]) for name in names if name[:6].isdecimal()]
    return max(numbers, default=0)
