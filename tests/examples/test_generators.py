"""The examples' generators of data: the same bytes everywhere, and plain words."""

from __future__ import annotations

import pytest
from tests.examples.copies import generate

SMALL = [
    ("preemptible_lm", ("--lines", "30"), "train.txt"),
    ("token_lm", ("--documents", "30"), "train.jsonl"),
    ("can_graphs", ("--sets", "hcrl_sa", "--scale", "0.001"), "hcrl_sa/val.h5"),
    ("matrix_gnn", ("--sizes", "8:3", "12:2"), "size_12/train.h5"),
]


@pytest.mark.parametrize(("name", "words", "file"), SMALL)
def test_a_command_makes_the_same_bytes_wherever_it_runs_and_another_seed_makes_others(
    tmp_path, name, words, file
):
    for out, seed in (("one", "1"), ("two", "1"), ("three", "2")):
        assert generate(name, tmp_path, "--out", out, "--seed", seed, *words).code == 0
    one, two, three = ((tmp_path / out / file).read_bytes() for out in ("one", "two", "three"))
    assert one == two != three


@pytest.mark.parametrize(
    ("name", "more", "file"),
    [
        ("preemptible_lm", ("--lines", "40"), "train.txt"),
        ("token_lm", ("--documents", "40"), "train.jsonl"),
        ("matrix_gnn", ("--sizes", "20:1", "12:2", "--together", "mixed=20"), "size_12/train.h5"),
    ],
)
def test_a_sample_is_the_same_whatever_else_is_made(tmp_path, name, more, file):
    (words,) = [words for other, words, _ in SMALL if other == name]
    for out, chosen in (("one", words), ("more", more)):
        assert generate(name, tmp_path, "--out", out, *chosen).code == 0
    one, other = ((tmp_path / out / file).read_bytes() for out in ("one", "more"))
    assert other == one if file.endswith("h5") else other.startswith(one) and one.isascii()


@pytest.mark.parametrize(
    ("name", "words", "others"),
    [
        ("matrix_gnn", ("--sizes", "8:2"), ("--sizes", "8:3")),
        ("can_graphs", ("--sets", "hcrl_ch", "--scale", "0.001"), ("--sets", "hcrl_ch")),
    ],
)
def test_files_made_otherwise_are_replaced_only_by_force(tmp_path, name, words, others):
    assert generate(name, tmp_path, *words).code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("train.h5")}
    again = generate(name, tmp_path, *words)
    assert again.code == 0 and again.out.count("there already") == 3
    refused = generate(name, tmp_path, *others)
    assert refused.code == 1 and "--force" in refused.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("train.h5")} == before
    assert generate(name, tmp_path, *words, "--seed", "2", "--force").code == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("train.h5")} != before


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("matrix_gnn", ("--sizes", "16"), "SIZE:COUNT"),
        ("matrix_gnn", ("--sizes", "16:0"), "0 is not a number of at least 1"),
        ("matrix_gnn", ("--together", "16,32"), "write small=16,32"),
        ("matrix_gnn", ("--sizes", "16:2", "--together", "a=16,32"), "names size 32"),
        ("token_lm", ("--documents", "0"), "at least one"),
        ("token_lm", ("--keys", "5000"), "names for 975 ships"),
        ("can_graphs", ("--scale", "2"), "up to 1"),
        ("can_graphs", ("--sets", "set_9"), "set_01"),
    ],
)
def test_a_generator_says_what_is_wrong_with_its_arguments(tmp_path, name, words, told):
    done = generate(name, tmp_path, *words)
    assert done.code != 0 and told in done.err and "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []
