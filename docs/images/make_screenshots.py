"""The pictures of board and report in the documentation, from a real run of `tasuki demo`.

    .venv/bin/python docs/images/make_screenshots.py [FOLDER]

FOLDER is where the demo is, or is to be made (default: .work/demo; about two minutes). Needs
chromium. The demo's undisturbed twin is shown beside its run.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
SIZE = {"width": 1360, "height": 1010}
MOST_BYTES = 300_000


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


def save(page: Any, name: str) -> None:
    path = HERE / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    assert path.stat().st_size < MOST_BYTES, f"{path} is too large"
    sys.stderr.write(f"wrote {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
