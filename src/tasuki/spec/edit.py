"""Put values into a written spec, and leave every other character of the file as it is.

Pure but for reading the files that a spec names. ruamel.yaml's composer says where a value stands;
the text is changed there and nowhere else, so comments, quotes and the user's own layout stay. What
comes out is read again and must differ in these values alone; else nothing is changed, and the
error says what to write by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as YamlNode

from tasuki.errors import SpecError
from tasuki.spec.expand import ONLY_STAGE
from tasuki.spec.positions import read_yaml

Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The mapping of a stage in a file."""

    file: Path
    path: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A file with other values."""

    file: Path
    text: str
    lines: tuple[tuple[str, str], ...]
    """(before, after) of the lines that differ; an empty text where there is none."""
    stays: tuple[str, ...] = ()
    """Lines that said otherwise and stay, since other stages take their values from them."""


def edit_stage(spec: Path, *, experiment: str, stage: str, changes: Mapping[str, Any]) -> Edited:
    """The file of a stage with `changes` in it, by dotted keys. Writes nothing.

    A value that the stage takes from its experiment, or from `defaults`, is changed where it
    stands if no other stage takes it from there."""
    by_hand = "write it by hand: " + "; ".join(f"`{k}: {_spell(v)}`" for k, v in changes.items())
    place = refuse_unwritten(spec, experiment=experiment, stage=stage)
    # utf-8-sig as the spec is read; newlines as they are.
    old = place.file.read_bytes().decode("utf-8")
    text, stays = old, []
    values: dict[Where, Any] = {}
    for key, value in changes.items():
        level, is_shared = _level_of(spec, place, experiment, key)
        if level is not None and is_shared:
            stays.append(_describe(old, (*level, *key.split("."))))
        path = place.path if level is None or is_shared else level
        values[(*path, *key.split("."))] = value
        text = _put_or_leave(text, (*path, *key.split(".")), value)
    if not _is_as_meant(old, text, values):
        raise SpecError(
            f"{place.file}: stage `{stage}` cannot be changed alone (an anchor, or a layout "
            "that is not understood)",
            hint=by_hand,
        )
    lines = _changed_lines(old, text)
    return Edited(file=place.file, text=text, lines=lines, stays=tuple(stays))


def refuse_unwritten(spec: Path, *, experiment: str, stage: str) -> Place:
    """Where a stage is written; SpecError where that is nowhere."""
    hint = "leave --write out, and write what is worth keeping by hand"
    if spec.suffix == ".py":
        raise SpecError(f"{spec} is a Python spec: nothing can be written into it", hint=hint)
    place = find_stage(spec, experiment=experiment, stage=stage)
    if place is None:
        raise SpecError(
            f"{spec}: stage `{stage}` of `{experiment}` is not written out there (it comes from "
            "`each`, `stages: auto`, `defaults` or another name)",
            hint=hint,
        )
    return place


def find_stage(spec: Path, *, experiment: str, stage: str) -> Place | None:
    """Where a stage is written; None where it is made (`each`, `stages: auto`, `defaults`)."""
    root = _plain(spec)
    experiments = root.get("experiments") if isinstance(root, dict) else None
    if isinstance(experiments, list):
        named = [spec.parent / str(item) for item in experiments]
        return next((_in(f, (), stage) for f in named if f.stem == experiment), None)
    if not isinstance(experiments, dict) or experiment not in experiments:
        return None
    return _in(spec, ("experiments", experiment), stage)


def _in(file: Path, path: Where, stage: str) -> Place | None:
    """Of a stage in the experiment that stands there."""
    if not file.is_file():
        return None
    written = _at(_plain(file), path)
    if not isinstance(written, dict) or written.get("each"):
        return None
    stages = written.get("stages")
    if stages is None and stage == ONLY_STAGE:
        return Place(file=file, path=path)
    if not isinstance(stages, list):
        return None
    for number, item in enumerate(stages):
        if isinstance(item, dict) and item.get("name") == stage:
            return Place(file=file, path=(*path, "stages", number))
        other = file.parent / str(item)
        if isinstance(item, str) and other.is_file():
            own = _plain(other)
            name = own.get("name", other.stem) if isinstance(own, dict) else None
            if name == stage:
                return Place(file=other, path=())
    return None


def _put_or_leave(text: str, path: Where, value: Any) -> str:
    try:
        return put_value(text, path, value)
    except YAMLError:  # the value before took an anchor away that others refer to
        return text


def put_value(text: str, path: Where, value: Any) -> str:
    """The text with another value at a path; mappings on the way are made where there are none."""
    root = YAML(typ="safe", pure=True).compose(text)
    node, rest = root, list(path)
    while rest:
        child = _child(node, rest[0])
        if child is None:
            break
        node, rest = child, rest[1:]
    if not rest:
        start, end = node.start_mark.index, node.end_mark.index
        return text[:start] + _spell(value) + text[end:]
    if not isinstance(node, MappingNode):
        return text
    return _insert(text, node, _entry(rest, value))


def _insert(text: str, mapping: MappingNode, entry: str) -> str:
    if mapping.flow_style:
        if not mapping.value:
            start, end = mapping.start_mark.index, mapping.end_mark.index
            return f"{text[:start]}{{{entry}}}{text[end:]}"
        end = mapping.value[-1][1].end_mark.index
        return f"{text[:end]}, {entry}{text[end:]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    first = mapping.value[0][0].start_mark
    indent = " " * first.column
    ended = [value for _, value in mapping.value if _ends_on_its_line(value)]
    if not ended:
        at = first.index
        return f"{text[:at]}{entry}{newline}{indent}{text[at:]}"
    at = text.find("\n", ended[-1].end_mark.index)
    if at < 0:
        return f"{text}{newline}{indent}{entry}"
    at -= text[at - 1] == "\r"
    return f"{text[:at]}{newline}{indent}{entry}{text[at:]}"


def _ends_on_its_line(value: YamlNode) -> bool:
    """Not so for nested blocks and block texts: what follows them may be theirs."""
    if isinstance(value, ScalarNode):
        return value.style not in ("|", ">") and value.end_mark.index > value.start_mark.index
    return isinstance(value, MappingNode | SequenceNode) and bool(value.flow_style)


def _child(node: YamlNode, key: str | int) -> YamlNode | None:
    if isinstance(node, SequenceNode) and isinstance(key, int):
        return node.value[key] if key < len(node.value) else None
    if isinstance(node, MappingNode):
        return next((v for k, v in node.value if k.value == key), None)
    return None


def _entry(path: Sequence[str | int], value: Any) -> str:
    key, *rest = path
    return f"{key}: {{{_entry(rest, value)}}}" if rest else f"{key}: {_spell(value)}"


def _spell(value: object) -> str:
    """Only what switches hold: flags, numbers and plain words."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _is_as_meant(old: str, new: str, values: Mapping[Where, Any]) -> bool:
    try:
        before, after = _parse(old), _parse(new)
    except SpecError:
        return False
    for (*parents, last), value in values.items():
        place: Any = before
        for parent in parents:
            if isinstance(parent, str) and isinstance(place, dict):
                place.setdefault(parent, {})
            place = place[parent]
            if not isinstance(place, dict | list):
                return False
        place[last] = value
    return bool(before == after)


# -- where a value comes from ---------------------------------------------------------------------


def _level_of(spec: Path, place: Place, experiment: str, key: str) -> tuple[Where | None, bool]:
    """(the weaker mapping of the same file that a stage takes a key from, whether others do too);
    None: the stage has its own, or there is none."""
    root = _plain(place.file)
    if _has(_at(root, place.path), key) or place.file != spec:
        return None, False
    own: Where = ("experiments", experiment)
    experiments = root.get("experiments")
    if not isinstance(experiments, dict):
        return None, False
    if _has(experiments.get(experiment), key):
        return own, _num_takers(experiments[experiment], key) != 1
    if not _has(root.get("defaults"), key):
        return None, False
    takers = [_num_takers(one, key) for one in experiments.values() if not _has(one, key)]
    is_overlaid = any(_has(config, key) for config in (root.get("configs") or {}).values())
    return ("defaults",), is_overlaid or None in takers or sum(filter(None, takers)) != 1


def _num_takers(experiment: Any, key: str) -> int | None:
    """Stages that have no such key of their own; None: who knows."""
    stages = experiment.get("stages", []) if isinstance(experiment, dict) else None
    if not isinstance(stages, list) or not isinstance(experiment, dict) or experiment.get("each"):
        return None
    if not all(isinstance(stage, dict) for stage in stages):
        return None  # files of their own
    return sum(not _has(stage, key) for stage in stages) if stages else 1


def _has(mapping: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(mapping, dict) or name not in mapping:
            return False
        mapping = mapping[name]
    return True


def _describe(text: str, path: Where) -> str:
    node = YAML(typ="safe", pure=True).compose(text)
    for key in path:
        node = _child(node, key)
    written = text[node.start_mark.index : node.end_mark.index]
    where = "defaults" if path[0] == "defaults" else f"experiment {path[1]}"
    return f"line {node.start_mark.line + 1} ({where}) stays `{path[-1]}: {written}`"


def _plain(file: Path) -> Any:
    return _parse(file.read_text(encoding="utf-8-sig"))


def _parse(text: str) -> Any:
    return read_yaml(text.removeprefix("\ufeff"), file="spec").root.plain()


def _at(value: Any, path: Where) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed_lines(old: str, new: str) -> tuple[tuple[str, str], ...]:
    import difflib

    before, after = old.splitlines(), new.splitlines()
    found: list[tuple[str, str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if kind != "equal":
            gone, come = before[a:b], after[c:d]
            num = max(len(gone), len(come))
            gone, come = gone + [""] * (num - len(gone)), come + [""] * (num - len(come))
            found += zip(gone, come, strict=True)
    return tuple(found)
