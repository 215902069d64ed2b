"""`make same-bits`: whatever differs between two runs is found, and what may differ is not."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tools.same_bits import (
    CASES_BEFORE,
    ROOT,
    Case,
    CaseError,
    Layout,
    describe_difference,
    read_cases,
    read_results,
    read_tensors,
)

LAYOUT = Layout(
    weights="stages/*/weights*.safetensors",
    metrics="metrics/*.jsonl",
    evaluations="stages/*/evaluation.json",
    ignored=["t", "attempt"],
)
CASE = Case(name="tiny", commands=[], results=["runs"])
WEIGHT = torch.tensor([1.0, 2.0, float("nan")])


def row(step: int, loss: float, **others: object) -> dict[str, object]:
    return {"stage": "train", "split": "train", "step": step, "loss": loss, **others}


def write_run(folder: Path, *, weights=None, attempts=None, error=0.5) -> Path:
    """A case's folder as far as it is read."""
    run = folder / "runs" / "tiny"
    stage = run / "stages" / "train"
    stage.mkdir(parents=True)
    (run / "metrics").mkdir()
    weights = {"layer.weight": WEIGHT} if weights is None else weights
    save_file(weights, stage / "weights.safetensors")
    (stage / "evaluation.json").write_text(json.dumps({"metrics": {"e": error}}))
    for number, rows in enumerate(attempts or [[row(10, 0.25), row(20, float("nan"))]], start=1):
        lines = [json.dumps({"attempt": number, "t": number, **values}) for values in rows]
        (run / "metrics" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def compare(tmp_path):
    """What differs between a run as it is written by default and one with changes."""

    def compare(*, layout: Layout = LAYOUT, **changes) -> str | None:
        folders = write_run(tmp_path / "one"), write_run(tmp_path / "other", **changes)
        layouts = LAYOUT, layout
        results = [read_results(f, CASE, at) for f, at in zip(folders, layouts, strict=True)]
        return describe_difference(*results)

    return compare


def test_equal_runs_are_equal_also_where_they_are_nan(compare):
    assert compare() is None


def test_one_bit_of_a_weight_is_found_with_both_values(compare):
    changed = WEIGHT.clone()
    changed[1] = torch.nextafter(changed[1], torch.tensor(3.0))
    text = compare(weights={"layer.weight": changed})
    assert text == (
        "tensor runs/tiny/train/layer.weight: [1] 2.0 (00000040) → 2.000000238418579 (01000040)"
    )


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"layer.weight": WEIGHT.double()}, "F32 [3] → F64 [3]"),
        ({"layer.weight": WEIGHT.reshape(3, 1)}, "F32 [3] → F32 [3, 1]"),
        ({"other": WEIGHT}, "layer.weight only in the first"),
        ({"layer.weight": WEIGHT, "more": WEIGHT.clone()}, "more only in the second"),
    ],
)
def test_another_dtype_shape_or_set_of_tensors_is_found(compare, weights, text):
    assert text in compare(weights=weights)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attempts": [[row(10, 0.1 + 0.2), row(20, float("nan"))]]}, "0.25 → 0.30000000000000004"),
        ({"attempts": [[row(10, 0.25), row(20, 1.0)]]}, "step 20 loss: nan → 1.0"),
        ({"attempts": [[row(10, 0.25)]]}, "step 20 loss only in the first"),
        ({"error": 0.25}, "evaluation e: 0.5 → 0.25"),
    ],
)
def test_another_metric_is_found(compare, changes, text):
    assert text in compare(**changes)


def test_lines_that_a_later_attempt_repeats_count_once(compare):
    resume = {"resume": {"stage": "train", "step": 5}}
    attempts = [[row(10, 7.0)], [resume, row(10, 0.25), row(20, float("nan"))]]
    assert compare(attempts=attempts) is None


def test_names_that_a_version_changed_are_compared_by_their_earlier_name(compare):
    weights = {"block.weight": WEIGHT}
    layout = Layout(**{**vars(LAYOUT), "renamed": {"block": "layer"}})
    assert compare(weights=weights, layout=layout) is None


def test_a_case_that_left_nothing_fails(tmp_path):
    with pytest.raises(CaseError, match="no weights"):
        read_results(tmp_path, CASE, LAYOUT)


def test_tensors_are_read_as_their_library_writes_them(tmp_path):
    values = torch.arange(6, dtype=torch.int64).reshape(2, 3)
    save_file({"a": values, "b": torch.tensor(1.5)}, tmp_path / "x.safetensors")
    tensors = read_tensors(tmp_path / "x.safetensors")
    assert (tensors["a"].dtype, tensors["a"].shape) == ("I64", (2, 3))
    assert struct.unpack("<6q", tensors["a"].data) == tuple(range(6))
    assert struct.unpack("<f", tensors["b"].data) == (1.5,) and tensors["b"].shape == ()


@pytest.mark.parametrize("folder", [ROOT, CASES_BEFORE.parent], ids=["now", "before"])
def test_the_cases_can_be_read_and_copy_folders_that_exist(folder):
    cases, _ = read_cases(folder)
    assert len(cases) >= 7
    assert all((ROOT / case.copy).is_dir() for case in read_cases(ROOT)[0].values() if case.copy)
