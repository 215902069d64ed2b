"""Killed at any moment and called again: the same outputs, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.unit.data.curate.samples import (
    WRITERS,
    make_samples,
    order,
    read_samples,
    write_flat,
    write_rows,
)

from tasuki import subprocesses

PYTHON = [sys.executable, "-B", "-m"]


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """In memory where that can be: a killed process is no power cut, and each point costs syncs."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def killed_everywhere(
    asked: dict[str, Any], outputs: list[Path], *, every: int, first: int = 1
) -> dict[str, Any]:
    words = {"order": asked, "outputs": [str(path) for path in outputs]}
    done = subprocess.run(
        [*PYTHON, "tests.unit.data.curate.kills"],
        input=json.dumps(words | {"every": every, "first": first}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def assert_all_as_undisturbed(told: dict[str, Any]) -> None:
    whole, results = told["whole"], told["results"]
    assert "error" not in whole and None not in whole["digests"], whole
    assert len(results) > 14
    for result in results:
        # Killed when everything was done, and even noted.
        finished = result["at"].startswith("rmdir") and "exists already" in result.get("error", "")
        assert "error" not in result or finished, result
        assert result["digests"] == whole["digests"], result
        assert result["left"] == [], result


EVERYWHERE = pytest.mark.parametrize(
    "every",
    [pytest.param(1, marks=pytest.mark.long, id="everywhere"), pytest.param(11, id="often")],
)


@EVERYWHERE
@pytest.mark.parametrize("layout", WRITERS)
def test_a_merge_killed_anywhere_goes_on_to_the_same_file(folder, layout, every):
    # Of groups fewer: there is a write for each data set of each sample.
    num, block_bytes = (16, 500) if layout == "groups" else (40, 1500)
    samples, write = make_samples(num), WRITERS[layout]
    a, b = write(folder / "a.h5", samples[: num - 6]), write(folder / "b.h5", samples[6:])
    output = folder / "out" / "all.h5"
    output.parent.mkdir()
    asked = order("merge", a, b, output=output, unique=True, block_bytes=block_bytes)
    first = 1 + list(WRITERS).index(layout)
    told = killed_everywhere(asked, [output], first=first, every=every)
    assert_all_as_undisturbed(told)
    said = [line for result in told["results"] for line in result.get("said", [])]
    assert any("going on where the last call stopped" in line for line in said)
    assert len(read_samples(output)) == num


@EVERYWHERE
def test_a_split_killed_anywhere_goes_on_to_the_same_three_files(folder, every):
    a = write_flat(folder / "a.h5", make_samples(60))
    outputs = [folder / "a" / f"{name}.h5" for name in ("train", "val", "test")]
    told = killed_everywhere(order("split", a, block_bytes=3000), outputs, every=every)
    assert_all_as_undisturbed(told)
    assert sum(len(read_samples(path)) for path in outputs) == 60


@EVERYWHERE
def test_a_cleaning_of_several_files_killed_anywhere_goes_on_to_the_same_copies(folder, every):
    samples = make_samples(30)
    samples[3]["picture"][0] = np.nan
    a, b = write_rows(folder / "a.h5", samples[:15]), write_rows(folder / "b.h5", samples[14:])
    outputs = [folder / "a.clean.h5", folder / "b.clean.h5"]
    asked = order("check", a, b, fix=True, block_bytes=500)
    told = killed_everywhere(asked, outputs, every=every)
    assert_all_as_undisturbed(told)
    assert [len(read_samples(path)) for path in outputs] == [14, 15]


def test_a_process_killed_from_outside_loses_only_what_it_had_not_noted(tmp_path):
    """The real child of the command line, killed when its journal shows progress."""
    num, width = 3000, 1000
    values = np.random.default_rng(0).normal(size=(num, width)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"], file["x"] = np.full(num, 7), values
    output = tmp_path / "all.h5"
    asked = order("merge", tmp_path / "a.h5", output=output, block_bytes=1 << 16)
    journal = tmp_path / ".all.h5.partial" / "journal.json"
    noted = []
    for share in (0.01, 0.3, 0.6):
        child = start_child(asked)
        until_written(journal, share * num, child)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        noted.append(json.loads(journal.read_text())["writing"]["next"])
        assert not output.exists()
    assert 0 < noted[0] < noted[1] < noted[2] < num
    told: list[str] = []
    subprocesses.run(
        "tasuki.data.curate.work:work",
        asked,
        result=dict[str, Any],
        progress=lambda progress: told.append(progress.what),
    )
    assert f"going on where the last call stopped: {noted[2] / num:.0%} is written" in told
    assert "reading" not in told, "all samples were read before"
    with h5py.File(output) as file:
        np.testing.assert_array_equal(file["x"][()], values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "all.h5"]


CHILD = """
import json, sys
from tasuki.data.curate.work import work
work(json.load(sys.stdin), lambda progress: None)
"""


def start_child(asked: dict[str, Any]) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-B", "-c", CHILD]
    child = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(json.dumps(asked).encode())
    child.stdin.close()
    return child


def until_written(journal: Path, samples: float, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert child.poll() is None, "it was done before it could be killed"
        if journal.exists():
            writing = json.loads(journal.read_text()).get("writing")
            if writing and writing["next"] > samples:
                return
        time.sleep(0.001)
    raise AssertionError("no progress")
