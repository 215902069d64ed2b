"""Projects, and ways to type commands in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.person import Project, Said, kill_leftovers, make_project
from tests.commands.warm_python import write_warm_python


@pytest.fixture(scope="session")
def warm_python(warm, tmp_path_factory) -> str:
    """An interpreter whose supervisors and workers have torch imported already."""
    path = tmp_path_factory.mktemp("python") / "python"
    return write_warm_python(path, socket=warm._path)


@pytest.fixture
def project(tmp_path, warm_python) -> Iterator[Callable[..., Project]]:
    """Makes a project whose workers start at once."""

    def make(name: str = "p", **more: Any) -> Project:
        return make_project(tmp_path / name, python=warm_python, **more)

    yield make
    kill_leftovers(tmp_path)


@pytest.fixture
def real_project(tmp_path) -> Iterator[Callable[..., Project]]:
    """Makes a project whose jobs run in fresh interpreters, as a person's do."""

    def make(name: str = "p", **more: Any) -> Project:
        return make_project(tmp_path / name, **more)

    yield make
    kill_leftovers(tmp_path)


@pytest.fixture
def here(monkeypatch, capsys) -> Callable[..., Said]:
    """Types a command into this process: the same code without the start of an interpreter.

    For what needs no signal, no terminal and no clean environment.
    """

    def type_here(folder: Path, *words: str, **environment: str) -> Said:
        from tasuki.cli.main import run

        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "argv", ["tasuki", *words])
            for key, value in environment.items():
                patch.setitem(os.environ, key, value)
            capsys.readouterr()
            code = run()
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return type_here


@pytest.fixture(scope="session")
def finished(tmp_path_factory, warm_python) -> Iterator[Project]:
    """One project with two stages and an evaluation, trained to its end."""
    folder = tmp_path_factory.mktemp("finished")
    stages = [
        {"name": "small", "data": "d", "epochs": 3},
        {"name": "large", "data": "d", "epochs": 2, "lr": 0.003},
    ]
    made = make_project(
        folder / "p",
        python=warm_python,
        recipe="Talker",
        stages=stages,
        experiments__exp__evaluate={"data": "d", "after": "each_stage"},
    )
    said = made.type("run", "--json")
    assert said.code == 0, f"{said}\n{made.logs()}"
    yield made
    kill_leftovers(folder)
