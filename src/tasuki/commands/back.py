"""`tasuki resume --from`: go back to a checkpoint that a person names, and train on from there.

First `plan_going_back` finds out what that means, and refuses; nothing is changed. Then `go_back`
does it, durably: a claim that names the checkpoint (runs/back.py says why). Nothing is removed:
what becomes void is put aside, checkpoints that are left behind stay until a person prunes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.checkpoint.commit import discard_draft, open_draft, publish
from tasuki.checkpoint.lineage import ancestry_of, lineage, list_checkpoints
from tasuki.checkpoint.manifest import MANIFEST_NAME, checkpoint_name
from tasuki.checkpoint.retention import quarantine
from tasuki.checkpoint.verify import frozen_folder
from tasuki.clock import Clock, utc
from tasuki.commands.back_target import Target, find_target, place_in_words
from tasuki.errors import RunError
from tasuki.runs.atomic import (
    FILE_MODE,
    FORMAT,
    fsync_folder,
    make_folder,
    read_json_or_none,
    translated,
    write_json,
)
from tasuki.runs.attempts import write_attempt_end
from tasuki.runs.back import (
    Back,
    left_behind,
    put_results_aside,
    record_back,
    results_of,
    settle_back,
    stages_aside,
    told_folder,
)
from tasuki.runs.claims import claim_folder, highest_claim, take_claim
from tasuki.runs.events import EventLog, read_events
from tasuki.runs.find import stage_names
from tasuki.runs.lines import read_lines
from tasuki.runs.metrics import Merged, MetricLog, metric_files
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Cause, Ending
from tasuki.runs.view import count_preemptions

COMPLETE = "complete"
"""The key of `--accept-change` with which a complete run is taken up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingBack:
    """What going back to a checkpoint means for a run."""

    run: RunFolder
    target: Target
    seen: int
    """The highest claim when this was found out: if there is another one, nothing of it holds."""
    void: tuple[str, ...]
    """Stages that have results which do not count any more."""
    returned: dict[str, int]
    left: tuple[str, ...]
    best: Path | None
    """A file with the best weights that the checkpoint names, where the stage's own is gone."""
    was_complete: bool
    is_on_way: bool
    """The checkpoint is in the lineage as it is now."""

    @property
    def stage(self) -> str:
        return self.target.manifest.position.stage

    @property
    def stage_step(self) -> int:
        return self.target.manifest.position.stage_step

    def as_json(self) -> dict[str, Any]:
        at = self.target.manifest.position
        return {
            "checkpoint": self.target.manifest.name,
            "from": self.target.other.name if self.target.other else self.run.name,
            "stage": at.stage,
            "step": at.step,
            "stage_step": at.stage_step,
            "void": list(self.void),
            "returned": list(self.returned),
            "left": list(self.left),
            "was_complete": self.was_complete,
        }

    def in_words(self) -> list[str]:
        """What becomes of the run, for people: before it is done as after."""
        run, at = self.run, self.target.manifest.position
        of = f" of run `{self.target.other.name}`" if self.target.other else ""
        what = f"by {self.target.manifest.name}{of}; later metrics are void"
        words = [f"run `{run.name}` goes back to {place_in_words(at)} {what}"]
        aside = [f"the results of stage {stage}" for stage in self.void]
        aside += ["the completion marker"] if self.was_complete else []
        if aside:
            words.append(f"put aside into {run.aside}: {', '.join(aside)}")
        if self.returned:
            words.append(f"back from there: the results of {', '.join(self.returned)}")
        if self.left:
            words.append(
                f"left behind: {', '.join(self.left)}; no attempt removes them. `tasuki resume "
                f"{run.name} --from {self.left[0]} --accept-change {COMPLETE}` undoes this, "
                f"`tasuki checkpoint prune {run.name}` frees the room"
            )
        return words


def plan_going_back(run: RunFolder, text: str, *, accepted: Sequence[str] = ()) -> GoingBack:
    """What `--from` a checkpoint would do; refused where that cannot be done."""
    settle_back(run)  # of an earlier word that was cut short: what is there tells now
    seen, target = highest_claim(run), find_target(run, text)
    if run.is_complete() and COMPLETE not in accepted:
        raise RunError(
            f"run `{run.name}` is complete: going back makes its marker and its results void",
            hint=f"they are put aside, not lost: say so with `--accept-change {COMPLETE}`; or "
            "begin another run with `tasuki run --new`",
        )
    names = lineage(run)
    is_on_way = target.is_inside(run) and target.path.name in names
    void = _void_stages(run, target, is_on_way=is_on_way)
    returned = {} if is_on_way or target.other is not None else _strange_results(run, target)
    kept = lineage(run, head=target.manifest.name) if target.other is None else []
    there = {str(parsed) for parsed in list_checkpoints(run)}
    left = [*names, *sorted(left_behind(run) & there, reverse=True)]
    return GoingBack(
        run=run,
        target=target,
        seen=seen,
        void=tuple(s for s in (*returned, *void) if results_of(run.stage(s).path)),
        returned=returned,
        left=tuple(dict.fromkeys(name for name in left if name not in kept)),
        best=_find_best(run, target),
        was_complete=run.is_complete(),
        is_on_way=is_on_way,
    )


def _void_stages(run: RunFolder, target: Target, *, is_on_way: bool) -> tuple[str, ...]:
    """Its own stage and all later ones. At the very end of a stage its results stay, as they were
    made from that checkpoint."""
    at = target.manifest.position
    first = at.stage_number if at.is_end and is_on_way else at.stage_number - 1
    return tuple(stage_names(run)[first:])


def _strange_results(run: RunFolder, target: Target) -> dict[str, int]:
    """Earlier stages that were trained again, or put aside, since a checkpoint that was left
    behind: each with the claim under which the results lie aside on which it builds."""
    found: dict[str, int] = {}
    number = target.manifest.position.stage_number
    wanted = _weights_before(run, target)
    for stage in stage_names(run)[: number - 1]:
        told = read_json_or_none(run.stage(stage).metrics)
        if told is not None and told.get("sha256") == wanted.get(stage, told.get("sha256")):
            continue
        aside = {
            claim: read_json_or_none(folder / run.stage(stage).metrics.name)
            for claim, folder in stages_aside(run, stage).items()
        }
        fitting = [
            claim
            for claim, metrics in aside.items()
            if metrics is not None
            and metrics.get("sha256") == wanted.get(stage, metrics.get("sha256"))
        ]
        if not fitting:
            raise RunError(
                f"{target.path.name} builds on weights of stage `{stage}` that are gone: the stage "
                "was trained again since",
                hint=f"put its results back into {run.stage(stage).path} from a copy, or go back "
                "to a checkpoint of the lineage",
            )
        found[stage] = fitting[0]
    return found


def _weights_before(run: RunFolder, target: Target) -> dict[str, str | None]:
    """The sha256 of each stage's weights on the way to a checkpoint, as events tell."""
    ancestry = dict(ancestry_of(run, head=target.manifest.name))
    done = [event for event in read_events(run) if event["kind"] == "stage-done"]
    lengths = {str(event.get("stage")): int(event.get("steps") or 0) for event in done}
    ends, reached = {}, 0
    for stage in stage_names(run):
        reached += lengths.get(stage, 0)
        ends[stage] = reached
    found: dict[str, str | None] = {}
    for event in done:
        claim, stage = int(event["claim"]), str(event.get("stage"))
        newest = ancestry.get(claim)
        if claim in ancestry and (newest is None or newest.step >= ends.get(stage, 0)):
            found[stage] = event.get("sha256")
    return found


def _find_best(run: RunFolder, target: Target) -> Path | None:
    """The stage compares with the best so far, and may end with it: without it nobody can go on."""
    best = target.manifest.facts.get("best")
    folder = run.stage(target.manifest.position.stage)
    if not best or (folder.path / best["file"]).is_file():
        return None
    places = [folder.path, *stages_aside(run, folder.path.name).values()]
    if target.other is not None:
        places.append(target.other.stage(folder.path.name).path)
    for place in places:
        for file in (place / str(best["file"]), place / folder.weights.name):
            if file.is_file() and _sha256(file) == best.get("sha256"):
                return file
    raise RunError(
        f"{target.manifest.name} needs the best weights of its time, of step {best['step']} of "
        f"stage `{folder.path.name}`, and they are gone",
        hint=f"put {folder.path / best['file']} back from a copy, or go back to another checkpoint",
    )


# -- done -----------------------------------------------------------------------------------------


def go_back(going: GoingBack, *, clock: Clock) -> int:
    """Do it; the claim of this word. Durable when it returns, and whole after a kill at any point
    from the moment on at which the claim names its checkpoint."""
    run, manifest = going.run, going.target.manifest
    if highest_claim(run) != going.seen:
        raise RunError(
            f"somebody has taken run `{run.name}` meanwhile",
            hint="`tasuki status` tells who; nothing was changed",
        )
    is_other = going.target.other is not None
    if not is_other and not going.target.is_inside(run):
        _put_in_place(run, going.target)
    claim = take_claim(run)
    if going.best is not None:
        _copy_best(going)
    put_results_aside(run, claim)
    name = checkpoint_name(manifest.position, claim) if is_other else manifest.name
    back = Back(checkpoint=name, void=going.void, returned=going.returned, left=going.left)
    _tell(going, claim, name, clock)
    # Of another run it is committed by this very claim: until then nothing has changed.
    parent = next(iter(lineage(run)), None) if is_other else name
    record_back(run, claim, back, parent=parent, at=utc(clock.wall()))
    if is_other:
        _take_over(run, going.target, claim, parent=parent, clock=clock)
    settle_back(run)
    return claim


def _tell(going: GoingBack, claim: int, name: str, clock: Clock) -> None:
    """To all who look: metrics, events, state. `settle_back` puts it where they look."""
    run, at, facts = going.run, going.target.manifest.position, going.target.manifest.facts
    told = told_folder(run, claim)
    _tell_metrics(going, told, claim, clock)
    events = EventLog(told, claim=claim, node=0, who="resume", clock=clock)
    events.add("went-back", checkpoint=name, stage=at.stage, step=at.stage_step)
    events.sync()
    events.close()
    end = {
        "ending": Ending.HANDED_OVER,
        "cause": Cause.NONE,
        "went_back": name,
        "message": f"{place_in_words(at)} by {name}",
        "hint": "",
        "has_progressed": True,
        "has_stepped": False,
        "at": clock.wall(),
    }
    make_folder(claim_folder(told, claim))
    write_attempt_end(told, claim, end)
    write_json(
        told.training_state,
        {
            "format": FORMAT,
            "experiment": run.name,
            "state": "waiting",
            "stage": at.stage,
            "epoch": at.epoch,
            "step": at.stage_step,
            "total_steps": facts.get("total_steps"),
            "samples": at.samples,
            "attempt": claim,
            "preemptions": count_preemptions(run),
            "best": facts.get("best"),
            "last_checkpoint": name,
            "loss": None,
            "updated_at": utc(clock.wall()),
        },
    )


def _tell_metrics(going: GoingBack, told: RunFolder, claim: int, clock: Clock) -> None:
    """What lies beyond is void. Rows on the way to a checkpoint that was left behind, or that is of
    another run, do not count where it goes on: they are told again."""
    run, target, at = going.run, going.target, going.target.manifest.position
    metrics = MetricLog(told, claim=claim, clock=clock)
    if not going.is_on_way:
        metrics.resume(stage=stage_names(run)[0], step=-1)
        for row in _rows_before(target.other or run, target):
            metrics.add({**row, "attempt": claim})
    metrics.resume(stage=at.stage, step=at.stage_step)
    metrics.sync()
    metrics.close()


def _rows_before(run: RunFolder, target: Target) -> list[dict[str, Any]]:
    """Each attempt's file begins by saying what of those before it counts."""
    merged, files = Merged(), metric_files(run)
    for claim in sorted(dict(ancestry_of(run, head=target.manifest.name))):
        for line in read_lines(files[claim]) if claim in files else ():
            merged.take(line)
    return merged.rows()


def _put_in_place(run: RunFolder, target: Target) -> None:
    """A checkpoint of this run that lay elsewhere, under its own name. Nobody goes on from it by
    that alone: it is as old as it was."""
    final = run.checkpoints / target.manifest.name
    draft = open_draft(run, claim=target.manifest.claim, position=target.manifest.position)
    try:
        _copy_files(run, target, draft)
        _copy(target.path / MANIFEST_NAME, draft / MANIFEST_NAME)
        with translated(draft):
            fsync_folder(draft)
        if final.exists():
            quarantine(run, final.name, claim=highest_claim(run))  # damaged, or it would do
        with translated(final):
            draft.rename(final)
            fsync_folder(run.checkpoints)
    except BaseException:
        discard_draft(draft)
        raise


def _take_over(
    run: RunFolder, target: Target, claim: int, *, parent: str | None, clock: Clock
) -> None:
    """Commit a copy of another run's checkpoint, as this claim's own."""
    manifest = target.manifest
    draft = open_draft(run, claim=claim, position=manifest.position)
    try:
        _copy_files(run, target, draft)
    except BaseException:
        discard_draft(draft)
        raise
    publish(
        run,
        draft,
        position=manifest.position,
        claim=claim,
        parent=parent,
        world=manifest.world,
        records=manifest.files,
        facts=manifest.facts,
        created_at=clock.wall(),
        frozen=manifest.frozen,
    )


def _copy_files(run: RunFolder, target: Target, draft: Path) -> None:
    for record in target.manifest.files:
        _copy(target.path / record.name, draft / record.name)
    beside, own = frozen_folder(target.path.parent), frozen_folder(run.checkpoints)
    for record in target.manifest.frozen:
        if not (own / record.name).exists():
            make_folder(own)
            _copy_durably(beside / record.name, own / record.name)


def _copy_best(going: GoingBack) -> None:
    assert going.best is not None
    folder = going.run.stage(going.stage).path
    make_folder(folder)
    _copy_durably(going.best, folder / going.target.manifest.facts["best"]["file"])


def _copy_durably(source: Path, target: Path) -> None:
    temp = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    _copy(source, temp)
    with translated(target):
        temp.replace(target)
        fsync_folder(target.parent)


def _copy(source: Path, target: Path) -> None:
    with translated(target, need=source.stat().st_size), source.open("rb") as reader:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 24)
            writer.flush()
            os.fsync(writer.fileno())


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
