"""Layers of a spec, later ones winning: merge two, put one value, expand $VAR in paths.

Pure. Mappings merge by key, lists replace; of keys that exclude each other the later choice stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tasuki.errors import SpecError
from tasuki.spec.check import ONE_OF, nearest
from tasuki.spec.positions import Node

_FREE = {"params", "extra", "on"}
"""Mappings whose keys are the user's own: `params: {epochs: …}` excludes nothing."""

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^{}]*))?\}|)", re.ASCII)


def merge_layers(*layers: Node) -> Node:
    """One layer out of several, the last being the strongest."""
    merged, *later = layers
    for layer in later:
        for key, child in layer.entries().items():
            if child.content is not None:
                merged = without_rivals(merged, key)
        merged = _merge(merged, layer)
    return merged


def _merge(lower: Node, upper: Node) -> Node:
    if not isinstance(lower.content, dict) or not isinstance(upper.content, dict):
        return upper
    merged = dict(lower.content)
    for key, child in upper.content.items():
        merged[key] = _merge(merged[key], child) if key in merged else child
    return Node(merged, upper.mark)


def without_rivals(node: Node, key: str) -> Node:
    """The mapping without the keys that this one excludes."""
    rivals = {rival for group in ONE_OF if key in group for rival in group if rival != key}
    if not rivals & node.entries().keys():
        return node
    return Node({k: v for k, v in node.entries().items() if k not in rivals}, node.mark)


def without(node: Node, *keys: str) -> Node:
    """The mapping without some keys."""
    return Node({k: v for k, v in node.entries().items() if k not in keys}, node.mark)


def put(node: Node, path: Sequence[str], value: Node, *, free: bool = False) -> Node:
    """A copy in which the value at a path is another one; mappings on the way are made."""
    if not path:
        return value
    if isinstance(node.content, tuple):
        return _put_in_list(node, node.content, path, value)
    key, rest = split_key(path, node.entries())
    if value.content is not None and not free:
        node = without_rivals(node, key)
    child = node.entries().get(key, Node({}, value.mark))
    changed = put(child, rest, value, free=free or key in _FREE)
    return Node({**node.entries(), key: changed}, node.mark)


def _put_in_list(node: Node, items: tuple[Node, ...], path: Sequence[str], value: Node) -> Node:
    names = {
        str(name.content): index
        for index, item in enumerate(items)
        if (name := item.entries().get("name")) is not None
    }
    index, rest = _find_item(path, names, len(items))
    if index is None:
        known = ", ".join(f"`{name}`" for name in names) or f"0 to {len(items) - 1}"
        near = nearest(path[0], names)
        raise SpecError(
            f"{value.mark}: there is no item `{path[0]}` in the list",
            hint=f"did you mean `{near}`?" if near else f"choose one of {known}",
        )
    changed = put(items[index], rest, value)
    return Node((*items[:index], changed, *items[index + 1 :]), node.mark)


def _find_item(
    path: Sequence[str], names: Mapping[str, int], length: int
) -> tuple[int | None, Sequence[str]]:
    key, rest = split_key(path, names)
    if key in names:
        return names[key], rest
    if re.fullmatch(r"\d{1,9}", key, re.ASCII) and int(key) < length:
        return int(key), rest
    return None, rest


def split_key(path: Sequence[str], known: Mapping[str, object]) -> tuple[str, Sequence[str]]:
    """The key that a dotted path begins with: names may hold dots themselves, the longest wins."""
    for end in range(len(path), 0, -1):
        if (key := ".".join(path[:end])) in known:
            return key, path[end:]
    return path[0], path[1:]


def expand_path(node: Node, text: str, *, environ: Mapping[str, str]) -> str:
    """`$VAR`, `${VAR:-default}` and a leading `~`, as a shell reads them."""

    def value_of(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        if name is None:
            raise SpecError(
                f"{node.mark}: the `$` in `{text}` names no variable",
                hint="write $VAR, ${VAR} or ${VAR:-default}",
            )
        found = environ.get(name)
        if default is not None:
            return found or expand_path(node, default, environ=environ)
        if found is None:
            raise SpecError(
                f"{node.mark}: the variable `{name}` in `{text}` is not set",
                hint=f"set it, or give a default: ${{{name}:-value}}",
            )
        return found

    if text == "~" or text.startswith("~/"):
        text = "${HOME}" + text[1:]
    return _VARIABLE.sub(value_of, text)
