"""What cannot be tokenised is refused by name, with what to do about it, and leaves nothing."""

from __future__ import annotations

import gzip
import os

import pytest
from tests.unit.data.tokens.corpus import (
    documents_of,
    make_documents,
    order,
    tokenize,
    write_jsonl,
    write_parquet,
)

from tasuki import subprocesses
from tasuki.errors import DataError, TasukiError, UsageError

TEXTS = make_documents(20)


@pytest.fixture(params=[1, 2], ids=["alone", "two workers"])
def workers(request) -> int:
    return request.param


def refused(*files, output, match, hint, kind=DataError, **more) -> None:
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
def test_a_broken_line_stops_with_its_place(tmp_path, line, workers):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:13], "", line, *lines[13:], line]) + "\n")
    more = {"block_bytes": 300, "workers": workers}
    hint = "--field" if "no field" in BAD_LINES[line] else "--on-broken skip"
    with pytest.raises(DataError) as error:
        tokenize(path, output=tmp_path / "t", **more)
    assert error.value.message.startswith(f"`{path}:15`: {BAD_LINES[line]}") or (
        BAD_LINES[line] in error.value.message and f"{path}:15" in error.value.message
    )
    assert hint in error.value.hint
    assert not (tmp_path / "t").exists() and not list(tmp_path.glob(".*"))
    told = tokenize(path, output=tmp_path / "t", on_broken="skip", **more)
    assert documents_of(tmp_path / "t") == [text.encode() for text in TEXTS]
    assert told["skipped"] == 2
    assert [one["row"] for one in told["first_skipped"]] == [15, 23]
    assert BAD_LINES[line] in told["first_skipped"][0]["why"]


def test_only_the_first_skipped_lines_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n" * 40 + '{"text": "x"}\n')
    told = tokenize(tmp_path / "a.jsonl", output=tmp_path / "t", on_broken="skip")
    assert told["skipped"] == 40 and [one["row"] for one in told["first_skipped"]] == [
        1,
        2,
        3,
        4,
        5,
    ]


@pytest.mark.parametrize("documents", ["file", "line", "blank"])
def test_a_text_that_is_no_utf8_is_refused_with_its_line(tmp_path, documents):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\n\ncaf\xe9\n")
    files, output = [tmp_path / "a.txt"], tmp_path / "t"
    path = write_jsonl(tmp_path / "v.jsonl", TEXTS)
    tokenize(path, output=tmp_path / "v", train=300)
    more = {"tokenizer": str(tmp_path / "v" / "tokenizer.json"), "documents": documents}
    refused(*files, output=output, match=r"a\.txt:5.*no UTF-8: byte 0xe9", hint="iconv", **more)
    # A tokenizer of it cannot be trained either; bytes are bytes.
    train = {"train": 300, "documents": documents}
    refused(*files, output=output, match=r"a\.txt:5.*no UTF-8", hint="iconv", **train)
    tokenize(*files, output=output, documents=documents)
    assert b"caf\xe9" in documents_of(output)[-1]


def test_a_line_that_is_no_utf8_is_a_broken_line(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    path.write_bytes(path.read_bytes() + b'{"text": "caf\xe9"}\n')
    refused(path, output=tmp_path / "t", match=r"a\.jsonl:21.*no UTF-8: byte 0xe9", hint="iconv")
    assert tokenize(path, output=tmp_path / "t", on_broken="skip")["skipped"] == 1


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


def test_files_that_are_damaged_are_named(tmp_path, workers):
    a = write_jsonl(tmp_path / "a.jsonl.gz", make_documents(400))
    a.write_bytes(a.read_bytes()[:-500])
    refused(a, output=tmp_path / "t", match="a.jsonl.gz` is damaged", hint="gzip", workers=workers)
    b = write_parquet(tmp_path / "b.parquet", TEXTS)
    b.write_bytes(b.read_bytes()[:200])
    refused(
        b, output=tmp_path / "t", match="b.parquet` cannot be read", hint="copied", workers=workers
    )
    c = tmp_path / "c.txt.gz"
    c.write_text("no gzip at all")
    refused(c, output=tmp_path / "t", match="c.txt.gz` is damaged", hint="gzip", workers=workers)


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


def test_a_source_inside_the_output_is_refused(tmp_path):
    (tmp_path / "t").mkdir()
    path = write_jsonl(tmp_path / "t" / "a.jsonl", TEXTS)
    with pytest.raises(UsageError, match="lies in"):
        tokenize(path, output=tmp_path / "t")


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
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "x.json").write_text('{"model": "none"}')
    more = {"tokenizer": str(tmp_path / "x.json"), "output": tmp_path / "t"}
    refused(path, match="x.json` is no file of `tokenizers`", hint="--train", **more)
    more["tokenizer"] = str(tmp_path / "y.json")
    refused(path, match="y.json", hint="", kind=TasukiError, **more)


@pytest.mark.parametrize(("package", "extra"), [("tokenizers", "tokens"), ("pyarrow", "parquet")])
def test_a_package_that_is_not_installed_is_named_with_its_extra(tmp_path, package, extra):
    """The real child, in which the import fails."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"{package}.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")])
    more = {"train": 300} if package == "tokenizers" else {}
    file = write_parquet(tmp_path / "a.parquet", TEXTS)
    if package == "tokenizers":
        file = write_jsonl(tmp_path / "a.jsonl", TEXTS)

    def child(**more):
        subprocesses.run(
            "tasuki.data.tokens.work:work",
            order(file, output=tmp_path / "t", **more),
            result=dict,
            environment={**os.environ, "PYTHONPATH": path},
        )

    with pytest.raises(TasukiError, match=f"`{package}`.*not installed") as error:
        child(**more)
    assert f'pip install "tasuki[{extra}]"' in error.value.hint and error.value.exit_code == 2
    assert not list(tmp_path.glob(".*"))
    if package == "tokenizers":
        child()  # bytes need no package
        assert len(documents_of(tmp_path / "t")) == len(TEXTS)


def test_a_gzip_of_several_members_is_read_to_its_end(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", TEXTS)
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(b"".join(map(gzip.compress, lines)))
    tokenize(tmp_path / "b.jsonl.gz", output=tmp_path / "t")
    assert documents_of(tmp_path / "t") == [text.encode() for text in TEXTS]
