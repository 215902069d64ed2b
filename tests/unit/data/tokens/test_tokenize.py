"""Documents become one stream of tokens, whatever they lie in and whoever encodes them."""

from __future__ import annotations

import gzip
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.data.tokens.corpus import (
    content,
    documents_of,
    make_documents,
    read_stream,
    tokenize,
    write_jsonl,
    write_parquet,
)

from tasuki.data.tokens import TokenDataset
from tasuki.data.tokens import tokenize as making
from tasuki.data.tokens.cut import cut_document
from tasuki.data.tokens.index import read_index
from tasuki.errors import StoreError, UsageError

TEXTS = make_documents(3)


def test_every_kind_of_file_gives_its_documents_in_order(tmp_path):
    texts = make_documents(90)
    files = [
        write_jsonl(tmp_path / "a.jsonl", texts[:30]),
        write_jsonl(tmp_path / "b.jsonl.gz", texts[30:60]),
        write_parquet(tmp_path / "c.parquet", texts[60:89]),
        tmp_path / "d.txt",
    ]
    files[3].write_text(texts[89])
    told = tokenize(*files, output=tmp_path / "t")
    assert documents_of(tmp_path / "t") == [text.encode() for text in texts]
    assert [one["documents"] for one in told["sources"]] == [30, 30, 29, 1]
    assert sum(one["tokens"] for one in told["sources"]) == told["tokens"]
    assert told["chunks"] * 64 == told["tokens"] + told["padding"]
    assert told["said"] == [] and not list(tmp_path.glob(".*"))


def test_a_table_whose_texts_are_categories_gives_them_too(tmp_path):
    """As pandas writes a column of few different texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.array([*TEXTS, *TEXTS]).dictionary_encode()
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=2)
    tokenize(tmp_path / "a.parquet", output=tmp_path / "t")
    assert documents_of(tmp_path / "t") == [text.encode() for text in [*TEXTS, *TEXTS]]


def test_texts_are_cut_into_documents_as_asked(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\n \n\nthree\nfour\n\n\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf\nfive\n\tsix"))

    def cut(how):
        files = (tmp_path / "a.txt", tmp_path / "b.txt.gz")
        tokenize(*files, output=tmp_path / how, documents=how)
        return documents_of(tmp_path / how)

    whole = [b"one\r\ntwo\n\n \n\nthree\nfour\n\n\n", b"\nfive\n\tsix"]
    assert cut("file") == whole
    assert cut("blank") == [b"one\r\ntwo", b"three\nfour", b"five\n\tsix"]
    assert cut("line") == [b"one", b"two", b" ", b"three", b"four", b"five", b"\tsix"]


@pytest.mark.parametrize("documents", ["file", "blank", "line"])
def test_how_much_is_read_at_once_changes_nothing(tmp_path, documents):
    text = "\n".join(make_documents(40)).replace("襷", "\n \t\n")
    (tmp_path / "a.txt").write_text(text)
    files = [tmp_path / "a.txt", write_jsonl(tmp_path / "b.jsonl", make_documents(40))]
    files.append(write_parquet(tmp_path / "c.parquet", make_documents(40)))
    made = []
    for block_bytes in (7, 100, 1 << 20):
        output = tmp_path / f"t{block_bytes}"
        tokenize(*files, output=output, documents=documents, block_bytes=block_bytes)
        made.append(content(output))
    assert made[0] == made[1] == made[2]


def test_the_output_is_the_same_with_several_processes(tmp_path):
    files = [write_jsonl(tmp_path / "a.jsonl", make_documents(300))]
    files.append(write_parquet(tmp_path / "b.parquet", make_documents(50, seed=2)))
    (tmp_path / "c.txt").write_text("\n".join(make_documents(100, seed=3)))
    files.append(tmp_path / "c.txt")
    more = {"train": 400, "block_bytes": 2000, "shard_size": "5000"}
    lines = files[0].read_bytes().splitlines(keepends=True)
    files[0] = tmp_path / "a.jsonl.gz"  # of several members, and each is read
    files[0].write_bytes(b"".join(gzip.compress(line) for line in lines))
    tokenize(*files, output=tmp_path / "one", workers=1, **more)
    assert read_index(tmp_path / "one")[0].documents == 300 + 50 + 1
    told = tokenize(*files, output=tmp_path / "two", workers=2, **more)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert len(told["shards"]) > 2


def test_shards_hold_whole_chunks_and_have_the_sizes_and_hashes_of_the_index(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", make_documents(100))
    told = tokenize(tmp_path / "a.jsonl", output=tmp_path / "t", shard_size="1000")
    assert {shard["bytes"] for shard in told["shards"][:-1]} == {7 * 64 * 2}
    assert sum(shard["tokens"] for shard in told["shards"]) == told["tokens"]
    for shard in told["shards"]:
        data = (tmp_path / "t" / shard["name"]).read_bytes()
        assert len(data) == shard["bytes"] == shard["chunks"] * 128
        assert hashlib.sha256(data).hexdigest() == shard["sha256"]
    for num in (63, 64 * 7 - 1):  # and its end token: a whole chunk, and a whole shard
        (tmp_path / f"{num}.txt").write_text("x" * num)
        told = tokenize(tmp_path / f"{num}.txt", output=tmp_path / f"t{num}", shard_size="896")
        assert told["padding"] == 0 and len(told["shards"]) == 1


def test_tokens_are_those_that_the_tokenizer_gives(tmp_path):
    from tokenizers import Tokenizer

    texts = make_documents(60)
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    told = tokenize(path, output=tmp_path / "t", train=500)
    assert told["tokenizer"]["file"] == "tokenizer.json" and told["end_token"] == 0
    tokenizer = Tokenizer.from_file(str(tmp_path / "t" / "tokenizer.json"))
    expected = [token for text in texts for token in [*tokenizer.encode(text).ids, 0]]
    assert read_stream(tmp_path / "t").tolist() == expected
    assert told["vocab"] == tokenizer.get_vocab_size()
    # The same file again gives the same tokens; what it is called does not matter.
    given = tmp_path / "t" / "tokenizer.json"
    tokenize(path, output=tmp_path / "again", tokenizer=str(given))
    assert content(tmp_path / "again") == content(tmp_path / "t")


def test_a_tokenizer_that_truncates_or_pads_loses_nothing_and_special_tokens_are_text(tmp_path):
    from tokenizers import Tokenizer

    path = write_jsonl(tmp_path / "a.jsonl", [*make_documents(20), "a<|endoftext|>b"])
    tokenize(path, output=tmp_path / "t", train=300)
    given = tmp_path / "t" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(given))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "short.json"))
    tokenize(path, output=tmp_path / "s", tokenizer=str(tmp_path / "short.json"))
    np.testing.assert_array_equal(read_stream(tmp_path / "s"), read_stream(tmp_path / "t"))
    assert (read_stream(tmp_path / "t") == 0).sum() == 21
    tokenize(path, output=tmp_path / "u", tokenizer=str(given), special_tokens=True)
    assert (read_stream(tmp_path / "u") == 0).sum() == 22


def test_the_end_token_is_found_by_name_or_named(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    def save(name, *names):
        vocab = {name: number for number, name in enumerate(("run", "on", "?", *names))}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / name))
        return str(tmp_path / name)

    path = write_jsonl(tmp_path / "a.jsonl", ["run on run", "on"])
    tokenize(path, output=tmp_path / "t", tokenizer=save("a.json", "</s>"))
    assert read_stream(tmp_path / "t").tolist() == [0, 1, 0, 3, 1, 3]
    nameless = save("b.json", "stop")
    with pytest.raises(UsageError, match="has none of") as error:
        tokenize(path, output=tmp_path / "s", tokenizer=nameless)
    assert "--end-token" in error.value.hint
    with pytest.raises(UsageError, match="has no token `halt`"):
        tokenize(path, output=tmp_path / "s", tokenizer=nameless, end_token="halt")
    tokenize(path, output=tmp_path / "s", tokenizer=nameless, end_token="stop")
    assert read_stream(tmp_path / "s").tolist() == [0, 1, 0, 3, 1, 3]


def test_vocabularies_beyond_two_bytes_take_four(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {"</s>": 0, "run": 65_535, "?": 1}
    for last, dtype in ((65_535, "uint16"), (65_536, "uint32")):
        vocab["on"] = last
        vocab["run"] = last - 1
        tokenizer = Tokenizer(models.WordLevel(dict(vocab), unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / "w.json"))
        path = write_jsonl(tmp_path / "a.jsonl", ["run on"])
        output = tmp_path / dtype
        told = tokenize(path, output=output, tokenizer=str(tmp_path / "w.json"))
        assert (told["dtype"], told["vocab"]) == (dtype, last + 1)
        assert read_stream(output).tolist() == [last - 1, last, 0]
        assert TokenDataset(output)[0].tolist()[:3] == [last - 1, last, 0]


def test_empty_documents_are_left_out_and_counted(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["one", "", "two"])
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.jsonl").write_text("\n \n")
    files = [tmp_path / name for name in ("a.jsonl", "b.txt", "c.jsonl")]
    told = tokenize(*files, output=tmp_path / "t")
    assert documents_of(tmp_path / "t") == [b"one", b"two"]
    assert told["empty"] == 2 and told["sources"][1]["documents"] == 0
    assert told["warnings"] == ["2 documents without a token were left out"]


# -- long documents -------------------------------------------------------------------------------


@given(st.text("ab \n\té駅", max_size=300), st.integers(4, 40))
def test_pieces_are_the_document_and_each_is_text(text, piece):
    data = text.encode()
    pieces = list(cut_document(data, piece=piece))
    assert b"".join(pieces) == data
    assert "".join(one.decode() for one in pieces) == text
    assert max(map(len, pieces)) <= 2 * piece and all(len(one) > piece - 4 for one in pieces[:-1])


@pytest.mark.long
def test_a_long_document_has_the_tokens_of_the_whole(tmp_path):
    """Cut behind lines, where a byte-level tokenizer sees no difference; in lines, jsonl or gz."""
    from tokenizers import Tokenizer

    lines = [line.replace("\n", "") + "." for line in make_documents(9000)]
    text = "\n".join(lines)
    assert len(text.encode()) > 1.2 * (1 << 20)
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    tokenize(tmp_path / "a.txt", output=tmp_path / "t", train=300)
    given = str(tmp_path / "t" / "tokenizer.json")
    expected = Tokenizer.from_file(given).encode(text).ids
    assert read_stream(tmp_path / "t").tolist() == [*expected, 0]
    write_jsonl(tmp_path / "c.jsonl", [text])
    for name in ("b.txt.gz", "c.jsonl"):
        tokenize(tmp_path / name, output=tmp_path / name[0], tokenizer=given)
        np.testing.assert_array_equal(read_stream(tmp_path / name[0]), read_stream(tmp_path / "t"))


# -- outputs --------------------------------------------------------------------------------------


def test_an_output_that_exists_is_replaced_only_by_force_and_only_tokens(tmp_path):
    a = write_jsonl(tmp_path / "a.jsonl", make_documents(30))
    b = write_jsonl(tmp_path / "b.jsonl", make_documents(3))
    tokenize(a, output=tmp_path / "t", shard_size="1000")
    with pytest.raises(StoreError, match="exists already"):
        tokenize(b, output=tmp_path / "t")
    tokenize(b, output=tmp_path / "t", force=True)
    assert len(documents_of(tmp_path / "t")) == 3
    assert sorted(content(tmp_path / "t")) == ["index.json", "tokens-00000.bin"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    with pytest.raises(UsageError, match="is no folder of tokens"):
        tokenize(b, output=tmp_path / "mine", force=True)
    with pytest.raises(UsageError, match="is no folder of tokens"):
        tokenize(b, output=a, force=True)
    (tmp_path / "empty").mkdir()
    tokenize(b, output=tmp_path / "empty")
    assert (tmp_path / "mine" / "thesis.tex").exists() and not list(tmp_path.glob(".*"))


def test_files_of_others_in_an_output_are_named_and_never_deleted(tmp_path, monkeypatch):
    """Neither those that were there before nor those that came while tokens were made."""
    a, output = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "t"
    tokenize(a, output=output)
    (output / "NOTES.md").write_text("mine")
    (output / "tokens-00007.bin").mkdir()
    for more in ({}, {"dry_run": True}):
        with pytest.raises(UsageError, match=r"more than tokens.*`NOTES.md`, `tokens-00007.bin`"):
            tokenize(a, output=output, force=True, **more)
    assert (output / "NOTES.md").read_text() == "mine" and (output / "index.json").exists()
    (output / "NOTES.md").unlink(), (output / "tokens-00007.bin").rmdir()
    finish = making._finish

    def finish_and_note(*given):
        finish(*given)
        (output / "NOTES.md").write_text("mine")

    with monkeypatch.context() as patch:
        patch.setattr(making, "_finish", finish_and_note)
        with pytest.raises(UsageError, match="NOTES"):
            tokenize(a, output=output, force=True)
    assert (output / "NOTES.md").read_text() == "mine"
    (output / "NOTES.md").unlink()
    tokenize(a, output=output, force=True)
    assert not list(tmp_path.glob(".*"))


def test_a_dry_run_writes_nothing_and_a_vocabulary_smaller_than_asked_is_told(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    told = tokenize(path, output=tmp_path / "t", dry_run=True, train=70_000)
    assert told["dtype"] == "uint32" and told["sources"][0]["bytes"] == path.stat().st_size
    assert [one.name for one in tmp_path.iterdir()] == ["a.jsonl"]
    told = tokenize(path, output=tmp_path / "t", train=5000)
    assert "give a vocabulary of 259 only, not of 5,000" in told["warnings"][0]


def test_the_index_says_all_that_is_documented(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(3))
    tokenize(path, output=tmp_path / "t")
    told = json.loads((tmp_path / "t" / "index.json").read_text())
    assert list(told) == [
        *("format", "dtype", "chunk", "vocab", "end_token", "documents", "tokens", "chunks"),
        *("padding", "tokenizer", "empty", "skipped", "first_skipped", "sources", "shards"),
    ]
