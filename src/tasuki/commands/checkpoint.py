"""`tasuki checkpoint show | verify | diff`: what is in it, is it whole, where do two differ.

Reads only, from manifests, trees and headers. Only `diff` needs torch, and asks a child process.
"""

from __future__ import annotations

import calendar
import fnmatch
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.checkpoint.entries import GROUPS, Entry, list_entries
from tasuki.checkpoint.examine import Examined, Examiner, Finding
from tasuki.checkpoint.leftovers import Leftover, list_leftovers, measure
from tasuki.checkpoint.lineage import lineage, list_checkpoints
from tasuki.checkpoint.manifest import Manifest
from tasuki.commands.committed import Meant, find_checkpoint, find_runs, the_only_run
from tasuki.errors import CheckpointError, DamagedCheckpoint, StoreError
from tasuki.runs.atomic import FORMAT, read_json_or_none
from tasuki.runs.claims import highest_claim, list_claims, parent_of
from tasuki.runs.find import is_remains
from tasuki.runs.remains import what_is_gone
from tasuki.runs.runs import RunFolder
from tasuki.subprocesses import Progress, ProgressCallback

_GLOB = set("*?[")


# -- show -----------------------------------------------------------------------------------------


def show_checkpoints(
    text: str | None, *, runs: Path, now: float, pattern: str | None = None
) -> dict[str, Any]:
    """Runs with their checkpoints; or, where one is named (or entries are), what is in it."""
    if text is None and pattern is not None:
        text = str(_folder_of(the_only_run(runs)))
    if text is not None and pattern is not None:
        return show_one(find_checkpoint(text, runs), now=now, pattern=pattern)
    chosen = find_runs(text, runs)
    if text is not None and chosen[0].path is not None:
        return show_one(chosen[0], now=now, pattern=None)
    found = [_describe_run(meant.run, now) for meant in chosen if meant.run is not None]
    return {"format": FORMAT, "runs": found}


def _lineage(run: RunFolder) -> tuple[list[str], str]:
    """(names, what is wrong with the run's own files): one broken run hides no others."""
    try:
        return lineage(run), ""
    except StoreError as error:
        return [], str(error)


def _what_went(run: RunFolder) -> str:
    """What somebody deleted that checkpoints are found by, or all of them."""
    gone = what_is_gone(run)
    return gone.words if {"spec.json", "claims", "checkpoints"} & set(gone.names) else ""


def _folder_of(meant: Meant) -> Path:
    assert meant.run is not None
    return meant.run.path


def _describe_run(run: RunFolder, now: float) -> dict[str, Any]:
    names, problem = _lineage(run)
    parent = parent_of(run, highest_claim(run))[1] if not problem else None
    rows, needed = [], dict[str, list[str]]()
    for name in [*names, *_outside(run, names)]:
        path = run.checkpoints / name
        examined = Examiner().examine(path, is_thorough=False)
        if examined.state == "gone":  # pruned while we look
            continue
        for record in examined.manifest.frozen if examined.manifest else ():
            needed.setdefault(record.name, []).append(name)
        row = _describe(path, examined, now)
        rows.append(row | {"in_lineage": name in names, "is_parent": name == parent})
    latest = next((r["name"] for r in rows if r["in_lineage"] and r["state"] == "ok"), None)
    leftovers = list_leftovers(run, needed=needed)
    frozen = [one for one in leftovers if one.kind == "frozen"]
    return {
        "experiment": run.name,
        "folder": str(run.checkpoints),
        "checkpoints": [row | {"is_latest": row["name"] == latest} for row in rows],
        "latest": latest,
        "frozen": [_describe_frozen(one, needed) for one in frozen],
        "leftovers": [_describe_leftover(one) for one in leftovers if one.kind != "frozen"],
        "bytes": measure(run.checkpoints),
        "problem": problem or _what_went(run),
    }


def _outside(run: RunFolder, names: Sequence[str]) -> list[str]:
    """Committed, but not on the way from the highest claim down: newest first."""
    others = [parsed for parsed in list_checkpoints(run) if str(parsed) not in names]
    return [str(p) for p in sorted(others, key=lambda p: (p.claim, p.order), reverse=True)]


def _describe(path: Path, examined: Examined, now: float) -> dict[str, Any]:
    manifest = examined.manifest
    return {
        "name": path.name,
        "folder": str(path),
        "state": examined.state,
        "findings": [asdict(finding) for finding in examined.findings],
        "bytes": measure(path),
        **(_describe_manifest(manifest, now) if manifest else dict.fromkeys(_FACTS)),
    }


_FACTS = (
    "experiment", "stage", "stage_number", "step", "stage_step", "total_steps", "epoch", "samples",
    "is_start", "is_end", "claim", "parent", "world", "parts", "created_at", "age_s",
)  # fmt: skip


def _describe_manifest(manifest: Manifest, now: float) -> dict[str, Any]:
    told = {
        **asdict(manifest.position),
        "experiment": manifest.experiment,
        "total_steps": manifest.facts.get("total_steps"),
        "claim": manifest.claim,
        "parent": manifest.parent,
        "world": manifest.world,
        "parts": manifest.parts,
        "created_at": manifest.created_at,
        "age_s": _age(manifest.created_at, now),
    }
    return {key: told[key] for key in _FACTS}


def _age(created_at: str, now: float) -> float | None:
    try:
        then = calendar.timegm(time.strptime(created_at, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None
    return max(0.0, round(now - then, 1))


def _describe_frozen(one: Leftover, needed: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {"name": one.name, "bytes": one.num_bytes, "used_by": needed.get(one.path.name, [])}


def _describe_leftover(one: Leftover) -> dict[str, Any]:
    return {"kind": one.kind, "name": one.name, "bytes": one.num_bytes, "claim": one.claim}


def show_one(meant: Meant, *, now: float, pattern: str | None) -> dict[str, Any]:
    """One checkpoint: its manifest, its files, its entries. Damage does not hide the rest."""
    path = meant.path
    assert path is not None
    examined = Examiner().examine(path, is_thorough=False)
    if examined.state == "gone":
        raise _gone(path)
    if examined.manifest is None:
        raise _unreadable(path, examined)
    manifest = examined.manifest
    entries, findings = _entries(path, manifest)
    shown = [entry for entry in entries if _matches(entry.name, pattern)]
    told = _describe(path, examined, now)
    seen = {finding["file"] for finding in told["findings"]}
    told["findings"] += [asdict(finding) for finding in findings if finding.file not in seen]
    return {
        "format": FORMAT,
        "checkpoint": {
            **told,
            "state": "damaged" if told["findings"] else told["state"],
            "run": meant.run.name if meant.run else None,
            "facts": manifest.facts,
            "files": [{"name": r.name, "bytes": r.size} for r in manifest.files],
            "frozen": [{"name": f"frozen/{r.name}", "bytes": r.size} for r in manifest.frozen],
        },
        "groups": [_sum_group(group, entries) for group in GROUPS if _has(group, entries)],
        "pattern": pattern,
        "entries": [_describe_entry(entry) for entry in shown],
    }


def _entries(path: Path, manifest: Manifest) -> tuple[list[Entry], list[Finding]]:
    """By group, in the order of the trees; and what is wrong with parts that have none."""
    entries: list[Entry] = []
    findings = []
    for part in range(manifest.parts):
        try:
            entries += list_entries(path, manifest, part)
        except (DamagedCheckpoint, StoreError) as error:
            if not path.exists():
                raise _gone(path) from error
            file, _, words = str(error).removeprefix(f"{path}/").partition(" ")
            findings.append(Finding(file, words))
    return sorted(entries, key=lambda entry: GROUPS.index(entry.group)), findings


def _has(group: str, entries: Iterable[Entry]) -> bool:
    return any(entry.group == group for entry in entries)


def _sum_group(group: str, entries: Iterable[Entry]) -> dict[str, Any]:
    own = [entry for entry in entries if entry.group == group]
    stored = [entry for entry in own if entry.same_as is None]
    return {
        "group": group,
        "entries": len(own),
        "tensors": sum(entry.kind != "value" for entry in own),
        "bytes": sum(entry.num_bytes for entry in stored),
    }


def _describe_entry(entry: Entry) -> dict[str, Any]:
    told = asdict(entry)
    told["bytes"] = told.pop("num_bytes")
    told["shape"] = list(entry.shape) if entry.shape is not None else None
    return told


def _matches(name: str, pattern: str | None) -> bool:
    """A pattern of the shell; without its characters, a part of the name."""
    if pattern is None:
        return True
    return fnmatch.fnmatchcase(name, pattern if _GLOB & set(pattern) else f"*{pattern}*")


def _gone(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} was removed while it was looked at",
        hint="only the newest are kept (`save.keep`); `tasuki checkpoint show` lists them",
    )


def _unreadable(path: Path, examined: Examined) -> CheckpointError:
    finding = examined.findings[0]
    hint = "`tasuki checkpoint show RUN` lists the others"
    return CheckpointError(f"{path / finding.file} {finding.words}", hint=hint)


# -- verify ---------------------------------------------------------------------------------------


def verify_checkpoints(
    text: str | None,
    *,
    runs: Path,
    is_all: bool = False,
    on_progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Every byte of every checkpoint that is meant."""
    chosen = find_runs(None, runs) if is_all else [_named_or_only(text, runs)]
    jobs = [(meant, _paths_of(meant)) for meant in chosen]
    total = sum(measure(path) for _, paths in jobs for path in paths)
    counter = _Counter(on_progress, total)
    found = [_verify_run(meant, paths, counter) for meant, paths in jobs]
    is_ok = all(run["ok"] for run in found)
    return {"format": FORMAT, "ok": is_ok, "runs": found}


def _named_or_only(text: str | None, runs: Path) -> Meant:
    return find_runs(text, runs)[0] if text is not None else the_only_run(runs)


def _paths_of(meant: Meant) -> list[Path]:
    if meant.path is not None:
        return [meant.path]
    assert meant.run is not None
    names, _ = _lineage(meant.run)
    return [meant.run.checkpoints / name for name in [*names, *_outside(meant.run, names)]]


@dataclass(slots=True)
class _Counter:
    """Bytes that were read, as progress in MB."""

    on_progress: ProgressCallback
    total: int
    done: int = 0

    def __call__(self, num_bytes: int) -> None:
        self.done += num_bytes
        total = max(self.total, self.done)
        self.on_progress(Progress("checked, in MB:", self.done // 10**6, total // 10**6))


def _verify_run(meant: Meant, paths: Sequence[Path], counter: _Counter) -> dict[str, Any]:
    examiner = Examiner(on_bytes=counter)
    names, problem = _lineage(meant.run) if meant.run is not None else ([], "")
    rows = []
    for path in paths:
        examined = examiner.examine(path)
        if examined.state == "gone" and meant.path is None:  # pruned while we look
            continue
        rows.append(
            {
                "name": path.name,
                "folder": str(path),
                "state": examined.state,
                "findings": [asdict(finding) for finding in examined.findings],
                "bytes": measure(path),
                "in_lineage": path.name in names,
            }
        )
    told = {
        "experiment": meant.run.name if meant.run is not None else None,
        "ok": all(row["state"] == "ok" for row in rows),
        "checkpoints": rows,
        "resume": None,
        "resume_words": "",
    }
    if meant.run is None:
        return told
    if problem := problem or (_what_went(meant.run) if is_remains(meant.run) else ""):
        return told | {"ok": False, "resume_words": f"a resume stops: {problem}"}
    return told | _what_resume_takes(meant.run, rows, names, is_whole=meant.path is None)


def _what_resume_takes(
    run: RunFolder, rows: Sequence[dict[str, Any]], names: Sequence[str], *, is_whole: bool
) -> dict[str, Any]:
    """The newest of the lineage that is whole; as far as that was looked at."""
    by_name = {row["name"]: row for row in rows}
    for name in names:
        state = by_name[name]["state"] if name in by_name else None
        if state is None and is_whole:
            continue  # gone meanwhile
        if state is None:
            return {"resume_words": f"a resume looks at {name} first"}
        if state == "ok":
            return {"resume": name, "resume_words": f"a resume takes {name}"}
        if state != "damaged":
            return {"resume_words": f"a resume stops at {name}, which cannot be read"}
    if names and is_whole:
        return {"resume_words": "a resume finds nothing that is whole, and holds the run"}
    if names:
        return {"resume_words": "a resume passes it over"}
    if (lost := _lost(run)) is not None:
        words = f"{lost} is gone, and all others too: a resume holds the run"
        return {"resume_words": words, "ok": False}
    return {"resume_words": "nothing was committed yet: a resume starts from the beginning"}


def _lost(run: RunFolder) -> str | None:
    """A checkpoint that the run is known to have had."""
    for claim in reversed(list_claims(run)):
        if (parent := parent_of(run, claim)[1]) is not None:
            return parent
    told = read_json_or_none(run.training_state) or {}
    last = told.get("last_checkpoint")
    return str(last) if last else None


# -- diff -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBy:
    """How the child is started, and who hears it."""

    python: str
    environment: Mapping[str, str]
    on_progress: ProgressCallback = lambda _: None


def diff_checkpoints(
    a: str, b: str, *, runs: Path, now: float, asking: ComparedBy
) -> dict[str, Any]:
    """Where two states differ, and by how much. Both are checked byte by byte on the way."""
    meant = [find_checkpoint(text, runs) for text in (a, b)]
    sides = [_side(one, now) for one in meant]
    told: dict[str, Any] = subprocesses.run(
        "tasuki.checkpoint.compare:work",
        {"a": sides[0]["folder"], "b": sides[1]["folder"]},
        python=asking.python,
        environment=asking.environment,
        progress=asking.on_progress,
        result=dict[str, Any],
    )
    return {"format": FORMAT, "equal": told["equal"], "a": sides[0], "b": sides[1], **told}


def _side(meant: Meant, now: float) -> dict[str, Any]:
    path = meant.path
    assert path is not None
    examined = Examiner().examine(path, is_thorough=False)
    if examined.state == "gone":
        raise _gone(path)
    if not examined.is_good or examined.manifest is None:
        finding = examined.findings[0]
        what = "is not whole" if examined.state == "damaged" else "cannot be read"
        where = f"{finding.file} " if finding.file else ""
        raise CheckpointError(
            f"{path} {what}: {where}{finding.words}",
            hint="`tasuki checkpoint verify RUN` tells which ones are whole",
        )
    told = {"name": path.name, "run": meant.run.name if meant.run else None, "folder": str(path)}
    return told | _describe_manifest(examined.manifest, now)
