"""Killed at any moment and called again: the same folder, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.unit.data.tokens.corpus import (
    content,
    documents_of,
    make_documents,
    order,
    tokenize,
    write_jsonl,
    write_parquet,
)

from tasuki.errors import DataError

PYTHON = [sys.executable, "-B", "-m"]


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """In memory where that can be: a killed process is no power cut, and each point costs syncs."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def make_files(folder: Path) -> list[Path]:
    texts = make_documents(24)
    files = [write_jsonl(folder / "a.jsonl", texts[:8])]
    files.append(write_jsonl(folder / "b.jsonl.gz", texts[8:14]))
    files.append(write_parquet(folder / "c.parquet", texts[14:20], rows=3))
    (folder / "d.txt").write_text("\n".join(texts[20:]))
    return [*files, folder / "d.txt"]


SMALL = {"block_bytes": 200, "keep_bytes": 300, "shard_size": "700"}


@pytest.mark.parametrize(
    "every",
    [pytest.param(1, marks=pytest.mark.long, id="everywhere"), pytest.param(29, id="often")],
)
@pytest.mark.parametrize(
    "more", [{}, {"train": 280}, {"force": True}], ids=["new", "train", "force"]
)
def test_tokenising_killed_anywhere_goes_on_to_the_same_folder(folder, more, every):
    (folder / "out").mkdir()
    asked = order(*make_files(folder), output=folder / "out" / "t", **more, **SMALL)
    before = None
    if "force" in more:
        before = folder / "before"
        tokenize(folder / "d.txt", output=before, chunk=16)
    words = json.dumps(
        {"order": asked, "first": 1 + len(more), "every": every, "before": str(before or "")}
    )
    done = subprocess.run(
        [*PYTHON, "tests.unit.data.tokens.kills"],
        input=words,
        capture_output=True,
        text=True,
        timeout=115,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    whole, results = told["whole"], told["results"]
    assert "error" not in whole and "index.json" in whole["digests"], whole
    assert len(whole["digests"]) > 5 and len(results) > 15
    for result in results:
        # Killed when everything was done, and even noted.
        finished = result["at"].startswith("rmdir") and "exists already" in result.get("error", "")
        assert "error" not in result or finished, result
        assert not result["half"], result
        assert result["digests"] == whole["digests"], result
        assert result["left"] == [] or finished, result
    said = [line for result in results for line in result.get("said", [])]
    assert any("going on where the last call stopped" in line for line in said)


def interrupted(files: list[Path], output: Path, *, after: int, **more: Any) -> None:
    """A call in this process that is interrupted when so many blocks were read."""
    from tasuki.data.tokens.blocks import Reading

    real, seen = Reading.blocks, [0]

    def blocks(self, source, **where):
        for block in real(self, source, **where):
            seen[0] += 1
            if seen[0] > after:
                raise KeyboardInterrupt
            yield block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reading, "blocks", blocks)
        with pytest.raises(KeyboardInterrupt):
            tokenize(*files, output=output, **SMALL, **more)
    assert not output.exists()


def test_a_source_that_changed_meanwhile_is_tokenised_again_aloud(tmp_path):
    files, output = make_files(tmp_path), tmp_path / "t"
    interrupted(files, output, after=15)
    journal = json.loads((tmp_path / ".t.partial" / "journal.json").read_text())
    assert len(journal["sources"]) > 2
    write_jsonl(files[1], make_documents(9, seed=7))
    told = tokenize(*files, output=output, **SMALL)
    assert any("`" + str(files[1]) + "` changed since the call" in line for line in told["said"])
    assert any("going on where the last call stopped" in line for line in told["said"])
    assert ("tokenising" in {what for what, _, _ in told["progressed"]}) and told["documents"] == 24
    tokenize(*files, output=tmp_path / "ref", **SMALL)
    assert content(output) == content(tmp_path / "ref")


@pytest.mark.parametrize("change", ["first", "removed", "option", "trained"])
def test_whatever_changed_meanwhile_the_output_is_that_of_an_undisturbed_call(tmp_path, change):
    files, output, more = make_files(tmp_path), tmp_path / "t", {}
    if change == "trained":
        more = {"train": 280}
    interrupted(files, output, after=33 if more else 15, **more)
    if change in ("first", "trained"):
        write_jsonl(files[0], make_documents(5, seed=7))
    elif change == "removed":
        del files[1]
    else:
        more = {"chunk": 32}
    told = tokenize(*files, output=output, **SMALL, **more)
    words = {"removed": "is not the next file any more", "first": "changed since the call"}
    assert any(words.get(change, "starting over") in line for line in told["said"]), told["said"]
    tokenize(*files, output=tmp_path / "ref", **SMALL, **more)
    assert content(output) == content(tmp_path / "ref")


def test_a_file_added_at_the_end_costs_nothing_again(tmp_path):
    files, output = make_files(tmp_path), tmp_path / "t"
    interrupted(files, output, after=15)
    files.append(write_jsonl(tmp_path / "e.jsonl", make_documents(5, seed=9)))
    told = tokenize(*files, output=output, **SMALL)
    assert len(told["said"]) == 1 and "going on" in told["said"][0]
    tokenize(*files, output=tmp_path / "ref", **SMALL)
    assert content(output) == content(tmp_path / "ref")


def test_work_that_was_damaged_is_started_over_aloud(tmp_path):
    files, output = make_files(tmp_path), tmp_path / "t"
    tokenize(*files, output=tmp_path / "ref", **SMALL)
    for damage in ("journal", "shard"):
        interrupted(files, output, after=15)
        if damage == "journal":
            (tmp_path / ".t.partial" / "journal.json").write_text("{")
        else:
            (tmp_path / ".t.partial" / "new" / "tokens-00000.bin").write_bytes(b"x")
        told = tokenize(*files, output=output, **SMALL)
        assert any("starting over" in line for line in told["said"])
        assert content(output) == content(tmp_path / "ref")
        shutil.rmtree(output)


def test_a_broken_line_mended_goes_on_with_the_file_that_had_it(tmp_path):
    files, output = make_files(tmp_path), tmp_path / "t"
    bad = write_jsonl(tmp_path / "z.jsonl", make_documents(9))
    good = bad.read_bytes()
    bad.write_bytes(good + b"{}\n")
    with pytest.raises(DataError, match=r"z\.jsonl:10"):
        tokenize(*files, bad, output=output, **SMALL)
    assert not output.exists()
    bad.write_bytes(good)
    told = tokenize(*files, bad, output=output, **SMALL)
    assert "z.jsonl` changed" in told["said"][0] and "going on" in told["said"][1]
    tokenize(*files, bad, output=tmp_path / "ref", **SMALL)
    assert content(output) == content(tmp_path / "ref")


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    from tasuki.data.tokens.blocks import Reading

    path, real = write_jsonl(tmp_path / "a.jsonl", make_documents(30)), Reading.blocks

    def blocks(self, source, **where):
        for block in real(self, source, **where):
            os.utime(path, (1, 1))
            yield block

    monkeypatch.setattr(Reading, "blocks", blocks)
    with pytest.raises(DataError, match="changed while it was read"):
        tokenize(path, output=tmp_path / "t", **SMALL)
    assert not (tmp_path / "t").exists()


def test_a_process_killed_from_outside_leaves_no_worker_and_loses_only_what_it_had_not_noted(
    tmp_path,
):
    """The real child of the command line with two workers, killed when its journal tells enough."""
    files = [write_jsonl(tmp_path / "z.jsonl", make_documents(4000)), *make_files(tmp_path)]
    more = {"workers": 2, "block_bytes": 2000, "keep_bytes": 20_000, "chunk": 1024}
    output, journal = tmp_path / "t", tmp_path / ".t.partial" / "journal.json"
    for tokens in (10_000, 300_000):
        child = start_child(order(*files, output=output, **more))
        until_written(journal, tokens, child)
        workers = psutil.Process(child.pid).children(recursive=True)
        child.kill()
        assert child.wait() == -signal.SIGKILL and not output.exists()
        assert workers and not psutil.wait_procs(workers, timeout=20)[1]
    told = tokenize(*files, output=output, **(more | {"workers": 1}))
    assert "going on where the last call stopped" in told["said"][0]
    assert len(documents_of(output)) == told["documents"] == 4000 + 8 + 6 + 6 + 1
    tokenize(*files, output=tmp_path / "ref", **(more | {"workers": 1}))
    assert content(output) == content(tmp_path / "ref")


CHILD = """
import json, sys
from tasuki.data.tokens.work import work
work(json.load(sys.stdin), lambda progress: None)
"""


def start_child(asked: dict[str, Any]) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-B", "-c", CHILD]
    child = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(json.dumps(asked).encode())
    child.stdin.close()
    return child


def until_written(journal: Path, tokens: int, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert child.poll() is None, "it was done before it could be killed"
        if journal.exists():
            sources = json.loads(journal.read_text()).get("sources", [])
            if sum(one["counts"]["tokens"] for one in sources) > tokens:
                return
        time.sleep(0.001)
    raise AssertionError("no progress")
