"""What `spec.json` of a run holds: an experiment as it was asked for, frozen at its first start.

Pure. Written by commands/freeze.py, and by a loop of one's own that nobody has planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, fingerprint, to_plain


def frozen_value(
    experiment: ResolvedExperiment,
    spec: ResolvedSpec,
    *,
    code: str,
    fits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    deadline_at: float | None = None,
) -> dict[str, Any]:
    """`code`: the hash of the copied code; `fits`: a plan's, of what the spec left open."""
    return {
        "experiment": experiment.name,
        "project": spec.project,
        "file": spec.file,
        "folder": spec.folder,
        "spec": to_plain(experiment),
        "cluster": to_plain(spec.cluster),
        "sinks": spec.sinks,
        "on": {key: list(words) for key, words in spec.on.items()},
        "deadline_at": deadline_at,
        "stages": [stage_summary(experiment, index) for index in range(len(experiment.stages))],
        "fitted": fitted(experiment, fits),
        "fingerprints": {"spec": fingerprint(experiment), "code": code},
    }


def stage_summary(experiment: ResolvedExperiment, index: int) -> dict[str, object]:
    """What a supervisor must know of a stage."""
    stage = experiment.stages[index]
    evaluate = stage.evaluate
    is_last = index == len(experiment.stages) - 1
    evaluates = evaluate is not None and (is_last or evaluate.after == "each_stage")
    return {
        "name": stage.name,
        "evaluates": evaluates,
        "reserve_s": evaluate.reserve_s if evaluate else None,
        "command": stage.command,
        "evaluate_command": evaluate.command if evaluate else None,
    }


def fitted(
    experiment: ResolvedExperiment, fits: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """By stage: which keys were `auto`, what they are now, from where and why."""
    own = {stage.name: fits.get(f"{experiment.name}/{stage.name}") for stage in experiment.stages}
    return {
        name: {
            "auto": fit["auto"],
            "chosen": {key: fit["chosen"][key] for key in fit["auto"]},
            "source": fit["source"],
            "reason": fit["chosen"]["reason"],
        }
        for name, fit in own.items()
        if fit is not None and fit["auto"]
    }
