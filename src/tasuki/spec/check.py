"""Is each key known, and does it hold what it should? Says file, line, value and what to write.

The structs of `written.py` are the only list of keys; msgspec converts value by value, because its
own paths hide the keys of mappings.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from tasuki.errors import SpecError, UsageError
from tasuki.spec.alerts import HELD, MEANT, OUTCOMES
from tasuki.spec.names import check_name
from tasuki.spec.positions import Mark, Node
from tasuki.spec.rules import Command, Rule
from tasuki.spec.written import (
    Cluster,
    Evaluate,
    Expect,
    Experiment,
    Layer,
    Loader,
    Save,
    Spec,
    Stage,
    Validate,
)

ONE_OF = (("epochs", "steps", "samples"), ("recipe", "command"))
"""Keys that exclude each other in one mapping; a later layer's choice replaces an earlier one's."""

_STRUCTURE = {"experiments", "configs", "stages"}
"""Keys whose content is checked level by level."""

_PLACES: dict[str, type[msgspec.Struct]] = {
    "the top level": Spec,
    "`cluster`": Cluster,
    "`defaults`, an experiment or a stage": Layer,
    "`save`": Save,
    "`validate`": Validate,
    "`evaluate`": Evaluate,
    "`expect`": Expect,
    "`loader`": Loader,
}


def check_spec(root: Node) -> None:
    """Refuse unknown keys and wrong values anywhere in a written spec."""
    refuse_non_finite(root)
    check_mapping(root, Spec, where="the top level")
    entries = root.entries()
    if (alerts := entries.get("on")) is not None:
        _check_alerts(alerts)
    if (defaults := entries.get("defaults")) is not None:
        _check_layer(defaults, where="`defaults`")
    for name, overlay in _named(entries.get("configs"), what="configs"):
        _check_layer(overlay, where=f"config `{name}`")
    for name, experiment in _named(entries.get("experiments"), what="experiments"):
        _check_layer(experiment, shape=Experiment, where=f"experiment `{name}`", may_be_named=True)


def _check_alerts(node: Node) -> None:
    rule = next(extra for extra in get_args(Command) if isinstance(extra, Rule))
    for outcome, child in node.entries().items():
        if outcome not in OUTCOMES:
            near = MEANT.get(outcome) or nearest(outcome, OUTCOMES)
            too = ", which is told of failures too" if near == HELD else ""
            hint = f"did you mean `{near}`{too}?" if near else f"known: {', '.join(OUTCOMES)}"
            raise SpecError(f"{child.mark}: unknown outcome `{outcome}` in `on`", hint=hint)
        if child.content is not None:
            _convert(outcome, child, Command, rule)


def check_stage(stage: Node, *, where: str) -> None:
    """Refuse unknown keys and wrong values of one stage."""
    refuse_non_finite(stage)
    check_mapping(stage, Stage, where=where)
    for key in ("stages", "each"):
        if child := stage.entries().get(key):
            raise SpecError(
                f"{child.mark}: {where} cannot have `{key}`", hint=f"move `{key}` to the experiment"
            )


def check_mapping(
    node: Node,
    shape: type[msgspec.Struct],
    *,
    where: str,
    places: Mapping[str, type[msgspec.Struct]] = _PLACES,
) -> None:
    """Refuse what a mapping of this shape cannot hold. `null` counts as not written.

    `places` are where else an unknown key may belong.
    """
    if node.content is None:
        return
    if not isinstance(node.content, dict):
        raise SpecError(
            f"{node.mark}: {where} must be a mapping, not {quote(node)}",
            hint="write `key: value` lines below it",
        )
    for key, child in node.content.items():
        if key not in hints_of(shape):
            raise unknown_key(key, child.mark, shape, where=where, places=places)
        if child.content is not None and key not in _STRUCTURE:
            _check_value(key, child, hints_of(shape)[key])
    for group in ONE_OF:
        written = [key for key in group if _is_written(node, key)]
        if len(written) > 1:
            raise SpecError(
                f"{node.content[written[1]].mark}: {where} has both `{written[0]}` and "
                f"`{written[1]}`",
                hint=f"keep one of {', '.join(f'`{key}`' for key in group)}",
            )


def _is_written(node: Node, key: str) -> bool:
    child = node.entries().get(key)
    return child is not None and child.content is not None


def _check_layer(
    node: Node, *, where: str, shape: type[Layer] = Layer, may_be_named: bool = False
) -> None:
    check_mapping(node, shape, where=where)
    entries = node.entries()
    if not may_be_named and (name := entries.get("name")):
        raise SpecError(
            f"{name.mark}: {where} cannot have a `name`",
            hint="experiments are named by their key, stages by their own `name`",
        )
    stages = entries.get("stages")
    if stages is None or stages.content is None or stages.content == "auto":
        return
    if not isinstance(stages.content, tuple):
        raise SpecError(
            f"{stages.mark}: `stages` must be a list of stages, not {quote(stages)}",
            hint="write `- {name: small_512, data: small.h5, epochs: 30}` lines below it",
        )
    for number, stage in enumerate(stages.content, start=1):
        check_stage(stage, where=f"stage {number} of {where}")


def _named(node: Node | None, *, what: str) -> Iterable[tuple[str, Node]]:
    if node is None or node.content is None:
        return ()
    if not isinstance(node.content, dict):
        raise SpecError(
            f"{node.mark}: `{what}` must be a mapping from names, not {quote(node)}",
            hint=f"write `{what}:` and below it `name: {{…}}`",
        )
    for name, child in node.content.items():
        name_at(name, child.mark, what=what.removesuffix("s"))
    return node.content.items()


def name_at(name: str, mark: Mark, *, what: str) -> str:
    """A name that may become a folder, or a SpecError with its place."""
    try:
        return check_name(name, what=what)
    except UsageError as error:
        raise SpecError(f"{mark}: {error.message}", hint=error.hint) from None


_FEW = 4
"""Keys of a mapping that are all named rather than guessed at elsewhere."""


def unknown_key(
    key: str,
    mark: Mark,
    shape: type[msgspec.Struct],
    *,
    where: str,
    places: Mapping[str, type[msgspec.Struct]] = _PLACES,
) -> SpecError:
    """What was perhaps meant, and where that belongs."""
    hints = [
        f"`{key}` belongs in {place}"
        for place, other in places.items()
        if key in hints_of(other) and not issubclass(shape, other)
    ][:1]
    if near := nearest(key, hints_of(shape)):
        hints.append(f"did you mean `{near}`?")
    elif not hints and len(hints_of(shape)) > _FEW:
        for place, other in places.items():
            if near := nearest(key, hints_of(other)):
                hints = [f"did you mean `{near}`, which belongs in {place}?"]
                break
    known = f"known in {where}: {' '.join(hints_of(shape))}"
    return SpecError(
        f"{mark}: unknown key `{key}` in {where}", hint="; or ".join(hints) if hints else known
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that looks most like this one, or nothing."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else ""


def quote(node: Node) -> str:
    """A value as messages show it."""
    if isinstance(node.content, dict):
        return "a mapping"
    if isinstance(node.content, tuple):
        return "a list"
    text = str(node.content)
    if node.content is None or isinstance(node.content, bool):
        text = "null" if node.content is None else text.lower()
    return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"


@functools.cache
def hints_of(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Field → type with its rule."""
    return get_type_hints(shape, include_extras=True)


def _check_value(key: str, node: Node, hint: object) -> None:
    for part in get_args(hint):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            check_mapping(node, part, where=f"`{key}`")
            return
        if get_origin(part) is Annotated:
            rule = next(extra for extra in get_args(part) if isinstance(extra, Rule))
            _convert(key, node, part, rule)
            return
    raise AssertionError(f"`{key}` has no rule")


def _convert(key: str, node: Node, kind: object, rule: Rule) -> None:
    plain = node.plain()
    try:
        msgspec.convert(plain, type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(key, node, rule, str(error)) from None
    if rule.read is None:
        return
    try:
        rule.read(plain)
    except UsageError as error:
        raise SpecError(f"{node.mark}: `{key}`: {error.message}", hint=error.hint) from None


def _refusal(key: str, node: Node, rule: Rule, theirs: str) -> SpecError:
    """msgspec's words, such as "Expected `int`, got `str` - at `$[3]`", in ours."""
    words = rule.kind if ", got" in theirs or not rule.range else rule.range
    example = rule.example or f'"{node.content}"'
    hint = f"write for example `{key}: {example}`"
    if isinstance(node.content, str) and (near := nearest(node.content, rule.choices)):
        hint = f"did you mean `{near}`?"
    item = re.search(r"at `\$\[(\d+)\]", theirs)
    if item and isinstance(node.content, tuple):
        child = node.content[int(item[1])]
        message = f"`{key}` must be {rule.kind}, but item {int(item[1]) + 1} is {quote(child)}"
        if not isinstance(child.content, dict | tuple) and "text" in rule.kind:
            hint = f'put it in quotes: "{child.content}"'
        return SpecError(f"{child.mark}: {message}", hint=hint)
    return SpecError(f"{node.mark}: `{key}` must be {words}, not {quote(node)}", hint=hint)


def refuse_non_finite(node: Node) -> None:
    """Refuse NaN and infinity anywhere: run folders are JSON, which has no word for these."""
    if isinstance(node.content, float) and not math.isfinite(node.content):
        raise SpecError(
            f"{node.mark}: {quote(node)} is not a finite number",
            hint="write a finite number, or a text that the recipe understands",
        )
    children = node.content if isinstance(node.content, tuple) else node.entries().values()
    for child in children:
        refuse_non_finite(child)
