"""Names that become folders, job names and arguments."""

from __future__ import annotations

import re

from tasuki.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)


def check_name(name: str, *, what: str) -> str:
    """Letters, digits, `_`, `-` and `.` only: nothing that a shell or a path could misread."""
    if not _NAME.fullmatch(name) or name.endswith(".tmp"):
        raise UsageError(
            f"{what} `{name[:100]}` cannot be a name",
            hint="use letters, digits, `_`, `-`, `.`; begin with a letter or digit; at most 100",
        )
    return name
