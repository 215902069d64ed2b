"""A stage that is a command: its words, its name, and what a spec may say about it.

Pure. tasuki starts such a stage once, tells it of the end, and knows nothing else of it: what the
script does with a learning rate or a batch is its own business, and keys that only a recipe could
use warn.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from tasuki.errors import SpecError, UsageError
from tasuki.spec.positions import Node
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage, find_source

_COUNTS = {
    *("name", "stages", "each", "recipe", "command", "ranks", "evaluate", "gpus", "init_from"),
    "expect",
    *("save", "seed", "log_every", "exact"),
}
"""Keys that mean something to a stage that is a command; the last ones to its `tasuki.open_run`."""
_COUNTS_OF_EVALUATE = {"after", "reserve", "command"}
_OF_SHELLS = re.compile(r"\|{1,2}|&{1,2}|;|\d*[<>]{1,2}(&\d)?")
_SCRIPTS = (".py", ".sh", ".bash", ".pl", ".jl", ".R")


def parse_command(written: object) -> tuple[str, ...]:
    """The words of a command; one text is split as a shell does, and no shell reads it."""
    words = tuple(written) if isinstance(written, list) else _split(str(written))
    if not words or not words[0].strip():
        raise UsageError(
            "a command needs a program to start", hint="write `[python, train.py, --lr, '3e-4']`"
        )
    if any("\0" in word for word in words):
        raise UsageError("a command cannot hold a NUL", hint="take it out")
    return words


def _split(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"`{text}` cannot be split into words: {error}",
            hint="close its quotes, or write a list",
        ) from None
    found = next((word for word in words if _OF_SHELLS.fullmatch(word)), None)
    if found is not None:
        raise UsageError(
            f"`{found}` means something to a shell only, and no shell reads this",
            hint=f"write `[bash, -c, {shlex.quote(text)}]`, or put it into a script",
        )
    return words


def name_of(words: Sequence[str]) -> str:
    """What a run of this command is called: after its script, else its module, else its program."""
    scripts = [word for word in words if PurePath(word).suffix in _SCRIPTS]
    if scripts:
        return _as_name(PurePath(scripts[0]).stem)
    if "-m" in words[:-1]:
        return _as_name(words[words.index("-m") + 1].removesuffix(".__main__").rpartition(".")[2])
    return _as_name(PurePath(words[0]).stem)


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text, flags=re.ASCII).strip("_.-")[:100] or "command"


@dataclass(slots=True)
class IdleKeys:
    """Written keys that only a recipe could use, gathered while stages are resolved. What a recipe
    of the same spec uses as well (`defaults`) is not idle."""

    _used: set[str] = field(default_factory=set)
    _idle: dict[str, tuple[str, str]] = field(default_factory=dict)
    """place and key → (key as written, stage)"""

    def add(self, entries: Mapping[str, Node], stage: ResolvedStage) -> None:
        for key, node in entries.items():
            place = f"{node.mark} {key}"
            if node.content is None:
                continue
            if stage.command is None:
                self._used.add(place)
            elif key == "ranks" and stage.ranks == "tasuki":
                self._idle.setdefault(place, (f"{key}: tasuki", stage.name))
            elif key not in _COUNTS:
                self._idle.setdefault(place, (key, stage.name))
            if key == "evaluate" and stage.evaluate is not None and stage.evaluate.command:
                self._add_evaluation(node, stage)

    def _add_evaluation(self, node: Node, stage: ResolvedStage) -> None:
        for key, child in node.entries().items():
            if key not in _COUNTS_OF_EVALUATE and child.content is not None:
                self._idle.setdefault(f"{child.mark} {key}", (f"evaluate.{key}", stage.name))

    def warnings(self) -> list[str]:
        """One for each stage: its keys, and where the first of them stands."""
        by_stage: dict[str, list[tuple[str, str]]] = {}
        for place, (key, stage) in self._idle.items():
            if place not in self._used:
                by_stage.setdefault(stage, []).append((place.rpartition(" ")[0], key))
        return [
            f"{found[0][0]}: {', '.join(f'`{key}`' for _, key in found)} "
            f"{'have' if len(found) > 1 else 'has'} no effect on stage `{stage}`, where a command "
            "is run: its script decides"
            for stage, found in by_stage.items()
        ]


def refuse_odd_commands(
    experiments: Sequence[ResolvedExperiment], places: Mapping[tuple[str, str], Node]
) -> None:
    """What a command cannot give: weights to start from, and a model to evaluate."""
    stages = {(e.name, s.name): s for e in experiments for s in e.stages}
    for experiment in experiments:
        for stage in experiment.stages:
            at = places[experiment.name, stage.name].mark
            if stage.command is None:
                source = find_source(experiment, stage)
                before = stages[source] if source is not None else None
                if before is not None and before.command is not None:
                    raise SpecError(
                        f"{at}: stage `{stage.name}` of `{experiment.name}` starts from the "
                        f"weights of `{before.name}`, which runs a command: tasuki does not know "
                        "what it leaves",
                        hint="write `init_from: ./weights.safetensors`, the file that the command "
                        "writes, or `init_from: none`",
                    )
            elif stage.evaluate is not None and stage.evaluate.command is None:
                raise SpecError(
                    f"{at}: stage `{stage.name}` of `{experiment.name}` runs a command, and "
                    "`evaluate` has none: there is no recipe that could evaluate",
                    hint="write `evaluate: {command: [python, evaluate.py]}`, or `evaluate: null`",
                )
