"""Might the code of the data read or set the state of a global random generator?

Whoever only draws moves a generator, which can be watched (drawn.py). Whoever reads its state
(`torch.initial_seed`), or draws and puts it back (`fork_rng`), moves nothing: the samples of such
data are right only if every one of them is seeded. That is decided here, once and before anything
is fetched, from the code and not from what some samples happen to do.

Reaching a state takes one of a few names, so the source of all modules that the data may run is
searched for them. Those are the modules of whatever can be reached from the data set and `collate`
(classes and their bases, attributes, closures, wrapped data), those that they import, at the top
or inside a function, and so on; of the user's modules also whatever their globals hold, as a
registry does. A comment counts as well: that costs 10 µs a sample and no exactness. What cannot be
searched (compiled code, zip files, imports by a computed name) counts as a reader. Python, numpy,
torch and some packages that were looked at (_KNOWN) are taken as not reading on their own.

It is not seen if a name is put together at run time (`getattr(random, "get" + "state")`), if it
stands only in an object of a type of which the same list, dict or set holds over a hundred, if a
known package calls back what was registered there, or put into it, by a module that the data do not
import, or if an operator that was loaded into `torch.ops`, or a library of ctypes, does it.

Called by drawn.py.
"""

from __future__ import annotations

import gc
import logging
import re
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasuki.errors import is_users

_NAMES = (
    *("getstate", "setstate", "get_state", "set_state", "clone_state", "_inst", "__self__"),
    *("initial_seed", "default_generator", "get_rng_state", "set_rng_state", "fork_rng"),
    *("graphsafe_get_state", "graphsafe_set_state", "isolate_rng"),
    *("mtrand", "_rand", "get_bit_generator", "set_bit_generator", "_bit_generator"),
)
_READS = re.compile(
    r"(?<!\w)(?:" + "|".join(_NAMES) + r")(?!\w)|\bpreserve_rng_state\b(?!\s*=)"  # not the option
)
_COMPUTES = re.compile(
    r"(?<![\w.])(?:exec|eval|__import__)\s*\(|\b(?:import_module|spec_from_file_location|run_path"
    r"|SourceFileLoader|entry_points)\b"
)
"""Ways in which the user's code may get at code that no import names."""
_IMPORTS = re.compile(
    r"\bfrom\s+([.\w]+)\s+import\s*(\([^)]*\)|[^\n;]+)|(?:^|[;:])[ \t]*import\s+([^\n;]+)", re.M
)
_COMMENTS = re.compile(r"#[^\n]*|\\\n")
_KNOWN = {
    *sys.stdlib_module_names,
    *("tasuki", "numpy", "torch", "torchvision", "h5py", "PIL", "cv2", "pyarrow"),
    *("safetensors", "tokenizers", "yaml", "tqdm", "typing_extensions"),
}
_PLACES = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
        *(str(Path(str(package.__file__)).parents[1]) for package in (torch, np)),
    }
)
"""Where packages of these names are really those; a user's `queue.py` is not."""
_DATA = {int, float, complex, bool, str, bytes, bytearray, type(None), range, slice, type(...)}
_FUNCTIONS = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)
_OPAQUE = (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_MANY = 1000
_OF_MANY = 100
_MOST = 200_000
"""Objects looked at before the search is given up."""


class _Found(Exception):
    """A reader, or something that cannot be searched."""


def may_read_states(*roots: object) -> bool:
    """Do data made of these objects perhaps read or set a generator's state?"""
    try:
        _Search(roots).run()
    except _Found:
        return True
    except Exception:  # objects and files of the user may raise anything
        return True
    return False


class _Search:
    def __init__(self, roots: Iterable[object]) -> None:
        self._objects: deque[Any] = deque(roots)
        self._seen: dict[int, Any] = {}
        """By id; they are held, as the id of one that is gone may come again."""
        self._wanted: set[str] = set()
        self._waiting: list[str] = []
        """Names of modules that are to be read."""
        self._files: set[str] = set()
        self._packages: set[str] = set()

    def run(self) -> None:
        while self._objects or self._waiting:
            while self._waiting:
                self._read_module(self._waiting.pop())
            if self._objects:
                self._take(self._objects.popleft())

    def _take(self, found: Any) -> None:
        if type(found) in _DATA or id(found) in self._seen:
            return
        if len(self._seen) > _MOST:
            raise _Found
        self._seen[id(found)] = found
        self._look_at(found)

    # -- objects ----------------------------------------------------------------------------------

    def _look_at(self, found: Any) -> None:
        if isinstance(found, types.FunctionType):
            self._look_at_function(found)
        elif isinstance(found, type):
            self._look_at_class(found)
        elif isinstance(found, types.ModuleType):
            self._want(found.__name__)
        elif isinstance(found, _OPAQUE):
            raise _Found
        elif isinstance(found, _FUNCTIONS):
            self._look_at_builtin(found)
        else:
            self._objects.append(type(found))
            self._objects.extend(_few(_parts(found)))

    def _look_at_function(self, found: types.FunctionType) -> None:
        space = found.__globals__
        name, file = str(space.get("__name__", "")), space.get("__file__")
        self._objects += [found.__closure__, found.__defaults__, found.__kwdefaults__]
        self._objects.append(found.__dict__)
        if not file:
            self._look_at_code(found.__code__, space)
        elif not _is_known(name, str(file)):
            self._read(name, str(file), space)

    def _look_at_code(self, code: types.CodeType, space: Mapping[str, Any]) -> None:
        """Of code without a file: what it names, here and inside."""
        words = [*code.co_names, *(word for word in code.co_consts if isinstance(word, str))]
        text = "\n".join(words)
        if _READS.search(text) or {"exec", "eval", "__import__", "import_module"} & set(words):
            raise _Found
        for name in code.co_names:
            self._objects.append(space.get(name))
            self._want(name)  # if it is an import
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._look_at_code(inner, space)

    def _look_at_class(self, found: type) -> None:
        for kind in found.__mro__:
            self._seen[id(kind)] = kind
            module = sys.modules.get(kind.__module__)
            file = getattr(module, "__file__", None)
            if _is_known(kind.__module__, file):
                # A class may say it of itself, or have been given another's methods.
                self._objects.extend(_strange(kind))
                continue
            self._objects.extend(vars(kind).values())
            self._objects.append(type(kind))
            if file is not None:
                self._read(kind.__module__, file, vars(module))
            elif not any(isinstance(part, types.FunctionType) for part in vars(kind).values()):
                raise _Found

    def _look_at_builtin(self, found: Any) -> None:
        owner = getattr(found, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._objects.append(owner)
        elif getattr(found, "__module__", None):
            self._want(found.__module__)

    # -- modules ----------------------------------------------------------------------------------

    def _want(self, name: str) -> None:
        """And the packages around it."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part not in self._wanted:
                self._wanted.add(part)
                self._waiting.append(part)

    def _want_package(self, package: str) -> None:
        """All of it that is loaded: packages often import their parts by computed names."""
        if package not in self._packages:
            self._packages.add(package)
            for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
                self._want(name)

    def _read_module(self, name: str) -> None:
        """One that is not there cannot be run either."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) or _file_of(name)
        if file is not None and not _is_known(name, file):
            self._read(name, file, vars(module) if module is not None else {})

    def _read(self, name: str, file: str, space: Mapping[str, Any]) -> None:
        if file in self._files:
            return
        self._files.add(file)
        if not file.endswith(".py"):
            raise _Found
        text = Path(file).read_text(encoding="utf-8", errors="replace")
        if _READS.search(text):
            raise _Found
        if is_users(file):
            if _COMPUTES.search(text):
                raise _Found
            self._objects.extend(_few(space.values()))
        else:
            self._want_package(name.partition(".")[0])
        home = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imports_in(text, home):
            self._want(imported)


def _strange(kind: type) -> Iterator[Any]:
    """Methods of a class that were not made in its module."""
    for part in vars(kind).values():
        if isinstance(part, property):
            methods = [part.fget, part.fset]
        else:
            methods = [getattr(part, "__func__", part)]
        for method in methods:
            space = getattr(method, "__globals__", None)
            if space is not None and space.get("__name__") != kind.__module__:
                yield method


def _parts(found: Any) -> list[Any]:
    """What an object holds, without running any of its code."""
    if isinstance(found, weakref.ref):
        return [found()]
    if isinstance(found, logging.Logger):
        return []  # else all of them, and wherever they write
    if isinstance(found, np.ndarray):
        return list(found.flat) if found.dtype.hasobject else [found.base]
    return gc.get_referents(found)


def _few(parts: Iterable[Any]) -> list[Any]:
    """All that are not plain data, but of very many of one type the first."""
    others = [part for part in parts if type(part) not in _DATA]
    if len(others) <= _MANY:
        return others
    counts: dict[type, int] = {}
    kept = []
    for part in others:
        count = counts[type(part)] = counts.get(type(part), 0) + 1
        if count <= _OF_MANY:
            kept.append(part)
    return kept


def _is_known(name: str, file: str | None) -> bool:
    if name.partition(".")[0] not in _KNOWN:
        return False
    if file is None:  # built in
        return name in sys.builtin_module_names or name in sys.modules
    return file.startswith(_PLACES) or not is_users(file)


def _imports_in(text: str, package: str) -> Iterator[str]:
    for start, parts, modules in _IMPORTS.findall(_COMMENTS.sub("", text)):
        if modules:
            yield from (part.split()[0] for part in modules.split(",") if part.split())
            continue
        home = _absolute(start, package)
        yield home
        for part in parts.strip("() \t").split(","):
            words = part.split()
            if words and words[0] != "*":
                yield f"{home}.{words[0]}"


def _absolute(start: str, package: str) -> str:
    name = start.lstrip(".")
    up = len(start) - len(name)
    if not up:
        return name
    home = package.split(".")[: max(1, len(package.split(".")) - up + 1)]
    return ".".join([*home, name] if name else home)


def _file_of(name: str) -> str | None:
    """Of a module that is not loaded; nothing is imported to find it."""
    spec = _spec_of(name)
    return spec.origin if spec is not None and spec.has_location else None


def _spec_of(name: str) -> ModuleSpec | None:
    around, _, last = name.rpartition(".")
    if not around:
        return _find_spec(name, None)
    loaded = sys.modules.get(around)
    if loaded is not None:
        held = vars(loaded).get(last)  # most names that are imported are no modules
        is_other = held is not None and not isinstance(held, types.ModuleType)
        path = None if is_other else getattr(loaded, "__path__", None)
    else:
        spec = _spec_of(around)
        path = spec.submodule_search_locations if spec is not None else None
    return _find_spec(name, list(path)) if path else None


def _find_spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)
