"""`docs/reference/spec.md`: every key of a spec and of a site file.

Which keys there are and what they may hold is read from `spec/written.py`, `spec/site.py` and
`spec/rules.py`, defaults from `spec/resolved.py`; what a key means is in `spec_words.yaml`. A key
without words, and words without a key, end the build.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML

from tasuki.spec import resolved, site, written
from tasuki.spec.buckets import Buckets
from tasuki.spec.rules import Rule
from tasuki.spec.values import Every

_WORDS = Path(__file__).parent / "spec_words.yaml"

HEAD = """\
# Spec keys

Generated from the code that checks a spec; meanings by hand. A spec is `tasuki.yaml`, or `file.py:function` returning a
`tasuki.Spec` or a dict ([Python](python.md)). An unknown key or a wrong value is an error with file, line, value and what
to write. Durations: `8h`, `90m`, `45s`, `12:00:00`, `1-12:00:00`. Bytes: `96G`, `2.5GiB`. Sizes: `512`, `[512, 1024]`,
`512..2048`. Relative paths are relative to the file; `$VAR`, `${VAR:-default}` and `~` expand in paths.

Later wins: site files, `defaults`, a config (`--config`), the experiment, the stage, `--set KEY=VALUE` (or `TASUKI_SET`).
Mappings merge key by key, lists replace. What the recipe must have: [recipe](../recipe.md).
"""

MORE = """\
## What may change between attempts

{harmless} may change between attempts of a run. Anything else is refused with what differs, and needs `--new` or
`--accept-change KEY`. A run goes on with the code it began with (not with a copy of `cluster.setup`,
nor of files of passwords: `.env`, `secrets.*`, `credentials.*`; until its first checkpoint, which is the start of its first
stage, each start takes the code as it is); `tasuki resume RUN --code current` takes your changes into it, once it is
cancelled if it is submitted. Data whose content changed since the last checkpoint are refused, too, and so is a copy of the
code that was edited in the run folder: put them back, or go on with them by `tasuki resume RUN --accept-change data` (or
`code`). Data are known by their files (whole up to 16 MiB, beyond that 64 blocks of each: a small change inside a large
file may stay unseen) and by eight of their samples.
"""


class SpecWordsMissing(Exception):
    """The words and the code disagree about which keys there are."""


_TABLES: tuple[tuple[str, str, type[msgspec.Struct], type[msgspec.Struct] | None], ...] = (
    ("top", "At the top", written.Spec, resolved.ResolvedSpec),
    ("cluster", "`cluster`", written.Cluster, resolved.ResolvedCluster),
    (
        "layer",
        "`defaults`, a config, an experiment, a stage",
        written.Layer,
        resolved.ResolvedStage,
    ),
    ("save", "`save`", written.Save, resolved.ResolvedSave),
    ("validate", "`validate`", written.Validate, resolved.ResolvedValidate),
    ("evaluate", "`evaluate`", written.Evaluate, resolved.ResolvedEvaluate),
    ("loader", "`loader`", written.Loader, resolved.ResolvedLoader),
    ("expect", "`expect`", written.Expect, None),
    ("site", "A site file", site.WrittenSite, None),
    ("gpu", "A site file: a card of `gpus`", site.WrittenGpu, None),
    ("partition", "A site file: a partition of `partitions`", site.WrittenPartition, None),
)


def spec_page() -> str:
    words = YAML(typ="safe").load(_WORDS.read_text(encoding="utf-8"))
    if faults := _faults(words):
        raise SpecWordsMissing("; ".join(faults))
    parts = [HEAD]
    for name, title, keys, defaults in _TABLES:
        parts.append(f"## {title}\n")
        if before := words.get("before", {}).get(name):
            parts.append(before.strip() + "\n")
        parts.append(_table(keys, defaults, words[name]))
        if name == "expect":
            harmless = (*resolved._HARMLESS_OF_SPEC, *resolved._HARMLESS_OF_STAGE)
            parts.append(MORE.format(harmless=", ".join(f"`{key}`" for key in harmless)))
    return "\n".join(parts)


def _faults(words: Mapping[str, Any]) -> list[str]:
    faults = []
    for name, _, keys, _ in _TABLES:
        there, told = set(keys.__struct_fields__), set(words.get(name, {}))
        faults += [f"spec_words.yaml has no words for {name}.{key}" for key in sorted(there - told)]
        faults += [f"spec_words.yaml: {name}.{key} is no key" for key in sorted(told - there)]
    return faults


def _table(
    keys: type[msgspec.Struct], defaults: type[msgspec.Struct] | None, words: Mapping[str, Any]
) -> str:
    hints = typing.get_type_hints(keys, include_extras=True)
    known = _defaults(defaults) if defaults else {}
    lines = ["| key | meaning | may be | default |", "| --- | --- | --- | --- |"]
    for key in keys.__struct_fields__:
        told = words[key]
        meaning = told if isinstance(told, str) else told["is"]
        default = known.get(key)
        if not isinstance(told, str) and "default" in told:
            default = told["default"]
        cells = [f"`{key}`", meaning, _may_be(hints[key]), default or "–"]
        lines.append("| " + " | ".join(_in_table(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _in_table(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _may_be(hint: Any) -> str:
    rule = next(_rules(hint), None)
    if rule is None:
        return "a mapping, below"
    is_list = rule.kind.startswith(("true", "one of"))
    if rule.choices and not rule.kind.startswith("true"):
        return ", ".join(f"`{choice}`" for choice in rule.choices)
    words = rule.kind
    if rule.range.startswith(("a ", "true", "`")):
        words = rule.range
    elif rule.range and not is_list and not rule.range.startswith("more than an empty"):
        words += f", {rule.range}"
    has_grammar = rule.kind not in ("text", "a number") and "number" not in rule.kind.split(",")[0]
    example = f": `{rule.example}`" if rule.example and has_grammar and not is_list else ""
    return words + example


def _rules(hint: Any) -> typing.Iterator[Rule]:
    for data in getattr(hint, "__metadata__", ()):
        if isinstance(data, Rule):
            yield data
    if hasattr(hint, "__metadata__"):
        return
    for inner in typing.get_args(hint):
        yield from _rules(inner)


def _defaults(struct: type[msgspec.Struct]) -> dict[str, str]:
    """By key, where the complete value has a default that can be written."""
    found = {}
    for entry in msgspec.structs.fields(struct):
        if entry.default is not msgspec.NODEFAULT and (text := _written(entry.default)):
            found[entry.name.removesuffix("_bytes").removesuffix("_s")] = text
    return found


def _written(value: Any) -> str:
    if value is None or value in ({}, ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (Every, Buckets)):
        return f"`{value.label()}`"
    if isinstance(value, msgspec.Struct):
        return ""
    return f"`{value}`"
