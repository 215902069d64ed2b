"""`tasuki data` at the shell: exit codes, words on stdout, talk on stderr, and `--json`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import h5py
import numpy as np
import pytest

import tasuki
from tests.commands.test_help import examples_of
from tests.unit.data.curate.samples import make_samples, read_samples, write_flat


@pytest.fixture
def folder(tmp_path) -> Path:
    """data/a.h5 with a repeated sample and a NaN, data/b.h5 without fault."""
    samples = make_samples(90)
    samples[4]["nodes"][0, 0] = np.nan
    (tmp_path / "data").mkdir()
    write_flat(tmp_path / "data" / "a.h5", [*samples[:60], samples[7]])
    write_flat(tmp_path / "data" / "b.h5", samples[60:])
    return tmp_path


def test_check_tells_what_is_wrong_and_fix_mends_it(folder, here):
    said = here(folder, "data", "check", "data")
    assert said.code == 1 and said.err == "", said
    assert said.out.splitlines() == [
        "data/a.h5: 61 samples, 2 bad",
        "  duplicate: 1 sample",
        "    sample 60: the same as sample 7 of `data/a.h5`",
        "  nan in `nodes`: 1 sample",
        "    sample 4: 1 of 18 numbers in `nodes`",
        "data/b.h5: 30 samples, clean",
    ]
    said = here(folder, "data", "check", "data", "--fix")
    assert said.code == 0 and "  data/a.clean.h5 has the 59 others\n" in said.out, said
    said = here(folder, "data", "check", "data/a.clean.h5", "--json")
    assert said.code == 0 and said.json()["clean"], said


def test_merge_and_split_tell_what_they_made(folder, here):
    files = ("data/a.h5", "data/b.h5")
    said = here(folder, "data", "merge", *files, "-o", "data/all.h5", "--unique")
    assert said.code == 0, said
    assert "data/all.h5 has 90 samples" in said.out and "  60 of data/a.h5" not in said.out
    assert "1 sample came before (left out):" in said.out
    assert "  sample 60 of data/a.h5 is sample 7 of data/a.h5\n" in said.out
    assert "warning: 1 sample of `data/a.h5` holds NaN or infinity in `nodes`" in said.out
    assert len(read_samples(folder / "data" / "all.h5")) == 90
    said = here(folder, "data", "split", "data/all.h5", "--seed", "3")
    assert said.code == 0 and "90 samples split into" in said.out, said
    for part in ("train", "val", "test"):
        assert f"data/all/{part}.h5\n" in said.out
        assert (folder / "data" / "all" / f"{part}.h5").exists()


def test_mistakes_are_one_sentence_with_a_hint_and_an_exit_code(folder, here):
    said = here(folder, "data", "split", "data", "--dry-run")
    assert said.code == 2 and said.err.startswith("error: 2 files, and no folder"), said
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.arange(3)
    said = here(folder, "data", "merge", "x.h5", "data/b.h5", "-o", "all.h5")
    assert said.code == 1 and "error: `x.h5` has no `n` (it has `x`)" in said.err, said
    assert "hint: add the size of each sample" in said.err and "Traceback" not in said.err
    said = here(folder, "data", "check", "data/b.h5", "--allow", "offsets")
    assert said.code == 2 and "offsets" in said.err


def test_the_functions_give_what_json_prints(folder, here, monkeypatch):
    monkeypatch.chdir(folder)
    said = here(folder, "data", "merge", "data/a.h5", "data/b.h5", "-o", "all.h5", "--json")
    assert said.code == 0 and said.err == "", said
    assert tasuki.data_merge("data/a.h5", "data/b.h5", output="all.h5", force=True) == said.json()
    made = tasuki.data_split("all.h5", folder="parts", parts="0.5,0.25,0.25")
    assert sum(made["samples"].values()) == 91 and made["seed"] == 0
    found = tasuki.data_check("all.h5", fix=True, output="clean.h5", allow=["nan"])
    assert found["fixed"] and found["files"][0]["kept"] == 90
    with pytest.raises(tasuki.TasukiError, match="exists already"):
        tasuki.data_merge("data/a.h5", output="all.h5")


@pytest.fixture
def corpus(tmp_path) -> Path:
    lines = [json.dumps({"text": f"document {number} of a relay"}) for number in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (
            ("tokenize", "a.jsonl", "-o", "t", "--bytes", "--field", "body"),
            "`a.jsonl:1`: it has no field `body`; it has `text`",
            "--field NAME",
        ),
        (
            ("tokenize", "a.jsonl", "-o", "t", "--bytes", "--field=b", "--on-broken=skip"),
            "there is no text in `a.jsonl`",
            "50 broken lines were skipped, the first: a.jsonl:1: it has no field `b`; it has",
        ),
        (
            ("tokenize", "b.jsonl", "-o", "t", "--bytes"),
            "text `b.jsonl` does not exist; the nearest in",
            "name files of text (.txt, .jsonl, .parquet)",
        ),
        (("check", "a.jsonl"), "`a.jsonl` is text", "`tasuki data tokenize a.jsonl -o tokens`"),
    ],
)
def test_text_that_is_not_there_or_not_what_is_asked_for_is_told_what_is(
    corpus, here, words, error, hint
):
    said = here(corpus, "data", *words)
    assert said.code == 1 and error in said.err and hint in said.err, said


def test_inspect_shows_what_a_folder_of_tokens_is_and_who_checks_it(corpus, here):
    here(corpus, "data", "tokenize", "a.jsonl", "-o", "t", "--bytes", "--chunk", "256")
    said = here(corpus, "inspect", "t")
    assert said.code == 2 and "`t` is a folder of tokens" in said.err, said
    assert "50 documents" in said.err and "`tasuki data check t`" in said.err


def test_tokenize_tells_what_it_made_and_check_finds_it_whole_or_damaged(corpus, here):
    words = ("data", "tokenize", "a.jsonl", "-o", "t", "--bytes", "--chunk", "256")
    said = here(corpus, *words, "--dry-run")
    assert said.code == 0 and not (corpus / "t").exists(), said
    assert said.out == "t would have the tokens of 1 file, 1.74 kB, in chunks of 256 (uint16)\n"
    said = here(corpus, *words)
    assert said.code == 0 and said.err == "", said
    assert said.out.splitlines() == [
        "t has 1,140 tokens of 50 documents: 5 chunks of 256 in 1 shard, 2.56 kB",
        "  vocabulary 257 (uint16), end token 256",
        "  the last chunk is filled up with 140 end tokens",
    ]
    said = here(corpus, "data", "check", "t")
    assert said.code == 0 and said.out == "t: 5 chunks, clean\n", said
    shard = corpus / "t" / "tokens-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2] + b"\0\0")
    said = here(corpus, "data", "check", "t")
    assert said.code == 1 and "  hash: `t/tokens-00000.bin` has another hash" in said.out, said
    shard.write_bytes(whole[:-2])
    said = here(corpus, "data", "check", "t", "--json")
    assert said.code == 1 and said.json()["files"][0]["findings"][0]["kind"] == "size"
    assert "2,558 bytes instead of 2,560" in said.out
    said = here(corpus, "data", "check", "t", "--fix")
    assert said.code == 2 and "tokens, which cannot be mended" in said.err


def test_check_takes_tokens_and_samples_together(folder, corpus, here):
    here(corpus, "data", "tokenize", "a.jsonl", "-o", "t", "--train", "300", "--chunk", "256")
    said = here(folder, "data", "check", "t", "data/b.h5")
    assert said.code == 0 and said.out.splitlines()[1] == "data/b.h5: 30 samples, clean", said
    (corpus / "t" / "tokenizer.json").write_text("{}")
    said = here(folder, "data", "check", "t", "data/a.h5")
    assert said.code == 1 and "is not the one that made these tokens" in said.out, said


def test_broken_lines_stop_or_are_skipped_counted_and_named(corpus, here):
    with (corpus / "a.jsonl").open("a") as file:
        file.write('{"text": \n')
    words = ("data", "tokenize", "a.jsonl", "-o", "t", "--bytes")
    said = here(corpus, *words)
    assert said.code == 1 and "error: `a.jsonl:51`: it is no JSON" in said.err, said
    assert "hint: mend it" in said.err and "Traceback" not in said.err
    said = here(corpus, *words, "--on-broken", "skip")
    assert said.code == 0, said
    assert "1 broken line was skipped:\n  a.jsonl:51: it is no JSON" in said.out
    said = here(corpus, *words)
    assert said.code == 1 and "`t` exists already" in said.err and "--force" in said.err


def test_data_tokenize_gives_what_json_prints(corpus, here, monkeypatch):
    monkeypatch.chdir(corpus)
    said = here(corpus, "data", "tokenize", "a.jsonl", "-o", "t", "--train", "300", "--json")
    assert said.code == 0, said
    again = tasuki.data_tokenize("a.jsonl", output="t", train=300, force=True)
    assert again == said.json() and again["documents"] == 50
    with pytest.raises(tasuki.TasukiError, match="nothing says what the tokens are"):
        tasuki.data_tokenize("a.jsonl", output="s")


def test_every_example_parses():
    from tasuki.cli.main import cli

    group = cli.get_command(click.Context(cli), "data")
    shown = [group, *group.commands.values()]
    examples = [words for command in shown for words in examples_of(command)]
    assert {words[1] for words in examples} == {"merge", "split", "check", "tokenize"}
    for _, name, *arguments in examples:
        group.commands[name].make_context(name, list(arguments))


def test_the_command_line_itself_imports_no_numpy(folder):
    code = (
        "import sys, json, tasuki\n"
        "tasuki.data_check('data/b.h5')\n"
        "tasuki.data_tokenize('data/c.txt', output='t', train=300)\n"
        "print(json.dumps(sorted({'numpy', 'h5py', 'torch', 'tokenizers'} & set(sys.modules))))"
    )
    (folder / "data" / "c.txt").write_text("one two")
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []
