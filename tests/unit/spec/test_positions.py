"""YAML with places: what is read, where it was, and what is refused."""

from __future__ import annotations

import pytest

from tasuki.errors import SpecError
from tasuki.spec.positions import read_yaml


def read(text: str) -> object:
    return read_yaml(text, file="s.yaml").root.plain()


def refuse(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert caught.value.hint
    return caught.value


def test_every_value_knows_its_file_line_and_column():
    text = "experiments:\n  p:\n    stages:\n      - name: a\n        epochs: 3\n"
    places = dict(read_yaml(text, file="s.yaml").root.places())
    mark = places["experiments", "p", "stages", 0, "epochs"]
    assert (mark.file, mark.line, mark.column) == ("s.yaml", 5, 9)
    assert places["experiments", "p", "stages", 0].line == 4


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12:00:00", "12:00:00"),
        ("1-12:00:00", "1-12:00:00"),
        ("1e-4", 1e-4),
        ("yes", "yes"),
        ("Off", "Off"),
        ("true", True),
        ("~", None),
        ("010", 10),
        ("0o10", 8),
        ("0x1f", 31),
        ("1_000", 1000),
        ("2024-01-01", "2024-01-01"),
        ("'3'", "3"),
        (".inf", float("inf")),
        ("512..2048", "512..2048"),
    ],
)
def test_scalars_mean_what_they_look_like(written, value):
    got = read(f"k: {written}")
    assert got == {"k": value}
    assert isinstance(got, dict)
    assert type(got["k"]) is type(value)


def test_one_warning_per_file_lists_what_pyyaml_would_read_differently():
    text = "a: 12:00:00\nb: 1e-3\nc: yes\nd: 010\ne: '12:00:00'\nf: 08:00:00\ng: 1.5e-3\n"
    (warning,) = read_yaml(text, file="s.yaml").warnings
    assert warning == (
        "s.yaml: PyYAML would read line 1 `12:00:00` as 43200, line 2 `1e-3` as text, "
        "line 3 `yes` as true, line 4 `010` as 8; tasuki reads YAML 1.2"
    )
    assert read_yaml("a: 1\nb: 0.5\nc: text\n", file="s.yaml").warnings == ()


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a: 1\nb: c: d\n", "s.yaml:2:5", "second `:`"),
        ("a: 1\nb: [1, 2\n", "s.yaml:2:4", "never closed"),
        ("a:\n\t- x\n", "s.yaml:2:1", "tab"),
        ("a: *gone\n", "s.yaml:1:4", "alias"),
        ("a: 'x\n", "s.yaml:1:4", "quote"),
        ("a: 1\n---\nb: 2\n", "s.yaml:2:1", "second document"),
        ("ok: 1\nbad: \x01\n", "s.yaml:2", "character"),
    ],
)
def test_a_syntax_error_names_file_line_column_and_the_problem(text, where, words):
    error = refuse(text)
    assert error.message.startswith(f"{where}: ")
    assert words in error.message


def test_two_halves_of_a_character_are_one_and_a_single_half_is_refused():
    assert read(r'"\ud83d\ude00": "\uD800\uDC00"') == {"\U0001f600": "\U00010000"}
    assert "s.yaml:2: half a character" in refuse('a: 1\nb: "\\ud800x"').message


def test_a_duplicate_key_is_refused_with_both_lines():
    error = refuse("a: 1\nb: 2\na: 3\n")
    assert error.message == "s.yaml:3: `a` is written twice (first in line 1)"


def test_merge_keys_bring_in_what_is_not_written_here():
    text = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz: {<<: [*x, *y], a: 9}\nw: {<<: *y}\n"
    value = read(text)
    assert isinstance(value, dict)
    assert value["z"] == {"a": 9, "b": 2, "c": 4}
    assert value["w"] == {"b": 3, "c": 4}
    assert "s.yaml:1" in refuse("<<: 3\n").message


def test_an_alias_bomb_is_refused_at_once():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    error = refuse("\n".join(lines))
    assert "more than 100,000 values" in error.message
    assert error.message.startswith("s.yaml:5")  # of thirty lines


def test_values_nested_too_deep_are_refused_through_aliases_too():
    for depth in (51, 5000):  # more than Python's own limit
        assert "50 levels" in refuse("[" * depth + "]" * depth).message
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 60)]
    assert "50 levels" in refuse("\n".join(lines)).message
    read("[" * 50 + "]" * 50)


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}"])
def test_a_value_that_contains_itself_is_refused(text):
    assert "contains itself" in refuse(text).message


@pytest.mark.parametrize(
    "text", ["a: !!python/object:os.system {}", "a: !foo 3", "a: !!set {x}", "? [1, 2]\n: 3\n"]
)
def test_tags_and_strange_keys_are_refused_not_run(text):
    assert refuse(text).message.startswith("s.yaml:1: ")


def test_an_anchor_may_be_used_again_without_noise(recwarn):
    assert read("a: &x 1\nb: &x 2\nc: *x\n") == {"a": 1, "b": 2, "c": 2}
    assert not recwarn.list
