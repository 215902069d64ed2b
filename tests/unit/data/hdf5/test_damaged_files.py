"""HDF5 files that change, break or never were: a message that names file and sample."""

from __future__ import annotations

import os
import pickle
import sys

import h5py
import numpy as np
import pytest
from tests.unit.data.hdf5.reading import (
    LENGTHS,
    NUM,
    STORAGES,
    Write,
    is_same,
    make_packed,
    refuse,
    values,
    write,
    write_flat,
)

from tasuki.data.hdf5.dataset import Hdf5Dataset
from tasuki.data.hdf5.reader import Hdf5File
from tasuki.errors import DataError


@pytest.mark.parametrize("change", ["touched", "cut", "replaced", "gone"])
def test_a_file_that_changes_while_it_is_used_is_refused(tmp_path, change):
    data, _ = make_packed(tmp_path)
    path = tmp_path / "x.h5"
    data.read_raw([1])
    worker = pickle.loads(pickle.dumps(data))
    match change:
        case "touched":
            os.utime(path, ns=(1, 1))
        case "cut":
            os.truncate(path, path.stat().st_size // 2)
        case "replaced":
            path.rename(tmp_path / "old.h5")
            make_packed(tmp_path)
        case "gone":
            path.unlink()
    words = "cannot be opened" if change == "gone" else "changed while it was read"
    error = refuse(lambda: data.read_raw([1]), words)
    assert "x.h5" in error.message
    # A worker that opens it only now knows too: by what it was told, or because it cannot.
    with pytest.raises(DataError):
        worker.read_raw([1])


def test_rows_that_vanish_during_a_read_are_an_error_and_no_signal(tmp_path):
    path = write(tmp_path / "x.h5", lambda f: f.__setitem__("x", values(NUM, 4000)))
    file = Hdf5File(path)
    [column] = file.layout.columns
    opened = file._open()
    os.truncate(path, 50_000)
    words = "sample 7 of .*x.h5` cannot be read .*the file ends before the data do"
    refuse(lambda: opened.read(column, np.array([0, 7])), words)


def test_what_is_no_whole_hdf5_file_is_refused_in_words(tmp_path):
    for keep in (0.1, 0.99):
        path = write(tmp_path / f"{keep}.h5", lambda f: f.__setitem__("x", values(NUM, 400)))
        os.truncate(path, int(path.stat().st_size * keep))
        error = refuse(lambda path=path: Hdf5File(path), r"cannot be opened .*truncated")
        assert path.name in error.message and "interrupted copy" in error.hint
    (tmp_path / "empty.h5").touch()
    refuse(lambda: Hdf5File(tmp_path / "empty.h5"), "empty.h5` is an empty file")
    (tmp_path / "text.h5").write_text("n: 3\n" * 1000)
    refuse(lambda: Hdf5File(tmp_path / "text.h5"), "text.h5` cannot be opened as an HDF5 file")
    refuse(lambda: Hdf5File(tmp_path / "none.h5"), "none.h5` cannot be opened: No such file")
    refuse(lambda: Hdf5File(tmp_path), "cannot be opened")


def count_refusals(folder, whole):
    """Every used byte in turn (60 of them) is overwritten; what is no message is raised."""
    refused = 0
    used = np.flatnonzero(np.frombuffer(whole, dtype="u1")).tolist()
    for number, place in enumerate(used[:: len(used) // 60]):
        content = bytearray(whole)
        content[place] = (0, 255, 37)[number % 3]
        # Another file each time: HDF5 remembers what it read of one that is still open.
        path = folder / f"damaged{number}.h5"
        path.write_bytes(content)
        try:
            data = Hdf5Dataset(path)
            np.asarray(data.sizes)
            data.read_raw(range(len(data)))
        except DataError as error:
            refused += 1
            assert path.name in error.message and error.hint
    return refused


def test_damage_in_the_headers_is_a_message_wherever_it_is(tmp_path):
    """HDF5 has many words for that. In a process of its own: it has crashes for some, too."""

    def fill(file):
        write_flat(file, "flat", values(sum(LENGTHS), 2), LENGTHS, **STORAGES["packed"])
        for number in range(NUM):
            file[f"samples/{number}/x"] = values(number + 1)

    whole = write(tmp_path / "x.h5", fill).read_bytes()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            status = 0 if count_refusals(tmp_path, whole) > 20 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


WRONG: list[tuple[Write, str]] = [
    (lambda f: f.__delitem__("n"), r"has no `n`"),
    (lambda f: replace(f, "n", np.linspace(0, 1, NUM)), "`n` of .*float64 in the shape"),
    (lambda f: replace(f, "n", np.ones((NUM, 2), dtype=int)), "`n` of .*not a size per sample"),
    (lambda f: replace(f, "n", 7), "`n` of .*not a size per sample"),
    (lambda f: replace(f, "n", np.zeros(0, dtype=int)), "has no samples"),
    (lambda f: replace(f, "x", values(NUM - 1, 3)), f"has {NUM - 1} rows for {NUM} samples"),
    (lambda f: replace(f, "x", [b"a"] * NUM), "cannot become a tensor"),
    (lambda f: replace(f, "x", np.zeros(NUM, dtype="i4,f4")), "cannot become a tensor"),
    (lambda f: replace(f, "x_offsets", np.arange(NUM)), f"samples need {NUM + 1} whole numbers"),
    (lambda f: replace(f, "x_offsets", np.arange(NUM + 1.0)), "float64 in the shape"),
    (lambda f: replace(f, "y", h5py.SoftLink("/nowhere")), "`y` of .*leads nowhere"),
    (lambda f: f.create_group("samples/0"), f"has 1 groups in `samples` for {NUM} sizes"),
    (lambda f: [f.create_group(f"samples/{k + 1}") for k in range(NUM)], "name|groups in"),
]


def replace(file, name, value):
    if name in file:
        del file[name]
    file[name] = value


@pytest.mark.parametrize(("spoil", "words"), WRONG)
def test_a_file_that_is_laid_out_wrongly_is_refused_in_words(tmp_path, spoil, words):
    def fill(file):
        file["x"] = values(NUM, 3)
        spoil(file)

    path = write(tmp_path / "x.h5", fill)
    error = refuse(lambda: Hdf5File(path), words)
    assert str(path) in error.message


@pytest.mark.parametrize(
    ("offsets", "sample"),
    [
        ([0, 3, 2, 8, 9, 10, 14, 16, 16], 1),
        ([-1, 3, 3, 8, 9, 10, 14, 16, 16], 0),
        ([0, 3, 3, 8, 9, 10, 14, 16, 99], 7),
    ],
)
def test_offsets_that_cannot_be_name_the_sample_and_the_rows(tmp_path, offsets, sample):
    def fill(file):
        file["x"] = values(sum(LENGTHS), 2)
        file["x_offsets"] = offsets

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill))
    rows = f"{offsets[sample]} to {offsets[sample + 1]} of {sum(LENGTHS)}"
    refuse(lambda: data.read_raw([4, sample]), f"gives sample {sample} the rows {rows}")
    assert is_same(data[6]["x"], values(sum(LENGTHS), 2)[14:16])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda g: replace(g, "x", values(2, dtype="f8")),
            "is float64, that of sample 0 is float32",
        ),
        (lambda g: g.__delitem__("x"), "cannot be read .`x`."),
        (lambda g: (g.__delitem__("x"), g.create_group("x")), "cannot be read .`x`."),
    ],
)
def test_a_group_that_is_unlike_the_others_is_named(tmp_path, spoil, words):
    def fill(file):
        for number in range(NUM):
            file[f"samples/{number}/x"] = values(2)
        spoil(file["samples/3"])

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill))
    assert len(data.read_raw([2, 4])) == 2
    error = refuse(lambda: data.read_raw([2, 3]), words)
    assert "sample 3" in error.message and "x.h5" in error.message


def test_without_h5py_the_message_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "x.h5", lambda f: f.__setitem__("x", values(NUM)))
    monkeypatch.setitem(sys.modules, "h5py", None)
    error = refuse(lambda: Hdf5File(path), "is an HDF5 file, and h5py is not installed")
    assert error.hint == 'pip install "tasuki[hdf5]"'
