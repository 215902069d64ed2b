"""Weights are plain safetensors, the same bytes every time, and say why they do not fit."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.unit.checkpoint.commits import flip
from torch import nn

from tasuki.checkpoint.weights import explain_mismatch, read_weights, write_weights
from tasuki.errors import StoreError, WeightsError


def tied():
    model = nn.Module()
    model.embed = nn.Linear(4, 4, bias=False)
    model.head = nn.Linear(4, 4, bias=False)
    model.head.weight = model.embed.weight
    return model


def test_tied_weights_are_stored_once_and_load_tied(tmp_path):
    path = tmp_path / "weights.safetensors"
    model = tied()
    sha256 = write_weights(path, model.state_dict(), {"stage": "small"})
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(load_file(path)) == ["embed.weight"]
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {
            "stage": "small",
            "tasuki.aliases": '{"head.weight": "embed.weight"}',
        }
    weights = read_weights(path, sha256=sha256)
    assert weights["head.weight"] is weights["embed.weight"]
    tied().load_state_dict(weights)


def test_views_and_unusual_strides_are_stored_as_plain_values(tmp_path):
    base = torch.arange(12.0)
    state = {
        "matrix": base.view(3, 4), "transposed": base.view(3, 4).t(), "flat": base,
        "slice": base[2:5], "half": torch.ones(2, dtype=torch.bfloat16), "scalar": torch.tensor(3),
        "channels": torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        "none": torch.zeros(0), "none too": torch.zeros(0),
    }  # fmt: skip
    write_weights(tmp_path / "w", state, {})
    weights = read_weights(tmp_path / "w")
    assert set(weights) == set(state)
    for name, tensor in state.items():
        assert torch.equal(weights[name], tensor)
        assert weights[name].dtype == tensor.dtype


def test_the_same_weights_give_the_same_bytes_every_time(tmp_path):
    weights = {"b": torch.ones(3), "é": torch.zeros(2, 2)}
    metadata = dict.fromkeys("zyxwvu", 'v\n\x01"é')
    path = tmp_path / "w"
    assert len({write_weights(path, weights, metadata) for _ in range(20)}) == 1
    assert load_file(path)["é"].shape == (2, 2)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == metadata


def test_files_of_others_can_be_read_and_damage_is_said(tmp_path):
    path = tmp_path / "hf.safetensors"
    save_file({"a": torch.ones(3)}, path, metadata={"format": "pt"})
    assert read_weights(path)["a"].tolist() == [1, 1, 1]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    flip(path, path.stat().st_size - 1)
    with pytest.raises(WeightsError, match="sha256"):
        read_weights(path, sha256=sha256)
    for content in (b"", b"\x80\x04pickle", path.read_bytes()[:-1], b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match="no safetensors"):
            read_weights(path)
    for aliases in ('{"b": "c"}', "[]", "{", '{"b": ["a"]}', "3"):
        save_file({"a": torch.ones(3)}, path, metadata={"tasuki.aliases": aliases})
        with pytest.raises(WeightsError):
            read_weights(path)
    with pytest.raises(StoreError, match="ENOENT"):
        read_weights(tmp_path / "missing")


def test_what_is_no_weight_is_refused_by_name(tmp_path):
    for value in (3, torch.ones(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(WeightsError, match="extra"):
            write_weights(tmp_path / "w", {"extra": value}, {})
    with pytest.raises(WeightsError):
        write_weights(tmp_path / "w", {"z": torch.ones(1, dtype=torch.complex128)}, {})
    with pytest.raises(WeightsError, match=r"tasuki\.aliases"):
        write_weights(tmp_path / "w", {}, {"tasuki.aliases": "{}"})
    with pytest.raises(WeightsError):
        write_weights(tmp_path / "w", {"__metadata__": torch.ones(1)}, {})
    assert not (tmp_path / "w").exists()


def test_a_mismatch_is_explained_in_words():
    model = {f"layer{i}.weight": torch.ones(2, 3) for i in range(7)}
    assert explain_mismatch(model, dict(model)) is None
    weights = {"layer0.weight": torch.ones(2, 4), "head.bias": torch.ones(1)}
    assert explain_mismatch(model, weights) == (
        "6 missing in the weights: layer1.weight, layer2.weight, layer3.weight, layer4.weight"
        " and 2 more; 1 unknown to the model: head.bias;"
        " 1 of another shape: layer0.weight (2x4, the model has 2x3)"
    )
