"""The pictures of board, report and watch in the documentation, from real runs of `tasuki demo`.

    make pictures        (python -m tools.docs.pictures [FOLDER])

FOLDER is where the demo is, or is to be made (default: .work/demo; about two minutes). Needs
chromium and tmux. The demo's undisturbed twin is shown beside its run; `watch` looks at a second
demo while it trains.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1360, "height": 1010}
MOST_BYTES = 300_000
COLUMNS, LINES = 100, 27
WITHIN_S = 240.0


def main(words: list[str]) -> None:
    demo = Path(words[0] if words else ".work/demo")
    if not (demo / "undisturbed").is_dir():
        subprocess.run([sys.executable, "-m", "tasuki", "demo", str(demo)], check=True)
    with tempfile.TemporaryDirectory(prefix="tasuki-pictures-") as folder:
        runs = Path(folder) / "demo" / "runs"
        shutil.copytree(demo / "runs", runs)
        shutil.copytree(demo / "undisturbed" / "progressive", runs / "undisturbed")
        with sync_playwright() as play:
            chromium = shutil.which("chromium")
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            picture_board(browser, runs)
            picture_report(browser, runs, Path(folder) / "report.html")
            picture_watch(browser, Path(folder) / "live")
            browser.close()


def picture_board(browser: Browser, runs: Path) -> None:
    command = [sys.executable, "-m", "tasuki", "board", "--runs", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout
        url = board.stdout.readline().strip()
        try:
            for name, scheme in (("board", "light"), ("board-dark", "dark")):
                page = browser.new_page(viewport=SIZE, color_scheme=scheme)
                page.goto(f"{url}#/run/progressive")
                page.wait_for_selector(".mark")
                page.wait_for_selector(".row .spark polyline")
                page.wait_for_selector("#live.live")
                save(page, name)
        finally:
            board.send_signal(signal.SIGINT)


def picture_report(browser: Browser, runs: Path, file: Path) -> None:
    words = ["report", "progressive", "undisturbed", "--runs", str(runs), "-o", str(file)]
    subprocess.run([sys.executable, "-m", "tasuki", *words], check=True)
    page = browser.new_page(viewport={"width": 1200, "height": 1500}, color_scheme="light")
    page.goto(file.as_uri())
    save(page, "report")


def picture_watch(browser: Browser, demo: Path) -> None:
    """Of a terminal, when the last stage of a demo trains: the attempts before it are events."""
    python = sys.executable
    tmux = ["tmux", "-L", f"pictures-{demo.parent.name}"]
    training = subprocess.Popen(
        [python, "-m", "tasuki", "demo", str(demo)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    watch = f"{python} -m tasuki watch progressive --runs {demo / 'runs'}"
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    try:
        until((demo / "runs" / "progressive" / "spec.json").exists)
        subprocess.run([*tmux, "new-session", "-d", *size, watch], check=True)
        until(lambda: is_telling(screen(tmux)))
        draw_terminal(browser, screen(tmux, "-e"))
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
        training.send_signal(signal.SIGINT)
        training.wait()


def is_telling(shown: str) -> bool:
    """The last stage is well under way, and its loss is there."""
    is_well_under_way = re.search(r"[1-9]\d% \d+/320\n(.*\n)*?loss \d", shown) is not None
    return is_well_under_way and "starting:" not in shown


def until(is_so: Any) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end, "the demo did not come so far"
        time.sleep(0.2)


def screen(tmux: list[str], *more: str) -> str:
    words = [*tmux, "capture-pane", "-p", *more]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def draw_terminal(browser: Browser, text: str) -> None:
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text))
        html = console.export_html(theme=MONOKAI, inline_styles=True)
    page = browser.new_page(viewport={"width": 900, "height": 540}, device_scale_factor=1.5)
    page.set_content(html)
    page.add_style_tag(content="body {margin: 14px} pre {font: 14px/1.3 monospace !important}")
    save(page, "watch")


def save(page: Any, name: str) -> None:
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    assert path.stat().st_size < MOST_BYTES, f"{path} is too large"
    sys.stderr.write(f"wrote {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
