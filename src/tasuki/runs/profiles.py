"""The profiles that `--profile` left in a run: of each stage the newest."""

from __future__ import annotations

from typing import Any

from tasuki.runs.atomic import list_folder, read_json
from tasuki.runs.runs import RunFolder


def read_profiles(run: RunFolder) -> list[dict[str, Any]]:
    """In the order in which the stages were first profiled."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(list_folder(run.profile, "*.json"), key=lambda path: _claim(path.name)):
        value = read_json(path)
        newest[str(value.get("stage"))] = value
    return list(newest.values())


def _claim(name: str) -> int:
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else 0
