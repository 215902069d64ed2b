"""`board`: `tasuki board` in a real browser: how soon something is seen.

With 1,000 runs, and with one run of 10⁶ points. Times are the browser's (performance entries), from
the moment when the address is opened; each round is a fresh page. `BENCH_RUNS`, `BENCH_POINTS` make
it smaller. Without chromium and playwright it is skipped. A part of use.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import MIN_ROUNDS, Figure, sized, spread
from _peers import say
from _run_folders import environment, make_finished, make_running

NUM_RUNS = sized(1000, smoke=5, variable="BENCH_RUNS")
NUM_POINTS = sized(1_000_000, smoke=4_000, variable="BENCH_POINTS")
NUM_CURVES = 4
"""Of the run: loss, lr, samples/s, memory."""


def measure(folder: Path) -> list[Figure]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        say("without the board: chromium or playwright is not installed")
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        figures = _measure_many(browser, folder / "many") + _measure_long(browser, folder / "long")
        browser.close()
    return figures


def _measure_many(browser: Any, runs: Path) -> list[Figure]:
    make_finished(runs, NUM_RUNS)
    what = f"board of {NUM_RUNS:,} runs"
    with _open_board(runs) as address:
        all_read_s = _time_until_all_are_read(browser, f"{address}#/")
        painted = [_open_page(browser, f"{address}#/", "runs-shown") for _ in range(MIN_ROUNDS)]
    return [
        Figure(f"{what}: first paint", "", spread([first for first, _ in painted]), "s"),
        Figure("… the list", "", spread([shown for _, shown in painted]), "s"),
        Figure("… all of them read, once", "", all_read_s, "s"),
    ]


def _measure_long(browser: Any, runs: Path) -> list[Figure]:
    fake = make_running(runs / "run", rows=NUM_POINTS // NUM_CURVES, hours=sized(12, smoke=1))
    with _open_board(runs) as address:
        page = f"{address}#/run/run"
        _, first_s = _open_page(browser, page, "curves-drawn")
        painted = [_open_page(browser, page, "curves-drawn") for _ in range(MIN_ROUNDS)]
    fake.close()
    what = f"board of {NUM_POINTS:,} points"
    return [
        Figure(f"{what}: first paint", "", spread([first for first, _ in painted]), "s"),
        Figure("… curves drawn, for the first time", "", first_s, "s"),
        Figure("… curves drawn, later", "", spread([drawn for _, drawn in painted]), "s"),
    ]


@contextlib.contextmanager
def _open_board(runs: Path) -> Iterator[str]:
    """The address of a board's server."""
    command = [sys.executable, "-m", "tasuki", "board", "--runs", str(runs)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


@contextlib.contextmanager
def _new_page(browser: Any, url: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    yield page
    context.close()


def _open_page(browser: Any, url: str, mark: str) -> tuple[float, float]:
    """Seconds to the first contentful paint, and until the page set `mark`."""
    entry = "(name) => performance.getEntriesByName(name)[0]?.startTime"
    seconds = []
    with _new_page(browser, url) as page:
        for name in ("first-contentful-paint", mark):
            page.wait_for_function(entry, arg=name)
            seconds.append(float(page.evaluate(entry, name)) / 1e3)
    return seconds[0], seconds[1]


def _time_until_all_are_read(browser: Any, url: str) -> float:
    count = "(n) => document.querySelector('#count').textContent.includes(`${n} complete`)"
    with _new_page(browser, url) as page:
        page.wait_for_function(count, arg=NUM_RUNS)
        return float(page.evaluate("() => performance.now()")) / 1e3
