"""From which checkpoint: `resume --from step-N|best|PATH`. Found and read to its last byte; nothing
is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.manifest import MANIFEST_NAME, Manifest, Position, parse_name
from tasuki.checkpoint.records import check_file
from tasuki.checkpoint.verify import check_files, frozen_folder, read_manifest, verify
from tasuki.errors import CheckpointError, DamagedCheckpoint, RunError, UsageError
from tasuki.runs.atomic import read_json, read_json_or_none
from tasuki.runs.events import read_events
from tasuki.runs.find import is_of_scripts, stage_names
from tasuki.runs.runs import RunFolder

_STEP = re.compile(r"(?:step-)?(\d{1,18})", re.ASCII)
_SHOWN = 6
_FORMS = "name it as `step-N`, `best`, or by its folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A checkpoint that verifies."""

    path: Path
    manifest: Manifest
    other: RunFolder | None = None
    """The run that made it, where that is not the one that goes back."""

    def is_inside(self, run: RunFolder) -> bool:
        return self.path.parent == run.checkpoints


def find_target(run: RunFolder, text: str) -> Target:
    """What a person means by `--from`; refused with words where it cannot be gone on from."""
    if not list_checkpoints(run) and "/" not in text:
        raise RunError(
            f"run `{run.name}` has no checkpoints to go back to",
            hint="`tasuki status` tells how far it is; commands keep their own",
        )
    if text == "best":
        return _best(run)
    if match := _STEP.fullmatch(text):
        return _at_step(run, int(match[1]))
    if parse_name(text) is not None:
        return _named(run, text)
    return _at_path(run, text)


# -- of this run ----------------------------------------------------------------------------------


def _at_step(run: RunFolder, step: int) -> Target:
    """The newest of that run-wide step that verifies, in the lineage."""
    names = [name for name in lineage(run) if _step(name) == step]
    if not names:
        _refuse_step_of_stage(run, step)
        what = f"no checkpoint at step {step:,} of the run (counted over all stages) in its lineage"
        _refuse_unknown(run, what, near=step)
    return _first_whole(run, names)


def _refuse_step_of_stage(run: RunFolder, step: int) -> None:
    """`status` counts in the stage: who types its number is told the one that is meant."""
    for name in lineage(run):
        manifest = _manifest_or_none(run, name)
        if manifest is not None and manifest.position.stage_step == step:
            at = manifest.position
            raise RunError(
                f"run `{run.name}` has no checkpoint at step {step:,} of the run (counted over all "
                "stages) in its lineage",
                hint=f"step {step:,} of stage `{at.stage}` is `--from step-{at.step}`",
            )


def _first_whole(run: RunFolder, names: list[str]) -> Target:
    problem: CheckpointError | None = None
    for name in names:
        try:
            path = run.checkpoints / name
            return Target(path=path, manifest=verify(path))
        except DamagedCheckpoint as error:
            problem = problem or error
    assert problem is not None
    raise _damaged(run, problem)


def _named(run: RunFolder, name: str) -> Target:
    """Exactly this one, in the lineage or not."""
    if not (run.checkpoints / name).is_dir():
        _refuse_unknown(run, f"no checkpoint `{name}`", near=_step(name))
    return _first_whole(run, [name])


def _best(run: RunFolder) -> Target:
    """Best is kept as weights; only where a whole checkpoint of its step is there it can be gone on
    from."""
    stage, best = _best_of(run)
    step = int(best["step"])
    names = []
    for name in lineage(run):
        manifest = _manifest_or_none(run, name)
        if manifest is not None:
            at = manifest.position
            names += [name] if (at.stage, at.stage_step) == (stage, step) else []
    if names:
        return _first_whole(run, names)
    folder = run.stage(stage)
    own = folder.path / str(best.get("file") or "")
    weights = own if own.is_file() else folder.weights
    raise RunError(
        f"the best of stage `{stage}` was its step {step:,} ({best['metric']} "
        f"{best['value']:.6g}), of which only the weights are kept: {weights}",
        hint=_how_to_use(run, weights, there=_some(run, lineage(run))),
    )


def _how_to_use(run: RunFolder, weights: Path, *, there: str) -> str:
    if is_of_scripts(run):
        return (
            "begin another run whose script loads them "
            f"(safetensors.torch.load_file('{weights}')); "
            f"or go back to a checkpoint that is there: {there}"
        )
    return (
        f"start a new stage or run from them with `init_from: {weights}`; or go back to a "
        f"checkpoint that is there: {there}"
    )


def _best_of(run: RunFolder) -> tuple[str, dict[str, Any]]:
    """Of the last stage that has one."""
    found: tuple[str, dict[str, Any]] | None = None
    for name in stage_names(run):
        told = read_json_or_none(run.stage(name).metrics)
        if told is not None and told.get("best"):
            found = name, told["best"]
    newest = next((m for name in lineage(run) if (m := _manifest_or_none(run, name))), None)
    best = newest.facts.get("best") if newest is not None else None
    if newest is not None and best and not run.stage(newest.position.stage).metrics.exists():
        return newest.position.stage, best
    if found is None:
        raise UsageError(
            f"run `{run.name}` knows no best: nothing was validated yet",
            hint=f"`validate:` in the spec does; there are: {_some(run, lineage(run))}",
        )
    return found


# -- a folder -------------------------------------------------------------------------------------


def _at_path(run: RunFolder, text: str) -> Target:
    path = Path(text).absolute()
    path = path.parent if path.name == MANIFEST_NAME and path.is_file() else path
    if not path.is_dir():
        _refuse_unknown(run, f"nothing that `{text[:200]}` could mean")
    if path.parent.resolve() == run.checkpoints.resolve():
        return _named_folder(run, path.name)
    try:
        manifest = _verify_alone(run, path)
    except DamagedCheckpoint as error:
        raise _damaged(run, error) from error
    made_by = RunFolder(path.parent.parent)
    is_of_run = made_by.checkpoints == path.parent and made_by.spec.exists()
    if is_of_run and made_by.path.resolve() != run.path.resolve():
        _refuse_unfit(run, made_by, manifest)
        return Target(path=path, manifest=manifest, other=made_by)
    _refuse_strange(run, path, manifest)
    return _inside_if_whole(run, manifest) or Target(path=path, manifest=manifest)


def _inside_if_whole(run: RunFolder, manifest: Manifest) -> Target | None:
    """The run's own copy of what was given as a folder elsewhere."""
    path = run.checkpoints / manifest.name
    try:
        found = verify(path) if path.is_dir() else None
    except DamagedCheckpoint:
        return None
    if found is None or found == manifest:
        return Target(path=path, manifest=found) if found is not None else None
    raise RunError(
        f"{path} is there, whole, and another checkpoint than the one given",
        hint=f"`--from {manifest.name}` goes back to the run's own",
    )


def _named_folder(run: RunFolder, name: str) -> Target:
    if parse_name(name) is None:
        raise RunError(
            f"{run.checkpoints / name} is no checkpoint that a run can go on from",
            hint=f"drafts and damaged ones have other names; there are: {_some(run, lineage(run))}",
        )
    return _first_whole(run, [name])


def _verify_alone(run: RunFolder, path: Path) -> Manifest:
    """As `verify`; frozen parameters may lie beside it, or still in the run's own folder."""
    manifest = read_manifest(path)
    check_files(path, replace(manifest, frozen=()), also={MANIFEST_NAME})
    for record in manifest.files:
        check_file(path / record.name, record)
    for record in manifest.frozen:
        inside = frozen_folder(run.checkpoints) / record.name
        check_file(inside if inside.exists() else frozen_folder(path.parent) / record.name, record)
    return manifest


def _refuse_strange(run: RunFolder, path: Path, manifest: Manifest) -> None:
    """A folder that lies alone is this run's if the run tells of having committed just that."""
    told = [
        event
        for event in read_events(run)
        if event["kind"] == "committed" and event.get("checkpoint") == manifest.name
    ]
    used = manifest.facts.get("used")
    is_ours = any(used is None or e.get("used") in (None, used) for e in told)
    if manifest.experiment == run.name and is_ours and _has_stage(run, manifest):
        return
    raise RunError(
        f"{path} is not of run `{run.name}`: it is {manifest.name} of `{manifest.experiment}`, "
        "and nothing in the run tells that it made it",
        hint=f"go back to one of its own: {_some(run, lineage(run))}; weights of another run are "
        "taken by `init_from`",
    )


def _refuse_unfit(run: RunFolder, other: RunFolder, manifest: Manifest) -> None:
    """Of another run only if that one is made of the same spec and code, and came there by the same
    weights."""
    own, its = read_json(run.spec), read_json(other.spec)
    prints = own.get("fingerprints") or {}, its.get("fingerprints") or {}
    differing = [
        what
        for what, is_same in (
            ("experiment", own.get("experiment") == its.get("experiment")),
            ("stages", _has_stage(run, manifest)),
            ("spec", prints[0].get("spec") == prints[1].get("spec")),
            ("code", prints[0].get("code") == prints[1].get("code")),
        )
        if not is_same
    ]
    before = stage_names(run)[: manifest.position.stage_number - 1] if not differing else []
    for stage in before:
        sums = [
            (read_json_or_none(one.stage(stage).metrics) or {}).get("sha256")
            for one in (run, other)
        ]
        if None in sums or sums[0] != sums[1]:
            differing.append(f"weights of stage `{stage}`")
    if differing:
        raise RunError(
            f"{manifest.name} is of run `{other.name}`, which differs from `{run.name}` in its "
            f"{', '.join(differing)}",
            hint=f"resume `{other.name}` itself; or take its weights by `init_from`",
        )


def _has_stage(run: RunFolder, manifest: Manifest) -> bool:
    at = manifest.position
    return stage_names(run)[at.stage_number - 1 : at.stage_number] == [at.stage]


# -- words ----------------------------------------------------------------------------------------


def _damaged(run: RunFolder, error: CheckpointError) -> CheckpointError:
    return CheckpointError(
        f"that checkpoint cannot be gone on from: {error}",
        hint=f"`tasuki checkpoint verify {run.name}` tells which are whole; there are: "
        f"{_some(run, lineage(run))}",
    )


def _refuse_unknown(run: RunFolder, what: str, near: int | None = None) -> NoReturn:
    names = lineage(run)
    others = sorted(str(p) for p in list_checkpoints(run) if str(p) not in names)
    if near is not None:
        names.sort(key=lambda name: abs(_step(name) - near))
    words = f"there are: {_some(run, names)}" if names else _FORMS
    if others:
        words += f"; left behind, and to be named whole: {_some(run, others)}"
    raise RunError(f"run `{run.name}` has {what}", hint=words)


def place_in_words(at: Position) -> str:
    """Both ways to count: names of checkpoints have the one, `status` the other."""
    return f"step {at.step:,} of the run (stage {at.stage}: step {at.stage_step:,})"


def _some(run: RunFolder, names: Iterable[str]) -> str:
    every = list(names)
    shown = [_with_stage(run, name) for name in every[:_SHOWN]]
    rest = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{', '.join(shown)}{rest}" or f"none in {run.checkpoints}"


def _with_stage(run: RunFolder, name: str) -> str:
    manifest = _manifest_or_none(run, name)
    if manifest is None:
        return f"`{name}`"
    return f"`{name}` (stage {manifest.position.stage}: step {manifest.position.stage_step:,})"


def _step(name: str) -> int:
    parsed = parse_name(name)
    assert parsed is not None
    return parsed.step


def _manifest_or_none(run: RunFolder, name: str) -> Manifest | None:
    try:
        return read_manifest(run.checkpoints / name)
    except CheckpointError:
        return None
