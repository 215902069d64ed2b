"""Are two runs bit for bit the same? Compared as bytes on disk: no torch, nothing to believe."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.verify import frozen_folder, read_manifest
from tasuki.store.runs import RunFolder
from tasuki.telemetry.metrics import TIMING_KEYS, read_metrics


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and the first thing that differs."""

    checks: tuple[tuple[str, bool], ...]

    @property
    def is_equal(self) -> bool:
        return all(is_equal for _, is_equal in self.checks)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"what": what, "equal": is_equal} for what, is_equal in self.checks]


def compare_runs(one: RunFolder, other: RunFolder, stages: list[str]) -> Comparison:
    """Weights of every stage, the whole last state (optimizer, random states …), all metrics."""
    checks = []
    for stage in stages:
        paths = [run.stage(stage).weights for run in (one, other)]
        is_equal = all(p.exists() for p in paths) and _sha(paths[0]) == _sha(paths[1])
        checks.append((f"weights of stage {stage}", is_equal))
    states = [_last_state(run) for run in (one, other)]
    checks.append(
        (
            "model, optimizer and random states at the end",
            bool(states[0]) and states[0] == states[1],
        )
    )
    rows = [_plain_rows(run) for run in (one, other)]
    checks.append((f"{len(rows[0])} lines of metrics", bool(rows[0]) and rows[0] == rows[1]))
    return Comparison(tuple(checks))


def _last_state(run: RunFolder) -> dict[str, str]:
    """The files of the last checkpoint but for its manifest, which tells claim and time."""
    names = lineage(run)
    if not names:
        return {}
    folder = run.checkpoints / names[0]
    files = {p.name: _sha(p) for p in sorted(folder.iterdir()) if p.name != "manifest.json"}
    for record in read_manifest(folder).frozen:
        files[record.name] = _sha(frozen_folder(run.checkpoints) / record.name)
    return files


def _plain_rows(run: RunFolder) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key not in TIMING_KEYS}
        for row in read_metrics(run)
    ]


def _sha(path: Any) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
