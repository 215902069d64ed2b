"""Copies of the examples, as a person makes one, and their scripts run in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

from tests.commands.projects import Project, Said, user_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_MADE = shutil.ignore_patterns("data*", "base", "runs*", "__pycache__")


def copy_example(name: str, folder: Path) -> Project:
    """Without what was made in it."""
    shutil.copytree(EXAMPLES / name, folder, ignore=_MADE)
    return Project(folder, user_environment())


def load(name: str, module: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"{name}_{module}", EXAMPLES / name / f"{module}.py"
    )
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look for themselves there
    spec.loader.exec_module(loaded)
    return loaded


def generate(name: str, folder: Path, *words: str) -> Said:
    """`python generate.py WORDS` of an example, in this folder."""
    script = str(EXAMPLES / name / "generate.py")
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", [script, *words]),
        ):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            err.write(ended.code)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os.chdir(before)
    return Said(code, out.getvalue(), err.getvalue())
