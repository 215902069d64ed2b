"""What data are, in a few characters: equal for what is the same, another for what is not."""

from __future__ import annotations

import copy
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.data.buckets import plan_buckets
from tasuki.data.fetch import Fetcher
from tasuki.data.fingerprint import (
    Looked,
    compare,
    digest_of,
    fingerprint_files,
    fingerprint_samples,
)
from tasuki.data.order import Order

BLOCK = 64 << 10
LARGE = 17 << 20


@pytest.fixture
def folder(tmp_path):
    """A data set for each split, and a folder of small files."""
    for number, split in enumerate(("train", "val")):
        (tmp_path / f"{split}.h5").write_bytes(bytes([number]) * 1000)
    (tmp_path / "images" / "a").mkdir(parents=True)
    for name in ("a/1.png", "a/2.png", "b.png"):
        (tmp_path / "images" / name).write_bytes(name.encode() * 50)
    return tmp_path


def large(path):
    """A sparse file with something in every block."""
    with path.open("wb") as file:
        for start in range(0, LARGE, BLOCK):
            file.seek(start)
            file.write(start.to_bytes(8, "little"))
        file.truncate(LARGE)
    return path


# -- files ----------------------------------------------------------------------------------------


def test_a_file_a_folder_a_pattern_and_a_list_are_known_by_what_they_hold(folder):
    file = fingerprint_files(str(folder / "train.h5"), "train")
    assert file is not None and file.startswith("1 files, 1000 bytes, ")
    assert fingerprint_files(str(folder), "train") == file
    assert fingerprint_files(str(folder / "trai?.h5"), "train") == file
    assert fingerprint_files([str(folder / "train.h5")], "train") == file
    both = fingerprint_files([str(folder / "train.h5"), str(folder / "val.h5")], "train")
    assert both is not None and both.startswith("2 files, 2000 bytes, ")
    images = fingerprint_files(str(folder / "images"), "train")
    assert images is not None and images.startswith("3 files, ")
    for other in ("val.h5", "notes.txt"):
        (folder / other).write_text("other")
    assert fingerprint_files(str(folder), "train") == file


@pytest.mark.parametrize("source", ["generated", "", None, 3, [], ["generated"], "http://x/y"])
def test_data_that_are_no_files_have_no_fingerprint_of_files(source):
    assert fingerprint_files(source, "train") is None


def test_times_inodes_modes_links_and_other_places_change_nothing(folder, tmp_path):
    source = folder / "images"
    before = fingerprint_files(str(source), "train")
    os.utime(source / "b.png", (1, 1))
    (source / "b.png").chmod(0o400)
    shutil.copy(source / "a" / "1.png", source / "copy")
    (source / "copy").replace(source / "a" / "1.png")
    for name in (".cache/thumbs", "a/cache-1.arrow", "b.lock", "__pycache__/m.pyc", "runs/.jobs/1"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("no data")
    assert fingerprint_files(str(source), "train") == before
    shutil.copytree(source, tmp_path / "elsewhere" / "deep")
    assert fingerprint_files(str(tmp_path / "elsewhere" / "deep"), "train") == before
    (tmp_path / "link").symlink_to(source)
    assert fingerprint_files(str(tmp_path / "link"), "train") == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda images: (images / "b.png").write_bytes(b"B.PNG" * 50),
    "size": lambda images: (images / "b.png").write_bytes(b"b.png" * 51),
    "renamed": lambda images: (images / "b.png").rename(images / "c.png"),
    "moved": lambda images: (images / "b.png").rename(images / "a" / "b.png"),
    "gone": lambda images: (images / "b.png").unlink(),
    "more": lambda images: (images / "c.png").write_bytes(b""),
    "swapped": lambda images: swap(images / "a" / "1.png", images / "a" / "2.png"),
}


def swap(one, other):
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_content_name_or_number_is_another_fingerprint(folder, change):
    before = fingerprint_files(str(folder / "images"), "train")
    CHANGES[change](folder / "images")
    now = fingerprint_files(str(folder / "images"), "train")
    assert now is not None and now != before


def test_of_a_large_file_both_ends_and_some_places_are_read(tmp_path):
    path = large(tmp_path / "large.bin")
    before = fingerprint_files(str(path), "train")
    chance = random.Random(1)
    places = [(place, 1) for place in (0, BLOCK - 1, LARGE - BLOCK, LARGE - 1)]
    # A tenth of the file, as when a data set is generated again in part.
    places += [(chance.randrange(LARGE - LARGE // 10), LARGE // 10) for _ in range(8)]
    for place, length in places:
        with path.open("r+b") as file:
            file.seek(place)
            kept = file.read(length)
            file.seek(place)
            file.write(bytes(byte ^ 1 for byte in kept) if length == 1 else b"x" * length)
            file.flush()
            assert fingerprint_files(str(path), "train") != before, place
            file.seek(place)
            file.write(kept)
    assert fingerprint_files(str(path), "train") == before


def test_of_very_many_files_names_and_sizes_count(tmp_path, monkeypatch):
    monkeypatch.setattr("tasuki.data.fingerprint._FILES_READ", 5)
    monkeypatch.setattr("tasuki.data.fingerprint._MOST_FILES", 40)
    for number in range(40):
        (tmp_path / f"{number:03d}").write_text("x")
    before = fingerprint_files(str(tmp_path), "train")
    (tmp_path / "039").write_text("y")
    assert fingerprint_files(str(tmp_path), "train") != before
    (tmp_path / "039").write_text("x")
    (tmp_path / "001").write_text("xy")
    assert fingerprint_files(str(tmp_path), "train") != before
    (tmp_path / "040").write_text("x")
    assert fingerprint_files(str(tmp_path), "train") is None


# -- samples --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclass
class Graph:
    nodes: Tensor
    label: int


class Listed:
    """A map-style data set of anything."""

    def __init__(self, make, num=50):
        self.make, self.num = make, num
        self.asked = 0

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        self.asked += 1
        return self.make(index)


def look(make, *, within_s=60.0):
    order = Order(plan_buckets(None, 50), seed=1, stage="s", effective_batch=4)
    fetcher = Fetcher(Listed(make), lambda samples: samples)
    return fingerprint_samples(fetcher, order, within_s=within_s)


def drawn(index):
    return index + torch.rand(3) + random.random() + float(np.random.rand())


def test_samples_are_the_same_however_often_and_whenever_they_are_read():
    first = look(drawn)
    torch.rand(1), random.random(), np.random.rand()
    assert first.digest is not None and look(drawn) == first
    assert look(lambda index: drawn(index) + 1).digest not in (None, first.digest)


KINDS: list[tuple[Any, Any]] = [
    (1, 2),
    (1, 1.0),
    (True, 1),
    ("a", b"a"),
    (None, 0),
    (torch.zeros(2), torch.zeros(3)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2), torch.tensor([0.0, -0.0])),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.ones((), dtype=torch.bfloat16), torch.zeros((), dtype=torch.bfloat16)),
    (torch.zeros(0), torch.zeros(0, 1)),
    (np.zeros(2), np.zeros(2, dtype=np.float32)),
    (np.float32(1), np.float32(2)),
    (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
    ({"a": 1}, {"b": 1}),
    ({"a": [1, {"b": torch.ones(1)}]}, {"a": [1, {"b": torch.zeros(1)}]}),
    ([1, [2]], [[1], 2]),
    (Pair(1, 2), Pair(2, 1)),
    (Graph(torch.ones(2), 1), Graph(torch.ones(2), 2)),
]


@pytest.mark.parametrize(("one", "other"), KINDS, ids=[str(n) for n in range(len(KINDS))])
def test_samples_of_every_kind_are_told_apart_by_content(one, other):
    assert digest_of(one) == digest_of(copy.deepcopy(one)) != digest_of(other)


def test_reading_leaves_nothing_behind_in_the_data_set_or_the_random_numbers(capfd):
    data = Listed(lambda index: print("read", index) or drawn(index))
    order = Order(plan_buckets(None, 50), seed=1, stage="s", effective_batch=4)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert fingerprint_samples(Fetcher(data, list), order).digest is not None
    assert data.asked == 0 and "read" not in capfd.readouterr().out
    assert states == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )


def unseeded(index):
    return float(np.random.default_rng().random())


def broken(index):
    raise ValueError("planted")


def deadly(index):
    os._exit(3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: object(), "they hold a object, whose content is not known"),
        (unseeded, "they are not the same when they are read again"),
        (broken, "planted"),
        (deadly, "the process that read some of them died"),
    ],
    ids=["unknown", "unseeded", "broken", "deadly"],
)
def test_samples_that_cannot_be_compared_say_why(make, reason):
    found = look(make)
    assert found.digest is None and reason in found.reason


def test_samples_that_take_too_long_are_left_alone():
    found = look(lambda _: time.sleep(60), within_s=0.05)
    assert found == Looked(None, "reading 8 of them takes longer than 0.05 s")


# -- before and now -------------------------------------------------------------------------------

HERE = {"files": "1 files, 10 bytes, aa", "samples": "11", "made_by": "x"}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (HERE, None),
        ({**HERE, "files": "1 files, 10 bytes, bb"}, "the content of its files"),
        (
            {**HERE, "files": "2 files, 20 bytes, bb"},
            "its files: 1 files, 10 bytes before, 2 files, 20 bytes now",
        ),
        (
            {**HERE, "samples": "22"},
            "the content of its samples, although the files that `data:` names are the same",
        ),
        ({**HERE, "files": None, "samples": "22"}, "the content of its samples"),
        ({**HERE, "samples": "22", "made_by": "y"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_changed_is_told_in_words_and_what_is_unknown_is_no_change(now, words):
    assert compare(HERE, now) == words
    assert (compare(now, HERE) is None) == (words is None)
