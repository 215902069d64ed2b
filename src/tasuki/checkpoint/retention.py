"""Which checkpoints stay: the newest good ones of the lineage, and the highest claim's parent; and
those that a person left by going back, until a person prunes.

Removes nothing unless the claim holds. Room that is needed at most: `keep`, the parent, and the one
being written. A removal is a rename first, so that no half-deleted folder is taken for damage.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.manifest import parse_name
from tasuki.checkpoint.verify import check_shape
from tasuki.errors import DamagedCheckpoint, DiskFull
from tasuki.failpoints import failpoint
from tasuki.runs.atomic import (
    free_bytes,
    fsync_folder,
    list_folder,
    make_folder,
    remove_tree,
    translated,
)
from tasuki.runs.back import left_behind
from tasuki.runs.claims import ensure_claim_holds, highest_claim, parent_of
from tasuki.runs.runs import RunFolder
from tasuki.units import format_bytes

MIN_KEEP = 2
"""One may turn out to be damaged."""

_TRASH = ".trash-"
QUARANTINE = "quarantine-"
_MARGIN_BYTES = 1 << 20
"""Of free space beyond a checkpoint: logs, events and the manifest need some too."""


def prune(run: RunFolder, *, claim: int, keep: int) -> list[str]:
    """Remove what is no longer needed; the names of what was removed."""
    ensure_claim_holds(run, claim)
    _sweep_trash(run)
    # Listed before the lineage is read: what is committed in between is not up for removal.
    committed = sorted(list_checkpoints(run), key=lambda parsed: (parsed.claim, parsed.order))
    kept = choose_kept(
        lineage(run),
        keep=keep,
        parent=parent_of(run, highest_claim(run))[1],
        is_good=lambda name: _is_good(run.checkpoints / name),
    )
    good = [name for name in kept if _is_good(run.checkpoints / name)]
    kept |= left_behind(run)
    doomed = [str(p) for p in committed if str(p) not in kept and p.claim <= claim]
    doomed += [
        path.name
        for path in list_folder(run.checkpoints, f"{QUARANTINE}*")
        if _is_outlived(path.name, good)
    ]
    for name in doomed:
        ensure_claim_holds(run, claim)
        _remove(run, name)
    return doomed


def _is_outlived(aside: str, good: Sequence[str]) -> bool:
    """What was put aside as damaged is of no use when two good ones have followed."""
    damaged = parse_name(aside.removeprefix(QUARANTINE).rpartition("-")[0])
    if damaged is None:
        return False
    parsed = [found for name in good if (found := parse_name(name)) is not None]
    later = [p for p in parsed if (p.claim, p.order) > (damaged.claim, damaged.order)]
    return len(later) >= MIN_KEEP


def quarantine(run: RunFolder, name: str, *, claim: int) -> str:
    """Put a damaged checkpoint aside: nobody falls over it again, a person may look at it."""
    ensure_claim_holds(run, claim)
    aside = f"{QUARANTINE}{name}-{secrets.token_hex(2)}"
    with translated(run.checkpoints / name):
        (run.checkpoints / name).rename(run.checkpoints / aside)
        fsync_folder(run.checkpoints)
    return aside


def make_room(run: RunFolder, *, claim: int, need: int) -> None:
    """Before a save: is there room for it? If not, keep fewer old ones, but never less than two."""
    make_folder(run.checkpoints)
    if _has_room(run, need):
        return
    prune(run, claim=claim, keep=MIN_KEEP)
    if not _has_room(run, need):
        free = free_bytes(run.checkpoints)
        raise DiskFull(
            f"a checkpoint in {run.checkpoints} needs {format_bytes(need)}, "
            f"{format_bytes(free)} free",
            hint="make room there, or move `runs` to another disk; nothing committed is lost",
        )


def _has_room(run: RunFolder, need: int) -> bool:
    return free_bytes(run.checkpoints) >= need + _MARGIN_BYTES


def choose_kept(
    names: Sequence[str], *, keep: int, parent: str | None, is_good: Callable[[str], bool]
) -> set[str]:
    """Of a lineage, newest first. Damaged ones do not count, and stay while they are among them."""
    kept = set() if parent is None else {parent}
    num_good = 0
    for name in names:
        if num_good >= max(keep, MIN_KEEP):
            break
        kept.add(name)
        num_good += is_good(name)
    return kept


def _is_good(path: Path) -> bool:
    """The cheap check only: reading every byte after each save would cost as much as the save."""
    try:
        check_shape(path)
    except DamagedCheckpoint:
        return False
    return True


def _remove(run: RunFolder, name: str) -> None:
    path = run.checkpoints / name
    trash = run.checkpoints / f"{_TRASH}{name}-{secrets.token_hex(4)}"
    with translated(path):
        try:
            path.rename(trash)
        except FileNotFoundError:
            return  # a person's prune was faster
    failpoint("save.trash")
    remove_tree(trash)  # what stays is swept by the next prune


def _sweep_trash(run: RunFolder) -> None:
    for path in list_folder(run.checkpoints, f"{_TRASH}*"):
        remove_tree(path)
