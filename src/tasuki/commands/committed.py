"""Which checkpoint is meant: RUN, RUN/STAGE, RUN@STEP, RUN@latest, RUN@NAME, or a folder."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasuki.checkpoint.leftovers import checkpoint_in
from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.manifest import MANIFEST_NAME, Manifest, ParsedName, parse_name
from tasuki.checkpoint.retention import QUARANTINE
from tasuki.checkpoint.verify import read_manifest
from tasuki.commands.runs import find_run, split_stage
from tasuki.errors import CheckpointError, RunError, StoreError, UsageError
from tasuki.runs.atomic import read_json, shaped
from tasuki.runs.find import list_runs, list_shown
from tasuki.runs.remains import refuse_remains
from tasuki.runs.runs import RunFolder

_FORMS = "name it as RUN, RUN/STAGE, RUN@STEP, RUN@latest, RUN@NAME, or give its folder"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Meant:
    """What a person named."""

    run: RunFolder | None
    """None: a folder outside of any run."""
    path: Path | None = None
    """Of the checkpoint; None: the run as a whole."""


def find_meant(text: str, runs: Path) -> Meant:
    """A run stays a run; anything more is a checkpoint, which exists."""
    if (found := _as_folder(text)) is not None:
        return found
    base, has_place, place = text.rpartition("@")
    run, stage = _run_and_stage(base if has_place else text, runs)
    if not has_place and stage is None:
        return Meant(run)
    return Meant(run, run.checkpoints / _choose(run, stage, place if has_place else "latest"))


def find_checkpoint(text: str, runs: Path) -> Meant:
    """One checkpoint; of a run its latest by lineage."""
    meant = find_meant(text, runs)
    if meant.path is not None or meant.run is None:
        return meant
    return Meant(meant.run, meant.run.checkpoints / _choose(meant.run, None, "latest"))


def find_runs(text: str | None, runs: Path) -> list[Meant]:
    """What is named; without a word all runs there are."""
    if text is not None:
        return [find_meant(text, runs)]
    return [Meant(run) for run in list_shown(runs)]


def the_only_run(runs: Path) -> Meant:
    """Without a word the run is clear only if there is one."""
    found = list_runs(runs)
    if len(found) == 1:
        return Meant(found[0])
    if not found:
        raise UsageError(f"there are no runs in {runs}", hint="`tasuki run` makes runs")
    raise UsageError(
        f"there are {len(found)} runs in {runs}: which one?",
        hint=f"name it: {_some([run.name for run in found])}; or take all with `--all`",
    )


def _as_folder(text: str) -> Meant | None:
    """A checkpoint's folder, its manifest, or a run's folder of checkpoints."""
    path = Path(text)
    if path.name == MANIFEST_NAME and path.is_file():
        path = path.parent
    path = path.absolute()
    if not path.is_dir():
        return None
    if (path / MANIFEST_NAME).exists() or checkpoint_in(path.name) is not None:
        return Meant(_run_around(path.parent), path)
    for run in (_run_around(path), RunFolder(path)):
        if run is not None and run.spec.exists():
            return Meant(run)
    return None


def _run_around(checkpoints: Path) -> RunFolder | None:
    run = RunFolder(checkpoints.parent)
    return run if run.checkpoints == checkpoints and run.spec.exists() else None


def _run_and_stage(name: str, runs: Path) -> tuple[RunFolder, str | None]:
    run = find_run(name, runs, only_shows=True)  # checkpoints can be looked at without a spec
    _, stage = split_stage(name)
    if stage is None:
        return run, None
    refuse_remains(run)
    value = read_json(run.spec)
    with shaped(run.spec):
        known = [str(one["name"]) for one in value["stages"]]
    if stage not in known:
        near = difflib.get_close_matches(stage, known, n=1)
        raise UsageError(
            f"run `{run.name}` has no stage `{stage}`",
            hint=f"did you mean `{run.name}/{near[0]}`?" if near else f"there are: {_some(known)}",
        )
    return run, stage


def _choose(run: RunFolder, stage: str | None, place: str) -> str:
    names = lineage(run)
    others = [p for p in list_checkpoints(run) if str(p) not in names]
    outside = [str(p) for p in sorted(others, key=lambda p: (p.claim, p.order), reverse=True)]
    if place.startswith(QUARANTINE) and "/" not in place and (run.checkpoints / place).is_dir():
        return place
    if not names and not outside:
        raise RunError(
            f"run `{run.name}` has no checkpoints",
            hint="`tasuki status` tells how far it is; a stage's first one is its step 0",
        )
    if place == "latest":
        return _latest(run, stage, names or outside)
    if place.isdecimal() and len(place) <= 18:
        return _at_step(run, stage, int(place), names, outside)
    if place in names or place in outside:
        return place
    if parse_name(place) is None:
        raise UsageError(f"`{place[:80]}` is no place in run `{run.name}`", hint=_FORMS)
    raise _nothing_there(run, f"no checkpoint `{place}`", place, [*names, *outside])


def _latest(run: RunFolder, stage: str | None, names: list[str]) -> str:
    if stage is None:
        return names[0]
    for name in names:
        manifest = _manifest_or_none(run, name)
        if manifest is not None and manifest.position.stage == stage:
            return name
    raise _nothing_there(run, f"no checkpoint of stage `{stage}` any more, or not yet", "", names)


def _at_step(
    run: RunFolder, stage: str | None, step: int, names: list[str], outside: list[str]
) -> str:
    """Run-wide steps; with a stage, its own. What is in the lineage goes before what is not."""
    for some in (names, outside):
        found = [name for name in some if _is_at(run, name, stage, step)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"run `{run.name}` has {len(found)} checkpoints at step {step}: which one?",
                hint=f"name it: {_some([_spell(run, name) for name in found])}",
            )
    of_stage = f" of stage `{stage}`" if stage is not None else ""
    every = [*names, *outside]
    near = sorted(every, key=lambda name: abs(_parsed(name).step - step)) if not stage else every
    raise _nothing_there(run, f"no checkpoint at step {step}{of_stage}", "", near)


def _is_at(run: RunFolder, name: str, stage: str | None, step: int) -> bool:
    if stage is None:
        return _parsed(name).step == step
    manifest = _manifest_or_none(run, name)
    if manifest is None:
        return False
    return (manifest.position.stage, manifest.position.stage_step) == (stage, step)


def _nothing_there(run: RunFolder, what: str, word: str, names: list[str]) -> RunError:
    near = difflib.get_close_matches(word, names, n=1) if word else []
    shown = _some([_spell(run, name) for name in names])
    return RunError(
        f"run `{run.name}` has {what}",
        hint=f"did you mean `{_spell(run, near[0])}`?" if near else f"there are: {shown}",
    )


def _spell(run: RunFolder, name: str) -> str:
    return f"{run.name}@{name}"


def _manifest_or_none(run: RunFolder, name: str) -> Manifest | None:
    """A damaged one belongs to no stage."""
    try:
        return read_manifest(run.checkpoints / name)
    except (CheckpointError, StoreError):
        return None


def _parsed(name: str) -> ParsedName:
    parsed = parse_name(name)
    assert parsed is not None
    return parsed


def _some(words: Iterable[str]) -> str:
    every = [f"`{word}`" for word in words]
    rest = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{', '.join(every[:_SHOWN])}{rest}"
