"""Values put into a written spec: comments, quotes and all other values stay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tasuki.errors import SpecError
from tasuki.spec.edit import change_stage, find_written_stage
from tasuki.spec.load import load_spec

SPEC = """\
# What to train.
recipe: "recipe:Sine"   # quoted
defaults: {effective_batch: 8, precision: bf16}

experiments:
  grow:
    lr: 0.01
    stages:
      - {name: flow, data: d, epochs: 3} # a comment
      - name: block
        data: d          # aligned
        loader:
          prefetch: 4
        epochs: 2        # last

      # why the next one is there
      - name: full
        data: d
        precision: fp16  # why not
        loader: {workers: 1, prefetch: 3}
  alone:
    data: d
    epochs: 1
"""


def change(folder: Path, stage: str, changes: dict[str, Any], experiment: str = "grow") -> str:
    return change_stage(find_written_stage(folder / "tasuki.yaml", experiment, stage), changes)


@pytest.mark.parametrize(
    ("stage", "changes", "before", "after"),
    [
        ("flow", {"compile": True}, "{name: flow,", "{name: flow, compile: true,"),
        (
            "block",
            {"loader.workers": 0},
            "          prefetch: 4\n",
            "          prefetch: 4\n          workers: 0\n",
        ),
        ("full", {"precision": "fp32"}, "precision: fp16  # why", "precision: fp32  # why"),
        ("full", {"loader.workers": 3}, "{workers: 1, ", "{workers: 3, "),
    ],
)
def test_only_the_lines_of_the_setting_change(tmp_path, stage, changes, before, after):
    file = tmp_path / "tasuki.yaml"
    file.write_text(SPEC)
    text = change(tmp_path, stage, changes)
    assert text == SPEC.replace(before, after)
    file.write_text(text)
    spec = load_spec(str(tmp_path), environ=os.environ)
    [resolved] = [one for one in spec.experiments[0].stages if one.name == stage]
    for key, value in changes.items():
        parent, _, last = key.rpartition(".")
        assert getattr(getattr(resolved, parent) if parent else resolved, last) == value


def test_other_indents_and_long_lines_stay(tmp_path):
    text = f"""\
experiments:
    e:
        data: d
        epochs: 1   # {"long " * 40}end
        stages:
        - name: a
          epochs: 3
"""
    (tmp_path / "tasuki.yaml").write_text(text)
    changed = change(tmp_path, "a", {"micro_batch": 4}, experiment="e")
    assert changed == text.replace("- name: a\n", "- name: a\n          micro_batch: 4\n")


def test_an_experiment_without_stages_is_changed_itself(tmp_path):
    (tmp_path / "tasuki.yaml").write_text(SPEC)
    text = change(tmp_path, "train", {"compile": True}, experiment="alone")
    assert text == SPEC.replace(
        "  alone:\n    data: d\n", "  alone:\n    data: d\n    compile: true\n"
    )


def test_stages_in_other_files_are_found(tmp_path):
    (tmp_path / "tasuki.yaml").write_text("experiments: [e.yaml]\n")
    (tmp_path / "e.yaml").write_text("stages: [small.yaml]\n")
    (tmp_path / "small.yaml").write_text("data: d   # small\nepochs: 1\n")
    written = find_written_stage(tmp_path / "tasuki.yaml", "e", "small")
    assert written.file == tmp_path / "small.yaml"
    assert "data: d   # small\n" in change_stage(written, {"compile": True})


@pytest.mark.parametrize(
    "experiment",
    [
        "{data: d, epochs: 1, each: {seed: [1, 2]}}",
        "{stages: auto, data: d}",
        "{stages: [{name: other, data: d}]}",
        "{stages: [&base {name: a, data: d, epochs: 1}, {<<: *base, name: b}]}",
    ],
)
def test_a_stage_that_is_not_written_out_is_refused(tmp_path, experiment):
    file = tmp_path / "tasuki.yaml"
    file.write_text(f"experiments:\n  e: {experiment}\n")
    with pytest.raises(SpecError, match="stage 'a' of 'e'"):
        find_written_stage(file, "e", "a")
    with pytest.raises(SpecError, match="not written out"):
        find_written_stage(tmp_path / "spec.py", "e", "a")
