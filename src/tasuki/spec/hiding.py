"""Values that are named like keys and passwords, left out of what is shown and handed on.

By name, whatever the value is; in text also by shape (`https://me:pw@host`, `--token x`,
`API_KEY=x`, `Bearer x`, keys that begin as those of well-known services do). Where a name leaves
doubt the value is hidden; names that training uses every day (`num_tokens`, `key_dim`) leave none.
Nothing guards a password that is called `note`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

HIDDEN = "(not shown)"

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_IN_WORDS = re.compile(r"secret|passw|passphrase|credential|bearer|oauth")
_WORDS = {
    "pwd", "pw", "jwt", "auth", "authorization", "authentication", "cookie", "cookies",
    "webhook", "webhooks", "creds",
}  # fmt: skip
_KEYS = re.compile(
    r"(?:api|access|auth|private|secret|ssh|signing|license|wandb|kaggle|comet)keys?(?:id)?$"
    r"|(?:api|access|auth|hf|hub|github|gitlab|refresh|session|slack)tokens?$"
)
"""Whatever stands before it, and written without a border, too: `test_api_keys`, `HFTOKEN`."""
_NO_KEY = {
    "sort", "group", "batch", "cache", "monitor", "metric", "label", "target", "public",
    "primary", "foreign", "dict", "column", "field", "feature", "sample", "state", "input",
    "output", "query", "image", "text", "attention", "attn",
}  # fmt: skip
"""Before `key`: none that opens anything."""
_NO_TOKEN = {
    "pad", "eos", "bos", "end", "stop", "start", "mask", "unk", "sep", "cls", "class",
    "special", "image", "audio", "text", "per", "max", "min", "num", "n", "new", "total",
    "train", "val", "valid", "test", "eval", "seen", "skip", "every", "vocab", "prompt",
    "context", "extra", "added", "first", "last", "next", "input", "output", "robot", "action",
    "patch", "visual",
}  # fmt: skip
"""Before `token`: one of a language model's."""

_USER_OF_URL = re.compile(r"(?<=://)[^/?#\s\"']*@")
_BEARER = re.compile(r"\b(bearer)\s+[^\s\"']+", re.IGNORECASE)
_NAME = re.compile(
    r"(?<![\w.-])(?:(--?[A-Za-z][\w.-]*)(?:\s+(?=[^\s-])|[\"']\s*,\s*(?=[\"']))"  # a list's, too
    r"|(-{0,2}[A-Za-z_][\w.-]*)([\"']?\s*[=:]\s*))"
)
_VALUE = re.compile(
    r"(?:(?:basic|token)\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s\"']*[^\s\"';,.)])", re.IGNORECASE
)
_NO_NAME = re.compile(r"(?:Error|Exception|Warning|\.py)$")
_BEFORE_COLONS = {"key", "keys", "token", "tokens", "auth"}
"""`Missing key: head.weight`, `unexpected token: }`: sentences say so of what opens nothing."""
_NAMES = {
    "experiment", "run", "stage", "stages", "phase_stage", "name", "state", "kind", "job", "jobs",
    "checkpoint", "parent",
}  # fmt: skip
"""In stories: what people have called things, by which they are found."""
_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{16,}|gh[opsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]{16,}(?:\.[\w-]+)*)"
)


def is_secret(name: str) -> bool:
    """Does a value of this name belong to nobody but its owner?"""
    words = [word.lower() for word in _WORD.findall(name)]
    if _WORDS & set(words) or any(_IN_WORDS.search(word) for word in words):
        return True
    if _KEYS.search("".join(words)):
        return True
    # At the end alone: a `key_dim` is no key, a `token_dropout` no token, `tokens` are a number.
    match words:
        case [*before, "key" | "keys"] | [*before, "key", "id" | "file" | "path"]:
            return not _NO_KEY & set(before[-1:])
        case [*before, "token"]:
            return not _NO_TOKEN & set(before[-1:])
        case [*before, "tokens"]:
            return bool(before) and not _NO_TOKEN & set(before)
    return False


def hide(value: Any, name: str = "") -> Any:
    """The same without secrets. Yes, no and nothing are none."""
    if name and is_secret(name) and value is not None and not isinstance(value, bool):
        return HIDDEN
    if isinstance(value, dict):
        return {hide_in_text(str(key)): hide(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list):
        return list(_hide_in_words(value))
    return hide_in_text(value) if isinstance(value, str) else value


def _hide_in_words(words: Iterable[Any]) -> Iterator[Any]:
    """Of a command, too: `--token x`, where the name is the word before."""
    before = ""
    for word in words:
        is_option = isinstance(word, str) and word.startswith("-")
        yield hide(word, "" if is_option else before)
        before = word if is_option and "=" not in word else ""


def hide_in_text(text: str) -> str:
    """A path, an address, a line for a shell."""
    text = _BEARER.sub(rf"\1 {HIDDEN}", _USER_OF_URL.sub("", text))
    return _SHAPES.sub(HIDDEN, "".join(_hide_named(text)))


def hide_in_texts(value: Any) -> Any:
    """Of a value whose names are no secrets' (stories, events): what its texts say."""
    if isinstance(value, dict):
        return {
            key: entry if key in _NAMES and _is_name(entry) else hide_in_texts(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_in_texts(entry) for entry in value]
    return hide_in_text(value) if isinstance(value, str) else value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(one, str) for one in value)
    )


def _hide_named(text: str) -> Iterator[str]:
    at = 0
    for name in _NAME.finditer(text):
        if name.start() < at or not _is_secret_in_text(name[1] or name[2], name[3] or ""):
            continue
        if value := _VALUE.match(text, name.end()):
            yield text[at : name.end()]
            yield HIDDEN
            at = value.end()
    yield text[at:]


def _is_secret_in_text(name: str, border: str) -> bool:
    """`border`: what stands between it and its value, if anything but space."""
    if name in _BEFORE_COLONS and border.startswith(":") and border != ":":
        return False
    return not _NO_NAME.search(name) and is_secret(name)
