"""Every error message of ours, read out of the code: what it says, what to do, where it comes from.

A message is the first argument of an error's constructor (`errors.py` and its heirs), with `…` for
what is filled in. What is a name or a call there is followed to the texts that it may stand for,
within its module and those of ours that it imports from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.docs.pages import ROOT

SOURCE = ROOT / "src" / "tasuki"
HOLE = "…"
_DEEPEST = 4


@dataclass(frozen=True, order=True)
class Message:
    """One way in which something of ours can fail."""

    file: str
    line: int
    text: str
    hint: str = field(compare=False)
    kind: str = field(compare=False)
    """The class of the error."""


@dataclass(frozen=True)
class Module:
    """A parsed file, with what names in it stand for."""

    path: Path
    tree: ast.Module

    @property
    def words(self) -> str:
        """The first sentence of its docstring: what it is for."""
        first = (ast.get_docstring(self.tree) or "").partition("\n\n")[0].replace("\n", " ")
        return first.strip().rstrip(".")


@cache
def read_module(path: Path) -> Module:
    return Module(path, ast.parse(path.read_text(encoding="utf-8")))


@cache
def kinds() -> frozenset[str]:
    """Names of the errors that people get to see: TasukiError and whatever is made from it."""
    bases: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(read_module(path).tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    found = {"TasukiError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


@cache
def collect() -> tuple[Message, ...]:
    """In the order of files and lines."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(SOURCE / "templates"):
            continue  # code of users
        found += list(_messages_of(read_module(path)))
    return tuple(sorted(set(found)))


def _messages_of(module: Module) -> Iterator[Message]:
    for call, place in _calls(module.tree):
        kind = _name_of(call.func)
        first = call.args[0] if call.args else None
        if kind not in kinds() or first is None:
            continue
        hint = next((k.value for k in call.keywords if k.arg == "hint"), None)
        hints = texts_of(hint, module, place) if hint is not None else []
        file = str(module.path.relative_to(SOURCE))
        for text in texts_of(first, module, place):
            if has_words(text):
                told = " / ".join(h for h in dict.fromkeys(hints) if has_words(h))
                yield Message(file, call.lineno, text, told, kind)


def has_words(text: str) -> bool:
    """A message, and not the name of an operation or of a key that a longer one is made with."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 2


@cache
def _calls(tree: ast.Module) -> tuple[tuple[ast.Call, ast.AST], ...]:
    """Calls, each with the function that it stands in."""

    def walk(node: ast.AST, place: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield child, place
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from walk(child, child if is_function else place)

    return tuple(walk(tree, tree))


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def texts_of(node: ast.expr, module: Module, place: ast.AST, depth: int = 0) -> list[str]:
    """All texts that an expression may be; one hole where nobody can tell."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [_joined(node)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = texts_of(node.left, module, place, depth)
        right = texts_of(node.right, module, place, depth)
        return [tidy(a + b) for a in left for b in right]
    if isinstance(node, ast.IfExp):
        return [t for n in (node.body, node.orelse) for t in texts_of(n, module, place, depth)]
    if isinstance(node, ast.BoolOp):
        return [t for n in node.values for t in texts_of(n, module, place, depth)]
    if depth < _DEEPEST and isinstance(node, ast.Name):
        return _texts_of_name(node.id, module, place, depth) or [HOLE]
    if depth < _DEEPEST and isinstance(node, ast.Call):
        return _texts_of_call(_name_of(node.func), module, depth) or [HOLE]
    return [HOLE]


def _joined(node: ast.JoinedStr) -> str:
    parts = [str(value.value) if isinstance(value, ast.Constant) else HOLE for value in node.values]
    return tidy("".join(parts))


def tidy(text: str) -> str:
    return re.sub(rf"{HOLE}+", HOLE, text)


def _texts_of_name(name: str, module: Module, place: ast.AST, depth: int) -> list[str]:
    """What is assigned to a name here or at the top; of a parameter, what callers give for it."""
    for scope in (place, module.tree):
        given = list(_assigned(scope, name))
        if given:
            return [t for v in given for t in texts_of(v, module, scope, depth + 1)]
    if isinstance(place, ast.FunctionDef):
        return _texts_of_parameter(place, name, module, depth)
    return []


def _assigned(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            targets = [node.target]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets) and node.value:  # type: ignore[attr-defined]
            yield node.value  # type: ignore[attr-defined]


def _texts_of_parameter(
    function: ast.FunctionDef, name: str, module: Module, depth: int
) -> list[str]:
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name not in [*arguments, *(a.arg for a in function.args.kwonlyargs)]:
        return []
    place = arguments.index(name) if name in arguments else None
    if place is not None and arguments[0] in ("self", "cls"):
        place -= 1
    found = []
    for call, around in _calls(module.tree):
        if _name_of(call.func) != function.name:
            continue
        given = [k.value for k in call.keywords if k.arg == name]
        if place is not None and len(call.args) > place:
            given.append(call.args[place])
        found += [t for v in given for t in texts_of(v, module, around, depth + 1)]
    return found


def _texts_of_call(name: str, module: Module, depth: int) -> list[str]:
    """What a function of ours returns, there or where it was imported from."""
    for owner in (module, *_imported_from(name, module)):
        for node in ast.walk(owner.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                ends = [n for n in ast.walk(node) if isinstance(n, ast.Return)]
                returned = [end.value for end in ends if end.value is not None]
                return [t for v in returned for t in texts_of(v, owner, node, depth + 1)]
    return []


def _imported_from(name: str, module: Module) -> Iterator[Module]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ImportFrom) or name not in [a.name for a in node.names]:
            continue
        file = SOURCE.parent / f"{(node.module or '').replace('.', '/')}.py"
        if file.exists():
            yield read_module(file)
