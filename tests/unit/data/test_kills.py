"""Killed at any moment and called again: the same outputs, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.curate import samples as curated
from tests.unit.data.tokens import corpus

pytestmark = pytest.mark.timeout(900)  # killed everywhere, on a busy machine


@pytest.fixture
def folder(tmp_path):
    """In memory where that can be: a killed process is no power cut, and each point costs syncs."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def check_kills(module, order, *outputs, every, before=""):
    """Each second call makes the outputs of an undisturbed one. Gives what these calls said."""
    paths = [str(path) for path in outputs]
    words = {"order": order, "outputs": paths, "before": before, "first": 1, "every": every}
    done = subprocess.run(
        [sys.executable, "-B", "-m", "tests.unit.data.kills"],
        input=json.dumps({"module": module, **words}),
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    whole, results = told["whole"], told["results"]
    assert "error" not in whole and None not in whole["digests"], whole
    assert len(results) > 10
    for result in results:
        for found, old, new in zip(result["found"], told["before"], whole["digests"], strict=True):
            assert found in (None, old, new), f"half an output: {result}"
        # Killed when everything was done, and even noted.
        finished = result["killed"].startswith("rmdir") and "exists already" in str(result)
        assert "error" not in result or finished, result
        assert result["digests"] == whole["digests"], result
        assert result["left"] == [] or finished, result
    return [line for result in results for line in result.get("said", [])]


def often_or_everywhere(often):
    everywhere = pytest.param(1, marks=pytest.mark.long, id="everywhere")
    return pytest.mark.parametrize("every", [everywhere, pytest.param(often, id="often")])


CURATE = "tasuki.data.curate.work"


@often_or_everywhere(19)
@pytest.mark.parametrize(
    "layout",
    ["flat", *(pytest.param(other, marks=pytest.mark.long) for other in ("rows", "groups"))],
)
def test_a_merge_killed_anywhere_goes_on_to_the_same_file(folder, layout, every):
    # Of groups fewer: there is a write for each data set of each sample.
    num, block_bytes = (16, 500) if layout == "groups" else (40, 1500)
    samples, write = curated.make_samples(num), curated.WRITERS[layout]
    a, b = write(folder / "a.h5", samples[: num - 6]), write(folder / "b.h5", samples[6:])
    output = folder / "out" / "all.h5"
    output.parent.mkdir()
    order = curated.order("merge", a, b, output=output, unique=True, block_bytes=block_bytes)
    said = check_kills(CURATE, order, output, every=every)
    assert any("going on where the last call stopped" in line for line in said)
    assert len(curated.read_samples(output)) == num


@pytest.mark.long
def test_a_split_killed_anywhere_goes_on_to_the_same_three_files(folder):
    a = curated.write_flat(folder / "a.h5", curated.make_samples(60))
    outputs = [folder / "a" / f"{name}.h5" for name in ("train", "val", "test")]
    check_kills(CURATE, curated.order("split", a, block_bytes=3000), *outputs, every=1)
    assert sum(len(curated.read_samples(path)) for path in outputs) == 60


@often_or_everywhere(19)
def test_a_cleaning_of_several_files_killed_anywhere_goes_on_to_the_same_copies(folder, every):
    samples = curated.make_samples(30)
    samples[3]["picture"][0] = np.nan
    a = curated.write_rows(folder / "a.h5", samples[:15])
    b = curated.write_rows(folder / "b.h5", samples[14:])
    outputs = [folder / "a.clean.h5", folder / "b.clean.h5"]
    order = curated.order("check", a, b, fix=True, block_bytes=500)
    check_kills(CURATE, order, *outputs, every=every)
    assert [len(curated.read_samples(path)) for path in outputs] == [14, 15]


@often_or_everywhere(29)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"force": True}, id="force"),
        pytest.param({"train": 280}, id="train", marks=pytest.mark.long),
        pytest.param({}, id="new", marks=pytest.mark.long),
    ],
)
def test_tokenising_killed_anywhere_goes_on_to_the_same_folder(folder, more, every):
    (folder / "out").mkdir()
    files, output = corpus.write_all_kinds(folder), folder / "out" / "t"
    before = ""
    if "force" in more:
        before = str(folder / "before")
        corpus.tokenize(files[-1], output=folder / "before", chunk=16)
    order = corpus.order(*files, output=output, **more, **corpus.SMALL)
    said = check_kills("tasuki.data.tokens.work", order, output, every=every, before=before)
    assert "index.json" in corpus.content(output) and len(corpus.content(output)) > 5
    assert any("going on where the last call stopped" in line for line in said)
