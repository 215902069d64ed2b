"""`tasuki checkpoint prune`: make room, as a running attempt would, and a little more.

The rules are those of checkpoint/retention.py. It takes no claim: an attempt that starts meanwhile
is not disturbed, because what stays was checked byte by byte first. So a resume never comes as far
down as what goes; and when a new claim appears, nothing more is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tasuki.checkpoint.examine import Examiner
from tasuki.checkpoint.leftovers import (
    is_superseded,
    list_leftovers,
    measure,
    remove,
    remove_frozen,
)
from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.manifest import Manifest
from tasuki.checkpoint.retention import MIN_KEEP, choose_kept
from tasuki.checkpoint.verify import read_manifest
from tasuki.errors import CheckpointError, ClaimLost, RunError, UsageError
from tasuki.runs.atomic import FORMAT, read_json, shaped
from tasuki.runs.attempts import live_runner
from tasuki.runs.claims import highest_claim, parent_of
from tasuki.runs.runs import RunFolder
from tasuki.runs.view import live_holder
from tasuki.spec.resolved import experiment_from_plain
from tasuki.subprocesses import Progress, ProgressCallback


@dataclass(frozen=True, slots=True)
class _Doomed:
    kind: str
    name: str
    path: Path
    num_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "bytes": self.num_bytes}


@dataclass(slots=True)
class _Judge:
    """Is a checkpoint good? Every byte is read; what cannot be judged stops everything."""

    run: RunFolder
    on_progress: ProgressCallback
    examiner: Examiner = field(init=False)
    num_good: int = 0
    read: int = 0

    def __post_init__(self) -> None:
        self.examiner = Examiner(on_bytes=self._count)

    def __call__(self, name: str) -> bool:
        examined = self.examiner.examine(self.run.checkpoints / name)
        if examined.state in ("newer", "unreadable"):
            finding = examined.findings[0]
            raise CheckpointError(
                f"{name} cannot be judged: {finding.words}; nothing was removed",
                hint="remove nothing by hand: it may be the one the run needs",
            )
        self.num_good += examined.is_good
        return examined.is_good

    def _count(self, num_bytes: int) -> None:
        self.read += num_bytes
        self.on_progress(Progress("checking what stays, in MB:", self.read // 10**6, None))


def prune_run(
    run: RunFolder,
    *,
    now: float,
    keep: int | None = None,
    is_dry: bool = False,
    on_progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Remove what is no longer needed; the values of `--json`."""
    if keep is not None and keep < MIN_KEEP:
        raise UsageError(
            f"`--keep {keep}` is too few: {MIN_KEEP} good checkpoints stay at least",
            hint="one may turn out to be damaged",
        )
    refuse_live(run, now=now)
    claim = highest_claim(run)
    # Listed before the lineage is read: what is committed in between is not up for removal.
    committed = sorted(list_checkpoints(run), key=lambda parsed: (parsed.claim, parsed.order))
    names = lineage(run)
    wanted = keep if keep is not None else _keep_of(run, names)
    judge = _Judge(run, on_progress)
    parent = parent_of(run, claim)[1] if claim else None
    kept = choose_kept(names, keep=wanted, parent=parent, is_good=judge)
    if committed and not judge.num_good:
        raise CheckpointError(
            f"no checkpoint in the lineage of run `{run.name}` is whole: nothing was removed",
            hint="restore one from a copy; `tasuki checkpoint verify` tells what is damaged",
        )
    doomed = [
        _Doomed("checkpoint", str(parsed), path, measure(path))
        for parsed in committed
        if str(parsed) not in kept and parsed.claim <= claim
        for path in [run.checkpoints / str(parsed)]
    ]
    leftovers = _doomed_leftovers(run, {one.name for one in doomed}, claim=claim)
    if judge.num_good < MIN_KEEP:  # then even a damaged one may be of use to a person
        leftovers = [one for one in leftovers if one.kind != "quarantined"]
    doomed += leftovers
    removed, stopped = (doomed, None) if is_dry else _remove(run, doomed, claim=claim)
    return {
        "format": FORMAT,
        "experiment": run.name,
        "dry_run": is_dry,
        "keep": wanted,
        "kept": [str(p) for p in reversed(committed) if str(p) in kept],
        "removed": [one.as_json() for one in removed],
        "bytes": sum(one.num_bytes for one in removed),
        "stopped": stopped,
    }


def refuse_live(run: RunFolder, *, now: float) -> None:
    """A running attempt prunes by itself, and only it may."""
    holder = live_holder(run, now=now)
    if holder is None and live_runner(run) is None:
        return
    raise RunError(
        f"run `{run.name}` is running: it keeps the newest `save.keep` checkpoints by itself",
        hint=f"wait until it is done, or end it with `tasuki cancel {run.name}`",
    )


def _keep_of(run: RunFolder, names: list[str]) -> int:
    """What the spec says for the stage that the run is in."""
    value = read_json(run.spec)
    with shaped(run.spec):
        try:
            stages = experiment_from_plain(value["spec"]).stages
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
    by_name = {stage.name: stage.save.keep for stage in stages}
    for name in names:
        manifest = _manifest_or_none(run, name)
        if manifest is not None and manifest.position.stage in by_name:
            return max(MIN_KEEP, by_name[manifest.position.stage])
    return max(MIN_KEEP, *by_name.values())


def _doomed_leftovers(run: RunFolder, doomed: set[str], *, claim: int) -> list[_Doomed]:
    staying = [str(parsed) for parsed in list_checkpoints(run) if str(parsed) not in doomed]
    manifests = [_manifest_or_none(run, name) for name in staying]
    needed = {record.name for manifest in manifests if manifest for record in manifest.frozen}
    found = list_leftovers(run, needed=needed)
    is_complete = run.is_complete()
    going = [one for one in found if is_superseded(one, claim=claim, is_complete=is_complete)]
    if None in manifests or any(one.kind == "draft" and one not in going for one in found):
        # A damaged manifest, or one that is not written yet, may need any of the frozen files.
        going = [one for one in going if one.kind != "frozen"]
    return [_Doomed(one.kind, one.name, one.path, one.num_bytes) for one in going]


def _manifest_or_none(run: RunFolder, name: str) -> Manifest | None:
    try:
        return read_manifest(run.checkpoints / name)
    except CheckpointError:
        return None


def _remove(
    run: RunFolder, doomed: list[_Doomed], *, claim: int
) -> tuple[list[_Doomed], str | None]:
    """What went, and why no more: a new attempt takes the run over with all that is in it."""
    removed: list[_Doomed] = []
    for one in doomed:
        take = remove_frozen if one.kind == "frozen" else remove
        try:
            freed = take(run, one.path, claim=claim)
        except ClaimLost as error:
            return removed, f"{error}: the rest stays"
        if freed or not one.num_bytes:
            removed.append(_Doomed(one.kind, one.name, one.path, freed))
    return removed, None
