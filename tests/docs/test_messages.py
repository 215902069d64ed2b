"""Every error message of ours has its entry, and what the page by symptom quotes is really said."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from tools.docs.messages import SOURCE, collect, kinds, read_module
from tools.docs.pages import DOCS

ERRORS = (DOCS / "errors.md").read_text()
SYMPTOMS = (DOCS / "troubleshooting.md").read_text()
FOREIGN = ("execve()", "No space left", "sine: handed-over", "job … waits", "… free")
"""Of Slurm, of the system, or of `status`, which is no error."""


def plain(text: str) -> str:
    return re.sub(r"[\\`'*]", "", re.sub(r"\s+", " ", text))


@cache
def raised() -> list[tuple[str, str]]:
    """Where, and the longest fixed piece of each message that is written where it is raised.

    Found in another way than the page finds them, so that one cannot hide the other's mistakes.
    """
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if "templates" in path.parts:
            continue
        for node in ast.walk(read_module(path).tree):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            if name not in kinds() or name.startswith("_") or not node.exc.args:
                continue
            pieces = [
                str(part.value)
                for part in ast.walk(node.exc.args[0])
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            longest = max((piece.strip() for piece in pieces), key=len, default="")
            if len(longest.split()) >= 2:
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", longest))
    return found


def test_every_message_that_is_raised_is_in_the_appendix():
    assert len(raised()) > 350
    page = plain(ERRORS)
    missing = [f"{where}: {text}" for where, text in raised() if plain(text) not in page]
    assert missing == [], "`make docs` writes them"


def test_most_messages_say_what_to_do():
    told = [message for message in collect() if not message.kind.startswith("_")]
    with_hint = [message for message in told if message.hint]
    assert len(with_hint) / len(told) > 0.75


def quoted() -> list[str]:
    """What the page by symptom quotes: bold code at the beginning of a paragraph."""
    found = re.findall(r"(?m)^\*\*(`{1,2})(.+?)\1", SYMPTOMS)
    return [text.strip() for _, text in found if not text.startswith(FOREIGN)]


def test_there_are_thirty_symptoms_at_least():
    assert len(re.findall(r"(?m)^\*\*.+?\*\*.* — ", SYMPTOMS)) >= 30


@pytest.mark.parametrize("message", quoted())
def test_what_the_page_by_symptom_quotes_is_said_somewhere(message):
    pieces = [piece.strip(" :;,") for piece in message.replace("`", "").split("…")]
    wanted = [piece for piece in pieces if len(piece.split()) >= 2]
    assert wanted, message
    assert all(plain(piece) in texts() for piece in wanted), message


@cache
def texts() -> str:
    """All texts of the code, with a hole for what is filled in."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(read_module(path).tree):
            if isinstance(node, ast.JoinedStr):
                values = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
                found.append("".join(map(str, values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return plain("\n".join(found))
