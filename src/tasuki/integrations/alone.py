"""A run that no supervisor works on: its folder, its claim and its end, by the loop itself.

`python train.py`, torchrun and srun come here; rank 0 alone does. Whoever starts a script is a
person, so that a cancel is lifted; a hold is not (`tasuki resume` does that).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.clock import Clock, utc
from tasuki.errors import RunError
from tasuki.integrations.asked import Asked
from tasuki.loop.worker import Worker
from tasuki.runs.atomic import FORMAT, make_folder, read_json, shaped, write_json
from tasuki.runs.attempt import close_attempt
from tasuki.runs.attempts import live_runner, write_holder
from tasuki.runs.claims import highest_claim, take_claim
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.remains import refuse_remains
from tasuki.runs.runs import RunFolder
from tasuki.runs.sources import digest_sources
from tasuki.runs.values import Ending, PhaseEnded
from tasuki.runs.view import live_holder
from tasuki.spec.commands import name_of
from tasuki.spec.frozen import frozen_value


def open_alone(asked: Asked, *, clock: Clock) -> RunFolder:
    """The run's folder, begun or gone on with; refused where somebody else works on it."""
    spec = asked.read_spec()
    (experiment,) = spec.experiments
    run = asked.folder(spec)
    if not run.spec.exists():
        refuse_remains(run)
        make_folder(run.path)
        value = frozen_value(experiment, spec, code=digest_sources(()))
        write_json(run.spec, {"format": FORMAT, **value, "created_at": utc(clock.wall())})
        return run
    if run.is_complete():
        return run
    _refuse_live(run, clock)
    _refuse_others(run, asked)
    said = last_said(run)
    if said is not None and said.word is Word.HOLD:
        raise RunError(
            f"run `{run.name}` is held: {said.reason}",
            hint=said.hint or f"mend the cause, then `tasuki resume {run.name}`",
        )
    if said is not None and said.word is not Word.LIFT:
        say(run, Word.LIFT, reason="a person said so", claim=highest_claim(run))
    return run


def take(run: RunFolder, *, clock: Clock) -> int:
    claim = take_claim(run)
    write_holder(run, claim, job="", start=0, at=clock.wall())
    return claim


def close_alone(worker: Worker, end: PhaseEnded, state: str, *, has_saved: bool) -> None:
    """What a supervisor would write at the attempt's end."""
    has_stepped = bool(worker.watch.step_s)
    facts = {"ending": end.ending, "cause": end.cause, "message": end.message}
    worker.event("worker-ended", phase="train", stage=worker.stage.name, **facts)
    whole = replace(
        end,
        has_progressed=(has_saved and has_stepped) or end.ending is Ending.DONE,
        has_stepped=has_stepped,
    )
    run, claim = worker.run, worker.claim
    close_attempt(run, claim, whole, state, events=worker.events, clock=worker.clock)


def _refuse_live(run: RunFolder, clock: Clock) -> None:
    holder, runner = live_holder(run, now=clock.wall()), live_runner(run)
    if holder is None and runner is None:
        return
    who = f"attempt {holder.claim} (process {holder.pid})" if holder else f"process {runner}"
    raise RunError(
        f"run `{run.name}` is live: {who} works on it",
        hint="`tasuki status` shows it, `tasuki cancel` ends it, saved; TASUKI_NAME=other begins "
        "another one beside it",
    )


def _refuse_others(run: RunFolder, asked: Asked) -> None:
    """Other arguments may mean another result, and would be taken up in silence."""
    with shaped(run.spec):
        stages: list[dict[str, Any]] = read_json(run.spec)["stages"]
        if len(stages) != 1 or stages[0].get("command") is None:
            raise RunError(
                f"run `{run.name}` in {run.path.parent} is not one of a script alone",
                hint="give this one another name: TASUKI_NAME=other, or tasuki.open_run('other')",
            )
        before = _script(stages[0]["command"])
    now = _script(asked.words)
    if before == now or not list_checkpoints(run):
        return
    told, typed = " ".join(before), " ".join(asked.words)
    raise RunError(
        f"run `{run.name}` was begun with `{told}`, and this is `{' '.join(now)}`",
        hint=f"put it back; or TASUKI_NAME=other begins another run; or go on with the change: "
        f"`tasuki run --accept-change command -- {typed}`",
    )


def _script(words: Sequence[str]) -> list[str]:
    """Who starts the script, and with what, is not its business."""
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return [str(PurePath(word)), *words[place + 1 :]]
        if word == "-m" and name_of(words[place:]) not in ("torchrun", "run"):
            return list(words[place:])
    return list(words)
