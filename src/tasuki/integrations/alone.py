"""A run that no supervisor works on: its folder, its claim and its end, by the loop itself.

`python train.py`, torchrun and srun come here; rank 0 alone does. Whoever starts a script is a
person, so that a cancel is lifted; a hold is not (`tasuki resume` does that).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import msgspec

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.clock import Clock, utc
from tasuki.errors import RunError, UsageError
from tasuki.relay.values import Ending, PhaseEnded
from tasuki.runtime.worker import Worker
from tasuki.spec.commands import name_of
from tasuki.spec.frozen import frozen_value
from tasuki.spec.load import load_command
from tasuki.spec.names import check_name
from tasuki.spec.resolved import ResolvedSpec
from tasuki.store.atomic import FORMAT, make_folder, read_json, shaped, write_json
from tasuki.store.attempts import live_runner, write_holder
from tasuki.store.claims import highest_claim, take_claim
from tasuki.store.control import Word, last_said, say
from tasuki.store.remains import refuse_remains
from tasuki.store.runs import RunFolder
from tasuki.store.sources import digest_sources
from tasuki.telemetry.attempt import close_attempt
from tasuki.telemetry.view import live_holder

PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What open_run was asked for."""

    words: tuple[str, ...]
    """The command that this process is."""
    name: str | None
    path: Path | None
    """The run's folder, where that was given."""
    world: int
    environ: Mapping[str, str]

    def read_spec(self) -> ResolvedSpec:
        """As `tasuki run -- python train.py` here would have it, so that either goes on with the
        other's run."""
        spec = load_command(self.words, environ=self.environ)
        (experiment,) = spec.experiments
        name = self.path.name if self.path is not None else self.name
        if name is not None:
            check_name(name, what="the run")
            # As TASUKI_NAME does: the stage's name goes into the order of samples, and stays.
            experiment = msgspec.structs.replace(experiment, name=name)
        if self.world > 1:
            stages = tuple(msgspec.structs.replace(s, ranks=self.world) for s in experiment.stages)
            experiment = msgspec.structs.replace(experiment, stages=stages)
        runs = str(self.path.parent) if self.path is not None else spec.runs
        return msgspec.structs.replace(spec, experiments=(experiment,), runs=runs)


def ask(
    name: str | Path | None, *, world: int, environ: Mapping[str, str], orig_argv: Sequence[str]
) -> Asked:
    """`name`: a run's name, or its folder."""
    is_path = isinstance(name, Path) or (name is not None and "/" in name)
    words = command_of(orig_argv)
    if words is None and name is None:
        raise UsageError(
            "open_run does not know how to call this run: there is no script",
            hint='give it a name: tasuki.open_run("my-run")',
        )
    return Asked(
        words=words or (PYTHON, f"{Path(str(name)).name}.py"),
        name=None if is_path or name is None else str(name),
        path=Path(name).expanduser().absolute() if is_path and name is not None else None,
        world=world,
        environ=environ,
    )


def command_of(orig_argv: Sequence[str]) -> tuple[str, ...] | None:
    """The words with which this process could be started again; None: no script was."""
    words = list(orig_argv[1:])
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        takes_value = words[0] in ("-X", "-W")
        del words[: 2 if takes_value else 1]
    if not words or words[0] == "-c" or is_kernel():
        return None
    if words[0] != "-m":
        words[0] = str(PurePath(words[0]))
    return (PYTHON, *words)


def is_kernel() -> bool:
    """An interactive interpreter: it lives on when the loop is over."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules or bool(sys.flags.interactive)


def open_alone(asked: Asked, *, clock: Clock) -> RunFolder:
    """The run's folder, begun or gone on with; refused where somebody else works on it."""
    spec = asked.read_spec()
    (experiment,) = spec.experiments
    run = RunFolder(asked.path or Path(spec.runs) / experiment.name)
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
