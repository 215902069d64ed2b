"""Text that becomes part of a page: shown as it is, whatever it holds."""

from __future__ import annotations

import html
import re

from tasuki.views.text import neutral

# Bidirectional overrides would show other words than there are; the rest is no XML.
_STRANGE = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\ud800-\udfff\ufffe\uffff]")
_PATH = re.compile(r"(?<![\w.~:/-])~?/(?:[^\s/`'\"<>,;:()]+/)+([^\s/`'\"<>,;:()]*)/?")


def marked(value: object) -> str:
    """Inert in HTML and SVG, in text and in attributes."""
    return html.escape(_STRANGE.sub("�", neutral(str(value))), quote=True)


def without_paths(text: str) -> str:
    """A page is handed on: where something lies on this machine is nobody's business."""
    return _PATH.sub(lambda found: f"…/{found[1]}", text)
