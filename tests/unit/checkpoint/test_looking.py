"""Looking into checkpoints: entries without torch, damage to the last file, differences in size."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.checkpoint.commits import commit, flip

from tasuki.checkpoint.codec import first_difference
from tasuki.checkpoint.compare import Comparison, work
from tasuki.checkpoint.entries import GROUPS, list_entries, name_entry
from tasuki.checkpoint.examine import Examiner
from tasuki.checkpoint.manifest import MANIFEST_NAME, _canonical, _digest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import verify
from tasuki.errors import DamagedCheckpoint, NewerFormat, StoreError
from tasuki.runs.claims import take_claim

TIED = torch.arange(12.0).reshape(3, 4)
RICH: dict[str, Any] = {
    "rank": {"random": {"python": (3, tuple(range(625)), None), "torch": torch.ones(5056).byte()}},
    "shared": {
        "model": OrderedDict({"embed.weight": TIED, "head.weight": TIED, "row": TIED[1]}),
        "buffers": {},
        "optimizer": {
            "state": {0: {"step": torch.tensor(7.0), "m": torch.ones(3, 4).bfloat16()}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}],
        },
        "schedule": {"counts": Counter(a=2), "lists": defaultdict(list, x=[1, "two", None])},
    },
    "progress": {
        "step": 7,
        "huge": 10**40,
        "nan": float("nan"),
        "raw": b"1234",
        ("a", 1): np.float32(2.5),
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "column": np.asfortranarray(np.ones((2, 3))),
        "nothing": torch.zeros(0, 3),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
    },
}


def entries_of(checkpoint, part=0):
    found = list_entries(checkpoint.path, checkpoint.manifest, part)
    assert len({entry.name for entry in found}) == len(found)
    return {entry.name: entry for entry in found}


# -- entries --------------------------------------------------------------------------------------


def test_entries_read_from_the_files_are_those_of_the_state_each_told_in_short(run):
    """Every tensor and array of the decoded state, with its dtype, shape and bytes."""
    take_claim(run)
    saved = commit(run, 1, 7, state=RICH)
    entries = entries_of(saved)
    found = {}

    def walk(value, place):
        if isinstance(value, (torch.Tensor, np.ndarray)):
            dtype = str(value.dtype).removeprefix("torch.")
            found[name_entry(place, 0)] = (dtype, tuple(value.shape), value.nbytes)
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, (*place, key))
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                walk(item, (*place, index))

    walk(read_part(saved.path, 0), ())
    told = {
        name: (entry.dtype.replace("int16 (big-endian)", ">i2"), entry.shape, entry.num_bytes)
        for name, entry in entries.items()
        if entry.kind != "value"
    }
    assert len(found) == 9 and told == found
    tied = ("model.embed.weight", "model.head.weight", "model.row")
    assert [entries[name].same_as for name in tied] == [None, tied[0], tied[0]]
    groups = {name.split(".")[0]: entry.group for name, entry in entries.items()}
    assert groups == {"rank0": "random", "progress": "progress"} | {
        name: name for name in ("model", "buffers", "optimizer", "schedule")
    }
    assert set(groups.values()) <= set(GROUPS)
    values = {name: (e.dtype, e.value) for name, e in entries.items() if e.kind == "value"}
    assert values == {
        "rank0.random.python.0": ("int", "3"),
        "rank0.random.python.1": ("tuple of 625", "0, 1, 2, 3, …"),
        "rank0.random.python.2": ("none", "None"),
        "buffers": ("dict", "empty"),
        "optimizer.param_groups.0.lr": ("float", "0.1"),
        "optimizer.param_groups.0.betas": ("tuple of 2", "0.9, 0.999"),
        "optimizer.param_groups.0.params": ("list of 2", "0, 1"),
        "schedule.counts.a": ("int", "2"),
        "schedule.lists.x": ("list of 3", "1, 'two', None"),
        "progress.step": ("int", "7"),
        "progress.huge": ("int", hex(10**40)),
        "progress.nan": ("float", "nan"),
        "progress.raw": ("bytes", "4 bytes"),
        "progress.('a', 1)": ("float32", "2.5"),
        "progress.dtype": ("dtype", "float16"),
        "progress.device": ("device", "cpu"),
        "progress.size": ("size", "[2, 3]"),
    }


# -- examine --------------------------------------------------------------------------------------


def spoil(folder, draw):
    """One kind of damage to one file of a checkpoint, or none."""
    path = draw.choice(sorted(folder.iterdir()))
    match draw.choice(["flip", "cut", "grow", "remove", "foreign", "link", "folder", "nothing"]):
        case "flip":
            flip(path, draw.randrange(path.stat().st_size), draw.randrange(8))
        case "cut":
            path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])
        case "grow":
            path.write_bytes(path.read_bytes() + b"x")
        case "remove":
            path.unlink()
        case "foreign":
            (folder / "part-00009.json").write_text("{}")
        case "link":
            path.rename(folder.parent / "elsewhere")
            path.symlink_to(folder.parent / "elsewhere")
        case "folder":
            path.unlink()
            path.mkdir()
    return path.name


def is_whole(path):
    try:
        verify(path)
    except (DamagedCheckpoint, NewerFormat, StoreError):
        return False
    return True


def test_examining_comes_to_the_same_verdict_as_a_resume(run, tmp_path):
    take_claim(run)
    saved = commit(run, 1, 7, state=RICH, world=2)
    draw, verdicts = random.Random(1), Counter[bool]()
    for number in range(100):
        folder = tmp_path / str(number) / saved.name
        shutil.copytree(saved.path, folder)
        spoiled = spoil(folder, draw)
        examined = Examiner().examine(folder)
        assert examined.is_good == is_whole(folder), (spoiled, examined)
        named = {finding.file for finding in examined.findings}
        assert examined.is_good or named & {spoiled, "part-00009.json", ""}, (spoiled, examined)
        verdicts[examined.is_good] += 1
        shutil.rmtree(tmp_path / str(number))
    assert verdicts[True] > 3 and verdicts[False] > 60


def test_all_damage_is_told_and_what_is_newer_or_pruned_meanwhile_is_no_damage(run):
    take_claim(run)
    saved = commit(run, 1, 7, world=2)
    flip(saved.path / "part-00000.json", 3)
    (saved.path / "part-00001.json").unlink()
    (saved.path / "notes.txt").write_text("mine")
    told = [(f.file, f.words) for f in Examiner().examine(saved.path).findings]
    size = (saved.path / "part-00000.json").stat().st_size
    assert told == [
        ("notes.txt", "does not belong to this checkpoint"),
        ("part-00000.json", f"is damaged between bytes 0 and {size}"),
        ("part-00001.json", "is missing"),
    ]
    with pytest.raises(DamagedCheckpoint, match=r"does not belong|is missing|is damaged"):
        work({"a": str(saved.path), "b": str(saved.path)}, lambda _: None)
    newer = commit(run, 1, 8)
    write_newer_manifest(newer.path)
    examined = Examiner().examine(newer.path)
    assert examined.state == "newer" and "format 99" in examined.findings[0].words
    pruned = commit(run, 1, 9, world=2)

    def prune(_):
        if pruned.path.exists():
            pruned.path.rename(run.checkpoints / ".trash-x")

    examined = Examiner(on_bytes=prune).examine(pruned.path)
    assert (examined.state, examined.findings) == ("gone", ())


def write_newer_manifest(folder):
    value = json.loads((folder / MANIFEST_NAME).read_bytes()) | {"format": 99}
    del value["sha256"]
    (folder / MANIFEST_NAME).write_bytes(_canonical({**value, "sha256": _digest(value)}))


# -- compare --------------------------------------------------------------------------------------


def compare(a, b):
    comparison = Comparison()
    comparison.add_part(0, a, b)
    return comparison.as_json()


def changed(**changes):
    """RICH with other tensors in the model; nothing shared with it."""
    model = {"embed.weight": TIED.clone(), "head.weight": TIED.clone(), "row": TIED[1].clone()}
    return {**RICH, "shared": {**RICH["shared"], "model": OrderedDict(model | changes)}}


def test_equal_states_have_no_difference_and_one_flipped_bit_is_found_with_its_place_and_size():
    told = compare(changed(), changed())
    assert told["equal"] and told["first"] is None and told["entries"] > 20
    head = TIED.clone()
    head.view(torch.int32)[2, 1] ^= 1
    told = compare(changed(), changed(**{"head.weight": head}))
    assert not told["equal"] and told["first"] == told["differing"][0]
    (found,) = told["differing"]
    assert found["name"] == "model.head.weight" and found["group"] == "model"
    measured = [found[name] for name in ("elements", "num_differing", "bits", "ulps", "at", "a")]
    assert measured == [12, 1, 1, 1, [2, 1], 9.0]
    assert found["largest"] == pytest.approx(2**-20)


def test_differences_are_measured_where_that_has_a_meaning():
    a, b = torch.tensor([1.0, -0.0, 3.0]), torch.tensor([1.5, 0.0, float("nan")])
    told = compare({"model": a}, {"model": b})["first"]
    assert (told["num_differing"], told["largest"], told["a"], told["b"]) == (3, 0.5, 1.0, 1.5)
    nan = compare({"model": a[2:]}, {"model": b[2:]})["first"]
    assert (nan["largest"], nan["b"], nan["ulps"]) == ("nan", "nan", None)
    sign = compare({"model": a[1:2]}, {"model": b[1:2]})["first"]
    assert (sign["largest"], sign["bits"], sign["ulps"]) == (0.0, 1, 0)
    strange = {"a": float("inf"), "b": 10**40, "c": "\ud800", "\ud800": 1}
    other = compare(strange, {"a": 1.0, "b": 10**41, "c": "x", "\ud800": 2})
    assert len(other["differing"]) == 4
    json.dumps(other, allow_nan=False, ensure_ascii=False).encode()
    wide = [torch.tensor([value], dtype=torch.float64) for value in (-1.0, 1.0)]
    assert compare({"model": wide[0]}, {"model": wide[1]})["first"]["ulps"] == 2 * 1023 * 2**52
    shapes = compare({"model": a}, {"model": a[:2]})["first"]
    assert shapes["words"] == "shapes [3] and [2]" and shapes["num_differing"] is None
    for dtype in (torch.float8_e5m2, torch.bfloat16, torch.int8, torch.complex64, torch.uint16):
        some = compare({"x": torch.ones(2).to(dtype)}, {"x": torch.zeros(2).to(dtype)})["first"]
        assert some["num_differing"] == 2 and some["bits"] >= 2, dtype


def test_random_states_and_plain_values_are_counted_too_after_the_model():
    def state(first, step):
        python = (3, tuple(range(first, first + 625)), None)
        model = {"weight": torch.full((2,), float(step))}
        rank = {"random": {"python": python}}
        return {"rank": rank, "progress": {"step": step}, "shared": {"model": model}}

    told = compare(state(0, 7), state(1, 9))
    names = ["model.weight", "rank0.random.python.1", "progress.step"]
    assert [found["name"] for found in told["differing"]] == names
    _, python, step = told["differing"]
    assert (python["elements"], python["num_differing"], python["largest"]) == (625, 625, 1)
    assert (step["a"], step["b"], step["largest"]) == (7, 9, 2)


def test_what_only_one_has_is_listed_entry_by_entry():
    a = {"model": {"x": torch.ones(2), "deep": {"y": torch.ones(3), "z": 1}}, "progress": [1, 2]}
    b = {"model": {"x": torch.ones(2), "new": "word"}, "progress": [1, 2, 3]}
    told = compare(a, b)
    assert [one["name"] for one in told["only_in_a"]] == ["model.deep.y", "model.deep.z"]
    assert [one["name"] for one in told["only_in_b"]] == ["model.new"]
    assert [(one["name"], one["words"]) for one in told["differing"]] == [
        ("progress", "2 and 3 items")
    ]
    assert told["first"]["name"] == "model.deep.y" and told["first"]["only_in"] == "a"
    assert told["groups"][0] == {
        "group": "model", "entries": 1, "differing": 0, "only_in_a": 2, "only_in_b": 1,
    }  # fmt: skip


# -- the first difference -------------------------------------------------------------------------

(ODD_NAN,) = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ({"a": 1}, {"a": 2}, "a: 1 and 2"),
        ({"a": 1}, {"a": True}, "a: a int and a bool"),
        ({"a": 1}, {"a": 1.0}, "a: a int and a float"),
        ({"a": 0.0}, {"a": -0.0}, "a: 0.0 and -0.0"),
        ({"a": float("nan")}, {"a": ODD_NAN}, "a: nan and nan"),
        ({1: 0}, {True: 0}, "state[1]: only in the first"),
        ({}, {"x": 0}, "x: only in the second"),
        ({"a": (1,)}, {"a": [1]}, "a: a tuple and a list"),
        ({"a": [1, 2]}, {"a": [1]}, "a: 2 and 1 items"),
        ({"a": defaultdict(list)}, {"a": defaultdict(int)}, "factories"),
        ({"o": {"s": {3: {"m": torch.ones(2)}}}}, {"o": {"s": {3: {"m": torch.ones(3)}}}},
         "o.s[3]['m']: shapes [2] and [3]"),
        ([torch.ones(2)], [torch.ones(2).double()], "state[0]: dtypes"),
        ([torch.tensor([1.0, 2.0, 3.0])], [torch.tensor([1.0, 2.5, 3.25])],
         "2 of 3 elements differ, largest absolute difference 0.5 (2.0 and 2.5)"),
        ([torch.tensor([1.0, float("nan")])], [torch.tensor([1.0, 2.0])],
         "1 of 2 elements differ, by NaN"),
        ([torch.tensor([0.0])], [torch.tensor([-0.0])], "bits only"),
        ([torch.ones(2).to(torch.float8_e5m2)], [torch.zeros(2).to(torch.float8_e5m2)],
         "difference 1"),
        ([np.ones(2)], [np.zeros(2)], "difference 1"),
        ([np.ones(2, ">f4")], [np.zeros(2, ">f4")], "difference 1"),
        ([np.float32(1)], [np.float64(1)], "a float32 and a float64"),
        ([np.ones(2)], [torch.ones(2)], "a ndarray and a Tensor"),
    ],
)  # fmt: skip
def test_a_difference_is_named_with_place_and_size(a, b, words):
    found = first_difference(a, b)
    assert found is not None
    assert words in found
    assert first_difference(b, a) is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": float("nan"), "b": 2}, {"b": 2, "a": float("nan")}),
        ([torch.tensor([float("nan")])], [torch.tensor([float("nan")])]),
        ([torch.arange(6.0).reshape(2, 3).t()], [torch.arange(6.0).reshape(2, 3).t().contiguous()]),
        ([torch.nn.Parameter(torch.ones(2))], [torch.ones(2)]),
        ([torch.zeros(0, 3), np.zeros((0, 2))], [torch.zeros(0, 3), np.zeros((0, 2))]),
        ([torch.arange(4.0)[1:2:2]], [torch.ones(1)]),
        ([torch.tensor([1 + 2j]).conj()], [torch.tensor([1 - 2j])]),
    ],
)  # fmt: skip
def test_what_has_no_influence_on_numbers_is_no_difference(a, b):
    assert first_difference(a, b) is None
