"""Whatever a tree says, decoding it ends in a state or in a DamagedCheckpoint; nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from tasuki.checkpoint.codec import decode, encode
from tasuki.checkpoint.parts import read_part, write_part
from tasuki.errors import DamagedCheckpoint

BLOB = {"w": torch.arange(6.0)}


def tensor(**changes):
    return {"$tensor": "w", "dtype": "float32", "shape": [6], **changes}


BAD = [
    {"$pickle": "gASVAAAA"},
    {"$tuple": [], "$dict": []},
    {"$tuple": [], "extra": 1},
    {"$dict": [[1]]},
    {"$dict": [[1, 2], [1, 3]]},
    {"$dict": [[[1], 2]]},
    {"$dict": [[{"$tensor": "w", "dtype": "float32", "shape": [6]}, 2]]},
    {"$ordered": {}, "hidden": 1},
    {"$defaultdict": {}, "factory": "set"},
    {"$defaultdict": {}, "factory": ["list"]},
    {"$int": "zz"},
    {"$float": "nan"},
    {"$str": "zz"},
    {"$bytes": "§"},
    {"$size": ["a"]},
    {"$dtype": "nn"},
    {"$dtype": "__builtins__"},
    {"$device": "no such:1"},
    {"$scalar": "|O8", "bytes": "00"},
    {"$scalar": "<f4", "bytes": "00"},
    {"$array": "w", "dtype": "|O8", "shape": [1]},
    {"$array": "w", "dtype": "<f4", "shape": [7]},
    {"$array": "w", "dtype": "<f4", "shape": [6], "offset": 1},
    {"$array": None, "dtype": "<f4", "shape": [6]},
    float("inf"),
    object(),
    tensor(**{"$tensor": "missing"}),
    tensor(**{"$tensor": None}),
    tensor(dtype="float33"),
    tensor(dtype="float64"),
    tensor(shape=[7]),
    tensor(shape=[-6]),
    tensor(shape=[2**62, 2**62]),
    tensor(shape=[10**30]),
    tensor(shape=[6.0]),
    tensor(shape=[2, 3], stride=[1]),
    tensor(shape=[2, 3], stride=[4, 1]),
    tensor(shape=[2, 3], stride=[-3, 1]),
    tensor(shape=[2], stride=[2**62]),
    tensor(offset=1),
    tensor(offset=-1),
    tensor(offset=2**63),
    tensor(hidden=1),
    {"$tensor": "w"},
]


@pytest.mark.parametrize("node", BAD, ids=range(len(BAD)))
def test_a_bad_node_is_damage_with_its_place(node):
    with pytest.raises(DamagedCheckpoint, match=r"model\['x'\]|model\.x"):
        decode({"model": {"x": node, "w": tensor()}}, BLOB)


def test_deep_nesting_and_a_foreign_tensor_are_damage_and_not_a_crash(tmp_path):
    tree: Any = []
    for _ in range(201):
        tree = [tree]
    with pytest.raises(DamagedCheckpoint, match="deep"):
        decode(tree, {})
    with pytest.raises(DamagedCheckpoint, match="foreign"):  # a tensor that nobody refers to
        decode({}, BLOB)
    write_part(tmp_path, 0, {})
    (tmp_path / "part-00000.json").write_text("[" * 100_000)
    with pytest.raises(DamagedCheckpoint):
        read_part(tmp_path, 0)


def test_many_mutations_of_a_tree_end_in_a_state_or_in_damage():
    encoded = encode(
        {"m": torch.ones(2, 3).t(), "k": {1: (2, b"x")}, "f": float("inf"), "d": torch.float16}
    )
    text = json.dumps(encoded.tree)
    picks = random.Random(0)
    num_damaged = 0
    for _ in range(500):
        chars = list(text)
        for _ in range(picks.randint(1, 3)):
            chars[picks.randrange(len(chars))] = picks.choice('0123456789-$"[]{},:naeftru x')
        try:
            tree = json.loads("".join(chars))
        except (ValueError, RecursionError):
            continue
        try:
            decode(tree, encoded.tensors)
        except DamagedCheckpoint:
            num_damaged += 1
    assert num_damaged > 25


@pytest.mark.parametrize(
    "text",
    [
        '{"format":2,"part":0,"state":{}}',
        '{"format":1,"part":1,"state":{}}',
        '{"format":1,"part":0,"state":NaN}',
        '{"format":1,"part":0,"state":1e999}',
        '{"format":1,"part":0,"state":{"a":1,"a":2}}',
        '{"format":1,"part":0}',
        '{"format":1,"part":0,"state":{},"x":1}',
        "[]",
        "",
        "\xff",
        '{"format":1,"part":0,"state":' + "9" * 5000 + "}",
    ],
)
def test_a_part_that_is_not_ours_is_damage(tmp_path, text):
    write_part(tmp_path, 0, {})
    (tmp_path / "part-00000.json").write_text(text, encoding="latin-1")
    with pytest.raises(DamagedCheckpoint):
        read_part(tmp_path, 0)


def test_a_tensor_file_that_is_not_ours_is_damage(tmp_path):
    write_part(tmp_path, 0, {"w": torch.ones(3)})
    path = tmp_path / "part-00000.safetensors"
    whole = path.read_bytes()
    header = b'{"w":{"dtype":"X9","shape":[3],"data_offsets":[0,12]}}'
    evil = len(header).to_bytes(8, "little") + header + bytes(12)
    for content in (b"", whole[:5], whole[:-1], b"\xff" * 8 + whole[8:], evil):
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint):
            read_part(tmp_path, 0)
