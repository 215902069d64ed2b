"""Ask a child process with torch how long the steps of a stage take here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tasuki.answers import ChildLate, ask
from tasuki.spec.resolved import ResolvedExperiment, to_plain

_WITHIN_S = 300


def measure_stages(
    experiment: ResolvedExperiment,
    stages: Sequence[str],
    *,
    folder: str,
    ranks: int,
    cpus: int,
    device: str,
    python: str,
    environment: dict[str, str],
    on_late: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """By stage: total_steps, step_s, start_s, save_s. Nothing is written anywhere."""
    order = {
        "experiment": to_plain(experiment),
        "stages": list(stages),
        "folder": folder,
        "ranks": ranks,
        "cpus": cpus,
        "device": device,
    }
    try:
        answer: dict[str, dict[str, Any]] = ask(
            "tasuki.train.measure",
            order,
            python=python,
            environment=environment,
            folder=folder,
            within_s=_WITHIN_S,
        )
    except ChildLate as late:
        on_late(f"measuring `{experiment.name}` was given up after {_WITHIN_S} s: {late.doing}")
        return {}
    return answer
