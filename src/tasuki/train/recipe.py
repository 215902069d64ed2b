"""The user's recipe: found, checked, and asked; every mistake named in words."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from tasuki.data.foreign import is_loader
from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.hdf5.files import is_hdf5
from tasuki.errors import DataError, RecipeError, TasukiError
from tasuki.subprocesses import importing
from tasuki.train.advice import explain_missing_data

REQUIRED = ("build_model", "build_dataset", "loss")
T = TypeVar("T")


def load_recipe(name: str, params: dict[str, Any], *, paths: list[Path]) -> Any:
    """Import `module:Class` from the first of `paths` that has it, and make the recipe."""
    for path in reversed(paths):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    module_name, _, class_name = name.partition(":")
    recipe_class = _find_class(module_name, class_name, name)
    missing = [method for method in REQUIRED if not callable(getattr(recipe_class, method, None))]
    if missing:
        raise RecipeError(
            f"recipe `{name}` has no method {' and no '.join(f'`{m}`' for m in missing)}",
            hint="a recipe needs build_model(self), build_dataset(self, source, split) and "
            "loss(self, model, batch)",
        )
    try:
        inspect.signature(recipe_class).bind(**params)
    except TypeError as error:
        raise RecipeError(
            f"recipe `{name}` cannot be made with params {params}: {error}",
            hint="`params` are the keyword arguments of the recipe's constructor",
        ) from error
    return _ask(f"recipe `{name}`", lambda: recipe_class(**params))


def _find_class(module_name: str, class_name: str, name: str) -> Any:
    try:
        with importing():
            module = importlib.import_module(module_name)
    except Exception as error:
        raise RecipeError(
            f"recipe `{name}` cannot be imported: {where(error)}",
            hint="the spec's folder is on the import path: `file:Class` means file.py there",
        ) from error
    recipe_class = getattr(module, class_name, None)
    if not inspect.isclass(recipe_class):
        classes = [
            k for k, v in vars(module).items() if getattr(v, "__module__", "") == module_name
        ]
        raise RecipeError(
            f"module `{module_name}` has no class `{class_name}`",
            hint=f"it has {', '.join(classes) or 'no class at all'}",
        )
    return recipe_class


def build_model(recipe: Any) -> nn.Module:
    model = _ask("build_model", recipe.build_model)
    if not isinstance(model, nn.Module):
        raise RecipeError(
            f"build_model gave {_kind(model)}, not a torch.nn.Module",
            hint="return the model from build_model",
        )
    return model


def build_dataset(recipe: Any, source: object, split: str) -> Any:
    """Map-style data (`len` and `[]`), or a loader of the user's own."""
    try:
        dataset = recipe.build_dataset(source, split)
    except TasukiError:
        raise
    except FileNotFoundError as error:
        raise explain_missing_data(source, split, error) from error
    except OSError as error:
        raise DataError(
            f"data `{source}` (split {split}) cannot be opened: {error}",
            hint="check `data:` in the spec; relative paths are relative to the spec's folder",
        ) from error
    except Exception as error:
        raise RecipeError(f"build_dataset({source!r}, {split!r}) failed: {where(error)}") from error
    if is_loader(dataset):
        return dataset
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise RecipeError(
            f"build_dataset gave {_kind(dataset)}, which has no length or no []",
            hint="return a map-style data set (__len__ and __getitem__), or a loader of batches",
        )
    if len(dataset) == 0:
        raise DataError(
            f"data `{source}` (split {split}) has no samples",
            hint="check `data:` and `split:` in the spec",
        )
    _give_sizes(dataset, source, split)
    return dataset


def _give_sizes(dataset: Any, source: object, split: str) -> None:
    """Data that do not say how large their samples are get `n` of the HDF5 file they come from."""
    if hasattr(dataset, "sizes") or not isinstance(source, str) or not _is_hdf5(source, split):
        return
    try:
        file = Hdf5Dataset(source, split)
    except DataError:
        return  # another layout, which the recipe knows how to read
    if len(file) == len(dataset):
        sizes = file.sizes
        with contextlib.suppress(AttributeError):  # no room for a name
            dataset.sizes = sizes


def _is_hdf5(source: str, split: str) -> bool:
    path = Path(source)
    return (path.is_file() and is_hdf5(path)) or (path / f"{split}.h5").is_file()


def optional(recipe: Any, name: str) -> Callable[..., Any] | None:
    """A method that a recipe may have."""
    method = getattr(recipe, name, None)
    return method if callable(method) else None


def _ask(what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except TasukiError:
        raise
    except Exception as error:
        raise RecipeError(
            f"{what} failed: {where(error)}", hint="the traceback is in the run's .err log"
        ) from error


def where(error: BaseException) -> str:
    """The error and the last line of code it passed through."""
    frames = list(traceback.extract_tb(error.__traceback__))
    ours = ("importlib", "tasuki/train")
    frames = [f for f in frames if not any(part in f.filename for part in ours)]
    place = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
