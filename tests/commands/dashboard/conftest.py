"""Runs as people have them, a board that shows them, and a real browser."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import here, project, warm_python  # noqa: F401
from tests.commands.dashboard.boards import CANARIES, RunningBoard, board_on
from tests.commands.dashboard.looking import Looking
from tests.commands.dashboard.spoilt import spoil_runs
from tests.commands.person import Project, finish, kill_leftovers, make_project, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: Any, warm_python: str) -> Iterator[Project]:  # noqa: F811
    """A run of two stages that was interrupted once, trained to its end, with secrets around it."""
    folder = tmp_path_factory.mktemp("trained")
    made = make_project(
        folder / "p",
        python=warm_python,
        params={"pause": 0.01},
        stages=[
            {"name": "small", "data": "d", "epochs": 6},
            {"name": "large", "data": "d", "epochs": 10, "lr": 0.003},
        ],
        experiments__exp__evaluate={"data": "d", "after": "each_stage"},
        defaults__validate={"every": "2 epochs"},
    )
    made.environment.update(CANARIES)
    begun = made.start("run")
    until(lambda: made.step() >= 14, made.logs)
    begun.send_signal(signal.SIGINT)
    assert finish(begun).code == 75
    said = made.type("run")
    assert said.code == 0, f"{said}\n{made.logs()}"
    yield made
    kill_leftovers(folder)


@pytest.fixture(scope="session")
def runs(trained: Project) -> Path:
    """Beside it: a twin, and runs that are damaged, strange or hostile."""
    spoil_runs(trained.runs)
    return trained.runs


@pytest.fixture(scope="session")
def board(runs: Path) -> Iterator[RunningBoard]:
    with board_on(runs, folder=runs.parent, **CANARIES) as board:
        yield board


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Looking]]:
    """Opens a page; at the end nothing may have gone wrong on it."""
    opened: list[Looking] = []

    def open_page(url: str, *, width: int = 1280, height: int = 900, **more: Any) -> Looking:
        page = Looking.open(browser, url, width=width, height=height, **more)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
        assert page.trouble == []
