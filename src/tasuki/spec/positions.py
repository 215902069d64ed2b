"""YAML with the place of every value, so that an error can name file and line.

YAML 1.2 through ruamel.yaml's composer; only plain values come out (no tags, no objects). Limits
hold against files that expand beyond reason. Who only has plain values (a Python spec, `--set`)
makes nodes with `locate`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as YamlNode

from tasuki.errors import SpecError

MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_CHARACTERS = 1_000_000
"""ruamel.yaml needs about 60 µs per value, seconds for such a file; a spec has a few kB."""

Scalar: TypeAlias = bool | int | float | str | None
Path: TypeAlias = tuple[str | int, ...]

_HALF = re.compile("[\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + kind for kind in ("str", "timestamp", "value", "merge")}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, counted from 1; line 0 where there are no lines (Python, `--set`)."""

    file: str
    line: int = 0
    column: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}"
        return f"{self.file} ({self.path})" if self.path else self.file


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it was written. The value of a key lies at the key."""

    content: Scalar | dict[str, Node] | tuple[Node, ...]
    mark: Mark

    def entries(self) -> dict[str, Node]:
        """The keys of a mapping; none if this is none."""
        return self.content if isinstance(self.content, dict) else {}

    def plain(self) -> object:
        """The value without its places."""
        if isinstance(self.content, dict):
            return {key: child.plain() for key, child in self.content.items()}
        if isinstance(self.content, tuple):
            return [child.plain() for child in self.content]
        return self.content

    def places(self, path: Path = ()) -> Iterator[tuple[Path, Mark]]:
        """Where each value is, by path such as ("experiments", "p", "stages", 0, "epochs")."""
        yield path, self.mark
        children: list[tuple[str | int, Node]] = []
        if isinstance(self.content, dict):
            children = list(self.content.items())
        elif isinstance(self.content, tuple):
            children = list(enumerate(self.content))
        for key, child in children:
            yield from child.places((*path, key))


@dataclass(frozen=True, slots=True)
class Document:
    """A file as it was read."""

    root: Node
    warnings: tuple[str, ...] = ()


def locate(value: object, *, at: Callable[[Path], Mark], path: Path = ()) -> Node:
    """Plain values as nodes; `at` says where a path is."""
    mark = at(path)
    if isinstance(value, Mapping):
        entries = {str(key): locate(v, at=at, path=(*path, str(key))) for key, v in value.items()}
        return Node({_whole(key, mark): child for key, child in entries.items()}, mark)
    if isinstance(value, list | tuple):
        return Node(tuple(locate(v, at=at, path=(*path, i)) for i, v in enumerate(value)), mark)
    if isinstance(value, str):
        return Node(_whole(value, mark), mark)
    if value is None or isinstance(value, bool | int | float):
        return Node(value, mark)
    raise SpecError(
        f"{mark}: a {type(value).__name__} cannot be part of a spec",
        hint="use text, numbers, true or false, lists and mappings",
    )


def read_yaml(text: str, *, file: str) -> Document:
    """Read one YAML document; `file` is how messages call it."""
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"{file}: the file is too large to be a spec", hint=_SPLIT_HINT)
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        raise _syntax_error(error, file=file) from error
    except YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0) or 0) + 1
        raise SpecError(
            f"{file}:{line}: a character that no text file holds", hint="save the file as UTF-8"
        ) from error
    except _Unbounded as error:
        raise (_too_many if error.args[0] == "many" else _too_deep)(file) from None
    if root is None:
        return Document(Node(None, Mark(file, 1, 1)))
    builder = _Builder(file)
    node = builder.build(root, depth=1)
    return Document(node, builder.warnings())


_SPLIT_HINT = "split it: `experiments: [a.yaml, b.yaml]`"


def _too_deep(where: object) -> SpecError:
    return SpecError(
        f"{where}: values lie more than {MAX_DEPTH} levels deep", hint="write it flatter"
    )


def _too_many(where: object) -> SpecError:
    return SpecError(
        f"{where}: the file expands to more than {MAX_NODES:,} values", hint=_SPLIT_HINT
    )


def _whole(text: str, mark: Mark) -> str:
    """Text whose characters exist. YAML and JSON let one write half of a character as `\\ud83d`;
    two halves are one, as other readers take them."""
    if not _HALF.search(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{mark}: half a character in {ascii(text)[:80]}",
            hint="write the character itself instead of `\\u…`",
        ) from error


class _Unbounded(Exception):
    """Beyond a limit while composing; says which."""


class _BoundedComposer(Composer):
    """Stops while reading: the file may be far beyond the limits."""

    def __init__(self, loader: object = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False  # YAML 1.2 lets an anchor be used again
        self.num_nodes = 0
        self.num_levels = 0

    def compose_node(self, parent: object, index: object) -> object:
        self.num_nodes += 1
        self.num_levels += 1
        if self.num_levels > MAX_DEPTH:
            raise _Unbounded("deep")
        if self.num_nodes > 2 * MAX_NODES:  # keys are composed too, but are no values
            raise _Unbounded("many")
        node: object = super().compose_node(parent, index)
        self.num_levels -= 1
        return node


class _Builder:
    """Turns composed YAML nodes into ours, once per node: an alias shares what it points to."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._done: dict[int, tuple[Node, int, int]] = {}
        """id of a YAML node → our node, how many nodes it expands to, how deep it is."""
        self._open: set[int] = set()
        self._odd: dict[tuple[int, str], str] = {}
        """(line, text) → what PyYAML would make of it."""

    def build(self, yaml: YamlNode, *, depth: int) -> Node:
        return self._build(yaml, depth)[0]

    def warnings(self) -> tuple[str, ...]:
        """One line for all places, or none."""
        places = [f"line {line} `{text}` as {as_}" for (line, text), as_ in self._odd.items()]
        if not places:
            return ()
        more = f" and {len(places) - 5} more" if len(places) > 5 else ""
        listed = ", ".join(places[:5])
        return (f"{self.file}: PyYAML would read {listed}{more}; tasuki reads YAML 1.2",)

    def _mark(self, yaml: YamlNode) -> Mark:
        return Mark(self.file, yaml.start_mark.line + 1, yaml.start_mark.column + 1)

    def _build(self, yaml: YamlNode, depth: int) -> tuple[Node, int, int]:
        if done := self._done.get(id(yaml)):
            if depth + done[2] > MAX_DEPTH:
                raise _too_deep(self._mark(yaml))
            return done
        mark = self._mark(yaml)
        if id(yaml) in self._open:
            raise SpecError(f"{mark}: the value contains itself", hint="remove the alias (`*…`)")
        if depth > MAX_DEPTH:
            raise _too_deep(mark)
        self._open.add(id(yaml))
        if isinstance(yaml, ScalarNode):
            built = (self._scalar(yaml, mark), 1, 0)
        elif isinstance(yaml, SequenceNode):
            built = self._sequence(yaml, mark, depth)
        else:
            assert isinstance(yaml, MappingNode)
            built = self._mapping(yaml, mark, depth)
        self._open.discard(id(yaml))
        self._done[id(yaml)] = built
        if built[1] > MAX_NODES:
            raise _too_many(mark)
        return built

    def _sequence(self, yaml: SequenceNode, mark: Mark, depth: int) -> tuple[Node, int, int]:
        self._refuse_tag(yaml, "seq", mark)
        parts = [self._build(child, depth + 1) for child in yaml.value]
        node = Node(tuple(part[0] for part in parts), mark)
        return node, 1 + sum(p[1] for p in parts), 1 + max((p[2] for p in parts), default=0)

    def _mapping(self, yaml: MappingNode, mark: Mark, depth: int) -> tuple[Node, int, int]:
        self._refuse_tag(yaml, "map", mark)
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        count, below = 1, 0
        for key_node, value_node in yaml.value:
            key_mark = self._mark(key_node)
            if not isinstance(key_node, ScalarNode):
                raise SpecError(f"{key_mark}: a key must be text", hint="write `key: value`")
            node, nodes, levels = self._build(value_node, depth + 1)
            count, below = count + nodes, max(below, levels)
            if key_node.tag == _TAG + "merge":
                merged = {**self._merged(node, key_mark), **merged}
                continue
            key = _whole(str(key_node.value), key_mark)
            if key in own:
                raise SpecError(
                    f"{key_mark}: `{key}` is written twice (first in line {own[key].mark.line})",
                    hint="keep one of the two",
                )
            own[key] = replace(node, mark=key_mark)
        return Node({**merged, **own}, mark), count, 1 + below

    def _merged(self, node: Node, mark: Mark) -> dict[str, Node]:
        """What `<<: *a` or `<<: [*a, *b]` brings in; the earlier one wins."""
        parts = node.content if isinstance(node.content, tuple) else (node,)
        merged: dict[str, Node] = {}
        for part in reversed(parts):
            if not isinstance(part.content, dict):
                raise SpecError(
                    f"{mark}: `<<` takes mappings only", hint="write `<<: *name` of a mapping"
                )
            merged.update(part.content)
        return merged

    def _refuse_tag(self, yaml: YamlNode, kind: str, mark: Mark) -> None:
        if yaml.tag != _TAG + kind:
            raise SpecError(
                f"{mark}: the tag `{str(yaml.tag).replace(_TAG, '!!')}` is not understood",
                hint="a spec holds text, numbers, lists and mappings only; remove the tag",
            )

    def _scalar(self, yaml: ScalarNode, mark: Mark) -> Node:
        text = _whole(str(yaml.value), mark)
        value = _read_scalar(str(yaml.tag), text)
        if value is _UNKNOWN:
            self._refuse_tag(yaml, "str", mark)
        if yaml.style is None and (other := _as_pyyaml(text)):
            self._odd[mark.line, text] = other
        return Node(value if not isinstance(value, _Unknown) else text, mark)


class _Unknown:
    """No value."""


_UNKNOWN = _Unknown()
_NULL = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?(?:0o[0-7]+|0x[0-9a-fA-F]+|0b[01]+|\d[\d_]*)", re.ASCII)
_SPECIAL_FLOAT = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}


def _read_scalar(tag: str, text: str) -> Scalar | _Unknown:
    """The value of a scalar; text wherever YAML 1.2 would not read a number."""
    kind = tag.removeprefix(_TAG)
    if kind == "null":
        return None if text in _NULL else text
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind == "int" and _INT.fullmatch(text) and len(text) <= 1000:
        sign = -1 if text.startswith("-") else 1
        digits = text.lstrip("+-").replace("_", "").lower()
        base = {"0o": 8, "0x": 16, "0b": 2}.get(digits[:2], 10)
        return sign * int(digits[2:] if base != 10 else digits, base)
    if kind == "float":
        try:
            return float(_SPECIAL_FLOAT.get(text.lower(), text.replace("_", "")))
        except ValueError:
            return text
    return text if tag in _TEXT_TAGS or kind == "int" else _UNKNOWN


_SEXAGESIMAL = re.compile(r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+", re.ASCII)
_NO_DOT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?[0-9][0-9_]*\.[0-9_]*[eE][0-9]+")
_OCTAL = re.compile(r"[-+]?0[0-7_]+", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _as_pyyaml(text: str) -> str:
    """What PyYAML (YAML 1.1) would make of a plain scalar; empty if the same as we."""
    if len(text) > 40:
        return ""
    if text in {word for w in _WORDS for word in (w, w.capitalize(), w.upper())}:
        return _WORDS[text.lower()]
    if _SEXAGESIMAL.fullmatch(text):
        total = 0
        for part in text.lstrip("+-").replace("_", "").split(":"):
            total = total * 60 + int(part)
        return f"{'-' if text.startswith('-') else ''}{total}"
    if _NO_DOT.fullmatch(text) or text.startswith("0o"):
        return "text"
    if _OCTAL.fullmatch(text):
        return str(int(text.replace("_", ""), 8))
    return "a date" if _DATE.fullmatch(text) else ""


_PLAIN_WORDS = (
    ("mapping values are not allowed", "a second `:` on one line, or a wrong indentation"),
    ("but got '<stream end>'", "a bracket that was opened here is never closed"),
    ("cannot start any token", "a character that cannot stand here, perhaps a tab"),
    ("undefined alias", "an alias (`*name`) without its anchor (`&name`)"),
    ("found unexpected end of stream", "a quote that is never closed"),
    ("expected <block end>", "the indentation does not fit the lines above"),
    ("could not find expected ':'", "a key without its `:`"),
    ("found another document", "a second document (`---`); a spec has one"),
    ("found duplicate anchor", "an anchor (`&name`) that is written twice"),
)


def _syntax_error(error: MarkedYAMLError, *, file: str) -> SpecError:
    problem = str(error.problem or error.context or "it cannot be read")
    words = next((plain for theirs, plain in _PLAIN_WORDS if theirs in problem), problem)
    mark: StringMark | None = error.problem_mark or error.context_mark
    if "never closed" in words and error.context_mark is not None:
        mark = error.context_mark
    where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None else file
    return SpecError(
        f"{where}: this is not YAML: {words}",
        hint="write `key: value`, indent with spaces, close every bracket and quote",
    )
