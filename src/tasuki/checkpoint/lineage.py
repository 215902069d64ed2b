"""Which checkpoint is the latest? By lineage: from the highest claim to its parent, and so on.

Never by number or time: an attempt that was thought dead may commit a higher step after its
successor took over. Such a commit is not on the way from the highest claim down, so it is not seen.
Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tasuki.checkpoint.commit import Checkpoint
from tasuki.checkpoint.manifest import Manifest, ParsedName, parse_name
from tasuki.checkpoint.verify import read_manifest, verify
from tasuki.errors import CheckpointError, DamagedCheckpoint, StoreError
from tasuki.runs.atomic import translated
from tasuki.runs.claims import list_claims, parent_of
from tasuki.runs.runs import RunFolder

OnDamaged = Callable[[str, DamagedCheckpoint], None]


def list_checkpoints(run: RunFolder) -> list[ParsedName]:
    """All that are committed, in the lineage or not. Drafts and trash have other names."""
    with translated(run.checkpoints):
        try:
            names = os.listdir(run.checkpoints)
        except FileNotFoundError:
            return []
    return [parsed for name in names if (parsed := parse_name(name)) is not None]


def lineage(run: RunFolder, *, head: str | None = None) -> list[str]:
    """Names from newest to oldest, as the highest claim sees them; or as one would that goes on
    from `head`."""
    # Parents before checkpoints: a commit between the two reads is then seen or stale, never lost.
    ancestry = ancestry_of(run, head=head)
    committed = list_checkpoints(run)
    names: list[str] = []
    for claim, newest in ancestry:
        own = [
            parsed
            for parsed in committed
            if parsed.claim == claim and (newest is None or parsed.order <= newest.order)
        ]
        names += [str(parsed) for parsed in sorted(own, key=lambda p: p.order, reverse=True)]
    return names


def find_latest(
    run: RunFolder,
    on_damaged: OnDamaged,
    *,
    stage: str | None = None,
    check: Callable[[Path], Manifest] = verify,
) -> Checkpoint | None:
    """The newest checkpoint that verifies (of one stage, if given).

    `check` reads every byte; whoever wants the state too may load it on the way. Each damaged one
    that is passed over is reported. None means that nothing was ever committed;
    if something was and nothing verifies, that is an error: such a run must not start fresh.
    """
    num_damaged = 0
    for name in lineage(run):
        path = run.checkpoints / name
        try:
            if stage is not None and read_manifest(path).position.stage != stage:
                continue
            return Checkpoint(path, check(path))
        except DamagedCheckpoint as error:
            num_damaged += 1
            on_damaged(name, error)
    if num_damaged:
        raise _nothing_verifies(run, f"all {num_damaged} checkpoints there are damaged")
    if stage is None and (parent := _recorded_parent(run)) is not None:
        raise _nothing_verifies(run, f"it went on from {parent}, which is gone")
    return None


def _nothing_verifies(run: RunFolder, words: str) -> CheckpointError:
    return CheckpointError(
        f"nothing verifies any more in {run.checkpoints}: {words}",
        hint="restore a checkpoint from a copy; to start from nothing, remove the run's folder",
    )


def ancestry_of(run: RunFolder, *, head: str | None = None) -> list[tuple[int, ParsedName | None]]:
    """The claims on the way down, each with the newest of its checkpoints that counts."""
    steps: list[tuple[int, ParsedName | None]] = []
    claims = list_claims(run)
    newest = parse_name(head) if head is not None else None
    claim = newest.claim if newest is not None else max(claims, default=0)
    while claim > 0:
        steps.append((claim, newest))
        is_recorded, parent = parent_of(run, claim)
        if not is_recorded:
            claim, newest = max((n for n in claims if n < claim), default=0), None
        elif parent is None:
            break
        else:
            newest = _parse_parent(run, claim, parent)
            claim = newest.claim
    return steps


def _recorded_parent(run: RunFolder) -> str | None:
    return next((str(newest) for _, newest in ancestry_of(run) if newest is not None), None)


def _parse_parent(run: RunFolder, claim: int, parent: str) -> ParsedName:
    parsed = parse_name(parent)
    if parsed is None or parsed.claim >= claim:
        raise StoreError(
            f"claim {claim} of {run.path} names an impossible parent: {parent[:80]!r}",
            hint=f"restore claims/{claim}/parent.json from a copy",
        )
    return parsed
