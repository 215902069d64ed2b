"""A look at recipes before their jobs wait in a queue for hours: does the file compile, and has it
the class? Without importing anything: that is the node's business, with the node's packages.
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from tasuki.actions.plan import PlanRequest
from tasuki.errors import RecipeError


def check_recipes(request: PlanRequest) -> None:
    recipes = {stage.recipe for e in request.experiments for stage in e.stages if stage.recipe}
    for recipe in sorted(recipes):
        module, _, name = recipe.partition(":")
        file = Path(request.spec.folder, *module.split(".")).with_suffix(".py")
        if file.is_file():  # else it is installed, or a package
            _check_file(file, recipe, name)


def _check_file(file: Path, recipe: str, name: str) -> None:
    names = _names(_parse(file, f"the recipe `{recipe}`"))
    if name not in names and "*" not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(
            f"{file} has no `{name}`, which the recipe `{recipe}` names",
            hint=f"did you mean `{near[0]}`?" if near else "look at `recipe` in the spec",
        )


def defines(file: Path, name: str, *, what: str) -> bool:
    """Has this file something of this name? `what` is looked for, in words."""
    return not {name, "*"}.isdisjoint(_names(_parse(file, what)))


def _parse(file: Path, what: str) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        raise RecipeError(
            f"{what} cannot be read: {where}: {getattr(error, 'msg', error)}",
            hint="mend it; a job would find it out only on its node",
        ) from error


def _names(tree: ast.Module) -> set[str]:
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
    return found
