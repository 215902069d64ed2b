"""Where each stage's weights come from: `init_from`, made unambiguous and free of circles.

Pure. Stages run in order, so that a stage also waits for the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from tasuki.errors import SpecError
from tasuki.spec.check import nearest
from tasuki.spec.layers import expand_path
from tasuki.spec.positions import Node
from tasuki.spec.resolved import ResolvedExperiment, find_source

_WEIGHTS = {".safetensors", ".pt", ".pth", ".ckpt", ".bin"}
_HINT = "write `previous`, `none`, STAGE, EXPERIMENT/STAGE, or a file such as ./base.safetensors"


@dataclass(frozen=True, slots=True)
class Names:
    """The names an `init_from` may use."""

    experiment: str
    stages: Mapping[str, tuple[str, ...]]
    """experiment → its stages, in order"""


def resolve_start(
    written: Node | None, *, index: int, names: Names, environ: Mapping[str, str]
) -> str:
    """`init_from` of one stage; files begin with `/` or `./` afterwards."""
    if written is None or written.content is None:
        return "previous" if index else "none"
    text = str(written.content)
    if text == "previous" and not index:
        raise SpecError(
            f"{written.mark}: `init_from: previous`, but nothing comes before the first stage",
            hint="remove it, or write `init_from: none`",
        )
    if text in ("none", "previous") or text in names.stages[names.experiment]:
        return text
    experiment, _, stage = text.partition("/")
    if experiment in names.stages:
        if stage in names.stages[experiment]:
            return text
        if stage and PurePath(text).suffix not in _WEIGHTS:
            raise _unknown(written, stage, names.stages[experiment], prefix=f"{experiment}/")
    if text.startswith(("/", ".", "~", "$")) or PurePath(text).suffix in _WEIGHTS:
        file = expand_path(written, text, environ=environ)
        return file if file.startswith(("/", "./", "../")) else f"./{file}"
    everywhere = [f"{name}/{stage}" for name, stages in names.stages.items() for stage in stages]
    raise _unknown(written, text, (*names.stages[names.experiment], *everywhere))


def _unknown(node: Node, word: str, known: tuple[str, ...], *, prefix: str = "") -> SpecError:
    near = nearest(word, known)
    return SpecError(
        f"{node.mark}: `init_from: {node.content}` names no stage",
        hint=f"did you mean `{prefix}{near}`? {_HINT}" if near else _HINT,
    )


def refuse_circles(
    experiments: tuple[ResolvedExperiment, ...], marks: Mapping[tuple[str, str], Node]
) -> None:
    """A stage must not wait for itself, neither by `init_from` nor by the order of stages."""
    needs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for experiment in experiments:
        before: list[tuple[str, str]] = []
        for stage in experiment.stages:
            me = (experiment.name, stage.name)
            source = find_source(experiment, stage)
            needs[me] = [*before, *([source] if source is not None else [])]
            before = [me]
    done: set[tuple[str, str]] = set()
    for start in needs:
        if circle := _find_circle(start, needs, done):
            # The order of stages alone has no circles: one of these has an `init_from`.
            guilty = next(stage for stage in circle if stage in marks)
            raise SpecError(
                f"{marks[guilty].mark}: `init_from: {marks[guilty].content}` goes in a circle: "
                + " → ".join("/".join(stage) for stage in circle),
                hint="let one of these stages start from another, or from `none`",
            )


def _find_circle(
    start: tuple[str, str],
    needs: Mapping[tuple[str, str], list[tuple[str, str]]],
    done: set[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Depth first without recursion: chains may be long."""
    path: list[tuple[str, str]] = []
    todo = [(start, False)]
    while todo:
        stage, is_left = todo.pop()
        if is_left:
            path.pop()
            done.add(stage)
        elif stage in path:
            return [*path[path.index(stage) :], stage]
        elif stage not in done:
            path.append(stage)
            todo.append((stage, True))
            todo.extend((other, False) for other in needs[stage])
    return []
