"""Runs as users have them, a board that shows them, and a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.dashboard.boards import RunningBoard, board_on
from tests.commands.dashboard.browser_page import BrowserPage
from tests.commands.dashboard.damaged_runs import damage_runs
from tests.commands.projects import Project, secrets

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def runs(trained: Project) -> Path:
    """Of the trained run; beside it a twin, and runs that are damaged, strange or hostile."""
    damage_runs(trained.runs)
    return trained.runs


@pytest.fixture(scope="session")
def board(runs: Path) -> Iterator[RunningBoard]:
    with board_on(runs, folder=runs.parent, **secrets()) as board:
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
def look(browser: Any) -> Iterator[Callable[..., BrowserPage]]:
    """Opens a page; at the end nothing may have gone wrong on it."""
    opened: list[BrowserPage] = []

    def open_page(url: str, *, width: int = 1280, height: int = 900, **more: Any) -> BrowserPage:
        page = BrowserPage.open(browser, url, width=width, height=height, **more)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.close()
        assert page.trouble == []
