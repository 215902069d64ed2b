"""Bugs planted in a copy of the package: a suite that does not catch them is broken.

The copy has its own sources and tests; what is planted never touches the checkout. Run by the
`test_planted_…` suites.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Planted:
    """One bug: in `file` (below src/tasuki) `old`, which stands there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest: what must catch it."""


class Copy:
    """The package and its tests, elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "tests", "examples"):  # templates link to examples
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder / name)

    @contextmanager
    def with_bug(self, bug: Planted) -> Iterator[None]:
        path = self.folder / "src" / "tasuki" / bug.file
        text = path.read_text()
        assert text.count(bug.old) == 1, f"{bug.name}: {bug.file} has changed; plant it anew"
        path.write_text(text.replace(bug.old, bug.new))
        try:
            yield
        finally:
            path.write_text(text)

    def run(self, tests: tuple[str, ...], *, within_s: float = 900.0) -> tuple[bool, str]:
        """(all passed, what pytest said). Of whole files the quick tests; one that is named is run
        even if it takes long."""
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("TASUKI_", "PYTEST"))
        }
        told = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                *([] if all("::" in test for test in tests) else ["-m", "not long"]),
                "-p",
                "no:randomly",
                *tests,
            ],
            cwd=self.folder,
            env={
                **environment,
                "PYTHONPATH": str(self.folder / "src"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        # 1: tests failed. Anything else (usage, nothing collected, interrupted) proves nothing.
        assert told.returncode in (0, 1), told.stdout[-3000:] + told.stderr[-3000:]
        return told.returncode == 0, told.stdout
