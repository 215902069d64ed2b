"""`data split`: each sample's part follows from the seed and its content, and from nothing else."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

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
    write_rows,
)

from tasuki.data.curate.contents import Contents
from tasuki.data.curate.scan import scan_file
from tasuki.data.curate.split import choose_parts, read_fractions
from tasuki.errors import DataError, StoreError, UsageError

PARTS = ("train", "val", "test")

# Computed from the definitions in scan.py and split.py by other code than theirs.
FIXED_DIGESTS = [
    "417a519df5995b19b4d263effd1e0dd6",
    "5705be8e48e2b845a3fce587803f0b85",
    "85b0de582d2f9bd60670cd113ec3d845",
    "724aec45c1054cdbb62c67f24eb15dde",
]
FIXED_PARTS = "1002101010201000101122001200012001020200"


def parts_of(folder):
    return {p: read_samples(folder / f"{p}.h5") for p in PARTS if (folder / f"{p}.h5").exists()}


def where(folder):
    """The part of each content."""
    parts = parts_of(folder)
    return {one: part for part, samples in parts.items() for one in contents(samples)}


@pytest.mark.parametrize("layout", WRITERS)
def test_every_sample_goes_to_exactly_one_part_and_keeps_its_order(tmp_path, layout):
    path = WRITERS[layout](tmp_path / "set.h5", make_samples(90))
    planned = do("split", path, dry_run=True)
    assert names(tmp_path) == ["set.h5"]
    report = do("split", path)
    assert planned["samples"] == report["samples"] and planned["sizes"] == report["sizes"]
    everything = contents(read_samples(path))
    split = {part: contents(samples) for part, samples in parts_of(tmp_path / "set").items()}
    assert Counter(everything) == sum((Counter(one) for one in split.values()), Counter())
    for part, samples in split.items():
        assert samples == [one for one in everything if one in set(samples)]
        assert len(samples) == report["samples"][part] > 0
    assert names(tmp_path / "set") == ["test.h5", "train.h5", "val.h5"]


def test_a_sample_keeps_its_part_when_others_come_or_go_or_move(tmp_path):
    """Repeated, in several files, compressed or in groups: only its content and the seed count."""
    samples = make_samples(60)
    do("split", write_flat(tmp_path / "all.h5", samples))
    everything = where(tmp_path / "all")
    do("split", write_flat(tmp_path / "few.h5", samples[:25]))
    few = where(tmp_path / "few")
    assert len(few) == 25 and few.items() <= everything.items()
    a = write_flat(tmp_path / "a.h5", samples[30:][::-1] * 2, compression="gzip")
    b = write_flat(tmp_path / "b.h5", samples[:30])
    do("split", a, b, folder=tmp_path / "both")
    assert where(tmp_path / "both") == everything
    assert sum(map(len, parts_of(tmp_path / "both").values())) == 90
    do("split", WRITERS["groups"](tmp_path / "groups.h5", samples))
    assert where(tmp_path / "groups") == everything


def test_another_seed_gives_another_split_and_the_same_seed_the_same_bytes(tmp_path):
    path = write_rows(tmp_path / "set.h5", make_samples(80))
    for name, seed in (("a", 1), ("b", 2), ("again", 1)):
        do("split", path, folder=tmp_path / name, seed=seed)
    assert where(tmp_path / "a") != where(tmp_path / "b")
    for part in PARTS:
        one, again = (tmp_path / name / f"{part}.h5" for name in ("a", "again"))
        assert one.read_bytes() == again.read_bytes()


def test_the_shares_hold_for_each_size(tmp_path):
    num = 9000
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["n"] = np.repeat([512, 1024, 4096], num // 3)
        file["id"] = np.arange(num)
    report = do("split", tmp_path / "set.h5", block_bytes=1 << 20)
    assert [one["size"] for one in report["sizes"]] == [512, 1024, 4096]
    for one in report["sizes"]:
        for part, share in zip(PARTS, (0.8, 0.1, 0.1), strict=True):
            spread = (3000 * share * (1 - share)) ** 0.5
            assert abs(one[part] - 3000 * share) < 4 * spread, one
    assert report["warnings"] == []


def test_the_rule_never_changes(tmp_path):
    """Splits of years ago must come out the same: these figures are a promise."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["n"] = [1, 2, 3, 500]
        file["x"] = np.arange(8, dtype=np.float32).reshape(4, 2)
        file["y"], file["y_offsets"] = np.arange(6, dtype=np.int64), [0, 1, 1, 4, 6]
    digests = scan_file(Contents(tmp_path / "set.h5"), block_bytes=1 << 20).digests
    assert [one.astype("<u8").tobytes().hex() for one in digests] == FIXED_DIGESTS
    random = np.random.default_rng(0)
    many = random.integers(0, 2**64, (40, 2), dtype=np.uint64)
    parts = choose_parts(many, seed=7, fractions=read_fractions("0.5,0.25,0.25"))
    assert "".join(str(part) for part in parts.tolist()) == FIXED_PARTS


def test_a_size_that_a_part_lacks_is_named(tmp_path):
    samples = make_samples(60) + make_samples(100, seed=1)[2:9:3]
    for sample in samples[60:]:
        sample["n"] = np.int64(4096)
    path = write_rows(tmp_path / "set.h5", samples)
    report = do("split", path)
    [row] = [one for one in report["sizes"] if one["size"] == 4096]
    lacking = [part for part in PARTS if not row[part]]
    assert lacking, "three samples cannot be expected to fill all parts"
    for part in lacking:
        told = [w for w in report["warnings"] if w.startswith(f"`{part}` has no sample of size")]
        assert "4096 (3 in all)" in told[0]


def test_a_part_without_a_share_has_no_file_and_that_of_an_older_split_is_removed(tmp_path):
    path = write_rows(tmp_path / "set.h5", make_samples(90))
    do("split", path)
    report = do("split", path, parts="0.9, 0.1, 0", force=True)
    assert names(tmp_path / "set") == ["train.h5", "val.h5"]
    assert report["samples"]["test"] == 0 and report["warnings"] == []
    assert report["samples"]["train"] + report["samples"]["val"] == 90


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ("0.8,0.1", "gives 2 shares"),
        ("1.2,-0.1,-0.1", "do not add up to 1"),
        ("nan,0,1", "no number"),
    ],
)
def test_shares_that_cannot_be_are_refused(tmp_path, parts, words):
    with pytest.raises(UsageError, match=words):
        do("split", write_rows(tmp_path / "set.h5", make_samples(3)), parts=parts)
    assert names(tmp_path) == ["set.h5"]


def test_shares_are_exact():
    assert read_fractions("0.8,0.1,0.1") == (Fraction(4, 5), Fraction(1, 10), Fraction(1, 10))
    top = np.full((1, 2), 2**64 - 1, dtype=np.uint64)
    assert choose_parts(top, seed=0, fractions=read_fractions("1,0,0")).tolist() == [0]
    assert choose_parts(top, seed=0, fractions=read_fractions("0,0,1")).tolist() == [2]


def test_nothing_is_split_that_exists_or_cannot_be_used(tmp_path):
    path = write_rows(tmp_path / "set.h5", make_samples(30))
    with pytest.raises(UsageError, match="2 files, and no folder to write to"):
        do("split", path, write_rows(tmp_path / "b.h5", make_samples(3)))
    with pytest.raises(UsageError, match=r"b.h5` is a file, not a folder"):
        do("split", path, folder=tmp_path / "b.h5")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "val.h5").write_text("mine")
    with pytest.raises(StoreError, match=r"val.h5` exists already"):
        do("split", path)
    assert names(tmp_path / "set") == ["val.h5"]
    with h5py.File(path, "a") as file:
        file["n"][3] = -1
    with pytest.raises(DataError, match=r"sample 3 of .* its size `n` is -1"):
        do("split", path, folder=tmp_path / "new")
    assert names(tmp_path) == ["b.h5", "set", "set.h5"]
