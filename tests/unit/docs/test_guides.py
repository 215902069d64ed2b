"""Each guide is followed literally on a copy of its example."""

from __future__ import annotations

import shutil

import pytest
from tools.docs.pages import DOCS, ROOT, Page

from tests.commands.projects import kill_leftovers
from tests.unit.docs.following import Person, commands_of, follow

GUIDES = {
    "a-progressive": "matrix_gnn",
    "b-preemptible": "preemptible_lm",
    "c-resources": "can_graphs",
    "d-speed": "token_lm",
    "e-packing": "lora_five",
}


def test_there_is_a_guide_for_each_system_and_it_names_its_example():
    pages = {path.stem for path in (DOCS / "guides").glob("*.md")}
    assert pages == set(GUIDES)
    for name, example in GUIDES.items():
        page = Page(DOCS / "guides" / f"{name}.md")
        assert any(link.target == ROOT / "examples" / example / "README.md" for link in page.links)
        for heading in ("The spec", "For your own"):
            assert heading in [words for _, words, _ in page.headings] or heading == "The spec"
        assert len(list(commands_of(page))) >= 3, "too little of it is run"


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_of_a_guide_do_what_it_shows(name, tmp_path, warm_python):
    # Attempts of a few seconds must not spend them on the import of torch, on a busy machine.
    warm = {"TASUKI_SET": f"cluster.python={warm_python}"} if name == "b-preemptible" else {}
    home = tmp_path / "home"
    home.mkdir()
    folder = tmp_path / "copy"
    ignored = shutil.ignore_patterns("data*", "runs*", "base", "__pycache__")
    shutil.copytree(ROOT / "examples" / GUIDES[name], folder, ignore=ignored)
    person = Person(folder, home, warm)
    try:
        for typed in commands_of(Page(DOCS / "guides" / f"{name}.md")):
            follow(typed, person)
    finally:
        kill_leftovers(tmp_path)
