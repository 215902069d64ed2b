"""HDF5 files: what h5py would read, only the samples asked for, in any process, or a message."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.unit.data.hdf5.reading import (
    DTYPES,
    LENGTHS,
    NUM,
    STORAGES,
    is_same,
    make_packed,
    refuse,
    values,
    write,
    write_flat,
)

from tasuki.data.hdf5 import reader
from tasuki.data.hdf5.dataset import Hdf5Dataset

# -- what h5py would read -----------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_and_flat_rows_of_every_type_are_what_h5py_reads(tmp_path, storage):
    options, arrays = STORAGES[storage], {"late": np.full((NUM, 2), 7.0)}
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024) as file:
        file["n"] = np.arange(1, NUM + 1)
        file.create_dataset("late", (NUM, 2), "f8", fillvalue=7)  # never written
        for number, dtype in enumerate(DTYPES):
            rows, one = values(NUM, 2, 3, dtype=dtype), values(NUM, dtype=dtype, seed=2)
            flat = values(sum(LENGTHS), 2, dtype=dtype, seed=3)
            file.create_dataset(f"rows{number}", data=rows, **options)
            file.create_dataset(f"one{number}", data=one, **options)
            write_flat(file, f"flat{number}", flat, LENGTHS, **options)
            arrays[f"rows{number}"], arrays[f"one{number}"] = rows, one
            arrays[f"flat{number}"] = np.split(flat, np.cumsum(LENGTHS)[:-1])
    data = Hdf5Dataset(tmp_path / "x.h5")
    for chosen in ([6, 0, 2, 2, 5, 1], list(range(NUM)), [3]):
        for index, sample in zip(chosen, data.read_raw(chosen), strict=True):
            assert list(sample) == ["n", *sorted(arrays)]
            assert sample["n"] == index + 1 and type(sample["n"]) is int
            for name, expected in arrays.items():
                native = expected[index].dtype.newbyteorder("=")
                assert is_same(sample[name], expected[index].astype(native))
                assert np.asarray(sample[name]).dtype.isnative
    first = data[2]["rows3"].copy()
    sample = data[2]
    sample["rows3"] += 1  # a copy
    assert is_same(data[2]["rows3"], first)


def test_samples_in_groups_are_what_h5py_reads_each_with_its_own_shape(tmp_path):
    arrays = [values(k % 3 + 1, k % 2 + 1, dtype=">f4", seed=k) for k in range(NUM)]

    def fill(file):
        for number, array in enumerate(arrays):
            file.create_dataset(f"samples/{number}/x", data=array, **STORAGES["packed"])
            file[f"samples/{number}/label"] = np.int16(number)

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill))
    for index, sample in enumerate(data.read_raw(range(NUM))):
        assert is_same(sample["x"], arrays[index].astype("f4"))
        assert is_same(sample["label"], np.int16(index))
    assert data.read_stacked([0, 3]) is None


def test_stacked_samples_are_the_single_ones_where_their_shapes_agree(tmp_path):
    rows, flat = values(NUM, 3), values(sum(LENGTHS), 2, seed=3)

    def fill(file):
        file["rows"] = rows
        write_flat(file, "flat", flat, LENGTHS)

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill))
    assert data.read_stacked([0, 1]) is None
    for chosen in ([4, 3, 4], [7, 1]):  # one row each; none at all
        stacked = data.read_stacked(chosen)
        assert stacked is not None and stacked["n"].tolist() == [index + 1 for index in chosen]
        for name in ("rows", "flat"):
            assert is_same(stacked[name], np.stack([data[i][name] for i in chosen]))


ODD_TYPES = {
    "bfloat16": (h5py.h5t.IEEE_F32LE, 2),
    "12 bits": (h5py.h5t.STD_U16LE, None),
}


@pytest.mark.parametrize("kind", ODD_TYPES)
def test_numbers_that_lie_in_the_file_otherwise_than_in_memory_are_converted(tmp_path, kind):
    stored, size = ODD_TYPES[kind]
    stored = stored.copy()
    if size:
        stored.set_fields(15, 7, 8, 0, 7)
        stored.set_size(size)
        stored.set_ebias(127)
    else:
        stored.set_precision(12)
        stored.set_offset(4)
    expected = values(NUM, 4, dtype="f4" if size else "u2")

    def fill(file):
        space = h5py.h5s.create_simple((NUM, 4))
        data = h5py.h5d.create(file.id, b"x", stored, space)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, expected)

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill))
    assert is_same(np.stack([sample["x"] for sample in data.read_raw(range(NUM))]), expected)


def far(file):
    file["x"] = h5py.ExternalLink("other.h5", "/x")


def virtual(file):
    layout = h5py.VirtualLayout((NUM, 3), dtype="f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape=(NUM, 3))
    file.create_virtual_dataset("x", layout)


def outside(file):
    file.create_dataset("x", (NUM, 3), "f4", external=[("x.raw", 0, h5py.h5f.UNLIMITED)])
    file["x"][:] = values(NUM, 3)


def compact(file):
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((NUM, 3))
    data = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, options)
    data.write(h5py.h5s.ALL, h5py.h5s.ALL, values(NUM, 3))


@pytest.mark.parametrize("fill", [far, virtual, outside, compact])
def test_rows_that_lie_in_another_place_are_found_there(tmp_path, monkeypatch, fill):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "other.h5", lambda file: file.__setitem__("x", values(NUM, 3)))
    data = Hdf5Dataset(write(tmp_path / "a.h5", fill))
    assert is_same(np.stack([sample["x"] for sample in data.read_raw(range(NUM))]), values(NUM, 3))


def test_samples_without_any_numbers_are_read_as_such(tmp_path):
    def fill(file):
        file["nothing"] = np.zeros((NUM, 0), dtype="f4")
        write_flat(file, "empty", np.zeros((0, 3)), [0] * NUM)

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill))
    assert [data[4][name].shape for name in ("nothing", "empty")] == [(0,), (0, 3)]
    stacked = data.read_stacked([1, 2])
    assert stacked is not None
    assert (stacked["nothing"].shape, stacked["empty"].shape) == ((2, 0), (2, 0, 3))


def test_groups_single_values_and_types_beside_the_samples_are_left_alone(tmp_path):
    def fill(file):
        file["samples"] = values(NUM, 3)
        file["about/words"] = "measured in 1999"
        file["scale"] = 3.5
        file["kind"] = np.dtype("f4")
        file["void"] = h5py.Empty("f4")

    assert list(Hdf5Dataset(write(tmp_path / "x.h5", fill))[0]) == ["n", "samples"]


# -- several files ------------------------------------------------------------------------------


def make_part(path, first, num):
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["n"] = np.arange(first, first + num) + 1
        file["x"] = np.arange(first, first + num, dtype="f4") * 10
    return path


def test_several_files_are_one_data_set_in_a_fixed_order(tmp_path):
    paths = [
        make_part(tmp_path / name, *part)
        for name, part in {"b.h5": (0, 3), "a.hdf5": (3, 4), "c.hdf": (7, 2)}.items()
    ]
    data = Hdf5Dataset(paths)
    assert len(data) == 9 and data.sizes[8] == 9
    chosen = [8, 2, 3, 0, 7, 6, 3, 1]
    assert [sample["n"] for sample in data.read_raw(chosen)] == [index + 1 for index in chosen]
    assert [data[index]["x"] for index in chosen] == [index * 10.0 for index in chosen]
    assert data[-1]["n"] == 9
    for index in (9, -10):
        with pytest.raises(IndexError):
            data[index]
    assert data.sizes[2:8].tolist() == [3, 4, 5, 6, 7, 8]
    assert np.asarray(data.sizes).tolist() == list(range(1, 10))
    assert data.sizes[np.int64(4)] == 5


def test_a_folder_or_a_pattern_takes_the_files_of_the_split_sorted_by_name(tmp_path):
    for name, first in (("p10.h5", 2), ("p2.h5", 4), ("q[1].h5", 9)):
        make_part(tmp_path / name, first, 2)
    assert np.asarray(Hdf5Dataset(f"{tmp_path}/p*.h5").sizes).tolist() == [3, 4, 5, 6]
    assert len(Hdf5Dataset([f"{tmp_path}/p*.h5", tmp_path / "q[1].h5"])) == 6
    assert len(Hdf5Dataset(tmp_path)) == 6
    for folder, first in (("s1", 0), ("s2", 5)):
        make_part(tmp_path / folder / "train.h5", first, 2)
        make_part(tmp_path / folder / "val.h5", first + 2, 1)
    assert np.asarray(Hdf5Dataset(tmp_path / "s1", "train").sizes).tolist() == [1, 2]
    assert np.asarray(Hdf5Dataset(f"{tmp_path}/s*", "val").sizes).tolist() == [3, 8]
    error = refuse(lambda: Hdf5Dataset(tmp_path / "s1", "test"), "has no `test.h5`; it has train")
    assert "tasuki data split" in error.hint


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("trian.h5", r"trian.h5` do not exist; .*`train.h5`"),
        ("nowhere/x.h5", r"nowhere/x.h5` do not exist"),
        ("zzz*.h5", r"no file matches .*`train.h5`"),
        ("empty", r"empty` has no HDF5 file"),
    ],
)
def test_data_that_are_not_there_are_named_with_what_is(tmp_path, source, words):
    make_part(tmp_path / "train.h5", 0, 1)
    (tmp_path / "empty").mkdir()
    refuse(lambda: Hdf5Dataset(tmp_path / source, "train"), words)
    refuse(lambda: Hdf5Dataset([]), "no file of data is named")


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (
            lambda f: f.__setitem__("x", values(NUM, 3, dtype="f8")),
            r"`x` is float32 \(3 per sample",
        ),
        (lambda f: write_flat(f, "x", values(9, 3), [9] + [0] * (NUM - 1)), "per row"),
        (lambda f: f.__setitem__("y", values(NUM, 3)), "has `x`, but .*b.h5` does not"),
    ],
)
def test_files_that_do_not_go_together_are_refused_with_both_names(tmp_path, fill, words):
    a = write(tmp_path / "a.h5", lambda f: f.__setitem__("x", values(NUM, 3)))
    b = write(tmp_path / "b.h5", fill)
    error = refuse(lambda: Hdf5Dataset([a, b]), words)
    assert "a.h5" in error.message and "b.h5" in error.message


# -- numbers per sample -------------------------------------------------------------------------


def test_counts_are_rows_of_flat_data_and_whole_numbers_per_sample(tmp_path):
    def fill(file):
        write_flat(file, "edges", values(sum(LENGTHS), 2), LENGTHS)
        file["weight"] = np.arange(NUM, dtype="u1")
        file["score"] = np.linspace(0, 1, NUM)

    paths = [write(tmp_path / name, fill) for name in ("a.h5", "b.h5")]
    data = Hdf5Dataset(paths)
    assert data.counts("edges").tolist() == LENGTHS * 2
    assert data.counts("weight").tolist() == list(range(NUM)) * 2
    assert data.counts("n").tolist() == list(range(1, NUM + 1)) * 2
    assert data.scores().tolist() == np.linspace(0, 1, NUM).tolist() * 2
    for name in ("score", "nodes"):  # cut to whole numbers, a score would be 0
        refuse(lambda name=name: data.counts(name), f"no number per sample called `{name}`")
    path = write(tmp_path / "c.h5", lambda f: f.__setitem__("score", values(NUM, 2)))
    with h5py.File(path, "r+") as file:
        file["n"][5] = 0
    refuse(lambda: np.asarray(Hdf5Dataset(path).sizes), "sample 5 of .*c.h5` has size 0")
    assert "sample_scores" in refuse(Hdf5Dataset(path).scores, "no data set `score`").hint


def test_more_samples_than_are_kept_in_memory_are_looked_up_one_by_one(tmp_path, monkeypatch):
    flat = values(sum(LENGTHS), 2)
    path = write(tmp_path / "x.h5", lambda f: write_flat(f, "flat", flat, LENGTHS))
    usual = Hdf5Dataset(path).read_raw([6, 0, 1, 6])
    monkeypatch.setattr(reader, "KEPT", 4)
    for one, other in zip(Hdf5Dataset(path).read_raw([6, 0, 1, 6]), usual, strict=True):
        assert one["n"] == other["n"] and is_same(one["flat"], other["flat"])


# -- only what is asked for ---------------------------------------------------------------------


def bytes_read():
    """By this process so far, from the kernel."""
    told = Path("/proc/self/io").read_text().split()
    return int(told[told.index("rchar:") + 1])


@pytest.mark.parametrize("storage", STORAGES)
def test_only_the_samples_asked_for_are_read(tmp_path, storage):
    num = 500

    def fill(file):
        options = {**STORAGES[storage]} | ({"chunks": (4, 1000)} if storage != "contiguous" else {})
        file.create_dataset("x", data=np.random.default_rng(1).random((num, 1000)), **options)
        write_flat(file, "flat", np.random.default_rng(2).random((num * 100, 4)), [100] * num)

    data = Hdf5Dataset(write(tmp_path / "x.h5", fill, num=num))
    data.read_raw([0])  # opened, sizes and offsets known
    before = bytes_read()
    data.read_raw([400, 40, 7])
    own = 3 * (1000 + 400) * 8
    # Chunks hold four samples, and HDF5 reads headers; all samples would be 5.6 MB.
    assert own * 0.9 <= bytes_read() - before < 5 * own


def test_a_damaged_sample_is_named_and_the_others_can_be_read(tmp_path):
    rows = np.random.default_rng(1).random((20, 50))

    def fill(file):
        file.create_dataset("x", data=rows, chunks=(1, 50), fletcher32=True)

    path = write(tmp_path / "x.h5", fill, num=20)
    with h5py.File(path) as file:
        place = file["x"].id.get_chunk_info_by_coord((13, 0)).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 8] ^= 1
    path.write_bytes(content)
    data = Hdf5Dataset(path)
    rest = [index for index in range(20) if index != 13]
    assert is_same(np.stack([sample["x"] for sample in data.read_raw(rest)]), rows[rest])
    for read in (data.read_raw, data.read_stacked):
        error = refuse(lambda read=read: read([2, 13, 5]), r"sample 13 of .*x.h5` cannot be read")
        assert "tasuki data check" in error.hint


# -- in any process -----------------------------------------------------------------------------


def is_open(path):
    """In this process."""
    held = (Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return any(one.resolve() == path for one in held)


def read_at_random(data, rows, seed):
    chance = np.random.default_rng(seed)
    batches = [chance.integers(0, len(rows), 6) for _ in range(40)]
    return all(
        is_same(np.stack([sample["x"] for sample in data.read_raw(batch)]), rows[batch])
        for batch in batches
    )


def test_forked_processes_and_this_one_read_the_same_file_at_the_same_time(tmp_path):
    data, rows = make_packed(tmp_path)
    assert read_at_random(data, rows, 0) and is_open(tmp_path / "x.h5")
    assert is_same(pickle.loads(pickle.dumps(data))[150]["x"], rows[150])
    pids = []
    for seed in (1, 2, 3):
        if (pid := os.fork()) == 0:
            # An open file is never handed on.
            handed_on = is_open(tmp_path / "x.h5")
            os._exit(0 if not handed_on and read_at_random(data, rows, seed) else 1)
        pids.append(pid)
    assert read_at_random(data, rows, 4)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]


def test_threads_that_read_the_same_file_never_get_each_others_samples(tmp_path):
    data, rows = make_packed(tmp_path)
    right: list[bool] = []
    threads = [
        threading.Thread(target=lambda seed=seed: right.append(read_at_random(data, rows, seed)))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4


def test_files_that_are_closed_or_forgotten_leave_nothing_open(tmp_path):
    for _ in range(5):
        data, _rows = make_packed(tmp_path)
        data.read_raw([1])
        data.files[0].close()
        assert data.read_raw([2])[0]["n"] == 3  # opened again when it is needed
        del data
        assert not is_open(tmp_path / "x.h5")
