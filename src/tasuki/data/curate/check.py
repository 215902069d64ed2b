"""`tasuki data check`: what is wrong with the samples of files, and copies without those samples.

The originals are never touched. Every file is judged on its own but for duplicates, which are
looked for over all of them: a test file that repeats samples of the training is a finding, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import BLOCK_BYTES, Contents
from tasuki.data.curate.duplicates import find_duplicates, told_pair, unusable
from tasuki.data.curate.explain import why
from tasuki.data.curate.findings import Findings, Kind, found_at
from tasuki.data.curate.journal import Work
from tasuki.data.curate.scan import Scan
from tasuki.data.curate.sources import FIRST, find, refuse_name, scan_all, working
from tasuki.data.curate.talk import Talk
from tasuki.data.curate.writer import (
    Plan,
    fill,
    make_plan,
    publish,
    refuse_existing,
    refuse_sources,
)
from tasuki.errors import DataError, UsageError
from tasuki.runs.atomic import FORMAT

_CLEAN = ".clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One file after the search."""

    scan: Scan
    findings: Findings
    """Those that count, duplicates included; samples numbered in the file."""
    same: list[dict[str, Any]]
    """The first duplicates."""
    work: Work | None
    output: Path

    @property
    def bad(self) -> NDArray[np.bool_]:
        marked = np.zeros(len(self.scan), dtype=bool)
        marked[self.findings[:, 0]] = True
        return marked


def check(order: dict[str, Any], talk: Talk) -> dict[str, Any]:
    """{files, fix, output, allow, force, dry_run} → the values of `tasuki data check --json`."""
    block_bytes = order.get("block_bytes", BLOCK_BYTES)
    paths = _without_copies(find(order["files"]), talk)
    outputs = _outputs(paths, order)
    files, unopened = _open(paths, block_bytes=block_bytes)
    with ExitStack() as stack:
        works: list[Work | None] = []
        for file in files:
            folder = outputs[file.path].with_name(f".{outputs[file.path].name}.partial")
            is_dry = not order["fix"] or order["dry_run"]
            works.append(stack.enter_context(working(folder, talk, is_dry=is_dry)))
        finished = _finished_before(files, works, outputs)
        for file, work in zip(files, works, strict=True):
            if order["fix"] and file.path not in finished:
                refuse_existing([outputs[file.path]], work, force=order["force"])
        scans = scan_all(files, works=works, talk=talk, block_bytes=block_bytes)
        judged = _judge(scans, works, outputs, order["allow"], talk)
        reports = [_told(one, order["fix"]) for one in judged]
        if order["fix"] and not order["dry_run"]:
            more = _fix(judged, finished, talk, block_bytes=block_bytes, force=order["force"])
            for report, warnings in zip(reports, more, strict=True):
                report["warnings"] += warnings
    told = {report["path"]: report for report in reports + unopened}
    return _report([told[str(path)] for path in paths], order)


def _without_copies(paths: Sequence[Path], talk: Talk) -> list[Path]:
    """A folder that was cleaned once holds files and their copies."""
    kept = []
    for path in paths:
        original = path.with_name(path.stem.removesuffix(_CLEAN) + path.suffix)
        if path.stem.endswith(_CLEAN) and original in paths:
            talk.say(f"`{path}` is passed over: it is the clean copy of `{original}`")
        else:
            kept.append(path)
    return kept


def _outputs(paths: Sequence[Path], order: dict[str, Any]) -> dict[Path, Path]:
    """Where the copy of each file goes."""
    given = order["output"]
    if given is None:
        copies = {path: path.with_name(f"{path.stem}{_CLEAN}.h5") for path in paths}
        for path, copy in copies.items():
            twin = next(other for other, its in copies.items() if its == copy)
            if twin != path and order["fix"]:
                raise UsageError(
                    f"`{twin}` and `{path}` would both become `{copy}`",
                    hint="fix them one by one, with `-o`",
                )
        return copies
    if not order["fix"]:
        raise UsageError("`-o` says where a copy goes, but none is asked for", hint="add `--fix`")
    if len(paths) > 1:
        raise UsageError(
            f"`-o {given}` is one file, but there are {len(paths)} to copy",
            hint="leave `-o` out: each copy is put beside its file",
        )
    refuse_name(Path(given))
    refuse_sources([Path(given)], paths)
    return {path: Path(given) for path in paths}


def _open(
    paths: Sequence[Path], *, block_bytes: int
) -> tuple[list[Contents], list[dict[str, Any]]]:
    """(The files, reports on those that cannot be opened). A single one raises its error."""
    files, unopened = [], []
    for path in paths:
        try:
            files.append(Contents(path, block_bytes=block_bytes))
        except DataError as error:
            if len(paths) == 1:
                raise
            unopened.append(_no_report(path) | {"error": error.message, "hint": error.hint})
    return files, unopened


def _finished_before(
    files: Sequence[Contents], works: Sequence[Work | None], outputs: dict[Path, Path]
) -> set[Path]:
    """Files whose copies have their names, of a call that was interrupted after the last one got
    its own: other work folders still tell of it."""
    if not any(work is not None and work.is_publishing for work in works):
        return set()
    return {
        file.path
        for file, work in zip(files, works, strict=True)
        if work is not None and work.writing is None and outputs[file.path].exists()
    }


def _judge(
    scans: Sequence[Scan],
    works: Sequence[Work | None],
    outputs: dict[Path, Path],
    allow: Sequence[str],
    talk: Talk,
) -> list[Judged]:
    pairs = np.empty((0, 2), dtype=np.int64)
    if scans and Kind.DUPLICATE.word not in allow:
        pairs = find_duplicates(scans, work=works[0], on_progress=talk.progress)
    allowed = [kind for kind in Kind if kind.word in allow]
    judged, begin = [], 0
    for scan, work in zip(scans, works, strict=True):
        ours = pairs[(pairs[:, 0] >= begin) & (pairs[:, 0] < begin + len(scan))]
        counting = scan.findings[~np.isin(scan.findings[:, 1], allowed)]
        repeated = found_at(ours[:, 0] - begin, Kind.DUPLICATE)
        judged.append(
            Judged(
                scan=scan,
                findings=np.concatenate([repeated, counting]),
                same=[told_pair(scans, pair) for pair in ours[:FIRST]],
                work=work,
                output=outputs[scan.contents.path],
            )
        )
        begin += len(scan)
    return judged


def _told(judged: Judged, fixes: bool) -> dict[str, Any]:
    """One file as `--json` shows it."""
    num_bad = int(judged.bad.sum())
    num_good = len(judged.scan) - num_bad
    warnings = _unused_rows(judged.scan.contents)
    if fixes and not num_good:
        warnings.append("no sample is good: there is nothing that a copy could hold")
    writes = fixes and bool(num_bad) and bool(num_good)
    return {
        **_no_report(judged.scan.contents.path),
        "samples": len(judged.scan),
        "bad": num_bad,
        "findings": _told_findings(judged),
        "output": str(judged.output) if writes else None,
        "kept": num_good if writes else None,
        "warnings": warnings,
    }


def _no_report(path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "samples": None,
        "bad": None,
        "findings": [],
        "output": None,
        "kept": None,
        "warnings": [],
        "error": None,
        "hint": None,
    }


def _told_findings(judged: Judged) -> list[dict[str, Any]]:
    found, contents = judged.findings, judged.scan.contents
    told = []
    for kind, column in np.unique(found[:, 1:], axis=0).tolist():
        samples = found[(found[:, 1] == kind) & (found[:, 2] == column), 0]
        first = [
            {"sample": sample, "why": why(contents, Kind(kind), column, sample)}
            for sample in np.sort(samples)[:FIRST].tolist()
            if kind != Kind.DUPLICATE
        ]
        if kind == Kind.DUPLICATE:
            first = [
                {
                    "sample": pair["sample"],
                    "why": f"the same as sample {pair['same_sample']} of `{pair['same_file']}`",
                }
                for pair in judged.same
            ]
        told.append(
            {
                "kind": Kind(kind).word,
                "dataset": contents.columns[column].name if column >= 0 else None,
                "samples": len(samples),
                "first": first,
            }
        )
    return told


def _unused_rows(contents: Contents) -> list[str]:
    warnings = []
    for name, offsets in contents.offsets.items():
        unused = int(offsets[0]) + contents.length(name) - int(offsets[-1])
        if unused and not contents.bad_offsets[name].any():
            rows = f"{unused:,} row{'s' if unused > 1 else ''}"
            warnings.append(f"{rows} of `{name}` belong to no sample")
    return warnings


def _fix(
    judged: Sequence[Judged], finished: set[Path], talk: Talk, *, block_bytes: int, force: bool
) -> list[list[str]]:
    """Write all copies; warnings for each file.

    They get their names when all are complete: a second call would refuse those that exist.
    """
    plans, warnings = [], []
    for one in judged:
        assert one.work is not None
        warnings.append(list[str]())
        is_finished = one.scan.contents.path in finished
        if one.bad.any() and not one.bad.all() and not is_finished:
            plan = _plan(one)
            warnings[-1] += fill(plan, one.work, block_bytes=block_bytes, on_progress=talk.progress)
            plans.append((plan, one.work))
    for plan, work in plans:
        publish(plan, work, force=force)
    for one in judged:
        assert one.work is not None
        one.work.remove()
    return warnings


def _plan(judged: Judged) -> Plan:
    parts = np.where(judged.bad, -1, 0).astype(np.int8)
    avoid = [unusable(judged.scan)]
    return make_plan([judged.scan.contents], [judged.output], parts, avoid=avoid)


def _report(files: Sequence[dict[str, Any]], order: dict[str, Any]) -> dict[str, Any]:
    is_clean = all(file["bad"] == 0 for file in files)
    has_copies = order["fix"] and not order["dry_run"]
    return {
        "format": FORMAT,
        "clean": is_clean,
        "fixed": has_copies and all(file["bad"] == 0 or file["output"] for file in files),
        "files": list(files),
        "dry_run": order["dry_run"],
    }
