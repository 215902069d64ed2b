"""Where a spec comes from: a YAML file, the files it names, or a Python function in a child.

The shell of this package: the only module here that reads files and starts a process. The user's
Python runs in a child, so that a verb never imports torch by accident.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tasuki.errors import SpecError
from tasuki.spec.layers import expand_path
from tasuki.spec.positions import Mark, Node, locate, read_yaml
from tasuki.spec.written import Layer

RunPython: TypeAlias = Callable[[Path, str], object]
"""(file, function) → the spec as plain values."""

PYTHON_TIMEOUT_S = 60.0

_MAX_BYTES = 10 << 20


@dataclass(slots=True)
class Source:
    """A spec that was read, with the warnings of all its files."""

    path: Path
    """As the user named it."""
    environ: Mapping[str, str]
    root: Node = field(default_factory=lambda: Node(None, Mark("")))
    warnings: list[str] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    """That were read, resolved."""
    experiments: list[Path] = field(default_factory=list)
    """Files of experiments that it lists."""

    @property
    def absolute(self) -> Path:
        return Path(absolute(self.path))


def absolute(path: Path) -> str:
    """Without `..`, but with symbolic links: what they point to may differ between nodes."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps `..`, resolve the links not


def read_source(source: str, *, environ: Mapping[str, str], run_python: RunPython | None) -> Source:
    """Read the spec that a person named."""
    file, colon, function = source.rpartition(":")
    if colon and file.endswith(".py"):
        return _read_python(Path(file), function, environ=environ, run_python=run_python)
    path = Path(source)
    if path.suffix == ".py":
        raise SpecError(
            f"`{source}` is a Python file without a function", hint=f"write {source}:FUNCTION"
        )
    if path.is_dir():
        path = path / "tasuki.yaml"
    read = Source(path, environ)
    if not path.is_file():
        raise SpecError(
            f"there is no spec at {_from_here(path)}",
            hint="`tasuki new DIR` makes a project, or name the spec: tasuki run path/to/spec.yaml",
        )
    read.root = read_file(read, path)
    return read


def _from_here(path: Path) -> str:
    return str(path) if path.is_absolute() or path.parts[:1] == ("..",) else f"./{path}"


def read_file(source: Source, path: Path) -> Node:
    """One YAML file; its warnings are kept in the source."""
    source.files.add(path.resolve())
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SpecError(
                f"{path}: the file is too large for a spec", hint="is this the file you meant?"
            )
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: the file is not UTF-8 text", hint="save it as UTF-8") from error
    except OSError as error:
        raise SpecError(
            f"{path}: the file cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    document = read_yaml(text, file=str(path))
    source.warnings.extend(document.warnings)
    return document.root


def include_files(source: Source, root: Node) -> Node:
    """Replace file names in `experiments` and `stages` by what the files hold."""
    entries = dict(root.entries())
    experiments = entries.get("experiments")
    if experiments is not None and isinstance(experiments.content, tuple):
        entries["experiments"] = _include_experiments(source, experiments, experiments.content)
    for key in ("configs", "experiments"):
        if (group := entries.get(key)) is not None and isinstance(group.content, dict):
            layers = {n: _include_stages(source, layer) for n, layer in group.content.items()}
            entries[key] = Node(layers, group.mark)
    if (defaults := entries.get("defaults")) is not None:
        entries["defaults"] = _include_stages(source, defaults)
    return Node(entries, root.mark) if isinstance(root.content, dict) else root


def _include_experiments(source: Source, node: Node, files: tuple[Node, ...]) -> Node:
    experiments: dict[str, Node] = {}
    for item in files:
        if not isinstance(item.content, str):
            raise SpecError(
                f"{item.mark}: a list of experiments holds file names",
                hint="write `experiments: [exp1.yaml, exp2.yaml]`, or a mapping from names",
            )
        path, experiment = _include(source, item, item.content)
        if path.stem in experiments:
            raise SpecError(
                f"{item.mark}: two experiments are called `{path.stem}`",
                hint="rename one of the files",
            )
        experiments[path.stem] = experiment
        source.experiments.append(path)
    return Node(experiments, node.mark)


def _include_stages(source: Source, layer: Node) -> Node:
    stages = layer.entries().get("stages")
    if stages is None or not isinstance(stages.content, tuple):
        return layer
    included = []
    for item in stages.content:
        if isinstance(item.content, str):
            path, stage = _include(source, item, item.content)
            named = {"name": Node(path.stem, stage.mark), **stage.entries()}
            included.append(Node(named, stage.mark) if stage.entries() else stage)
        else:
            included.append(item)
    return Node({**layer.entries(), "stages": Node(tuple(included), stages.mark)}, layer.mark)


def _include(source: Source, node: Node, written: str) -> tuple[Path, Node]:
    """A file that is named in a spec lies beside the file that names it."""
    beside = Path(node.mark.file) if node.mark.line else source.path
    path = beside.parent / expand_path(node, written, environ=source.environ)
    if not path.is_file():
        raise SpecError(
            f"{node.mark}: there is no file `{written}`",
            hint=f"make {path}, or write the content here",
        )
    return path, read_file(source, path)


_MOST_LOOKED_AT = 200
"""Files beside the listed ones."""
_TELLING = {"data", "stages", "recipe", "command", "epochs", "steps", "samples", "each"}
"""Keys without which a file is hardly an experiment."""


def unlisted_files(source: Source) -> list[str]:
    """YAML files that look like experiments and lie beside those that are listed, in words:
    forgotten?"""
    folders = dict.fromkeys(path.parent for path in source.experiments)
    found = []
    for folder in folders:
        beside = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
        unread = [path for path in beside if path.resolve() not in source.files]
        found += [path.name for path in unread[:_MOST_LOOKED_AT] if _is_experiment(path)]
    if not found:
        return []
    names = ", ".join(f"`{name}`" for name in found[:5]) + (", …" if found[5:] else "")
    return [f"not listed in `experiments`, though beside those that are: {names}"]


def _is_experiment(path: Path) -> bool:
    try:
        root = read_yaml(path.read_text(encoding="utf-8-sig"), file=str(path)).root
    except (OSError, UnicodeDecodeError, SpecError):
        return False
    keys = set(root.entries())
    return keys <= set(Layer.__struct_fields__) and bool(keys & _TELLING)


def _read_python(
    file: Path, function: str, *, environ: Mapping[str, str], run_python: RunPython | None
) -> Source:
    if not file.is_file():
        raise SpecError(
            f"there is no spec at {_from_here(file)}",
            hint="name the spec as path/to/file.py:function",
        )
    source = Source(file, environ)
    label = f"{file}:{function}"

    def run(file: Path, function: str) -> object:
        return run_in_child(file, function, environ=environ)

    value = (run_python or run)(source.absolute, function)
    if not isinstance(value, Mapping):
        raise SpecError(f"{label}: the function gave no spec", hint="return a Spec or a dict")
    source.root = locate(
        value, at=lambda path: Mark(label, path=".".join(str(part) for part in path))
    )
    return source


def run_in_child(file: Path, function: str, *, environ: Mapping[str, str]) -> object:
    """Call `function` of `file` in a fresh interpreter and take the spec that it returns."""
    label = f"{file.name}:{function}"
    # -P: the user's folder must not shadow what the child itself imports.
    command = [sys.executable, "-P", "-m", "tasuki.spec.python", str(file), function]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PYTHON_TIMEOUT_S,
            check=False,
            env=dict(environ),
            cwd=file.parent,
        )
    except subprocess.TimeoutExpired as error:
        raise SpecError(
            f"{label}: the function took more than {PYTHON_TIMEOUT_S:.0f}s",
            hint="a spec is a description: leave data and models to the recipe",
        ) from error
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        said = child.stderr.decode(errors="replace").strip().splitlines()
        raise SpecError(
            f"{label}: Python ended without a spec (exit {child.returncode}): "
            f"{said[-1] if said else 'it said nothing'}",
            hint=f"try it: {sys.executable} {file}",
        ) from None
    if "error" in answer:
        raise SpecError(f"{file.name}:{answer['where']}: {answer['error']}", hint=answer["hint"])
    return answer["spec"]
