"""`sinks:` in a spec: where else the metrics of a run go, beside its own folder.

Pure. Names are ours (`tensorboard`) or `module:Class` of the user's; whether they can be imported
is found out where they are, by `commands/sinks.py` and by the process that feeds them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasuki.errors import UsageError

KNOWN: Mapping[str, tuple[str, ...]] = {"tensorboard": ("folder",)}
"""Our own sinks and their options."""
PACKAGES = {"tensorboard": "tensorboardX"}
"""What has to be installed for them; the extra has the sink's name."""
_HINT = (
    "write `[tensorboard]`, `{tensorboard: {folder: tb}}`, or a class of yours: `[module:Class]`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOrder:
    """One sink to feed."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its constructor."""

    @property
    def is_own(self) -> bool:
        """Ours, and no class of the user's."""
        return self.name in KNOWN


def parse_sinks(written: object) -> tuple[SinkOrder, ...]:
    """Read `tensorboard`, `[tensorboard, module:Class]`, `{tensorboard: {folder: tb}}`; `[]` is
    none."""
    if written is None:
        return ()
    items = written if isinstance(written, list) else [written]
    orders = [order for item in items for order in _orders(item)]
    names = [order.name for order in orders]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the sink `{name}` is named twice", hint="name it once")
    return tuple(orders)


def _orders(item: object) -> list[SinkOrder]:
    if isinstance(item, str):
        return [_order(item, None)]
    if not isinstance(item, dict) or not item:
        raise UsageError(f"`{item}` names no sink", hint=_HINT)
    return [_order(name, options) for name, options in item.items()]


def _order(name: object, options: object) -> SinkOrder:
    if not isinstance(name, str):
        raise UsageError(f"`{name}` names no sink", hint=_HINT)
    if options is None:
        options = {}
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise UsageError(f"the options of `{name}` must be a mapping, not `{options}`", hint=_HINT)
    if name in KNOWN:
        _check_options(name, options)
    elif not _is_class(name):
        near = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no sink `{name}`", hint=f"did you mean `{near[0]}`?" if near else _HINT
        )
    return SinkOrder(name=name, options=dict(options))


def _is_class(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return (
        bool(colon) and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))
    )


def _check_options(name: str, options: Mapping[str, object]) -> None:
    known = KNOWN[name]
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise UsageError(
                f"`{name}` has no option `{key}`",
                hint=f"did you mean `{near[0]}`?" if near else f"it has {', '.join(known)}",
            )
        if not isinstance(value, str) or not value:
            raise UsageError(f"`{key}` of `{name}` must be a path, not `{value}`", hint=_HINT)
        if value.startswith("~") or "$" in value:
            raise UsageError(
                f"`~` and `$` do not expand in `{key}: {value}`", hint="write the path as it is"
            )
