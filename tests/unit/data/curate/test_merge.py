"""`data merge`: nothing lost, nothing mixed up, nothing written where it should not be."""

from __future__ import annotations

import os
import shutil
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
    read_samples,
    write_flat,
    write_groups,
    write_rows,
)
from tests.unit.data.heard import Heard

from tasuki.data.curate.contents import Contents
from tasuki.data.curate.duplicates import find_duplicates
from tasuki.data.curate.findings import no_findings
from tasuki.data.curate.scan import Scan
from tasuki.data.hdf5.reader import Hdf5File
from tasuki.errors import DataError, StoreError, UsageError

PACKED = {"chunks": True, "compression": "gzip"}


@pytest.mark.parametrize("layout", WRITERS)
def test_the_merged_file_has_the_samples_of_all_files_in_their_order(tmp_path, layout):
    """Repeated ones are named, and `unique` keeps the first; compressed files give the same."""
    samples, write = make_samples(40), WRITERS[layout]
    files = [write(tmp_path / "a.h5", [*samples[:20], samples[3]], **PACKED)]
    files.append(write(tmp_path / "b.h5", [*samples[20:], samples[7], samples[3]]))
    report = do("merge", *files, output=tmp_path / "all.h5")
    merged = contents(read_samples(tmp_path / "all.h5"))
    assert merged == contents(read_samples(files[0]) + read_samples(files[1]))
    assert Hdf5File(tmp_path / "all.h5").layout.columns == Hdf5File(files[0]).layout.columns
    assert (report["samples"], report["duplicates"]["samples"]) == (43, 3)
    pairs = [
        (Path(one["file"]).name, one["sample"], Path(one["same_file"]).name, one["same_sample"])
        for one in report["duplicates"]["first"]
    ]
    assert pairs == [("a.h5", 20, "a.h5", 3), ("b.h5", 20, "a.h5", 7), ("b.h5", 21, "a.h5", 3)]
    report = do("merge", *files, output=tmp_path / "unique.h5", unique=True)
    assert (report["samples"], report["duplicates"]["left_out"]) == (40, 3)
    write(tmp_path / "expected.h5", samples)
    expected = contents(read_samples(tmp_path / "expected.h5"))
    assert contents(read_samples(tmp_path / "unique.h5")) == expected
    assert names(tmp_path) == ["a.h5", "all.h5", "b.h5", "expected.h5", "unique.h5"]


@pytest.mark.parametrize("layout", ["rows", "groups"])
def test_what_files_say_besides_their_samples_is_kept_where_they_agree(tmp_path, layout):
    samples, write = make_samples(6), WRITERS[layout]
    files = [write(tmp_path / f"{name}.h5", samples[i : i + 3]) for i, name in enumerate("ab")]
    for number, path in enumerate(files):
        with h5py.File(path, "a") as file:
            file.attrs["unit"], file.attrs["made"] = "metres", number
            file["n"].attrs["about"] = "nodes"
            file["mean"] = 2.5
            file["notes/text"] = "hello"
            if layout == "groups":
                file["samples/1"].attrs["id"] = f"sample {number}"
                file["samples/1/name"] = "text"
    report = do("merge", *files, output=tmp_path / "all.h5")
    assert report["warnings"] == ["left out, as the files do not agree on it: attribute `made`"]
    with h5py.File(tmp_path / "all.h5") as file:
        assert dict(file.attrs) == {"unit": "metres"} and file["n"].attrs["about"] == "nodes"
        assert file["mean"][()] == 2.5 and file["notes/text"][()] == b"hello"
        if layout == "groups":
            assert file["samples/4"].attrs["id"] == "sample 1"
            assert file["samples/4/name"][()] == b"text"


def test_all_types_and_shapes_survive(tmp_path):
    random = np.random.default_rng(1)
    values = {
        "flag": random.integers(0, 2, (7, 3)).astype(bool),
        "half": random.normal(size=(7, 2)).astype(np.float16),
        "wave": random.normal(size=(7, 2)) + 1j,
        "other_order": random.normal(size=7).astype(">f8"),
        "byte": random.integers(0, 255, (7, 1)).astype(np.uint8),
        "nothing": np.empty((7, 0), dtype=np.float32),
        "sparse": random.normal(size=(5, 2)),
        "sparse_offsets": np.array([0, 0, 2, 2, 5, 5, 5, 5], dtype=np.uint32),
    }
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["n"] = np.arange(1, 8, dtype=np.uint8)
            for key, value in values.items():
                file[key] = value
    do("merge", tmp_path / "a.h5", tmp_path / "b.h5", output=tmp_path / "all.h5")
    with h5py.File(tmp_path / "all.h5") as file:
        for key in values.keys() - {"sparse_offsets"}:
            assert file[key].dtype == values[key].dtype.newbyteorder("=")
            np.testing.assert_array_equal(file[key][()], np.concatenate([values[key]] * 2))
        expected = [0, 0, 2, 2, 5, 5, 5, 5, 5, 7, 7, 10, 10, 10, 10]
        assert file["sparse_offsets"][()].tolist() == expected


def test_a_digest_alone_makes_no_duplicate(tmp_path):
    samples = make_samples(6)
    file = Contents(write_rows(tmp_path / "a.h5", [*samples, samples[2]]))
    forged = np.zeros((7, 2), dtype=np.uint64)
    pairs = find_duplicates([Scan(contents=file, digests=forged, findings=no_findings())])
    assert pairs.tolist() == []
    forged[1:] = np.arange(1, 7, dtype=np.uint64)[:, None]
    forged[6] = forged[2]
    pairs = find_duplicates([Scan(contents=file, digests=forged, findings=no_findings())])
    assert pairs.tolist() == [[6, 2]]
    file.close()


def test_files_of_different_samples_are_refused_and_nothing_is_written(tmp_path):
    samples = make_samples(5)
    write_rows(tmp_path / "a.h5", samples)
    write_flat(tmp_path / "b.h5", samples)
    with pytest.raises(DataError, match=r"b.h5` has `nodes`, but `.*a.h5` does not"):
        do("merge", tmp_path / "a.h5", tmp_path / "b.h5", output=tmp_path / "all.h5")
    c = write_groups(tmp_path / "c.h5", samples)
    for sample in samples:
        sample["nodes"] = sample["nodes"].astype(np.float64)
    d = write_groups(tmp_path / "d.h5", samples)
    with pytest.raises(DataError, match=r"`nodes` is float32 in groups in .* but float64"):
        do("merge", c, d, output=tmp_path / "all.h5")
    assert names(tmp_path) == ["a.h5", "b.h5", "c.h5", "d.h5"]


def test_files_with_bad_samples_are_refused_and_nothing_is_written(tmp_path):
    samples = make_samples(50)
    good = write_flat(tmp_path / "a.h5", samples[:20])
    bad = write_flat(tmp_path / "b.h5", samples[20:])
    with h5py.File(bad, "a") as file:
        file["nodes_offsets"][12] = 10_000
    with pytest.raises(DataError, match=r"sample 11 of `.*b.h5` .* rows \d+ to 10000 .*\(and 1 m"):
        do("merge", good, bad, output=tmp_path / "all.h5")
    with h5py.File(bad, "a") as file:
        file["nodes_offsets"][...] = np.cumsum([0, *(len(s["nodes"]) for s in samples[20:])])
        file["n"][4] = 0
    with pytest.raises(DataError, match=r"sample 4 of .* its size `n` is 0") as caught:
        do("merge", good, bad, output=tmp_path / "all.h5")
    assert "--fix" in caught.value.hint
    assert names(tmp_path) == ["a.h5", "b.h5"]


def test_nothing_is_replaced_unless_asked_for(tmp_path):
    samples = make_samples(9)
    a, b = write_rows(tmp_path / "a.h5", samples[:4]), write_rows(tmp_path / "b.h5", samples[4:])
    (tmp_path / "all.h5").write_text("mine")
    with pytest.raises(StoreError, match=r"all.h5` exists already"):
        do("merge", a, b, output=tmp_path / "all.h5")
    with pytest.raises(StoreError, match=r"b.h5` is to be read and to be written"):
        do("merge", a, b, output=tmp_path / "b.h5", force=True)
    with pytest.raises(UsageError, match=r"a.h5` is given twice"):
        do("merge", a, str(tmp_path / "*.h5"), output=tmp_path / "all.h5")
    with pytest.raises(UsageError, match="has no name of an HDF5 file"):
        do("merge", a, b, output=tmp_path / "all.txt")
    assert (tmp_path / "all.h5").read_text() == "mine"
    do("merge", a, b, output=tmp_path / "all.h5", force=True)
    assert len(read_samples(tmp_path / "all.h5")) == 9
    assert names(tmp_path) == ["a.h5", "all.h5", "b.h5"]


def test_a_dry_run_tells_all_and_writes_nothing(tmp_path):
    samples = make_samples(30)
    a, b = write_flat(tmp_path / "a.h5", samples[:20]), write_flat(tmp_path / "b.h5", samples[10:])
    told = do("merge", a, b, output=tmp_path / "all.h5", unique=True, dry_run=True)
    assert names(tmp_path) == ["a.h5", "b.h5"]
    done = do("merge", a, b, output=tmp_path / "all.h5", unique=True)
    assert told | {"dry_run": False, "bytes": done["bytes"]} == done
    assert abs(told["bytes"] - done["bytes"]) < 4096


def test_too_little_room_is_noticed_before_anything_is_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(1, 1001)
        # Never written, so it takes no room; as a plain data set it would take 16 TB.
        file.create_dataset("x", shape=(1000, 1 << 31), dtype="f8", chunks=(1, 1 << 20))
    with pytest.raises(StoreError, match=r"all.h5` needs 17.2 TB, .* free"):
        do("merge", tmp_path / "a.h5", output=tmp_path / "all.h5")
    assert names(tmp_path) == ["a.h5"]


def test_a_source_that_changes_meanwhile_is_no_source(tmp_path):
    samples = make_samples(200)
    path = write_rows(tmp_path / "a.h5", samples)
    for phase in ("reading", "writing"):
        heard = Heard(lambda what, done, phase=phase: what == phase and os.utime(path))
        with pytest.raises(DataError, match=r"a.h5` changed while it was read"):
            do("merge", path, output=tmp_path / "all.h5", heard=heard)
        assert not (tmp_path / "all.h5").exists()


def test_two_at_a_time_do_not_write_one_output(tmp_path, monkeypatch):
    monkeypatch.setattr("tasuki.runs.locks._LOCK_WITHIN_S", 0.0)
    a = write_rows(tmp_path / "a.h5", make_samples(50))
    seen = []

    def second(what, done):
        if not seen:
            seen.append(what)
            with pytest.raises(StoreError, match="another process is writing"):
                do("merge", a, output=tmp_path / "all.h5")

    do("merge", a, output=tmp_path / "all.h5", heard=Heard(second))
    assert seen and len(read_samples(tmp_path / "all.h5")) == 50


def stop(phase, at):
    def act(what, done):
        if what == phase and done > at:
            raise KeyboardInterrupt

    return Heard(act)


def test_an_interrupted_merge_loses_only_what_it_had_not_noted(tmp_path):
    samples = make_samples(300)
    path = write_rows(tmp_path / "a.h5", [*samples, samples[7]])
    more = {"output": tmp_path / "all.h5", "block_bytes": 256}
    with pytest.raises(KeyboardInterrupt):
        do("merge", path, **more, heard=stop("reading", 200))
    again = stop("writing", 150)
    with pytest.raises(KeyboardInterrupt):
        do("merge", path, **more, heard=again)
    reading = [done for what, done in again.progressed if what == "reading"]
    assert reading[0] > 100 and reading[-1] == 301
    assert ".all.h5.partial" in names(tmp_path) and "all.h5" not in names(tmp_path)
    last = Heard()
    report = do("merge", path, **more, heard=last)
    assert "reading" not in dict(last.progressed)
    assert min(done for what, done in last.progressed if what == "writing") > 100
    assert report["duplicates"]["first"][0]["same_sample"] == 7
    assert contents(read_samples(tmp_path / "all.h5")) == contents(read_samples(path))


def test_an_interrupted_merge_of_files_that_changed_starts_over_with_a_warning(tmp_path):
    samples = make_samples(200)
    path = write_rows(tmp_path / "a.h5", samples[:150])
    with pytest.raises(KeyboardInterrupt):
        do("merge", path, output=tmp_path / "all.h5", heard=stop("writing", 60))
    shutil.copy(write_rows(tmp_path / "b.h5", samples[50:]), path)
    heard = Heard()
    do("merge", path, output=tmp_path / "all.h5", heard=heard)
    assert [line for line in heard.sentences if "changed since" in line and "a.h5" in line]
    assert [line for line in heard.sentences if "starting the output over" in line]
    assert contents(read_samples(tmp_path / "all.h5")) == contents(read_samples(path))
    assert names(tmp_path) == ["a.h5", "all.h5", "b.h5"]
