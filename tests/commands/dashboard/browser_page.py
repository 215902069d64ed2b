"""A page in a real browser: what is there, what can be read, what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WITHIN_MS = 60_000

_FOLDER = Path(__file__).parent
CONTRASTS = (_FOLDER / "contrasts.js").read_text()

NAMELESS = (_FOLDER / "nameless.js").read_text()


@dataclass
class BrowserPage:
    page: Any
    context: Any
    trouble: list[str] = field(default_factory=list)
    """What the browser complained of: errors, refusals of its policy, requests that failed."""
    asked: list[str] = field(default_factory=list)
    """Every address that the page asked for."""

    @classmethod
    def open(cls, browser: Any, url: str, *, width: int, height: int, **more: Any) -> BrowserPage:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        context.set_default_timeout(WITHIN_MS)
        page = context.new_page()
        made = cls(page, context)
        page.on("console", made._hear)
        page.on("pageerror", lambda error: made.trouble.append(str(error)))
        page.on("request", lambda request: made.asked.append(request.url))
        page.on("dialog", lambda dialog: made.trouble.append(f"dialog {dialog.message}"))
        page.goto(url)
        return made

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.trouble.append(f"{message.type}: {message.text}")

    def close(self) -> None:
        self.context.close()

    def wait(self, selector: str, **more: Any) -> Any:
        return self.page.wait_for_selector(selector, **more)

    def until(self, script: str, argument: Any = None) -> None:
        """A JavaScript expression that becomes true."""
        self.page.wait_for_function(script, arg=argument)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def drawn(self, title: str = "loss") -> None:
        """Waits until a curve is there."""
        self.until(
            """(title) => [...document.querySelectorAll('.plot')].some((plot) =>
                 plot.querySelector('.what').textContent === title && plot.dataset.points > 1)""",
            title,
        )

    def points(self, title: str = "loss") -> int:
        script = """(title) => Math.max(0, ...[...document.querySelectorAll('.plot')]
            .filter((plot) => plot.querySelector('.what').textContent === title)
            .map((plot) => Number(plot.dataset.points)))"""
        return int(self.page.evaluate(script, title))

    def too_faint(self, least: float = 4.5) -> list[dict[str, Any]]:
        found = self.page.evaluate(CONTRASTS)
        assert len(found) > 10, "there is hardly any text to look at"
        return [one for one in found if one["ratio"] < least]

    def nameless(self) -> list[str]:
        return list(self.page.evaluate(NAMELESS))

    def is_too_wide(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"))
