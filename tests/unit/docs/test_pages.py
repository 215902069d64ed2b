"""The book as a whole: links, generated pages, code in pages, names of tests that pages give."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML
from tools.docs.generate import GENERATED, stale
from tools.docs.pages import DOCS, ROOT, Block, Page, all_pages, find_faults, read_index
from tools.docs.site import BrokenSite, build

from tasuki.cli.main import cli
from tasuki.spec.load import load_spec
from tasuki.spec.site import WrittenSite, load_site
from tasuki.spec.written import Layer, Spec

READMES = [ROOT / "README.md", *sorted(ROOT.glob("examples/*/README.md"))]
PAGES = [Page(path) for path in [*all_pages(), *READMES]]
BLOCKS = [block for page in PAGES for block in page.blocks]


def blocks(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and not block.not_run]


def test_every_page_is_in_the_index_and_every_link_leads_somewhere():
    assert find_faults([*PAGES]) == []


def test_pages_made_from_code_say_what_the_code_says():
    assert stale() == [], "`make docs` writes them anew"


def test_the_site_has_every_page_and_needs_nothing_from_elsewhere(tmp_path):
    assert build(tmp_path / "site") >= len(read_index()) + 1
    for entry in read_index():
        place = (tmp_path / "site" / entry.path.relative_to(DOCS)).with_suffix(".html")
        text = place.read_text()
        assert f"<title>{_as_html(Page(entry.path).title)}" in text
        assert "<script" not in text and 'rel="stylesheet" href="http' not in text


def _as_html(text: str) -> str:
    import html

    return html.escape(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[there](nowhere.md)", "`nowhere.md` is not there"),
        ("[there](start.md#no-such-heading)", "`start.md#no-such-heading`: no such heading"),
    ],
)
def test_a_broken_link_ends_the_build_with_page_and_line(tmp_path, monkeypatch, text, told):
    page = Page(DOCS / "start.md")
    object.__setattr__(page, "__dict__", {"path": page.path, "text": f"# Title\n\n{text}\n"})
    assert [fault for fault in find_faults([page]) if told in fault] == [f"docs/start.md:3: {told}"]
    assert issubclass(BrokenSite, Exception)


# -- code in pages ------------------------------------------------------------------------------


def test_python_in_pages_is_python():
    for block in blocks("python"):
        ast.parse(block.text, filename=str(block))


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_in_pages_is_read_by_the_loader_of_specs(block, tmp_path):
    value = YAML(typ="safe").load(block.text)
    keys = set(value)
    spec = tmp_path / "tasuki.yaml"
    of_a_site = {"gpus", "partitions", "queue", "poll"}
    if keys & of_a_site and keys <= set(WrittenSite.__struct_fields__):
        spec.write_text(block.text)
        load_site(environ={"TASUKI_SITE": str(spec)})
        return
    is_part = keys <= set(Layer.__struct_fields__) and not keys & {"recipe", "command"}
    text = f"defaults:\n{_indented(block.text)}" if is_part else block.text
    assert is_part or keys <= set(Spec.__struct_fields__), keys
    if is_part or "experiments" not in keys:
        text += "\nexperiments: {x: {data: d}}\n"
    if "recipe:" not in text and "command:" not in text:
        text += "\nrecipe: recipe:Recipe\n"
    for name in re.findall(r"\w+\.(?:yaml|yml)", block.text):
        (tmp_path / name).write_text("data: d\n")
    spec.write_text(text)
    load_spec(str(spec), environ={"TASUKI_SITE": ""}, look=None)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def test_every_command_in_pages_is_one_that_the_command_line_takes():
    """Whether it is run by a test or not: verbs, options and values exist."""
    for block in [block for block in BLOCKS if block.language == "console"]:
        for name, *arguments in typed_words(block.text):
            command = cli.get_command(click.Context(cli), name)
            assert command is not None, f"{block}: there is no verb {name}"
            try:
                command.make_context(name, list(arguments))
            except click.ClickException as error:
                pytest.fail(f"{block}: {name} {arguments}: {error.format_message()}")


def typed_words(text: str) -> list[list[str]]:
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line[2:] for line in joined.splitlines() if line.startswith(("$ ", "> "))]
    found = []
    for line in lines:
        for part in re.split(r"&&|;|\bdo\b|\||\bthen\b", re.sub(r"\s#\s.*", "", line)):
            called = re.search(r"(?:^|\s)tasuki\s+(.*)$", part)
            if called and not part.strip().startswith(("torchrun", "#")):
                found.append(shlex.split(called[1]))
    return found


# -- what pages say about the code ----------------------------------------------------------------


@cache
def names_of_tests() -> dict[str, set[str]]:
    found = {}
    for path in (ROOT / "tests").rglob("*.py"):
        names = set(re.findall(r"(?m)^(?:async )?def (test_\w+)", path.read_text()))
        found[str(path.relative_to(ROOT / "tests"))] = names
    return found


@pytest.mark.parametrize("name", ["requirements.md", "promises.md"])
def test_every_test_that_a_page_names_exists(name):
    tests = names_of_tests()
    text = (DOCS / name).read_text()
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    wrong = [
        f"{file}::{test}"
        for file, test in named
        if Path(file).name.startswith("test_")
        and (file not in tests or (test and test not in tests[file]))
    ]
    assert wrong == []


def test_every_row_of_the_five_systems_is_in_the_requirements_with_a_command_and_a_test():
    rows = {}
    for line in (DOCS / "requirements.md").read_text().splitlines():
        if found := re.match(r"\| ([A-E]\d+) \|", line):
            rows[found[1]] = [cell.strip() for cell in line.split(" | ")]
    counts = {"A": 12, "B": 13, "C": 7, "D": 10, "E": 4}
    assert set(rows) == {f"{s}{n}" for s, most in counts.items() for n in range(1, most + 1)}
    for name, cells in rows.items():
        assert "`" in cells[2], f"{name} has no command"
        assert "test_" in cells[3], f"{name} has no test"


def test_the_book_is_in_plain_text_that_a_terminal_can_show():
    for page in PAGES:
        assert "\t" not in page.text.replace("\\t", ""), page.path
        assert not re.search(r"/(?:work/|tmp/\w)", page.text), (
            f"{page.path} names a machine's folder"
        )


def test_every_page_of_the_reference_is_generated():
    assert set(GENERATED) == {
        f"reference/{path.name}" for path in (DOCS / "reference").glob("*.md")
    }


def test_pictures_that_are_shown_are_there():
    for page in PAGES:
        for link in page.links:
            if link.href.endswith((".png", ".svg")) and not link.is_elsewhere:
                assert Path(link.target).exists(), f"{page.path}: {link.href}"
