"""The end of a command that is done: what stands in the stage's folder, and in the history.

The counterpart of train/finish.py and train/remember.py, without torch and without knowing what the
script did: its time, and the numbers that it chose to leave.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from tasuki.clock import Clock, utc
from tasuki.errors import StoreError
from tasuki.estimation.facts import family_key, stage_key
from tasuki.estimation.past import EVALUATION
from tasuki.jobs.commanded import read_command
from tasuki.jobs.job import JobOrder
from tasuki.runs.atomic import (
    FORMAT,
    make_folder,
    read_json,
    read_json_or_none,
    read_plain,
    shaped,
    write_json,
)
from tasuki.runs.events import EventLog, read_events
from tasuki.runs.history import append_history
from tasuki.runs.lines import spelled
from tasuki.runs.runs import CommandFolder, RunFolder
from tasuki.runs.spent import Worked, add_up_command
from tasuki.spec.resolved import stage_from_plain

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Which command is done, and where."""

    run: RunFolder
    claim: int
    stage: str
    kind: str
    """train or evaluate."""
    job: JobOrder
    gpus: int
    """Which it had."""


def keep_result(done: Done, events: EventLog, *, clock: Clock) -> None:
    """The stage counts as trained, or evaluated, from then on."""
    worked = add_up_command(read_events(done.run), done.stage, phase=done.kind)
    metrics, problem = read_metrics(done.run.command(done.claim, done.stage, done.kind))
    if problem:
        events.add("warning", text=problem)
    words = read_command(done.run, done.stage, done.kind) or ()
    common = {
        "format": FORMAT,
        "stage": done.stage,
        "command": list(words),
        "wall_s": round(worked.seconds, 3),
    }
    folder = done.run.stage(done.stage)
    sha256: str | None = None
    make_folder(folder.path)
    if done.kind == "train" and folder.metrics.exists():
        own = read_json(folder.metrics)  # its loop is a `tasuki.open_run`, and knows more
        write_json(folder.metrics, {**own, **common, **({"last": metrics} if metrics else {})})
    elif done.kind == "train":
        unknown = dict.fromkeys(("steps", "epochs", "samples", "best", "scaling", "sha256"))
        value = {**common, **unknown, "last": metrics, "finished_at": utc(clock.wall())}
        write_json(folder.metrics, value)
    else:
        sha256 = (read_json_or_none(folder.metrics) or {}).get("sha256")
        value = {**common, "data": None, "split": None, "metrics": metrics}
        value |= {"sha256": sha256, "evaluated_at": utc(clock.wall())}
        write_json(folder.evaluation, value)
    try:
        _remember(done, shlex.join(words), worked, sha256, at=clock.wall())
    except StoreError as error:  # a figure is never worth a run
        events.add("warning", text=f"how long the command took is not remembered: {error}")


def read_metrics(folder: CommandFolder) -> tuple[dict[str, Any] | None, str]:
    """(numbers and texts by name, what is wrong); None: the script left none."""
    if not folder.metrics.exists():
        return None, ""
    try:
        value = json.loads(read_plain(folder.metrics, limit=_MOST_BYTES))
    except (StoreError, ValueError, RecursionError) as error:
        return None, f"the metrics that the command left cannot be read: {error}"
    if not isinstance(value, dict):
        return None, "the metrics that the command left are no JSON object"
    kept = {str(k): v for k, v in value.items() if isinstance(v, int | float | str)}
    odd = [str(key) for key in value if str(key) not in kept]
    problem = f"metrics that are no numbers are left out: {', '.join(odd)}" if odd else ""
    return spelled(kept), problem


def _remember(done: Done, words: str, worked: Worked, sha256: str | None, *, at: float) -> None:
    spec = read_json(done.run.spec)
    lanes = read_json(done.job.folder.lanes)
    with shaped(done.run.spec):
        plain = next(one for one in spec["spec"]["stages"] if one["name"] == done.stage)
        stage = stage_from_plain(plain)
    line: dict[str, Any] = {
        "format": FORMAT,
        "kind": "stage",
        "at": at,
        "run": done.run.name,
        "experiment": spec["experiment"],
        "stage": done.stage,
        "claim": done.claim,
        "recipe": None,
        "command": words,
        "sha256": sha256,
    }
    seconds = round(worked.seconds, 6)
    if done.kind == "train":
        device = done.job.device
        line |= {
            "key": stage_key(stage, device=device, ranks=done.gpus),
            "family": family_key(stage, device=device, ranks=done.gpus),
            "device": device,
            "gpu": lanes.get("gpu"),
            "ranks": done.gpus,
            "step_s": seconds,
            "train_s": seconds,
            "parts": {"step": seconds},
            "attempts": worked.attempts,
            "preemptions": worked.preemptions,
        }
    else:
        line |= {"kind": EVALUATION, "start_s": 0.0, "evaluate_s": seconds}
    append_history(done.run.path.parent, f"{done.run.name}.{done.claim}", line)
