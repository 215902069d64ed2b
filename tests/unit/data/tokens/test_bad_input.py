"""What cannot be tokenised is refused by name, with what to do about it, and leaves nothing."""

from __future__ import annotations

import re
import sys

import pytest
from tests.unit.data.tokens.corpus import (
    documents_of,
    make_documents,
    tokenize,
    write_jsonl,
    write_parquet,
)

from tasuki.errors import DataError, TasukiError, UsageError

TEXTS = make_documents(20)


def refused(*files, output, match, hint, kind=DataError, **more):
    with pytest.raises(kind, match=match) as error:
        tokenize(*files, output=output, **more)
    assert hint in error.value.hint
    assert not output.exists()
    assert not list(output.parent.glob(".*")), "nothing is left behind"


def test_a_corpus_without_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n\n")
    write_jsonl(tmp_path / "c.jsonl", ["", ""])
    for name in ("a.txt", "b.jsonl", "c.jsonl"):
        refused(
            tmp_path / name, output=tmp_path / "t", match=f"no text in .*{name}", hint="at least"
        )


BAD_LINES = {
    '{"text": "half': "it is no JSON: Unterminated string",
    "[1, 2]": "it is no JSON object but list",
    '{"body": "x", "id": 3}': "it has no field `text`; it has `body`, `id`",
    '{"text": 7}': "`text` is no text but 7",
    '{"text": null}': "`text` is no text but null",
    '{"text": "\\ud800"}': "half a character",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_broken_line_stops_with_its_place_or_is_left_out(tmp_path, line):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:13], "", line, *lines[13:], line]) + "\n")
    hint = "--field" if "no field" in BAD_LINES[line] else "--on-broken skip"
    match = rf"a\.jsonl:15.*{re.escape(BAD_LINES[line])}"
    refused(path, output=tmp_path / "t", match=match, hint=hint, block_bytes=300)
    told = tokenize(path, output=tmp_path / "t", on_broken="skip", block_bytes=300)
    assert documents_of(tmp_path / "t") == [text.encode() for text in TEXTS]
    assert told["skipped"] == 2
    assert [one["row"] for one in told["first_skipped"]] == [15, 23]
    assert BAD_LINES[line] in told["first_skipped"][0]["why"]


def test_of_several_workers_the_first_broken_line_is_told(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:13], "[1, 2]", *lines[13:], "[3]"]) + "\n")
    more = {"block_bytes": 300, "workers": 2, "hint": "--on-broken skip"}
    refused(path, output=tmp_path / "t", match=r"a\.jsonl:14.*no JSON object", **more)


@pytest.mark.parametrize("documents", ["file", "line"])
def test_a_text_that_is_no_utf8_is_refused_unless_tokens_are_bytes(tmp_path, documents):
    path, output = tmp_path / "a.txt", tmp_path / "t"
    path.write_bytes(b"one\n\ntwo\n\ncaf\xe9\n")
    more = {"documents": documents, "match": r"a\.txt:5.*no UTF-8: byte 0xe9", "hint": "iconv"}
    refused(path, output=output, train=300, **more)
    tokenize(write_jsonl(tmp_path / "v.jsonl", TEXTS), output=tmp_path / "v", train=300)
    refused(path, output=output, tokenizer=str(tmp_path / "v" / "tokenizer.json"), **more)
    tokenize(path, output=output, documents=documents)
    assert b"caf\xe9" in documents_of(output)[-1]


def test_a_line_of_json_that_is_no_utf8_is_a_broken_line(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    path.write_bytes(path.read_bytes() + b'{"text": "caf\xe9"}\n')
    refused(path, output=tmp_path / "t", match=r"a\.jsonl:21.*no UTF-8: byte 0xe9", hint="iconv")
    path.write_bytes(path.read_bytes() + b"{}\n" * 9)
    told = tokenize(path, output=tmp_path / "t", on_broken="skip")
    assert told["skipped"] == 10, "of these only the first are named"
    assert [one["row"] for one in told["first_skipped"]] == [21, 22, 23, 24, 25]


def test_tables_without_the_column_or_with_another_type_or_nothing_in_a_row_are_refused(tmp_path):
    path, output = write_parquet(tmp_path / "a.parquet", TEXTS), tmp_path / "t"
    refused(
        path, output=output, match="no column `body`; it has text, id", hint="--field", field="body"
    )
    refused(
        path, output=output, match="`id` of .* holds int64, not text", hint="--field", field="id"
    )
    path = write_parquet(tmp_path / "b.parquet", [*TEXTS, None, "end"])
    refused(path, output=output, match=r"b\.parquet:21`: `text` is null", hint="--on-broken")
    told = tokenize(path, output=output, on_broken="skip")
    assert told["skipped"] == 1 and documents_of(output)[-1] == b"end"


def test_files_that_are_damaged_are_named(tmp_path):
    output = tmp_path / "t"
    a = write_jsonl(tmp_path / "a.jsonl.gz", make_documents(400))
    a.write_bytes(a.read_bytes()[:-500])
    refused(a, output=output, match="a.jsonl.gz` is damaged", hint="gzip")
    b = write_parquet(tmp_path / "b.parquet", TEXTS)
    b.write_bytes(b.read_bytes()[:200])
    refused(b, output=output, match="b.parquet` cannot be read", hint="copied")
    (tmp_path / "c.txt.gz").write_text("no gzip at all")
    refused(tmp_path / "c.txt.gz", output=output, match="c.txt.gz` is damaged", hint="gzip")


def test_files_that_are_not_there_or_of_another_kind_or_given_twice_are_refused(tmp_path):
    path, output = write_jsonl(tmp_path / "corpus.jsonl", TEXTS), tmp_path / "t"
    refused(
        tmp_path / "corpsu.jsonl", output=output, match="nearest .* `corpus.jsonl`", hint="path"
    )
    refused(tmp_path / "*.txt", output=output, match="no file matches", hint="mend")
    refused(path, path, output=output, match="given twice", hint="once", kind=UsageError)
    (tmp_path / "a.json").write_text("{}")
    refused(
        tmp_path / "a.json", output=output, match=r"none of \.txt", hint="suffix", kind=UsageError
    )
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", output=output, match="has no .txt", hint="name the files")
    with pytest.raises(UsageError, match="lies in"):
        tokenize(path, output=tmp_path)


@pytest.mark.parametrize(
    ("more", "match", "hint"),
    [
        ({"train": 5}, "vocabulary of 5 is too small", "--bytes"),
        ({"train": 10**7}, "vocabulary of 10,000,000 is too large", "65,536"),
        ({"train": 300, "bytes": True}, "--train and --bytes exclude", "one of"),
        ({"bytes": False}, "nothing says what the tokens are", "--tokenizer"),
        ({"end_token": "<eos>"}, "--end-token <eos> goes with --tokenizer only", "leave it out"),
        ({"chunk": 1}, "chunk of 1 tokens", "32768"),
        ({"shard_size": "100"}, "no room for one chunk", "--shard-size"),
        ({"shard_size": "many"}, "not a number of bytes", "96G"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(tmp_path, more, match, hint):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    refused(path, output=tmp_path / "t", match=match, hint=hint, kind=UsageError, **more)


def test_a_tokenizer_file_that_is_none_is_refused(tmp_path):
    path, given = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "x.json"
    more = {"tokenizer": str(given), "output": tmp_path / "t"}
    refused(path, match="x.json", hint="", kind=TasukiError, **more)
    given.write_text('{"model": "none"}')
    refused(path, match="x.json` is no file of `tokenizers`", hint="--train", **more)


@pytest.mark.parametrize(("package", "extra"), [("tokenizers", "tokens"), ("pyarrow", "parquet")])
def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch, package, extra):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    write_jsonl(lines, TEXTS)
    table.write_bytes(b"never read")
    file, more = (lines, {"train": 300}) if package == "tokenizers" else (table, {})
    with pytest.raises(TasukiError, match=f"`{package}`.*not installed") as error:
        tokenize(file, output=tmp_path / "t", **more)
    assert f'pip install "tasuki[{extra}]"' in error.value.hint and error.value.exit_code == 2
    assert not list(tmp_path.glob(".*"))
    tokenize(lines, output=tmp_path / "t")  # lines and bytes need no package
    assert len(documents_of(tmp_path / "t")) == len(TEXTS)
