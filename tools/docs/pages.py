"""The pages: what they are called, which headings they have, where their links go.

`docs/index.md` decides which pages there are and in which order; a page that is not in it, or that
it names in vain, is a broken book. Everything here only reads. Used by `site.py` and by the tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"


def parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


@dataclass(frozen=True)
class Block:
    """A piece of code in a page."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """Why it is not run, as a comment before it says: `<!-- not run: needs a GPU -->`."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Link:
    """Where a page points to."""

    page: Path
    line: int
    href: str

    @property
    def is_elsewhere(self) -> bool:
        return bool(re.match(r"[a-z]+:", self.href))

    @property
    def target(self) -> Path:
        path = unquote(self.href.partition("#")[0])
        return Path(os.path.normpath(self.page.parent / path)) if path else self.page

    @property
    def anchor(self) -> str:
        return unquote(self.href.partition("#")[2])


@dataclass(frozen=True)
class Page:
    """One file of Markdown."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tokens(self) -> list[Token]:
        return parser().parse(self.text)

    @cached_property
    def title(self) -> str:
        headings = [words for level, words, _ in self.headings if level == 1]
        return headings[0] if headings else self.path.stem

    @cached_property
    def headings(self) -> list[tuple[int, str, str]]:
        """Level, words, anchor."""
        found: list[tuple[int, str, str]] = []
        taken: dict[str, int] = {}
        for token, inline in zip(self.tokens, self.tokens[1:], strict=False):
            if token.type == "heading_open":
                words = plain_words(inline)
                slug = slug_of(words)
                number = taken.get(slug, 0)
                taken[slug] = number + 1
                anchor = f"{slug}-{number}" if number else slug
                found.append((int(token.tag[1]), words, anchor))
        return found

    @cached_property
    def anchors(self) -> set[str]:
        named = re.findall(r'<a (?:id|name)="([^"]+)"', self.text)
        return {anchor for _, _, anchor in self.headings} | set(named)

    @property
    def links(self) -> Iterator[Link]:
        for token in self.tokens:
            for child in token.children or ():
                line = token.map[0] + 1 if token.map else 0
                if child.type == "link_open":
                    yield Link(self.path, line, str(child.attrs["href"]))
                if child.type == "image":
                    yield Link(self.path, line, str(child.attrs["src"]))

    @property
    def blocks(self) -> Iterator[Block]:
        reason: str | None = None
        for token in self.tokens:
            if token.type == "html_block":
                said = re.search(r"<!-- not run: (.+?) -->", token.content)
                reason = said[1] if said else reason
            elif token.type == "fence":
                line = token.map[0] + 1 if token.map else 0
                yield Block(self.path, line, token.info.strip(), token.content, reason)
                reason = None
            elif token.level == 0:
                reason = None


def slug_of(words: str) -> str:
    """As GitHub makes anchors, so that links work in both places."""
    kept = re.sub(r"[^\w\- ]", "", words.strip().lower())
    return kept.replace(" ", "-")


def plain_words(inline: Token) -> str:
    return "".join(child.content for child in inline.children or () if child.content)


@dataclass(frozen=True)
class Entry:
    """A line of the index."""

    section: str
    title: str
    path: Path
    words: str


def read_index(index: Path = INDEX) -> list[Entry]:
    entries = []
    section = ""
    text = re.sub(r"<!--.*?-->", "", index.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        elif found := re.match(r"- \[(.+?)\]\(([^)#]+\.md)\): (.+)", line):
            entries.append(Entry(section, found[1], index.parent / found[2], found[3]))
    return entries


def all_pages(docs: Path = DOCS) -> list[Path]:
    return sorted(docs.rglob("*.md"))


def find_faults(pages: list[Page]) -> list[str]:
    """Everything that is wrong with links, anchors and the index, in words."""
    by_path = {page.path: page for page in pages}
    faults = [
        f"{_name(page.path)}:{link.line}: {fault}"
        for page in pages
        for link in page.links
        if (fault := _fault(link, by_path))
    ]
    if INDEX not in by_path:
        return [*faults, "docs/index.md is not there"]
    named = [entry.path for entry in read_index()]
    missing = set(all_pages()) - set(named) - {INDEX}
    faults += [f"{_name(path)} is not in docs/index.md" for path in sorted(missing)]
    faults += [f"docs/index.md names {_name(p)} twice" for p in set(named) if named.count(p) > 1]
    return faults


def _fault(link: Link, pages: dict[Path, Page]) -> str | None:
    if link.is_elsewhere:
        return None
    if not link.target.exists():
        return f"`{link.href}` is not there"
    if not link.target.is_relative_to(ROOT):
        return f"`{link.href}` lies outside of the project"
    page = pages.get(link.target) or Page(link.target)
    if link.anchor and link.target.suffix == ".md" and link.anchor not in page.anchors:
        return f"`{link.href}`: no such heading"
    return None


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
