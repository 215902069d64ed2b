"""The documentation that comes with tasuki: which pages there are, and one of them by its name.

In a wheel the pages lie beside the code (`docs_pages`, put there by the build); in a checkout they
are the checkout's own `docs`. `index.md` says which there are, in which order, with a line each.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasuki.errors import StoreError, UsageError

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "docs_pages", _PACKAGE.parents[1] / "docs")
"""An installed tasuki's pages, a checkout's."""
_ENTRY = re.compile(r"- \[(.+?)\]\(([^)#]+)\.md\): (.+)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]*)(?:#[^)]*)?\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A page, as the index tells of it."""

    section: str
    name: str
    """What one types: its path without the ending."""
    title: str
    words: str
    path: Path


def find_pages(places: Sequence[Path] = _PLACES) -> Path:
    for place in places:
        if (place / "index.md").is_file():
            return place
    raise StoreError(
        "the pages of the documentation are not installed",
        hint="install tasuki again; or read them in `docs` of its source",
    )


def read_topics(folder: Path) -> list[Topic]:
    """In the order of the index."""
    topics = []
    section = ""
    text = _COMMENT.sub("", (folder / "index.md").read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        elif found := _ENTRY.match(line):
            title, name, words = found.groups()
            path = folder / f"{name}.md"
            topics.append(Topic(section=section, name=name, title=title, words=words, path=path))
    return topics


def find_topic(name: str, topics: Sequence[Topic]) -> Topic | None:
    """By its name, or the last part of it where only one has that: `spec` is `reference/spec`."""
    wanted = name.lower().removesuffix(".md")
    exact = [topic for topic in topics if topic.name == wanted]
    short = [topic for topic in topics if wanted in _short_names(topic)]
    found = exact or short
    return found[0] if len(found) == 1 else None


def _short_names(topic: Topic) -> set[str]:
    """`guides/b-preemptible` may be called `b-preemptible`, `preemptible` or `b`."""
    last = topic.name.rpartition("/")[2]
    letter, _, rest = last.partition("-")
    return {last, *((letter, rest) if len(letter) == 1 and rest else ())}


def refuse_topic(name: str, topics: Sequence[Topic], verbs: Sequence[str]) -> UsageError:
    """With the nearest name."""
    known = {short: topic.name for topic in topics for short in _short_names(topic)}
    known |= {topic.name: topic.name for topic in topics} | {verb: verb for verb in verbs}
    begun = [short for short in known if short.startswith(name.lower())]
    near = begun[:1] or difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean `tasuki help {known[near[0]]}`?" if near else "`tasuki help` lists all"
    return UsageError(f"there is no page `{name}`", hint=hint)


def read_page(topic: Topic, topics: Sequence[Topic]) -> str:
    """Its Markdown, without what is meant for those who write it. Links to other pages are words
    here, and commands at its end."""
    text = _COMMENT.sub("", topic.path.read_text(encoding="utf-8"))
    by_path = {os.path.normpath(one.path): one.name for one in topics}
    folder = topic.path.parent
    meant = [by_path.get(os.path.normpath(folder / link[2])) for link in _LINK.finditer(text)]
    others = [name for name in dict.fromkeys(meant) if name and name != topic.name]
    end = f"\n\nSee also: `tasuki help` {', '.join(f'`{name}`' for name in others)}\n"
    return _LINK.sub(r"\1", text) + (end if others else "")
