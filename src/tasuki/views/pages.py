"""Pages of the documentation in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

_WIDEST = 100
"""Lines longer than this are hard to read, however wide the window is."""


def topics_as_text(
    pages: Mapping[str, Mapping[str, str]], verbs: Mapping[str, Sequence[str]]
) -> str:
    """All pages by section, name and words; then the verbs, whose help is a page too."""
    longest = max(len(name) for section in pages.values() for name in section)
    lines = []
    for title, section in pages.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<{longest}}  {_plain(words)}" for name, words in section.items()]
        lines.append("")
    lines.append("Verbs (`tasuki help VERB` is `tasuki VERB --help`):")
    lines += [f"  {title + ':':<10} {' '.join(names)}" for title, names in verbs.items()]
    return "\n".join(lines)


def _plain(words: str) -> str:
    return words.replace("`", "").replace("**", "")


def page_as_text(markdown: str, *, width: int, has_colours: bool) -> str:
    from io import StringIO

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.text import Text

    class AsItIs(CodeBlock):
        """Code and tables of ours in lines as they are: broken ones cannot be read or copied."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = "\n".join(f"    {line}" for line in str(self.text).rstrip().splitlines())
            yield Text(code, style="cyan", no_wrap=True, overflow="ignore")

    class Plain(Heading):
        """At the left, as one reads."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            self.text.style = "bold"
            yield Text("") if self.tag != "h1" else Text()
            yield self.text

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": AsItIs, "heading_open": Plain}

    console = Console(
        file=StringIO(),
        width=min(width, _WIDEST),
        force_terminal=has_colours,
        no_color=not has_colours,
        color_system="standard" if has_colours else None,
    )
    with console.capture() as captured:
        console.print(Page(markdown, hyperlinks=False), crop=False)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"
