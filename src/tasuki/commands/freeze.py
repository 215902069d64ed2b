"""The first start of a run: its spec and code, frozen; later starts are compared with them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.clock import Clock, utc
from tasuki.errors import RunError
from tasuki.runs.accepted import CODE, DATA, write_accepted
from tasuki.runs.atomic import (
    FILE_MODE,
    FORMAT,
    make_folder,
    read_json,
    read_json_or_none,
    translated,
    write_json,
)
from tasuki.runs.attempts import process_birth
from tasuki.runs.claims import highest_claim
from tasuki.runs.events import EventLog
from tasuki.runs.runs import RunFolder
from tasuki.runs.sources import (
    digest_sources,
    edited_hint,
    edited_words,
    find_edits,
    read_sources,
    write_list,
)
from tasuki.spec.frozen import fitted, frozen_value, stage_summary
from tasuki.spec.resolved import (
    Difference,
    ResolvedExperiment,
    ResolvedSpec,
    ResolvedStage,
    differences,
    fingerprint,
    to_plain,
)
from tasuki.units import format_bytes

_SOURCES = {".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh", ".txt", ".md"}
_MAX_FILE = 1_000_000
_MAX_TOTAL = 50_000_000
_FIXED = {
    "epochs", "steps", "samples", "length", "effective_batch", "data", "size", "split", "seed",
    "order", "buckets", "stages",
}  # fmt: skip
_TRIES = 50
NOT_KNOWN = "not known"
"""The source of a choice that nothing foretold (fitting.py)."""
THIS_RUN = "this run"
"""The source of one that was made before."""
_SECRET = re.compile(r"\.env.*|\.?(secrets?|credentials?|passwords?|netrc|kaggle)(\..*)?")
_NEVER = {".git", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"}


def freeze_run(
    run: RunFolder,
    experiment: ResolvedExperiment,
    spec: ResolvedSpec,
    clock: Clock,
    *,
    fits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    deadline_at: float | None = None,
) -> None:
    """Write down what the run is made from; `fits`: a plan's, of what the spec left open."""
    make_folder(run.path)
    code = snapshot_code(run, spec)
    write_json(
        run.spec,
        {
            "format": FORMAT,
            **frozen_value(experiment, spec, code=code, fits=fits, deadline_at=deadline_at),
            "created_at": utc(clock.wall()),
        },
    )


def as_begun(run: RunFolder, experiment: ResolvedExperiment) -> ResolvedExperiment:
    """`auto` is what the run was begun with, so that neither its ranks nor what is recomputed move
    under it. What nobody could foretell is chosen anew while nothing was learnt."""
    frozen = read_json_or_none(run.spec) or {}
    try:
        before = {one["name"]: one for one in frozen["spec"]["stages"]}
        fitted = frozen.get("fitted") or {}
        guessed = {name for name, one in fitted.items() if one["source"] == NOT_KNOWN}
    except (KeyError, TypeError, AttributeError):
        return experiment  # of another tasuki: compared, and refused in words, by others
    free = set() if has_committed(run) else guessed
    stages = tuple(
        _as_begun(stage, before[stage.name])
        if stage.name in before and stage.name not in free
        else stage
        for stage in experiment.stages
    )
    return msgspec.structs.replace(experiment, stages=stages)


def _as_begun(stage: ResolvedStage, before: Mapping[str, Any]) -> ResolvedStage:
    kept: dict[str, Any] = {}
    if stage.gradient_checkpointing == "auto":
        policy = before.get("gradient_checkpointing", False)
        kept["gradient_checkpointing"] = False if policy == "auto" else policy
    if stage.chooses_gpus:
        kept |= {"gpus": before.get("gpus"), "chooses_gpus": False}
    return msgspec.structs.replace(stage, **kept)


def find_changes(
    run: RunFolder, experiment: ResolvedExperiment, *, accepted: Sequence[str]
) -> list[Difference]:
    """What the spec says differently now; refused where the run would give another result."""
    changed = _differences(run, experiment)
    refused = [d for d in changed if not d.harmless and not _is_accepted(d.key, accepted)]
    fixed = [d for d in changed if _is_fixed(d.key)]
    if (refused or fixed) and has_committed(run):
        lines = "\n".join(f"  {in_words(d)}" for d in fixed or refused)
        accept = " ".join(f"--accept-change {d.key}" for d in refused)
        raise RunError(
            f"{run.path} was begun with another spec:\n{lines}",
            hint="put it back, or start anew with `--new`"
            + ("" if fixed else f", or go on with the change: {accept}"),
        )
    return changed


def _differences(run: RunFolder, experiment: ResolvedExperiment) -> list[Difference]:
    try:
        return differences(read_json(run.spec)["spec"], to_plain(as_begun(run, experiment)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{run.spec} was written by another version of tasuki and cannot be compared",
            hint="use the tasuki that began the run, or start anew with `--new`",
        ) from error


def _is_fixed(key: str) -> bool:
    """What decides which samples come when cannot change under a run that has begun."""
    return any(part in _FIXED for part in key.split(".")[-2:])


def take_over(
    run: RunFolder,
    experiment: ResolvedExperiment,
    spec: ResolvedSpec,
    clock: Clock,
    *,
    fits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    deadline_at: float | None = None,
) -> None:
    """Freeze the spec as it is now; the code too, while nothing was learnt with the old one."""
    frozen = read_json(run.spec)
    experiment = as_begun(run, experiment)
    code = frozen["fingerprints"]["code"]
    if not has_committed(run):
        code = snapshot_code(run, spec)
    fresh = frozen | {
        "spec": to_plain(experiment),
        "cluster": to_plain(spec.cluster),
        "sinks": spec.sinks,
        "on": {key: list(words) for key, words in spec.on.items()},
        "deadline_at": deadline_at,
        "stages": [stage_summary(experiment, i) for i in range(len(experiment.stages))],
        "fitted": _still_fitted(frozen, experiment, fits),
        "fingerprints": {"spec": fingerprint(experiment), "code": code},
    }
    if fresh != frozen:
        write_json(run.spec, fresh | {"changed_at": utc(clock.wall())})


def _still_fitted(
    frozen: Mapping[str, Any],
    experiment: ResolvedExperiment,
    fits: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """What was chosen before and holds, and what was chosen now; what a person has written since
    is theirs."""
    now = {stage.name: stage for stage in experiment.stages}
    kept = {
        name: one
        for name, one in (frozen.get("fitted") or {}).items()
        if name in now and all(getattr(now[name], k) == v for k, v in one["chosen"].items())
    }
    new = fitted(experiment, fits)
    taken = {name for name in kept if new.get(name, {}).get("source") == THIS_RUN}
    return kept | {name: one for name, one in new.items() if name not in taken}


def in_words(difference: Difference) -> str:
    return f"{difference.key}: {_short(difference.old)} → {_short(difference.new)}"


def has_committed(run: RunFolder) -> bool:
    """Did any attempt ever commit a checkpoint, or start a command, which may have?"""
    if run.commands.is_dir():
        return True
    if not run.checkpoints.is_dir():
        return False
    return any(name.startswith("step-") for name in os.listdir(run.checkpoints))


def has_stepped(run: RunFolder) -> bool:
    """Was anything learnt? A stage's start is a checkpoint too."""
    return any(found.step for found in list_checkpoints(run))


def _is_accepted(key: str, accepted: Sequence[str]) -> bool:
    return any(
        key == word or key.endswith(f".{word}") or key.startswith(f"{word}.") for word in accepted
    )


def _short(value: object) -> str:
    text = "nothing" if value is None else str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "…"


def snapshot_code(run: RunFolder, spec: ResolvedSpec) -> str:
    """Copy the project's sources beside the run; the hash of what was copied."""
    files = _source_files(spec)
    with translated(run.code):
        return _copy_sources(run, Path(spec.folder), files)


def is_code_changed(run: RunFolder, spec: ResolvedSpec) -> bool:
    """Has the project's code changed since the run took its copy? The spec is compared by keys, and
    nobody runs what people are to read."""
    folder = Path(spec.folder)
    paths = _source_files(spec)
    now = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    both = [now, read_sources(run)]
    for files in both:
        for name in [n for n in files if n.endswith(".md") or folder / n == Path(spec.file)]:
            del files[name]
    return both[0] != both[1]


def refuse_edited_code(run: RunFolder, *, accepted: Sequence[str]) -> None:
    """The copy of the code in a run that has begun is nobody's to edit, unless they say so."""
    if CODE in accepted or not has_committed(run):
        return
    if edits := find_edits(run):
        raise RunError(edited_words(run, edits), hint=edited_hint(run))


def accept_code(run: RunFolder, clock: Clock) -> bool:
    """The edited copy is the run's code from now on. False: nothing was edited."""
    if not find_edits(run):
        return False
    files = read_sources(run)
    value = read_json(run.spec)
    before, after = str(value["fingerprints"]["code"]), digest_sources(files.items())
    write_list(run.code, files)
    value["fingerprints"]["code"] = after
    write_json(run.spec, value)
    log_change(run, clock, "code-changed", before=before, after=after)
    return True


def accept_data(run: RunFolder, clock: Clock) -> None:
    """Whatever the next attempt finds changed about the data may be so: once."""
    claim = highest_claim(run)
    write_accepted(run, DATA, claim=claim, at=utc(clock.wall()))
    log_change(run, clock, "accepted", key=DATA)


def log_change(run: RunFolder, clock: Clock, kind: str, **facts: str) -> None:
    log = EventLog(run, claim=highest_claim(run), node=0, who="resume", clock=clock)
    log.add(kind, **facts)
    log.close()


def _copy_sources(run: RunFolder, folder: Path, files: Sequence[Path]) -> str:
    copied: dict[str, bytes] = {}
    mark = f"{os.getpid()}-{os.urandom(4).hex()}"
    fresh = make_folder(run.path / f".code.{mark}.tmp")
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > _MAX_TOTAL:
            shutil.rmtree(fresh, ignore_errors=True)
            raise RunError(
                f"the sources in {folder} are more than {format_bytes(_MAX_TOTAL)}",
                hint="put the spec into a folder of its own, beside the code it needs",
            )
        data = path.read_bytes()
        name = path.relative_to(folder)
        copied[str(name)] = data
        target = fresh / name
        make_folder(target.parent)
        target.write_bytes(data)
        target.chmod(FILE_MODE)
    write_list(fresh, copied)
    _put_in_place(fresh, run, mark)
    return digest_sources(copied.items())


def _put_in_place(fresh: Path, run: RunFolder, mark: str) -> None:
    """Whole before and whole after, also when two do it at once: the last one wins."""
    old = run.path / f".code.{mark}.old"
    for _ in range(_TRIES):
        try:
            fresh.rename(run.code)  # onto a folder with files in it this fails
            break
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                run.code.rename(old)
            shutil.rmtree(old, ignore_errors=True)
    for leftover in run.path.glob(".code.*"):
        if not process_birth(int(leftover.name.split(".")[2].split("-")[0])):
            shutil.rmtree(leftover, ignore_errors=True)


def _source_files(spec: ResolvedSpec) -> list[Path]:
    """git-tracked and untracked sources, never data; without git all sources below the folder. Nor
    what holds passwords: no recipe is made of it, and a run folder is shown to others."""
    folder, exclude = Path(spec.folder), Path(spec.runs)
    found = _git_files(folder)
    if not found:  # no git, or the whole folder is ignored by it
        found = []
        for root, folders, names in os.walk(folder):
            folders[:] = [
                name
                for name in folders
                if name not in _NEVER
                and Path(root, name) != exclude
                and not name.startswith(".")
                and not _holds_runs(Path(root, name))
            ]
            found += [Path(root, name) for name in names]
    runs = {parent for path in found for parent in path.parents if folder in parent.parents}
    runs = {exclude} | {parent for parent in runs if _holds_runs(parent)}
    found = [path for path in found if not _is_secret(path, spec)]
    return sorted(path for path in found if _is_source(path) and runs.isdisjoint(path.parents))


def _is_secret(path: Path, spec: ResolvedSpec) -> bool:
    """By its name, or as the file of `export` lines that `cluster.setup` usually is."""
    setup = spec.cluster.setup
    if setup is not None and path == Path(spec.folder, setup).expanduser():
        return True
    return path.suffix != ".py" and bool(_SECRET.fullmatch(path.name.lower()))


def _holds_runs(folder: Path) -> bool:
    """Runs of other specs, with snapshots of their own: each run would copy all earlier ones."""
    return (folder / ".jobs").is_dir() or (folder / "training_state.json").is_file()


def _is_source(path: Path) -> bool:
    if path.suffix not in _SOURCES or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size <= _MAX_FILE


def _git_files(folder: Path) -> list[Path] | None:
    if not any((parent / ".git").exists() for parent in [folder, *folder.parents]):
        return None
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=folder,
            capture_output=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [folder / name for name in listed.stdout.decode(errors="replace").split("\0") if name]
