"""Projects, finished runs that tests share, and ways to type commands."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.testing import FakeClock
from tests.commands.projects import (
    Project,
    Said,
    finish,
    kill_leftovers,
    make_project,
    secrets,
    until,
)
from tests.commands.terminals import Terminal
from tests.commands.warm_python import write_warm_python
from tests.harness.written import WrittenRun


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
    """Makes a project whose jobs run in fresh interpreters, as users' do."""

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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def written(tmp_path, clock, monkeypatch) -> WrittenRun:
    """A run's folder that a test writes by hand; the working directory is above it."""
    monkeypatch.chdir(tmp_path)
    return WrittenRun(tmp_path / "runs", clock)


# -- runs that are made once and only read --------------------------------------------------------
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


@pytest.fixture(scope="session")
def trained(tmp_path_factory, warm_python) -> Iterator[Project]:
    """Two stages, interrupted once and trained to their end, with secrets in the environment."""
    folder = tmp_path_factory.mktemp("trained")
    made = make_project(
        folder / "p",
        python=warm_python,
        recipe="SlowAtFirst",
        params={"pause": 0.1},
        stages=[
            {"name": "small", "data": "d", "epochs": 6},
            {"name": "large", "data": "d", "epochs": 10, "lr": 0.003},
        ],
        experiments__exp__evaluate={"data": "d", "after": "each_stage"},
        defaults__validate={"every": "2 epochs"},
    )
    made.environment.update(secrets())
    begun = made.start("run")
    until(lambda: made.step() >= 14, made.logs)
    begun.send_signal(signal.SIGINT)
    said = finish(begun)
    assert said.code == 75, f"{said}\n{made.logs()}"
    said = made.type("run")
    assert said.code == 0, f"{said}\n{made.logs()}"
    yield made
    kill_leftovers(folder)


@pytest.fixture(scope="session")
def held(tmp_path_factory, warm_python) -> Iterator[Project]:
    """A run that is held because its second step failed three times; while `trap` exists."""
    folder = tmp_path_factory.mktemp("held")
    params = {"fail_at": 1, "fail_file": "trap"}
    made = make_project(folder / "p", python=warm_python, params=params)
    (made.folder / "d").write_bytes(b"the data" * 100)
    (made.folder / "trap").touch()
    said = made.type("run")
    assert said.code == 1 and "exp: held" in said.out, f"{said}\n{made.logs()}"
    yield made
    kill_leftovers(folder)


@pytest.fixture
def terminal(tmp_path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here: `apt-get install tmux` (or `conda install tmux`) brings it")
    made = Terminal(tmp_path)
    yield made
    made.close()
