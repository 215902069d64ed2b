"""`tasuki help`: the same pages in a terminal."""

from __future__ import annotations

import pytest
from tools.docs.pages import read_index

from tasuki.commands.pages import find_pages, find_topic, read_topics


def test_help_lists_every_page_with_its_words_and_the_verbs(here, tmp_path):
    said = here(tmp_path, "help")
    assert said.code == 0
    for entry in read_index():
        assert entry.words.replace("`", "").replace("**", "") in said.out
    assert "Every day: new run submit" in said.out


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("start", "start"),
        ("spec", "reference/spec"),
        ("reference/spec.md", "reference/spec"),
        ("b", "guides/b-preemptible"),
        ("Preemptible", "guides/b-preemptible"),
    ],
)
def test_a_page_is_found_by_its_name_or_the_last_part_of_it(name, page):
    topics = read_topics(find_pages())
    found = find_topic(name, topics)
    assert found is not None and found.name == page
    assert found.path.is_file()


def test_a_page_is_shown_as_text_with_its_code_as_it_is(here, tmp_path):
    said = here(tmp_path, "help", "start", COLUMNS="60")
    assert said.code == 0
    assert said.out.startswith("Ten minutes\n")
    assert "    $ tasuki new first\n" in said.out
    assert "```" not in said.out and "<!--" not in said.out and "\x1b" not in said.out
    assert "See also: tasuki help" in said.out and "](" not in said.out


def test_every_page_can_be_shown(here, tmp_path):
    made = {"errors", "reference/json", "reference/verbs"}  # long, and all alike
    for topic in [one for one in read_topics(find_pages()) if one.name not in made]:
        said = here(tmp_path, "help", topic.name, COLUMNS="40")
        assert said.code == 0 and len(said.out) > 200, topic.name


def test_a_verb_without_a_page_is_its_own_help(here, tmp_path):
    assert here(tmp_path, "help", "export").out == here(tmp_path, "export", "--help").out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("preemptable", "guides/b-preemptible"), ("sttus", "status")],
)
def test_a_name_that_is_not_there_gets_the_nearest(here, tmp_path, typed, meant):
    said = here(tmp_path, "help", typed)
    assert said.code == 2
    assert f"error: there is no page `{typed}`" in said.err
    assert f"hint: did you mean `tasuki help {meant}`?" in said.err


def test_pages_that_were_not_installed_are_named_as_such(tmp_path):
    from tasuki.errors import StoreError

    with pytest.raises(StoreError, match="not installed"):
        find_pages((tmp_path,))
