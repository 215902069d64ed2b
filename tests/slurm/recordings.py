"""What several versions of Slurm printed, for tests; recorded/README.md says how it was made."""

from __future__ import annotations

import json
from pathlib import Path

from tasuki.slurm.client import Answer

_FOLDER = Path(__file__).parent / "recorded"
VERSIONS = sorted(folder.name for folder in _FOLDER.iterdir() if folder.is_dir())


def recorded(version: str, name: str) -> str:
    return (_FOLDER / version / f"{name}.txt").read_text()


def recorded_answers(version: str) -> dict[str, Answer]:
    """By name: what commands said that could not do their work."""
    told = json.loads((_FOLDER / version / "answers.json").read_text())
    return {name: Answer(one["status"], one["out"], one["err"]) for name, one in told.items()}
