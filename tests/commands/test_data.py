"""`tasuki data` at the shell: exit codes, words on stdout, talk on stderr, and `--json`."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import tasuki
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


def test_data_tokenize_gives_what_json_prints(corpus, here, monkeypatch):
    monkeypatch.chdir(corpus)
    said = here(corpus, "data", "tokenize", "a.jsonl", "-o", "t", "--train", "300", "--json")
    assert said.code == 0, said
    again = tasuki.data_tokenize("a.jsonl", output="t", train=300, force=True)
    assert again == said.json() and again["documents"] == 50
    with pytest.raises(tasuki.TasukiError, match="nothing says what the tokens are"):
        tasuki.data_tokenize("a.jsonl", output="s")
