"""Commit: a checkpoint appears whole, by one rename, and only while the claim holds.

draft folder → files + fsync → manifest + fsync → fsync of the draft → claim listed again → rename →
fsync of the folder above. A kill at any point leaves a draft, which nobody takes for a checkpoint,
or the whole checkpoint. What was committed before is never touched.

Rank 0 opens the draft and publishes; every rank writes its part into it in between.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    Position,
    checkpoint_name,
    parse_name,
    sort_records,
)
from tasuki.checkpoint.records import FileRecord, write_file
from tasuki.checkpoint.verify import check_files
from tasuki.clock import utc
from tasuki.errors import CheckpointError
from tasuki.failpoints import failpoint
from tasuki.runs.atomic import (
    FOLDER_MODE,
    fsync_folder,
    list_folder,
    make_folder,
    refuse_foreign,
    remove_tree,
    translated,
)
from tasuki.runs.claims import ensure_claim_holds
from tasuki.runs.runs import RunFolder

_DRAFT = re.compile(r"\.draft-(.+)-[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.path.name


def open_draft(run: RunFolder, *, claim: int, position: Position) -> Path:
    """Make the folder into which all ranks write their parts."""
    refuse_foreign(run.checkpoints, beside=run.path.parent)
    make_folder(run.checkpoints)
    name = checkpoint_name(position, claim)
    draft = run.checkpoints / f".draft-{name}-{secrets.token_hex(4)}"
    with translated(draft):
        draft.mkdir(mode=FOLDER_MODE)
    return draft


def publish(
    run: RunFolder,
    draft: Path,
    *,
    position: Position,
    claim: int,
    parent: str | None,
    world: int,
    records: Iterable[FileRecord],
    facts: dict[str, Any],
    created_at: float,
    frozen: Iterable[FileRecord] = (),
) -> Checkpoint:
    """Turn a draft into a checkpoint. It is durable when this returns.

    On failure the draft is removed. Only when the very last fsync fails the checkpoint may be
    there, whole, without having been acknowledged.
    """
    try:
        # Asked here too: a draft swept by the next attempt is a lost claim, not a bad disk.
        ensure_claim_holds(run, claim)
        files = sort_records(records)
        manifest = Manifest(
            experiment=run.name,
            position=position,
            claim=claim,
            parent=parent,
            world=world,
            parts=len(files) // 2,
            files=files,
            created_at=utc(created_at),
            facts=facts,
            frozen=tuple(frozen),
        )
        final = _commit(run, draft, manifest)
    except BaseException:
        discard_draft(draft)
        ensure_claim_holds(run, claim)  # a draft that a newer attempt swept is no damage
        raise
    with translated(run.checkpoints):
        fsync_folder(run.checkpoints)
    return Checkpoint(final, manifest)


def discard_draft(draft: Path) -> None:
    """Remove a draft, as far as that is possible; what stays is swept by a later attempt."""
    if _DRAFT.fullmatch(draft.name):
        remove_tree(draft)


def sweep_drafts(run: RunFolder, *, claim: int) -> list[str]:
    """Remove drafts of superseded claims. This claim's own may still be written by a rank."""
    ensure_claim_holds(run, claim)
    removed = []
    for path in list_folder(run.checkpoints, ".draft-*"):
        match = _DRAFT.fullmatch(path.name)
        parsed = parse_name(match[1]) if match else None
        if parsed is not None and parsed.claim < claim:
            discard_draft(path)
            removed.append(path.name)
    return removed


def _commit(run: RunFolder, draft: Path, manifest: Manifest) -> Path:
    check_files(draft, manifest, also=set())
    failpoint("save.manifest")
    write_file(draft / MANIFEST_NAME, manifest.render())
    with translated(draft):
        fsync_folder(draft)
    final = run.checkpoints / manifest.name
    ensure_claim_holds(run, manifest.claim)
    # A rename onto an empty folder would replace it silently; names are unique per claim and step.
    with translated(final):
        is_taken = final.is_symlink() or final.exists()
    if is_taken:
        raise CheckpointError(
            f"{final} exists already",
            hint="a checkpoint is never replaced; save again at a later step",
        )
    failpoint("save.rename")
    with translated(final):
        draft.rename(final)
    failpoint("save.renamed")
    return final
