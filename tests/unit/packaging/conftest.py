"""The built wheel, and an environment that has torch and everything else, but not tasuki."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Built as pip builds it: by a call of the backend in a process of its own."""
    pytest.importorskip("hatchling", reason="`pip install hatchling`, which builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    code = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, check=True)
    (found,) = folder.glob("*.whl")
    return found


class Environment:
    """A virtual environment whose packages are links to those of this one, tasuki left out."""

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        for theirs in map(Path, site.getsitepackages()):
            for path in sorted(theirs.iterdir()):
                if "tasuki" not in path.name and not (self.packages / path.name).exists():
                    (self.packages / path.name).symlink_to(path)

    def run(self, *words: str | Path, cwd: Path, code: int = 0) -> str:
        """Without anything of ours in the environment: what is installed must do."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
        done = subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=cwd,
            env={**kept, "PATH": f"{self.bin}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def bare(tmp_path_factory) -> Environment:
    """Has torch, and no tasuki."""
    return Environment(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory, wheel) -> Callable[..., str]:
    """Runs programs where the built wheel is installed."""
    environment = Environment(tmp_path_factory.mktemp("installed"))
    pip = ("python", "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "-q")
    environment.run(*pip, wheel, cwd=wheel.parent)
    return environment.run
