"""`data check`: every kind of bad sample is found and named; copies have all others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.unit.data.curate.samples import (
    WRITERS,
    contents,
    do,
    make_samples,
    names,
    order,
    read_samples,
    write_flat,
    write_groups,
    write_rows,
)
from tests.unit.data.heard import Heard

from tasuki.errors import DataError, StoreError, UsageError


def found(report, file=0):
    """The first samples of each finding."""
    return {
        (one["kind"], one["dataset"]): [first["sample"] for first in one["first"]]
        for one in report["files"][file]["findings"]
    }


def reasons(report):
    findings = [finding for file in report["files"] for finding in file["findings"]]
    return "\n".join(first["why"] for finding in findings for first in finding["first"])


def cleaned(path, *, without, **more):
    """Fixes a file, and checks that the copy has all other samples and the file is untouched."""
    before, facts = path.read_bytes(), path.stat()
    report = do("check", path, fix=True, **more)
    assert report["fixed"] and not report["clean"]
    copy = path.with_name(f"{path.stem}.clean.h5")
    samples = read_samples(copy)
    assert report["files"][0]["output"] == str(copy)
    assert report["files"][0]["kept"] == len(samples)
    assert report["files"][0]["bad"] == len(without)
    assert path.read_bytes() == before and path.stat().st_mtime_ns == facts.st_mtime_ns
    assert do("check", copy, allow=more.get("allow", []))["clean"]
    assert names(path.parent) == sorted([path.name, copy.name])
    report["copy"] = samples
    return report


@pytest.mark.parametrize("layout", WRITERS)
def test_a_clean_file_is_called_clean_and_nothing_is_written(tmp_path, layout):
    samples = make_samples(40)
    for sample in samples:
        sample["label"] = np.array([sample["label"]])
    path = WRITERS[layout](tmp_path / "a.h5", samples, compression="gzip")
    for fix in (False, True):
        report = do("check", path, fix=fix)
        assert report["clean"] and found(report) == {}
    assert names(tmp_path) == ["a.h5"]


@pytest.mark.parametrize("layout", WRITERS)
def test_duplicates_and_numbers_that_are_none_are_found_and_left_out(tmp_path, layout):
    samples, data_set = make_samples(30), {"rows": "picture"}.get(layout, "nodes")
    samples[20] = samples[5]
    samples[7][data_set][0, 0] = np.nan
    samples[9][data_set][-1, -1] = -np.inf
    path = WRITERS[layout](tmp_path / "a.h5", samples)
    report = cleaned(path, without=[7, 9, 20])
    assert found(report) == {("duplicate", None): [20], ("nan", data_set): [7, 9]}
    assert f"1 of {samples[7][data_set].size} numbers in `{data_set}`" in reasons(report)
    assert f"the same as sample 5 of `{path}`" in reasons(report)
    good = [one for i, one in enumerate(read_samples(path)) if i not in (7, 9, 20)]
    assert contents(report["copy"]) == contents(good)


def test_a_damaged_chunk_costs_exactly_its_samples(tmp_path):
    samples, path = make_samples(40), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["n"], file["label"] = [s["n"] for s in samples], [s["label"] for s in samples]
        pictures = np.stack([sample["picture"] for sample in samples])
        data = file.create_dataset(
            "picture", data=pictures, chunks=(5, *pictures.shape[1:]), compression="gzip"
        )
        place = data.id.get_chunk_info(3)
    with path.open("r+b") as raw:
        raw.seek(place.byte_offset + place.size // 2)
        raw.write(b"\xff" * (place.size // 2))
    report = cleaned(path, without=[15, 16, 17, 18, 19])
    assert found(report) == {("unreadable", None): [15, 16, 17, 18, 19]}
    assert "sample 15 of" in reasons(report) and "`picture`" in reasons(report)
    assert [one["picture"].tolist() for one in report["copy"]] == [
        one["picture"].tolist() for i, one in enumerate(samples) if not 15 <= i < 20
    ]


def test_offsets_that_cannot_be_right_are_found_with_all_samples_they_touch(tmp_path):
    path = write_flat(tmp_path / "a.h5", make_samples(30))
    with h5py.File(path, "a") as file:
        offsets = file["nodes_offsets"][()]
        file["nodes_offsets"][4] = 10_000
        file["nodes_offsets"][20] = offsets[17]
    report = cleaned(path, without=[3, 4, 18, 19, 20])
    # 18 begins and 20 ends where they should; but one of the two offsets of 19 is a neighbour's.
    assert found(report) == {("offsets", "nodes"): [3, 4, 18, 19, 20]}
    assert f"gives it the rows {offsets[3]} to 10000 of {offsets[-1]}" in reasons(report)
    assert "and those beside it go back" in reasons(report)
    good = [i for i in range(30) if i not in (3, 4, 18, 19, 20)]
    samples = make_samples(30)
    expected = write_flat(tmp_path / "good.h5", [samples[i] for i in good])
    assert contents(report["copy"]) == contents(read_samples(expected))


def test_sizes_below_one_and_samples_without_rows_are_found(tmp_path):
    samples = make_samples(20)
    samples[2]["n"], samples[3]["n"] = np.int64(0), np.int64(-5)
    samples[11]["nodes"] = samples[11]["nodes"][:0]
    path = write_flat(tmp_path / "a.h5", samples)
    report = cleaned(path, without=[2, 3, 11])
    assert found(report) == {("size", None): [2, 3], ("empty", "nodes"): [11]}
    assert "its size `n` is -5" in reasons(report) and "no rows in `nodes`" in reasons(report)


def test_what_is_meant_can_be_allowed(tmp_path):
    samples = make_samples(20)
    samples[11]["nodes"] = samples[11]["nodes"][:0]
    samples[4]["nodes"][0] = np.nan
    path = write_flat(tmp_path / "a.h5", [*samples, samples[0]])
    assert do("check", path, allow=["empty", "nan", "duplicate"])["clean"]
    report = cleaned(path, without=[20], allow=["empty", "nan"])
    assert contents(report["copy"]) == contents(read_samples(path)[:20])


def test_groups_unlike_the_others_are_found_even_if_the_first_is_the_odd_one(tmp_path):
    path = write_groups(tmp_path / "a.h5", make_samples(25))
    with h5py.File(path, "a") as file:
        del file["samples/0/label"]
        values = file["samples/3/nodes"][()]
        del file["samples/3/nodes"]
        file["samples/3/nodes"] = values.astype(np.float64)
        file["samples/8/more"] = np.arange(3)
        file["samples/9/text"] = "no number: no part of a sample"
        file.move("samples/12", "samples/elsewhere")
        del file["samples/14/nodes"]
        file["samples/14/nodes"] = h5py.Empty("f4")
    report = cleaned(path, without=[0, 3, 8, 12, 14])
    assert found(report) == {("group", None): [0, 3, 8, 12, 14]}
    told = reasons(report).splitlines()
    assert told[0] == "`label` is missing"
    assert told[1] == "`nodes` is float64, in other samples float32"
    assert told[2] == "it has `more`, which other samples have not"
    assert told[3] == "there is no group `samples/12`"
    assert told[4] == "`nodes` holds no value at all"


def test_a_file_without_a_good_sample_gets_no_copy(tmp_path):
    samples = make_samples(4)
    for sample in samples:
        sample["picture"][:] = np.nan
    report = do("check", write_rows(tmp_path / "a.h5", samples), fix=True)
    assert not report["fixed"] and report["files"][0]["output"] is None
    assert names(tmp_path) == ["a.h5"]


def test_duplicates_are_looked_for_over_all_files(tmp_path):
    samples = make_samples(30)
    (tmp_path / "sets").mkdir()
    write_rows(tmp_path / "sets" / "test.h5", samples[:12])
    write_rows(tmp_path / "sets" / "train.h5", samples[10:])
    report = do("check", tmp_path / "sets", fix=True)
    assert found(report, 0) == {} and found(report, 1) == {("duplicate", None): [0, 1]}
    assert names(tmp_path / "sets") == ["test.h5", "train.clean.h5", "train.h5"]
    heard = Heard()
    report = do("check", tmp_path / "sets", heard=heard)
    assert len(report["files"]) == 2 and "train.clean.h5` is passed over" in heard.sentences[0]
    copies = [tmp_path / "sets" / "test.h5", tmp_path / "sets" / "train.clean.h5"]
    assert do("check", *copies)["clean"]


def test_a_file_that_cannot_be_opened_does_not_hide_the_others(tmp_path):
    samples = make_samples(20)
    write_rows(tmp_path / "a.h5", samples[:10])
    whole = write_rows(tmp_path / "b.h5", samples[10:]).read_bytes()
    (tmp_path / "b.h5").write_bytes(whole[: len(whole) // 2])
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["x"] = np.arange(3)
    report = do("check", tmp_path, fix=True)
    assert not report["clean"] and not report["fixed"]
    a, b, c = report["files"]
    assert a["bad"] == 0 and a["error"] is None
    assert "cannot be opened as an HDF5 file" in b["error"] and "has no `n`" in c["error"]
    with pytest.raises(DataError, match="has no `n`"):
        do("check", tmp_path / "c.h5")


def test_copies_replace_nothing_and_go_where_they_are_told(tmp_path):
    samples = make_samples(10)
    path = write_rows(tmp_path / "a.h5", [*samples, samples[0]])
    other = write_rows(tmp_path / "b.h5", samples)
    planned = do("check", path, fix=True, dry_run=True)["files"][0]
    assert (planned["kept"], planned["output"]) == (10, str(tmp_path / "a.clean.h5"))
    assert names(tmp_path) == ["a.h5", "b.h5"]
    do("check", path, fix=True, output=tmp_path / "new.h5")
    assert len(read_samples(tmp_path / "new.h5")) == 10
    with pytest.raises(StoreError, match=r"new.h5` exists already"):
        do("check", path, fix=True, output=tmp_path / "new.h5")
    with pytest.raises(StoreError, match=r"a.h5` is to be read and to be written"):
        do("check", path, fix=True, output=path, force=True)
    with pytest.raises(UsageError, match="there are 2 to copy"):
        do("check", path, other, fix=True, output=tmp_path / "new.h5")
    with pytest.raises(UsageError, match="none is asked for"):
        do("check", path, output=tmp_path / "new.h5")
    twin = write_rows(tmp_path / "a.hdf5", samples)
    with pytest.raises(UsageError, match=r"a\.h5` and .*a\.hdf5` would both become .*a\.clean\.h5"):
        do("check", path, twin, fix=True)


MEASURE = """
import json, resource, sys
from tasuki.data.curate.work import work
from tests.unit.data.heard import Heard
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = work(json.load(sys.stdin), Heard())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([report["clean"], (after - before) * 1024]))
"""


def test_memory_is_bounded_by_the_block_and_not_by_the_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"], file["id"] = np.full(200, 8), np.arange(200)
        data = file.create_dataset("x", (200, 1 << 17), "f8", chunks=(1, 1 << 17), compression=1)
        data[::40] = 1.0  # most chunks are never written: 210 MB that take little room
    asked = order("check", tmp_path / "a.h5", block_bytes=4 << 20)
    done = subprocess.run(
        [sys.executable, "-B", "-c", MEASURE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    is_clean, grown = json.loads(done.stdout)
    assert is_clean and grown < 100 << 20, f"{grown >> 20} MB for a file of 210"
