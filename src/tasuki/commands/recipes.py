"""A look at recipes before their jobs wait in a queue for hours: does the file compile, and has it
the class? Without importing anything: that is the node's business, with the node's packages.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from tasuki.commands.plan_request import PlanRequest
from tasuki.errors import RecipeError
from tasuki.spec.resolved import ResolvedStage


def check_recipes(request: PlanRequest) -> None:
    stages = [stage for experiment in request.experiments for stage in experiment.stages]
    check_stages(stages, [Path(request.spec.folder)])


def check_stages(stages: Iterable[ResolvedStage], folders: Sequence[Path]) -> None:
    """Refuse a class that is in none of these folders' files; the last one's is named."""
    for recipe in sorted({stage.recipe for stage in stages if stage.recipe}):
        module, _, name = recipe.partition(":")
        places = [folder.joinpath(*module.split(".")) for folder in folders]
        # Else it is installed, or a package: that hides a file of its name.
        modules = [place for place in places if not (place / "__init__.py").exists()]
        files = [place.with_suffix(".py") for place in modules]
        found = [file for file in files if file.is_file()]
        if not any(defines(file, name, what=f"the recipe `{recipe}`") for file in found[:-1]):
            for file in found[-1:]:
                _check_file(file, recipe, name)


def tell_misspelt(stages: Iterable[ResolvedStage], folders: Sequence[Path]) -> list[str]:
    """The same as a warning, for stages that nobody computes any more."""
    try:
        check_stages(stages, folders)
    except RecipeError as error:
        return [f"{error.message}: {error.hint}"]
    return []


def tell_absent(stages: Iterable[ResolvedStage], folder: Path) -> Iterator[str]:
    """A doubt: a module that is not here may be installed on the nodes."""
    files = [path.stem for path in folder.glob("*.py")]
    for recipe in sorted({stage.recipe for stage in stages if stage.recipe}):
        top = recipe.partition(":")[0].partition(".")[0]
        near = difflib.get_close_matches(top, files, n=1, cutoff=0.8)
        is_here = top in files or (folder / top).is_dir() or PathFinder.find_spec(top) is not None
        if near and not is_here:
            yield f"recipe `{recipe}`: there is no {top}.py in {folder}; did you mean `{near[0]}`?"


def _check_file(file: Path, recipe: str, name: str) -> None:
    names = _names_in(file, f"the recipe `{recipe}`")
    if name not in names and "*" not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(
            f"{file} has no `{name}`, which the recipe `{recipe}` names",
            hint=f"did you mean `{near[0]}`?" if near else "look at `recipe` in the spec",
        )


def defines(file: Path, name: str, *, what: str) -> bool:
    """Has this file something of this name? `what` is looked for, in words."""
    return not {name, "*"}.isdisjoint(_names_in(file, what))


def _names_in(file: Path, what: str) -> frozenset[str]:
    """Parsed once: a thousand experiments may have one recipe."""
    found = file.stat()
    return _parse(file, found.st_mtime_ns, found.st_size, what)


@lru_cache(maxsize=64)
def _parse(file: Path, _changed: int, _size: int, what: str) -> frozenset[str]:
    try:
        return _names(ast.parse(file.read_bytes(), filename=str(file)))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        raise RecipeError(
            f"{what} cannot be read: {where}: {getattr(error, 'msg', error)}",
            hint="mend it; a job would find it out only on its node",
        ) from error


_MAKES_NAMES = frozenset({"globals", "vars", "locals", "setattr", "exec", "modules"})
"""Who calls these may define what no reader of the file sees."""


def _names(tree: ast.Module) -> frozenset[str]:
    """What a module defines at its top, inside `if` and `try` too; `*` where one cannot tell."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _MAKES_NAMES:
                found.add("*")
    if "__getattr__" in found:
        found.add("*")
    return frozenset(found)
