"""The static site: every page of `docs`, and the READMEs that pages point to, as HTML.

One template, one style sheet, no script: it opens from a disk, without a network. Broken links,
missing pages and missing headings end the build before anything is written.
"""

from __future__ import annotations

import html
import os
import shutil
from pathlib import Path

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from tools.docs.pages import DOCS, INDEX, ROOT, Entry, Link, Page, find_faults, parser, read_index

_HERE = Path(__file__).parent


class BrokenSite(Exception):
    """Links or pages that are not there."""


def build(out: Path) -> int:
    """How many pages were written."""
    pages = [Page(INDEX), *(Page(entry.path) for entry in read_index() if entry.path.exists())]
    pages += [Page(path) for path in sorted(_outside(pages))]
    if faults := find_faults(pages):
        raise BrokenSite("\n".join(faults))
    shutil.rmtree(out, ignore_errors=True)
    template = (_HERE / "template.html").read_text(encoding="utf-8")
    for page in pages:
        target = out / place_of(page.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_render(page, template, pages), encoding="utf-8")
    style = (_HERE / "site.css").read_text(encoding="utf-8") + _code_colours()
    (out / "site.css").write_text(style, encoding="utf-8")
    for image in _images(pages):
        copy = out / place_of(image)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, copy)
    return len(pages)


def place_of(path: Path) -> Path:
    """Where a file of the project lies in the site."""
    inside = path.relative_to(DOCS) if path.is_relative_to(DOCS) else path.relative_to(ROOT)
    return inside.with_suffix(".html") if path.suffix == ".md" else inside


def _outside(pages: list[Page]) -> set[Path]:
    """Pages elsewhere in the project that ours point to; theirs are not followed further."""
    found = {link.target for page in pages for link in page.links if not link.is_elsewhere}
    return {p for p in found if p.suffix == ".md" and p.is_file() and not p.is_relative_to(DOCS)}


def _images(pages: list[Page]) -> set[Path]:
    found = {link.target for page in pages for link in page.links if not link.is_elsewhere}
    return {path for path in found if path.suffix in (".png", ".svg") and path.exists()}


def _render(page: Page, template: str, pages: list[Page]) -> str:
    body = _Renderer(page, {p.path for p in pages}).render(page.tokens, parser().options, {})
    up = "../" * (len(place_of(page.path).parts) - 1)
    values = {
        "title": html.escape(page.title),
        "up": up,
        "nav": _nav(page, read_index()),
        "body": body.replace("</h1>\n", f"</h1>\n{_contents(page)}", 1),
    }
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template


def _nav(page: Page, entries: list[Entry]) -> str:
    parts = []
    for section in dict.fromkeys(entry.section for entry in entries):
        parts.append(f"<h2>{html.escape(section)}</h2><ul>")
        for entry in (e for e in entries if e.section == section):
            here = ' aria-current="page"' if entry.path == page.path else ""
            href = html.escape(_way(page.path, entry.path))
            parts.append(f'<li><a href="{href}"{here}>{html.escape(entry.title)}</a></li>')
        parts.append("</ul>")
    return "\n".join(parts)


def _contents(page: Page) -> str:
    """Headings of the second level, where there are enough to get lost among."""
    second = [(words, anchor) for level, words, anchor in page.headings if level == 2]
    if len(second) < 3:
        return ""
    items = "".join(f'<li><a href="#{a}">{html.escape(w)}</a></li>' for w, a in second)
    return f'<nav class="contents" aria-label="On this page"><ul>{items}</ul></nav>'


def _way(start: Path, target: Path) -> str:
    return os.path.relpath(place_of(target), place_of(start).parent)


def _code_colours() -> str:
    light = HtmlFormatter(style="friendly").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


class _Renderer(RendererHTML):
    """Anchors on headings, colours in code, links between pages."""

    def __init__(self, page: Page, known: set[Path]) -> None:
        super().__init__()
        self._page = page
        self._known = known
        self._anchors = iter(anchor for _, _, anchor in page.headings)
        self._is_dead: list[bool] = []

    def heading_open(self, tokens: list[Token], idx: int, options: object, env: object) -> str:
        del options, env
        anchor = next(self._anchors)
        return f'<{tokens[idx].tag} id="{anchor}">'

    def heading_close(self, tokens: list[Token], idx: int, options: object, env: object) -> str:
        del options, env
        return f"</{tokens[idx].tag}>\n"

    def table_open(self, *_: object) -> str:
        return '<div class="table" tabindex="0"><table>\n'

    def table_close(self, *_: object) -> str:
        return "</table></div>\n"

    def link_open(self, tokens: list[Token], idx: int, options: object, env: object) -> str:
        del options, env
        link = Link(self._page.path, 0, str(tokens[idx].attrs["href"]))
        is_dead = not link.is_elsewhere and link.target not in self._known
        self._is_dead.append(is_dead)
        if is_dead:  # a file of the checkout, which the site does not have
            return "<span>"
        return f'<a href="{html.escape(self._address(link))}">'

    def link_close(self, *_: object) -> str:
        return "</span>" if self._is_dead.pop() else "</a>"

    def _address(self, link: Link) -> str:
        if link.is_elsewhere:
            return link.href
        end = f"#{link.anchor}" if link.anchor else ""
        return end if link.target == self._page.path else _way(self._page.path, link.target) + end

    def fence(self, tokens: list[Token], idx: int, options: object, env: object) -> str:
        del options, env
        token = tokens[idx]
        language = token.info.strip() or "text"
        try:
            lexer = get_lexer_by_name(language, stripnl=False)
        except ClassNotFound:
            lexer = get_lexer_by_name("text", stripnl=False)
        inside = highlight(token.content, lexer, HtmlFormatter(nowrap=True))
        return f'<pre class="code" tabindex="0"><code>{inside}</code></pre>\n'

    def html_block(self, tokens: list[Token], idx: int, options: object, env: object) -> str:
        del options, env
        content = tokens[idx].content
        return "" if content.lstrip().startswith("<!--") else content
