"""Values put into a written spec: these lines change, and no other character."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasuki.errors import SpecError
from tasuki.spec.edit import edit_stage
from tasuki.spec.load import load_spec

SPEC = """\
# What to train.
recipe: "recipe:Sine"   # quoted
defaults: {effective_batch: 8, precision: bf16}

experiments:
  grow:
    lr: 0.01
    stages:
      - { name: flow,   data: d, epochs: 3 } # a comment
      - name: block
        data: d          # aligned
        loader:
          prefetch: 4
        epochs: 2        # last

      - name: full
        data: d
        precision: fp16  # why not
        loader: {workers: 1, prefetch: 3}
        params:
          width: 3
  alone:
    data: d
    epochs: 1
"""


def edited(tmp_path: Path, stage: str, text: str = SPEC, experiment: str = "grow", **changes):
    file = tmp_path / "tasuki.yaml"
    file.write_bytes(text.encode())
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    found = edit_stage(file, experiment=experiment, stage=stage, changes=keys)
    assert file.read_bytes() == text.encode()  # nothing is written here
    found.file.write_bytes(found.text.encode())
    return found


@pytest.mark.parametrize(
    ("stage", "changes", "before", "after"),
    [
        (
            "flow",
            {"compile": True},
            "      - { name: flow,   data: d, epochs: 3 } # a comment\n",
            "      - { name: flow,   data: d, epochs: 3, compile: true } # a comment\n",
        ),
        (
            "flow",
            {"loader__workers": 2},
            "epochs: 3 }",
            "epochs: 3, loader: {workers: 2} }",
        ),
        (
            "block",
            {"precision": "fp32"},
            "        epochs: 2        # last\n",
            "        epochs: 2        # last\n        precision: fp32\n",
        ),
        ("block", {"loader__workers": 0}, "prefetch: 4\n", "prefetch: 4\n          workers: 0\n"),
        ("full", {"precision": "fp32"}, "precision: fp16  # why", "precision: fp32  # why"),
        ("full", {"loader__workers": 3}, "{workers: 1, ", "{workers: 3, "),
        (
            "full",
            {"micro_batch": 4, "exact": False},
            "prefetch: 3}\n",
            "prefetch: 3}\n        micro_batch: 4\n        exact: false\n",
        ),
    ],
)
def test_exactly_the_lines_of_the_switch_change(tmp_path, stage, changes, before, after):
    found = edited(tmp_path, stage, **changes)
    assert SPEC.count(before) == 1
    assert found.text == SPEC.replace(before, after)
    spec = load_spec(str(tmp_path), environ=os.environ)
    [resolved] = [s for s in spec.experiments[0].stages if s.name == stage]
    for key, value in changes.items():
        holder, _, last = key.rpartition("__")
        assert getattr(getattr(resolved, holder) if holder else resolved, last) == value


def test_an_experiment_without_stages_is_changed_itself(tmp_path):
    found = edited(tmp_path, "train", experiment="alone", compile=True)
    assert found.text == SPEC + "    compile: true\n"
    assert found.lines == (("", "    compile: true"),)


def test_a_value_is_changed_where_it_stands_if_only_this_stage_takes_it_from_there(tmp_path):
    stages = "    compile: false\n    stages:\n      - { name: only, data: d, epochs: 1 }\n"
    text = SPEC.replace("    data: d\n    epochs: 1\n", stages)
    found = edited(tmp_path, "only", text, experiment="alone", compile=True)
    assert found.text == text.replace("    compile: false", "    compile: true")
    assert found.stays == ()
    one = "defaults: { precision: bf16 } # all\nexperiments:\n  e: { data: d, epochs: 1 }\n"
    found = edited(tmp_path, "train", one, experiment="e", precision="fp32")
    assert found.text == one.replace("bf16", "fp32") and found.stays == ()


def test_a_value_that_other_stages_take_too_stays_and_is_named(tmp_path):
    found = edited(tmp_path, "flow", precision="fp32")
    assert found.lines[0][1].endswith("epochs: 3, precision: fp32 } # a comment")
    assert found.stays == ("line 3 (defaults) stays `precision: bf16`",)
    text = SPEC.replace("    lr: 0.01\n", "    compile: false\n")
    found = edited(tmp_path, "flow", text, compile=True)
    assert found.stays == ("line 7 (experiment grow) stays `compile: false`",)
    assert "    compile: false\n" in found.text


def test_a_config_that_overlays_a_default_leaves_it_alone(tmp_path):
    one = (
        "defaults: { precision: bf16 }\nconfigs: { quick: { precision: fp16 } }\n"
        "experiments:\n  e: { data: d, epochs: 1 }\n"
    )
    found = edited(tmp_path, "train", one, experiment="e", precision="fp32")
    assert "epochs: 1, precision: fp32 }" in found.text and "line 1" in found.stays[0]


def test_line_ends_of_another_system_stay(tmp_path):
    text = SPEC.replace("\n", "\r\n")
    found = edited(tmp_path, "block", text, precision="fp32")
    assert found.text == text.replace("# last\r\n", "# last\r\n        precision: fp32\r\n")


def test_a_file_without_a_last_line_end_and_one_that_begins_with_a_mark(tmp_path):
    assert edited(tmp_path, "train", SPEC.rstrip(), "alone", seed=1).text == (
        SPEC.rstrip() + "\n    seed: 1"
    )
    found = edited(tmp_path, "flow", "\ufeff" + SPEC, seed=1)
    assert found.text.startswith("\ufeff# What") and "epochs: 3, seed: 1 }" in found.text


@pytest.mark.parametrize(
    ("written", "after"),
    [
        ("name: a\n        lr:", "name: a\n        seed: 1\n        lr:"),
        ("epochs: 1\n        name: a\n        params:\n          w: 1\n        # tail", None),
        (
            "params:\n          note: |\n            x\n        save: {keep: 2}\n        name: a",
            None,
        ),
    ],
)
def test_nothing_goes_behind_a_value_that_has_no_end_of_its_own(tmp_path, written, after):
    text = f"recipe: r:R\nexperiments:\n  e:\n    stages:\n      - {written}\n      - name: b\n"
    found = edited(tmp_path, "a", text, "e", seed=1)
    assert found.text == text.replace(
        written, after or written.replace("name: a", "name: a\n        seed: 1")
    )


def test_a_stage_in_a_file_of_its_own_is_changed_there(tmp_path):
    (tmp_path / "exp.yaml").write_text("stages: [small.yaml]\n")
    (tmp_path / "small.yaml").write_text("# mine\ndata: d\nepochs: 1\n")
    text = "recipe: r:R\nexperiments: [exp.yaml]\n"
    found = edited(tmp_path, "small", text, "exp", compile=True)
    assert found.file == tmp_path / "small.yaml"
    assert found.text == "# mine\ndata: d\nepochs: 1\ncompile: true\n"


@pytest.mark.parametrize(
    "experiments",
    [
        "{e: {each: {seed: [1, 2]}, stages: [{name: a, epochs: 1}]}}",
        "{e: {stages: auto}}",
        "{e: {name: other, stages: [{name: b, epochs: 1}]}}",
    ],
)
def test_a_stage_that_is_not_written_out_is_refused_before_anything_is_done(tmp_path, experiments):
    with pytest.raises(SpecError, match="is not written out there"):
        edited(tmp_path, "a", f"recipe: r:R\nexperiments: {experiments}\n", "e", compile=True)


def test_a_value_that_others_share_is_not_changed_behind_their_back(tmp_path):
    text = (
        "recipe: r:R\nexperiments:\n  e:\n    stages:\n"
        "      - {name: a, epochs: 1, loader: &l {workers: 1}}\n"
        "      - {name: b, epochs: 1, loader: *l}\n"
    )
    with pytest.raises(SpecError, match="cannot be changed alone") as caught:
        edited(tmp_path, "b", text, "e", loader__workers=2)
    assert "by hand: `loader.workers: 2`" in caught.value.hint


def test_an_anchor_that_others_refer_to_is_not_taken_away(tmp_path):
    text = (
        "recipe: r:R\nexperiments:\n  e:\n    stages:\n"
        "      - {name: a, epochs: 1, precision: &p fp32}\n"
        "      - {name: b, epochs: 1, precision: *p}\n"
    )
    with pytest.raises(SpecError, match="cannot be changed alone") as caught:
        edited(tmp_path, "a", text, "e", precision="bf16", compile=True)
    assert "by hand: `precision: bf16`; `compile: true`" in caught.value.hint
