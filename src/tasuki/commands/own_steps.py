"""What a run's own steps tell of a stage: as long as it is still the same work on the same card.

A spec, the command line or the cluster may say something else by now than the steps were made with:
a run that was tried on a CPU tells nothing of a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tasuki.estimation.facts import stage_key
from tasuki.runs.atomic import read_json
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedStage, stage_from_plain, to_plain

Event = dict[str, Any]


def own_steps(
    run: RunFolder,
    events: Sequence[Event],
    stage: ResolvedStage,
    *,
    device: str,
    ranks: int,
    gpu: str | None,
) -> list[Event]:
    """The events that count, of the stage as it was frozen; none where it was other work. Where it
    is longer or shorter now, so are they."""
    if not events or not run.spec.exists():
        return []
    frozen = read_json(run.spec)
    before = _frozen_stage(frozen, stage.name)
    if before is None or not _is_same_place(
        frozen, events, stage.name, device=device, ranks=ranks, gpu=gpu
    ):
        return []
    now = stage_from_plain(to_plain(stage))  # as it would come from a file
    keys = {stage_key(one, device=device, ranks=ranks) for one in (before, now)}
    if len(keys) > 1 or before.length.unit != now.length.unit:
        return []
    return [_stretched(event, now.length.count, before.length.count) for event in events]


def _frozen_stage(frozen: Mapping[str, Any], name: str) -> ResolvedStage | None:
    plain = [one for one in frozen["spec"]["stages"] if one.get("name") == name]
    try:
        return stage_from_plain(plain[0]) if plain else None
    except msgspec.ValidationError:  # of another tasuki
        return None


def _is_same_place(
    frozen: Mapping[str, Any],
    events: Sequence[Event],
    stage: str,
    *,
    device: str,
    ranks: int,
    gpu: str | None,
) -> bool:
    """As far as the newest events of the stage tell."""
    own = [event for event in events if event.get("stage") == stage]
    on = [event["on"] for event in own if event.get("kind") == "memory"]
    started = [
        event["ranks"]
        for event in own
        if (event.get("kind"), event.get("phase")) == ("worker-started", "train")
    ]
    named = frozen["cluster"].get("gpu")
    if None not in (named, gpu) and named != gpu:
        return False
    return on[-1:] in ([], [device]) and started[-1:] in ([], [ranks])


def _stretched(event: Event, now: int, before: int) -> Event:
    total = event.get("total_steps")
    if total is None or now == before:
        return event
    return {**event, "total_steps": -(-total * now // before)}
