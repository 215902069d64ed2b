"""What an interrupted call had done is used again, and only where it is what it would make now."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.data.tokens.corpus import (
    SMALL,
    content,
    documents_of,
    make_documents,
    order,
    tokenize,
    write_all_kinds,
    write_jsonl,
)
from tests.unit.data.waiting import is_gone, wait_until

from tasuki.data.tokens.blocks import Reading
from tasuki.errors import DataError


def interrupt(files, output, *, after, **more):
    """A call in this process that is interrupted when so many blocks were read."""
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("first", "changed since the call"),
        ("middle", "b.jsonl.gz` changed since the call"),
        ("removed", "is not the next file any more"),
        ("option", "starting over"),
        ("trained", "starting over"),
        ("added", "going on where the last call stopped"),
    ],
)
def test_whatever_changed_the_output_is_that_of_an_undisturbed_call(tmp_path, change, words):
    files, output, more = write_all_kinds(tmp_path), tmp_path / "t", {}
    if change == "trained":
        more = {"train": 280}
    interrupt(files, output, after=33 if more else 15, **more)
    match change:
        case "first" | "trained":
            write_jsonl(files[0], make_documents(5, seed=7))
        case "middle":
            write_jsonl(files[1], make_documents(9, seed=7))
        case "removed":
            del files[1]
        case "option":
            more = {"chunk": 32}
        case "added":
            files.append(write_jsonl(tmp_path / "e.jsonl", make_documents(5, seed=9)))
    told = tokenize(*files, output=output, **SMALL, **more)
    assert any(words in line for line in told["said"]), told["said"]
    if change == "middle":  # the file before it is not read again
        assert any("going on where the last call stopped" in line for line in told["said"])
    if change == "added":
        assert len(told["said"]) == 1
    tokenize(*files, output=tmp_path / "ref", **SMALL, **more)
    assert content(output) == content(tmp_path / "ref")


def test_work_that_was_damaged_is_started_over_with_a_warning(tmp_path):
    files, output = write_all_kinds(tmp_path), tmp_path / "t"
    tokenize(*files, output=tmp_path / "ref", **SMALL)
    for name, damage in (("journal.json", b"{"), ("new/tokens-00000.bin", b"x")):
        interrupt(files, output, after=15)
        (tmp_path / ".t.partial" / name).write_bytes(damage)
        told = tokenize(*files, output=output, **SMALL)
        assert any("starting over" in line for line in told["said"])
        assert content(output) == content(tmp_path / "ref")
        shutil.rmtree(output)


def test_a_broken_line_mended_goes_on_with_the_file_that_had_it(tmp_path):
    files, output = write_all_kinds(tmp_path), tmp_path / "t"
    bad = write_jsonl(tmp_path / "z.jsonl", make_documents(9))
    good = bad.read_bytes()
    bad.write_bytes(good + b"{}\n")
    for _ in range(2):  # a call that goes on counts lines as the first one did
        with pytest.raises(DataError, match=r"z\.jsonl:10"):
            tokenize(*files, bad, output=output, **SMALL)
    assert not output.exists()
    bad.write_bytes(good)
    told = tokenize(*files, bad, output=output, **SMALL)
    assert "z.jsonl` changed" in told["said"][0] and "going on" in told["said"][1]
    tokenize(*files, bad, output=tmp_path / "ref", **SMALL)
    assert content(output) == content(tmp_path / "ref")


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path, real = write_jsonl(tmp_path / "a.jsonl", make_documents(30)), Reading.blocks

    def blocks(self, source, **where):
        for block in real(self, source, **where):
            os.utime(path, (1, 1))
            yield block

    monkeypatch.setattr(Reading, "blocks", blocks)
    with pytest.raises(DataError, match="changed while it was read"):
        tokenize(path, output=tmp_path / "t", **SMALL)
    assert not (tmp_path / "t").exists()


KILLED = """
import json, os, signal, sys
import psutil
from tasuki.data.tokens.work import work
from tests.unit.data.heard import Heard

def kill_at_once_it_is_noted(what, done):
    if os.path.exists(sys.argv[1]) and json.load(open(sys.argv[1])).get("sources"):
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    work(json.load(sys.stdin), Heard(kill_at_once_it_is_noted))
"""


def test_a_killed_process_leaves_no_worker_and_loses_only_what_it_had_not_noted(tmp_path):
    """Killed by itself as soon as its journal tells of tokens: no moment is missed."""
    files = [write_jsonl(tmp_path / "z.jsonl", make_documents(400)), *write_all_kinds(tmp_path)]
    more = {"block_bytes": 2000, "keep_bytes": 2000, "chunk": 64}
    output, journal = tmp_path / "t", tmp_path / ".t.partial" / "journal.json"
    (tmp_path / "killed.py").write_text(KILLED)
    killed = subprocess.run(
        [sys.executable, "-B", tmp_path / "killed.py", journal],
        input=json.dumps(order(*files, output=output, workers=2, **more)),
        stdout=subprocess.PIPE,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert killed.returncode == -signal.SIGKILL and not output.exists()
    workers = [int(pid) for pid in killed.stdout.split()]
    assert len(workers) >= 2
    wait_until(lambda: all(map(is_gone, workers)), "workers live on")
    told = tokenize(*files, output=output, **more)
    assert "going on where the last call stopped" in told["said"][0]
    assert len(documents_of(output)) == told["documents"] == 400 + 8 + 6 + 6 + 1
    tokenize(*files, output=tmp_path / "ref", **more)
    assert content(output) == content(tmp_path / "ref")
