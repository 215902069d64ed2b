"""`python -m tools.plant`: rows are read and refused, and a bug changes exactly one place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.planted import Bug, PlantError, plant, read_bugs, write_source
from tools.same_bits import ROOT

ROW = """
[[bug]]
name = "off_by_one"
package = "runs"
file = "src/tasuki/runs/claims.py"
old = "a + 1"
new = "a"
why = "two attempts have one number"
from = "mistake"
tests = ["tests/runs/test_claims.py"]
"""
BUG = Bug(
    name="off_by_one",
    package="runs",
    file="src/tasuki/runs/claims.py",
    old="a + 1",
    new="a",
    why="two attempts have one number",
    origin="mistake",
    tests=["tests/runs/test_claims.py"],
)


@pytest.fixture
def read(tmp_path):
    def read(text: str, *names: str) -> list[Bug]:
        path = tmp_path / "planted.toml"
        path.write_text(text)
        return read_bugs(path, names)

    return read


def test_a_row_becomes_a_bug(read):
    assert read(ROW) == [BUG]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROW + ROW, "off_by_one: two rows have this name"),
        (ROW.replace("why", "reason"), "off_by_one: .*`reason`"),
        (ROW.replace('new = "a"\n', ""), "off_by_one: .*`new`"),
        (ROW.replace('"mistake"', '"chance"'), "off_by_one: .*from`"),
        (ROW + 'caught = "later"\n', "off_by_one: .*caught`"),
    ],
)
def test_a_wrong_row_is_refused_by_name(read, text, words):
    with pytest.raises(PlantError, match=words):
        read(text)


def test_a_bug_changes_the_one_place_that_it_names():
    assert plant(BUG, "b = a + 1\n") == "b = a\n"


@pytest.mark.parametrize(("source", "count"), [("b = a\n", 0), ("a + 1, a + 1\n", 2)])
def test_a_bug_that_fits_no_place_or_several_is_refused(source, count):
    with pytest.raises(PlantError, match=f"off_by_one: `old` is {count} times in .*claims.py"):
        plant(BUG, source)


def test_bugs_are_chosen_by_name_and_an_unknown_name_is_refused(read):
    text = ROW + ROW.replace("off_by_one", "another")
    assert len(read(text)) == 2
    assert read(text, "off_by_one") == [BUG]
    with pytest.raises(PlantError, match="unknown bug: other"):
        read(text, "other")


def test_every_planted_bug_fits_the_source_and_names_tests_that_exist():
    bugs = read_bugs()
    for bug in bugs:
        source = (ROOT / bug.file).read_text()
        assert plant(bug, source) != source, bug.name
        assert bug.tests and all((ROOT / Path(t.split("::")[0])).exists() for t in bug.tests)
        assert bug.file.startswith(f"src/tasuki/{bug.package}/")


def test_python_runs_a_change_that_keeps_the_size_and_comes_within_the_second(tmp_path):
    module = tmp_path / "module.py"
    for number in ("1", "2", "3"):
        write_source(module, f"print({number})\n")
        words = [sys.executable, "-c", "import module"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == f"{number}\n"
