"""docs/start.md: from nothing to a run that was interrupted, followed literally."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tools.docs.pages import DOCS, ROOT, Page
from tools.docs.shapes import read_recorded, shape_of, unknown

from tests.commands.projects import kill_leftovers
from tests.unit.docs.following import Person, commands_of, follow, missing_from

START = Page(DOCS / "start.md")
INSTALL = "pip install ."
JSON = (
    ("status",),
    ("plan", "--no-measure"),
    ("history",),
    ("logs", "sine"),
    ("checkpoint", "show", "sine"),
    ("checkpoint", "verify", "sine"),
    ("checkpoint", "prune", "sine", "--dry-run"),
)
"""What can be asked of a finished run, quickly."""


def test_there_are_at_most_ten_commands_and_each_is_typed_by_a_test():
    commands = [typed.command for typed in commands_of(START)]
    parts = [part for command in commands for part in command.split("&&")]
    assert len(parts) <= 10, commands
    verbs = [part.split()[1] for part in parts if part.startswith("tasuki")]
    assert verbs == ["new", "plan", "run", "run", "status", "why", "submit"]
    assert all(block.not_run is None for block in START.blocks)


@pytest.mark.timeout(1200)  # each command has its own limit
def test_the_commands_of_the_start_page_do_what_it_shows(tmp_path, warm_python, here):
    """With workers that have torch imported already: nothing else differs from a person's. What
    the run's JSON holds is what the reference tells."""
    home = tmp_path / "home"
    home.mkdir()
    sets = {"TASUKI_SET": f"cluster.python={warm_python};cluster.cpus=1"}
    person = Person(tmp_path, home, sets)
    try:
        for typed in commands_of(START):
            if typed.command != INSTALL and not typed.needs_slurm:
                follow(typed, person)
        assert person.folder == tmp_path / "first"
        assert list(home.glob("*")) == [], "something was left in HOME"
        for words in JSON:
            said = here(person.folder, *words, "--json")
            assert said.code == 0, said
            name = " ".join(word for word in words if word != "sine" and not word.startswith("-"))
            assert unknown(shape_of(said.json()), read_recorded()[name]) == [], name
    finally:
        kill_leftovers(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_all_of_it_from_the_installation_to_a_real_slurm(tmp_path, cluster):
    """A fresh environment beside an installed torch, a fresh HOME, nothing warm."""
    source, home, work = tmp_path / "tasuki", tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    _copy_source(source)
    path = _fresh_environment(tmp_path / "env")
    own = {key: cluster.environment[key] for key in ("SLURM_CONF",)}
    person = Person(source, home, {**own, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}, path)
    try:
        for typed in commands_of(START):
            follow(typed, person)
            if typed.command == INSTALL:
                person.folder = work
        where = [str(Path(path) / "python"), "-c", "import tasuki; print(tasuki.__file__)"]
        used = subprocess.run(where, capture_output=True, text=True, check=True, cwd=work)
        assert used.stdout.startswith(str(tmp_path / "env")), "not the one that was installed"
    finally:
        cluster.run("scancel", "--user", str(os.getuid()))
        kill_leftovers(tmp_path)


def _copy_source(folder: Path) -> None:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, folder / name)


def _fresh_environment(folder: Path) -> str:
    """Torch and the other packages are there already, as in a person's own environment."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    (packages,) = folder.glob("lib/python3*/site-packages")
    theirs = [sysconfig.get_paths()["purelib"], *(p for p in sys.path if "site-packages" in p)]
    (packages / "beside.pth").write_text("\n".join(dict.fromkeys(theirs)) + "\n")
    return str(folder / "bin")


def test_a_page_that_shows_what_is_not_printed_is_found_out():
    shown = ("plan first-aaaaaa", "…", "job 17: first-bbbbbb-01", "12.3s  train coarse")
    real = "plan first-fcdcd0\n\nwhat waits\njob 2: first-fcdcd0-01\n1.2s  train coarse  –\n"
    assert missing_from(shown, real) == []
    assert missing_from((*shown, "sine: complete"), real) == ["sine: complete"]
    assert missing_from(("the job is done", "a plan"), "a plan\nthe job is done\n") == ["a plan"]
