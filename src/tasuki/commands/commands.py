"""A look at commands before their jobs wait in a queue for hours: is there such a program, and the
script that it is given? Also what of a plan is told about them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasuki.errors import UsageError
from tasuki.estimation.times import StageTimes
from tasuki.jobs.programs import PYTHON, find_program
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder
from tasuki.runs.spent import add_up_command
from tasuki.spec.alerts import DEADLINE_RISK
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage

if TYPE_CHECKING:
    from tasuki.commands.plan_request import PlanRequest


def check_commands(
    experiment: ResolvedExperiment, stages: Sequence[ResolvedStage], request: PlanRequest
) -> Iterator[str]:
    """Refuses a command that cannot be started here; what may be there on the nodes is a doubt."""
    for stage in stages:
        evaluate = stage.evaluate.command if stage.evaluate is not None else None
        for words in (stage.command, evaluate):
            if words is not None:
                yield from check_command(
                    words, f"stage `{stage.name}` of `{experiment.name}`", request
                )
        if stage.command is not None and request.is_slurm and request.spec.cluster.nodes > 1:
            yield (
                f"the command of stage `{stage.name}` is started on the first of "
                f"{request.spec.cluster.nodes} nodes only: it must start what the others do"
            )


def check_alerts(request: PlanRequest) -> Iterator[str]:
    """Doubts alone: no run is to wait for a message about it."""
    spec = request.spec
    python, folder = spec.cluster.python or request.python, Path(spec.folder)
    for outcome, words in spec.on.items():
        found = find_program(words[0], folder, python, request.environment)
        if words[0] != PYTHON and found is None:
            there = "; on the nodes?" if request.is_slurm else " there or in PATH"
            yield f"`on.{outcome}` begins with `{words[0]}`, which is no program{there}"
        script = _missing_script(words, folder)
        if script is not None:
            yield f"`on.{outcome}` names `{script}`, which is not in {folder}"
    if DEADLINE_RISK in spec.on and request.deadline_at is None:
        yield f"`on.{DEADLINE_RISK}` has no effect: there is no `deadline`"


def what_is_left(times: StageTimes, run: RunFolder, stage: ResolvedStage) -> StageTimes:
    """Its earlier starts have done a part, if the script saves itself; never less than a tenth."""
    worked = add_up_command(read_events(run), stage.name).seconds
    if times.wall_s is None or not worked:
        return times
    share = max(0.1, 1 - worked / times.wall_s)
    p90 = None if times.wall_s_p90 is None else times.wall_s_p90 * share
    return replace(times, wall_s=times.wall_s * share, wall_s_p90=p90)


def check_command(words: Sequence[str], whose: str, request: PlanRequest) -> Iterator[str]:
    """Yield doubts about a command. Raise an error if it cannot be started here or elsewhere."""
    cluster, folder = request.spec.cluster, Path(request.spec.folder)
    if cluster.container:
        return  # what is inside nobody can see from here
    python = cluster.python or request.python
    if words[0] != PYTHON and find_program(words[0], folder, python, request.environment) is None:
        error = _no_program(words[0], whose, folder, request.environment)
        may_be_elsewhere = request.is_slurm or cluster.setup or cluster.partition
        if not may_be_elsewhere or "/" in words[0]:
            raise error
        yield f"{error.message}; on the nodes?"
    script = _missing_script(words, folder)
    if script is not None:
        near = difflib.get_close_matches(script, [path.name for path in folder.glob("*.py")], n=1)
        raise UsageError(
            f"the command of {whose} names `{script}`, which is not in {folder}",
            hint=f"did you mean `{near[0]}`?" if near else "commands run in the spec's folder",
        )


def _missing_script(words: Sequence[str], folder: Path) -> str | None:
    """What is named behind the program and is not there: commands run in the spec's folder."""
    script = next((word for word in words[1:2] if word.endswith(".py")), None)
    is_there = script is None or (folder / Path(script).expanduser()).exists()
    return None if is_there else script


def _no_program(word: str, whose: str, folder: Path, environment: Mapping[str, str]) -> UsageError:
    there = folder / word
    if there.is_file() and not os.access(there, os.X_OK):
        return UsageError(
            f"the command of {whose} begins with `{word}`, which may not be executed",
            hint=f"`chmod +x {there}`, or put its interpreter before it: `[bash, {word}]`",
        )
    hint = f"it is looked up in PATH and in {folder}; `python` is the one that tasuki runs with"
    if " " in word:
        hint = "each word is an entry of its own: `[python, train.py]`, not `[python train.py]`"
    elif environment.get("PATH") is None:
        hint = "there is no PATH to look it up in"
    return UsageError(
        f"the command of {whose} begins with `{word}`, which is no program", hint=hint
    )


def refuse_commands(stage: ResolvedStage, experiment: str, *, verb: str, why: str) -> None:
    """For verbs that need a recipe: they say in one line that they do nothing here."""
    if stage.recipe is None:
        what = "runs a command" if stage.command is not None else "has no recipe"
        raise UsageError(
            f"stage `{stage.name}` of `{experiment}` {what}: `tasuki {verb}` does nothing for it",
            hint=why,
        )
