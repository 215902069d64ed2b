"""Claims: who may write to a run.

Claim n is a folder made by mkdir, so exactly one attempt gets it. Only the highest claim may
commit; the others see it when they list the folder again, and leave. The claim records the
checkpoint from which its attempt went on, which is how the latest checkpoint is found: by lineage,
never by number or time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tasuki.errors import ClaimLost, StoreError
from tasuki.runs.atomic import (
    FOLDER_MODE,
    FORMAT,
    fsync_folder,
    list_folder,
    list_temps,
    make_folder,
    read_json_or_none,
    refuse_foreign,
    remove_files,
    translated,
    write_json,
)
from tasuki.runs.runs import RunFolder

_DIGITS = 9
"""No run has more attempts than that: a longer name is no claim of ours."""


def list_claims(run: RunFolder) -> list[int]:
    """All claims ever taken, ascending."""
    with translated(run.claims):
        try:
            names = os.listdir(run.claims)
        except FileNotFoundError:
            return []
    return sorted(int(name) for name in names if name.isdecimal() and len(name) <= _DIGITS)


def highest_claim(run: RunFolder) -> int:
    """The claim that may write; 0 when none was taken yet."""
    return max(list_claims(run), default=0)


def take_claim(run: RunFolder) -> int:
    """Take the run: from now on only this claim may commit."""
    for folder in (run.path, run.claims, run.checkpoints):
        refuse_foreign(folder, beside=run.path.parent)
    make_folder(run.claims)
    while True:
        claim = highest_claim(run) + 1
        if len(str(claim)) > _DIGITS:
            raise StoreError(
                f"{run.claims} holds claim {claim - 1}, and nothing can follow it",
                hint="nothing of tasuki counts so far: move that folder away",
            )
        try:
            (run.claims / str(claim)).mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            continue
        except OSError as error:
            with translated(run.claims):
                raise error
        with translated(run.claims):
            fsync_folder(run.claims)
        return claim


def is_superseded(run: RunFolder, claim: int) -> bool:
    """Has a newer attempt taken the run?"""
    return highest_claim(run) > claim


def ensure_claim_holds(run: RunFolder, claim: int) -> None:
    """Called before each commit and prune: who sees a higher claim leaves."""
    highest = highest_claim(run)
    if highest > claim:
        raise ClaimLost(
            f"attempt {highest} has taken {run.path}; attempt {claim} must not write any more",
            hint="nothing to do: the newer attempt goes on",
        )


def sweep_temps(run: RunFolder, *, claim: int) -> None:
    """What attempts before this one left half-written. A zombie's rename then fails: good."""
    earlier = (run.claims / str(number) for number in list_claims(run) if number < claim)
    folders = [run.path, run.control, *list_folder(run.stages), *earlier]
    temps = [path for folder in folders for path in list_temps(folder)]
    # Listed before the claims are: no newer attempt was there yet, so none of these files is its.
    if not is_superseded(run, claim):
        remove_files(temps)


def record_parent(run: RunFolder, claim: int, *, parent: str | None, facts: dict[str, Any]) -> None:
    """Write down from which checkpoint this claim goes on (None: from nothing)."""
    write_json(
        run.claims / str(claim) / "parent.json",
        {"format": FORMAT, "claim": claim, "parent": parent, **facts},
    )


def parent_of(run: RunFolder, claim: int) -> tuple[bool, str | None]:
    """(is it recorded, the parent checkpoint's name)."""
    path = run.claims / str(claim) / "parent.json"
    value = read_json_or_none(path)
    if value is None:
        return False, None
    parent = value.get("parent")
    if parent is not None and not isinstance(parent, str):
        raise StoreError(f"{path} is damaged: parent is {parent!r}")
    return True, parent


def claim_folder(run: RunFolder, claim: int) -> Path:
    """Where a claim keeps what belongs to its attempt."""
    return run.claims / str(claim)
