"""A look at `sinks:` before anything starts: is what they need there?

Training without the curves one asked for is found out when it is over, so this refuses. A job that
uses another Python, or a container, finds out for itself and warns. Imports nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tasuki.commands.recipes import defines
from tasuki.errors import UsageError
from tasuki.spec.resolved import ResolvedSpec
from tasuki.spec.sinks import PACKAGES, SinkOrder, parse_sinks


def check_sinks(spec: ResolvedSpec) -> None:
    is_here = spec.cluster.python is None and spec.cluster.container is None
    for order in parse_sinks(spec.sinks):
        if not order.is_own:
            _check_class(order, Path(spec.folder), is_here=is_here)
        elif is_here and not _is_installed(PACKAGES[order.name]):
            raise UsageError(
                f"`sinks: [{order.name}]` needs {PACKAGES[order.name]}, which is not installed",
                hint=f'pip install "tasuki[{order.name}]", or leave it out of `sinks`',
            )


def _check_class(order: SinkOrder, folder: Path, *, is_here: bool) -> None:
    module, _, name = order.name.partition(":")
    file = Path(folder, *module.split(".")).with_suffix(".py")
    if file.is_file():
        if not defines(file, name, what=f"the sink `{order.name}`"):
            raise UsageError(
                f"{file} has no `{name}`, which the sink `{order.name}` names",
                hint="look at `sinks` in the spec",
            )
        return
    top = module.partition(".")[0]
    if is_here and not (folder / top).is_dir() and not _is_installed(top):
        raise UsageError(
            f"the sink `{order.name}` cannot be found: there is neither {file} nor a package "
            f"`{top}`",
            hint="`file:Class` means file.py in the spec's folder",
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
