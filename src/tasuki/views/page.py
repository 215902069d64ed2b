"""Parts of a report page: the head with its styles, tables, and escaped text.

Pure. The page has no scripts and nothing from elsewhere: its content policy allows its own style
and nothing more.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources

from tasuki.views.marks import marked, without_paths


def page_around(title: str, body: Iterable[str], *, styles: Sequence[str]) -> str:
    """The whole file; `styles` are files beside this one."""
    return "\n".join([*_head(title, styles), *body, "</body>", "</html>", ""])


def _head(title: str, styles: Sequence[str]) -> Iterator[str]:
    folder = resources.files("tasuki.views")
    style = "\n".join(folder.joinpath(name).read_text("utf-8") for name in styles)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'sha256-{digest}'\">"
    )
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="generator" content="tasuki">'
    yield f"<title>{marked(title)}</title>"
    yield f"<style>{style}</style>\n</head>\n<body>"


def text_in(value: str) -> str:
    """As it is, without paths of this machine."""
    return marked(without_paths(value))


def table_of(
    caption: str,
    rows: Sequence[Mapping[str, str]],
    *,
    kinds: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The first column names each row; `kinds` are classes of columns."""
    kinds = kinds or {}
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{text_in(caption)}">'
    yield f"<table>\n<caption>{text_in(caption)}</caption>\n<thead><tr>"
    yield "".join(
        f'<th scope="col"{_class(kinds.get(name))}>{marked(name)}</th>' for name in rows[0]
    )
    yield "</tr></thead>\n<tbody>"
    for row in rows:
        yield f"<tr>{''.join(_cells(row.items(), kinds))}</tr>"
    yield "</tbody>\n</table>\n</div>"


def _cells(cells: Iterable[tuple[str, str]], kinds: Mapping[str, str]) -> Iterator[str]:
    for at, (name, text) in enumerate(cells):
        if at:
            yield f"<td{_class(kinds.get(name))}>{text_in(text)}</td>"
        else:
            yield f'<th scope="row">{text_in(text)}</th>'


def _class(kind: str | None) -> str:
    return f' class="{kind}"' if kind else ""
