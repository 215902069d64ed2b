"""What the troubleshooting page quotes is what tasuki prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tools.docs.pages import DOCS

import tasuki

_SYMPTOMS = (DOCS / "troubleshooting.md").read_text()
_OTHERS = ("execve()", "No space left", "sine: handed-over", "job … waits", "… free")
"""Lines of Slurm, of the system, or of `status`."""


def _plain(text: str) -> str:
    return re.sub(r"[\\`'*]", "", re.sub(r"\s+", " ", text))


def _quotes() -> list[str]:
    found = re.findall(r"(?m)^\*\*(`{1,2})(.+?)\1", _SYMPTOMS)
    return [text.strip() for _, text in found if not text.startswith(_OTHERS)]


def _strings_of_the_code() -> str:
    """All strings, with `…` for what is filled in."""
    found = []
    for path in Path(tasuki.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return _plain("\n".join(found))


def test_quoted_messages_are_what_tasuki_prints():
    printed = _strings_of_the_code()
    assert len(_quotes()) > 20
    for message in _quotes():
        pieces = [piece.strip(" :;,") for piece in message.replace("`", "").split("…")]
        phrases = [piece for piece in pieces if len(piece.split()) >= 2]
        assert phrases, message
        assert all(_plain(phrase) in printed for phrase in phrases), message
