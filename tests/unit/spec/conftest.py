"""A folder to write specs into, and one way to load them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasuki.errors import SpecError
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec, ResolvedStage

SMALL = """
recipe: recipes.toy:Toy
experiments:
  toy:
    stages:
      - {name: one, data: a.h5, epochs: 3}
      - {name: two, data: b.h5, epochs: 4}
"""


@dataclass(frozen=True)
class Project:
    """A folder with a spec in it."""

    folder: Path

    def write(self, text: str, name: str = "tasuki.yaml") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def load(
        self,
        text: str,
        *settings: str,
        config: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> ResolvedSpec:
        path = self.write(text)
        return load_spec(str(path), settings=settings, config=config, environ=environ or {})

    def stages(self, text: str, *settings: str, **options: object) -> list[ResolvedStage]:
        """The stages of the first experiment."""
        spec = self.load(text, *settings, **options)  # type: ignore[arg-type]
        return list(spec.experiments[0].stages)

    def refuse(self, text: str, *settings: str, **options: object) -> SpecError:
        """The error of a spec that cannot be loaded; every one has a hint and an exit code."""
        with pytest.raises(SpecError) as caught:
            self.load(text, *settings, **options)  # type: ignore[arg-type]
        assert caught.value.hint
        assert caught.value.exit_code in (1, 2)
        return caught.value


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def small() -> str:
    return SMALL
