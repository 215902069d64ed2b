"""Which checkpoints stay: the newest good ones of the lineage, and the highest claim's parent.

Removes nothing unless the claim holds. Room that is needed at most: `keep`, the parent, and the one
being written. A removal is a rename first, so that no half-deleted folder is taken for damage.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.verify import check_shape
from tasuki.errors import DamagedCheckpoint
from tasuki.store.atomic import translated
from tasuki.store.claims import ensure_claim_holds, highest_claim, parent_of
from tasuki.store.runs import RunFolder

MIN_KEEP = 2
"""One may turn out to be damaged."""

_TRASH = ".trash-"


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
    doomed = [str(p) for p in committed if str(p) not in kept and p.claim <= claim]
    for name in doomed:
        ensure_claim_holds(run, claim)
        _remove(run, name)
    return doomed


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
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)  # what stays is swept by the next prune


def _sweep_trash(run: RunFolder) -> None:
    for path in run.checkpoints.glob(f"{_TRASH}*"):
        shutil.rmtree(path, ignore_errors=True)
