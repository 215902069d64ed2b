"""What people install: the built wheel, its content, and that it leaves their torch alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import tasuki
from tests.unit.packaging.conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if not name.endswith("/")}


def metadata_of(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(file.read(name).decode())


def tracked(folder: str) -> set[str]:
    done = subprocess.run(
        ["git", "-C", ROOT, "ls-files", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("no git checkout: which files belong to the project is not known")
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    wanted = {name.removeprefix("src/") for name in tracked("src/tasuki")}
    pages = [name for name in tracked("docs") if name.endswith(".md")]
    wanted |= {name.replace("docs", "tasuki/docs_pages", 1) for name in pages}
    own = {name for name in names_in(wheel) if ".dist-info/" not in name}
    assert wanted <= own, f"not in the wheel: {sorted(wanted - own)}"
    more = {name for name in own - wanted if not (ROOT / "src" / name).exists()}
    assert not more, f"nobody wrote: {sorted(more)}"
    assert not [name for name in own if "__pycache__" in name or name.startswith("tests")]
    for name in ("py.typed", "templates/new/tasuki.yaml", "docs_pages/index.md"):
        assert f"tasuki/{name}" in own
    docs = [name for name in own if name.startswith("tasuki/docs_pages/")]
    assert [name for name in docs if not name.endswith(".md")] == [], "pictures or scripts"
    with zipfile.ZipFile(wheel) as file:  # a link in the checkout
        recipe = file.read("tasuki/templates/demo/recipe.py")
    assert recipe == (ROOT / "examples" / "matrix_gnn" / "recipe.py").read_bytes()


def test_the_extra_for_transformers_brings_what_its_trainer_needs_at_a_version_that_was_seen():
    """transformers has accelerate in an extra of its own; TrainingArguments ask for it."""
    needed = {
        re.split("[>=]", one)[0] for one in PYPROJECT["project"]["optional-dependencies"]["hf"]
    }
    assert needed == {"transformers", "accelerate"}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert needed <= pinned


def test_the_wheel_says_which_version_it_is_that_it_has_types_and_what_it_needs(wheel):
    told = metadata_of(wheel)
    assert told["Version"] == tasuki.__version__
    assert "Typing :: Typed" in told.get_all("Classifier")
    torch = [need for need in told.get_all("Requires-Dist") if need.startswith("torch>")]
    assert torch == ["torch>=2.4"], "a floor, and no ceiling"


@pytest.mark.long
@pytest.mark.parametrize("extras", ["", "[board,hdf5,lightning,hf]"])
def test_the_wheel_installs_beside_an_existing_torch_without_touching_it(
    bare, wheel, tmp_path, extras
):
    report = tmp_path / "report.json"
    words = ("python", "-m", "pip", "install", "--dry-run", "--no-index", "--quiet")
    bare.run(*words, "--report", report, f"{wheel}{extras}", cwd=tmp_path)
    planned = [one["metadata"]["name"] for one in json.loads(report.read_text())["install"]]
    assert planned == ["tasuki"]


@pytest.mark.long
def test_without_torch_pip_would_look_for_one_so_the_test_above_can_fail(bare, wheel, tmp_path):
    words = ("python", "-m", "pip", "install", "--dry-run", "--no-index", "--ignore-installed")
    bare.run(*words, wheel, cwd=tmp_path, code=1)


def test_the_installed_wheel_makes_a_project_and_plans_it(installed, tmp_path):
    where = installed("python", "-c", "import tasuki; print(tasuki.__file__)", cwd=tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT / "src")
    for words in (("tasuki",), ("python", "-m", "tasuki")):
        assert tasuki.__version__ in installed(*words, "--version", cwd=tmp_path)
    installed("tasuki", "new", "mine", cwd=tmp_path)
    assert (tmp_path / "mine" / ".gitignore").is_file()
    plan = json.loads(installed("tasuki", "plan", "--no-measure", "--json", cwd=tmp_path / "mine"))
    assert plan["jobs"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_installed_wheel_trains_what_it_made_and_shows_it(installed, tmp_path):
    installed("tasuki", "new", "mine", cwd=tmp_path)
    installed("tasuki", "run", "--set", "epochs=1", cwd=tmp_path / "mine")
    (run,) = json.loads(installed("tasuki", "status", "--json", cwd=tmp_path / "mine"))["runs"]
    assert run["state"] == "complete"


USER = """
from typing import Any

import tasuki

stage = tasuki.Stage(name="small", data="small.h5", epochs=3)
spec = tasuki.Spec(recipe="recipes:Mine", experiments={"grow": tasuki.Experiment(stages=[stage])})
told: dict[str, Any] = tasuki.status(runs="runs")
reveal_type(tasuki.plan("tasuki.yaml"))
tasuki.Stage(nmae="small")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_type_checker_sees_the_types_of_the_installed_wheel(installed, tmp_path):
    (tmp_path / "mine.py").write_text(USER)
    python = installed("python", "-c", "import sys; print(sys.executable)", cwd=tmp_path).strip()
    words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "mine.py"]
    done = subprocess.run(
        [*words, "--follow-imports=silent"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"Revealed type is .*dict\[\S*str, Any\]", done.stdout), done
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and '"nmae"' in errors[0], done.stdout


@pytest.mark.long
def test_a_wheel_made_from_the_source_archive_has_the_same_files(wheel, tmp_path):
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (again,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert names_in(again) == names_in(wheel)
    with tarfile.open(archive) as file:
        tops = {name.split("/")[1] for name in file.getnames() if "/" in name}
    assert tops == {
        *("src", "docs", "examples", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"),
        *("PKG-INFO", ".gitignore"),
    }
