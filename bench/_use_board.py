"""`tasuki board` in a real browser: how soon something is seen, and what looking costs.

With 1,000 runs, and with one run of 10⁶ points. Times are the browser's own (performance entries),
from the moment when the address is opened; each round is a fresh page. `BENCH_RUNS`, `BENCH_POINTS`
make it smaller.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from _measure import Spread, spread
from _run_folders import environment, make_finished, make_running

_RUNS = int(os.environ.get("BENCH_RUNS", "1000"))
_POINTS = int(os.environ.get("BENCH_POINTS", "1000000"))
_SERIES = 4
"""Curves of a made-up run: loss, lr, samples/s, memory."""
_ROUNDS = 5
_LOOKS_S = 8.0
Rows = list[tuple[str, float | Spread, str, float | None]]


def measure() -> Rows:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium here: the board is not measured", file=sys.stderr)
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        rows = _many(browser, Path(folder) / "many")
        rows += _long(browser, Path(folder) / "long")
        browser.close()
    return rows


def _many(browser: Any, runs: Path) -> Rows:
    make_finished(runs, _RUNS)
    what = f"{_RUNS:,} runs"
    with _board(runs) as (url, pid):
        first = _open(browser, f"{url}#/")
        cold_s = _until_read(first)
        first.context.close()
        found = [_painted(browser, f"{url}#/", "runs-shown") for _ in range(_ROUNDS)]
        page = _open(browser, f"{url}#/")
        frame_ms = _scroll(page)
        share = _cpu(pid)
        page.context.close()
    return [
        (f"board, {what}: first paint", spread([paint for paint, _ in found]), "ms", None),
        (f"board, {what}: the list is there", spread([shown for _, shown in found]), "ms", None),
        (f"board, {what}: all of them read, once", cold_s, "s", None),
        (f"board, {what}: scrolling, a frame in 95 of 100", frame_ms, "ms", None),
        (f"board, {what}: the server while one page looks", share, "% of a core", None),
    ]


def _long(browser: Any, runs: Path) -> Rows:
    fake = make_running(runs / "run", rows=_POINTS // _SERIES, hours=12)
    what = f"{_POINTS:,} points"
    address = "#/run/run"
    with _board(runs) as (url, pid):
        cold_paint, cold_drawn = _painted(browser, url + address, "curves-drawn")
        found = [_painted(browser, url + address, "curves-drawn") for _ in range(_ROUNDS)]
        page = _open(browser, url + address)
        page.wait_for_function("() => performance.getEntriesByName('curves-drawn').length > 0")
        zoom_ms = _zoom(page)
        share = _cpu(pid, fake)
        page.context.close()
        taken = psutil.Process(pid).memory_info().rss / 1e6
    fake.close()
    return [
        (f"board, {what}: first paint, read for the first time", cold_paint, "ms", None),
        (f"board, {what}: first paint", spread([paint for paint, _ in found]), "ms", None),
        (f"board, {what}: curves drawn, read for the first time", cold_drawn / 1e3, "s", None),
        (f"board, {what}: curves drawn", spread([drawn / 1e3 for _, drawn in found]), "s", None),
        (f"board, {what}: a hundredth looked at closely", zoom_ms, "ms", None),
        (f"board, {what}: the server while it grows", share, "% of a core", None),
        (f"board, {what}: memory of the server", taken, "MB", None),
    ]


@contextlib.contextmanager
def _board(runs: Path) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "tasuki", "board", "--runs", str(runs)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def _open(browser: Any, url: str) -> Any:
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    return page


def _painted(browser: Any, url: str, mark: str) -> tuple[float, float]:
    """(first contentful paint, when `mark` was set), in ms."""
    page = _open(browser, url)
    entry = "(name) => performance.getEntriesByName(name)[0]?.startTime"
    found = []
    for name in ("first-contentful-paint", mark):
        page.wait_for_function(entry, arg=name)
        found.append(float(page.evaluate(entry, name)))
    page.context.close()
    return found[0], found[1]


def _until_read(page: Any) -> float:
    """Seconds from the address to a list in which every run is told."""
    page.wait_for_function(
        "(n) => document.querySelector('#count').textContent.includes(`${n} complete`)", arg=_RUNS
    )
    return float(page.evaluate("() => performance.now()")) / 1e3


def _scroll(page: Any) -> float:
    """Through the whole list: how long frames took, in ms."""
    page.wait_for_selector(".row")
    frames = page.evaluate(
        """() => new Promise((done) => {
             const view = document.querySelector('#scroll'), times = [];
             let before = performance.now();
             const step = (now) => {
               times.push(now - before); before = now;
               view.scrollTop += 400;
               const isEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 1;
               if (isEnd) done(times.slice(1)); else requestAnimationFrame(step);
             };
             requestAnimationFrame(step);
           })"""
    )
    return float(sorted(frames)[int(0.95 * (len(frames) - 1))])


def _zoom(page: Any) -> float:
    """From the question for a hundredth of the steps to its answer, in ms."""
    return float(
        page.evaluate(
            """async () => {
                 const began = performance.now();
                 const answer = await fetch('/api/runs/run/curves?first=10000&last=12500');
                 await answer.json();
                 return performance.now() - began;
               }"""
        )
    )


def _cpu(pid: int, fake: Any = None) -> float:
    """Percent of a core over some seconds; `fake` works meanwhile."""

    def spent() -> float:
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)

    time.sleep(2)
    before, began = spent(), time.monotonic()
    while time.monotonic() - began < _LOOKS_S:
        if fake is not None:
            fake.work(100, rows=10)
        time.sleep(1)
    return 100 * (spent() - before) / (time.monotonic() - began)
