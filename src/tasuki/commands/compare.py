"""Are two runs bit for bit the same? Compared as bytes on disk: no torch, nothing to believe.

Only where parameters are stored apart, because no step changes them, may equal states lie in other
files; then whoever can read them is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.verify import frozen_folder, read_manifest
from tasuki.runs.metrics import TIMING_KEYS, read_metrics
from tasuki.runs.runs import RunFolder


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and the first thing that differs."""

    checks: tuple[tuple[str, bool], ...]

    @property
    def is_equal(self) -> bool:
        return all(is_equal for _, is_equal in self.checks)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"what": what, "equal": is_equal} for what, is_equal in self.checks]


def compare_runs(
    one: RunFolder,
    other: RunFolder,
    stages: list[str],
    *,
    is_same_state: Callable[[Path, Path], bool] = lambda _one, _other: False,
) -> Comparison:
    """Weights of every stage, the whole last state (optimizer, random states …), all metrics.

    `is_same_state` is asked about two checkpoints whose files differ and need not be the same.
    """
    checks = []
    for stage in stages:
        paths = [run.stage(stage).weights for run in (one, other)]
        is_equal = all(p.exists() for p in paths) and _sha(paths[0]) == _sha(paths[1])
        checks.append((f"weights of stage {stage}", is_equal))
    is_equal = _is_same_end(one, other, is_same_state)
    checks.append(("model, optimizer and random states at the end", is_equal))
    rows = [_plain_rows(run) for run in (one, other)]
    checks.append((f"{len(rows[0])} lines of metrics", bool(rows[0]) and rows[0] == rows[1]))
    return Comparison(tuple(checks))


def _is_same_end(
    one: RunFolder, other: RunFolder, is_same_state: Callable[[Path, Path], bool]
) -> bool:
    last = [run.checkpoints / names[0] for run in (one, other) if (names := lineage(run))]
    if len(last) < 2:
        return False
    if _files_of(last[0]) == _files_of(last[1]):
        return True
    # Other bytes may hold the same state: entries in another order, parameters that are kept once.
    return is_same_state(*last)


def _files_of(checkpoint: Path) -> dict[str, str]:
    """All but the manifest, which tells claim and time."""
    files = {p.name: _sha(p) for p in sorted(checkpoint.iterdir()) if p.name != "manifest.json"}
    for record in read_manifest(checkpoint).frozen:
        files[record.name] = _sha(frozen_folder(checkpoint.parent) / record.name)
    return files


def _plain_rows(run: RunFolder) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key not in TIMING_KEYS}
        for row in read_metrics(run)
    ]


def _sha(path: Any) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
