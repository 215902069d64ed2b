"""`--set key=value`: one value of the spec, said on the command line or in TASUKI_SET.

Pure. A path (`experiments.p.stages.0.epochs`) changes that one place; a bare stage key (`epochs`,
`save.every`) is put into every stage, where it wins over all layers. Settings act in their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasuki.errors import SpecError
from tasuki.spec.check import hints_of, nearest
from tasuki.spec.layers import put, split_key
from tasuki.spec.positions import Mark, Node, locate, read_yaml
from tasuki.spec.written import Cluster, Layer, Spec

_OF_EXPERIMENTS = {"name", "stages", "each"}
"""Keys of a layer that make no sense for a stage."""

_PARTS = re.compile(r"(?:\"[^\"]*\"|[^;\n])+")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where it goes."""

    path: tuple[str, ...]
    value: Node

    @property
    def mark(self) -> Mark:
        """Where it was said."""
        return self.value.mark

    @property
    def is_bare(self) -> bool:
        """Does it go into every stage?"""
        return self.path[0] in hints_of(Layer)


def read_settings(settings: Sequence[str], *, environ: Mapping[str, str]) -> list[Setting]:
    """Those of the environment first: the command line is stronger."""
    frozen = [part.strip() for part in _PARTS.findall(environ.get("TASUKI_SET", ""))]
    return [
        *(_read_setting(text, origin="TASUKI_SET") for text in frozen if text),
        *(_read_setting(text, origin="--set") for text in settings),
    ]


def _read_setting(text: str, *, origin: str) -> Setting:
    key, equals, written = text.partition("=")
    mark = Mark(f"{origin} {text}")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise SpecError(
            f"{mark}: a setting is a key, `=` and a value", hint="write for example epochs=2"
        )
    setting = Setting(path, locate(_read_value(written, origin), at=lambda _: mark))
    _refuse_unknown(setting)
    return setting


def _read_value(written: str, origin: str) -> object:
    written = written.strip()
    # A glob or an address is meant as it looks; in YAML these begin aliases, tags and directives.
    if written[:1] in "*&!%@`" and written:
        return written
    return read_yaml(written, file=origin).root.plain()


def _refuse_unknown(setting: Setting) -> None:
    first = setting.path[0]
    if first in _OF_EXPERIMENTS:
        raise SpecError(
            f"{setting.mark}: `{first}` belongs to one experiment, not to all stages",
            hint=f"write for example experiments.NAME.{first}=…",
        )
    known = {key: key for shape in (Layer, Spec) for key in hints_of(shape)}
    if first not in known:
        known |= {key: f"cluster.{key}" for key in hints_of(Cluster) if key not in known}
        near = known.get(nearest(first, known), "")
        raise SpecError(
            f"{setting.mark}: unknown key `{first}`",
            hint=f"did you mean `{near}`?" if near else f"known: {' '.join(known.values())}",
        )


def is_early(setting: Setting, experiments: Mapping[str, Node]) -> bool:
    """Does it act on the written spec, before experiments are expanded?"""
    if setting.is_bare:
        return False
    if setting.path[0] != "experiments" or len(setting.path) == 1:
        return True
    name, rest = split_key(setting.path[1:], experiments)
    if name not in experiments:
        return False
    return not rest or rest[0] in ("name", "each") or tuple(rest) == ("stages",)


def apply_early(root: Node, settings: Sequence[Setting]) -> tuple[Node, list[Setting]]:
    """The spec with the early settings in it, and those that are left for later."""
    late = []
    for setting in settings:
        experiments = root.entries().get("experiments")
        if is_early(setting, experiments.entries() if experiments else {}):
            root = put(root, setting.path, setting.value)
        else:
            late.append(setting)
    return root, late
