"""Files with keys of transformers' Trainer become a spec that means the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.errors import SpecError
from tasuki.spec.load import load_spec
from tasuki.spec.positions import read_yaml
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage
from tasuki.spec.spelling import spell, spell_text
from tasuki.spec.trainer_keys import NAMES, NO_COUNTERPART
from tasuki.spec.translated import Translation, translate_files


def translate(**files: str) -> Translation:
    roots = {
        f"{stem}.yaml": read_yaml(text, file=f"{stem}.yaml").root for stem, text in files.items()
    }
    return translate_files(roots, project="p", recipe="recipe:R")


def load(translation: Translation, folder: Path) -> dict[str, ResolvedExperiment]:
    for name, text in translation.files.items():
        (folder / name).write_text(text)
    spec = load_spec(str(folder / "tasuki.yaml"), environ={})
    return {experiment.name: experiment for experiment in spec.experiments}


def stage_of(folder: Path, text: str) -> ResolvedStage:
    (stage,) = load(translate(e=text), folder)["e"].stages
    return stage


def fates(translation: Translation) -> dict[str, tuple[str, str]]:
    return {told.key: (told.fate, told.words) for told in translation.told}


EVERYTHING = """\
model_name_or_path: base
data_path: train.jsonl
validation_file: val.jsonl
output_dir: out
num_train_epochs: 3.0
max_steps: -1
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
num_gpus: 2
learning_rate: 2.0e-4
lr_scheduler_type: constant_with_warmup
warmup_ratio: 0.03
weight_decay: 0.05
max_grad_norm: 0.3
seed: 13
bf16: true
fp16: false
gradient_checkpointing: true
torch_compile: true
save_strategy: steps
save_steps: 200
save_total_limit: 2
logging_steps: 5
eval_strategy: steps
eval_steps: 100
metric_for_best_model: eval_accuracy
greater_is_better: true
load_best_model_at_end: true
dataloader_num_workers: 4
dataloader_pin_memory: true
dataloader_prefetch_factor: 3
optim: paged_adamw_8bit
report_to: wandb
lora_r: 16
lora: {alpha: 32, targets: [q, v]}
"""


def test_every_key_of_a_trainer_means_the_same_afterwards(tmp_path):
    stage = stage_of(tmp_path, EVERYTHING)
    assert stage.data == "train.jsonl"
    assert (stage.length.unit, stage.length.count) == ("epochs", 3)
    assert stage.effective_batch == 2 * 8 * 2 and stage.gpus == 2
    assert (stage.lr, stage.weight_decay, stage.clip, stage.seed) == (2e-4, 0.05, 0.3, 13)
    assert (stage.schedule, stage.warmup, stage.precision) == ("constant", 0.03, "bf16")
    assert stage.gradient_checkpointing == "auto" and stage.compile is True
    assert (stage.save.every.label(), stage.save.keep) == ("200 steps", 2)
    assert stage.log_every.label() == "5 steps"
    assert stage.validate is not None and stage.validate.data == "val.jsonl"
    assert stage.validate.every.label() == "100 steps"
    assert (stage.validate.metric, stage.validate.mode) == ("accuracy", "max")
    assert (stage.loader.workers, stage.loader.pin, stage.loader.prefetch) == ("auto", True, 3)
    assert stage.params == {
        "model_name_or_path": "base",
        "optim": "paged_adamw_8bit",
        "lora_r": 16,
        "lora": {"alpha": 32, "targets": ["q", "v"]},
    }


def test_of_every_key_it_is_told_what_became_of_it_with_its_line():
    translation = translate(e=EVERYTHING)
    keys = [line.partition(":")[0] for line in EVERYTHING.splitlines()]
    assert sorted(told.key for told in translation.told) == sorted(keys)
    assert all(keys[told.mark.line - 1] == told.key for told in translation.told)
    told = fates(translation)
    assert told["gradient_accumulation_steps"] == ("translated", "effective_batch: 32")
    assert told["save_steps"] == ("translated", "save.every: 200 steps")
    assert told["lora_r"] == ("param", "")
    assert told["optim"][0] == "param" and "build_optimizer" in told["optim"][1]
    assert told["report_to"][0] == "none" and "sinks" in told["report_to"][1]
    assert told["output_dir"][0] == "none"


VALUES = {
    "data": "d.h5",
    "validation": "v.h5",
    "schedule": "cosine",
    "optim": "adamw_torch",
    "save_strategy": "epoch",
    "eval_strategy": "epoch",
    "metric": "loss",
    "lr": "0.1",
    "warmup_ratio": "0.1",
    **dict.fromkeys(["bf16", "fp16", "tf32", "compile", "pin", "is_greater"], "true"),
    "gradient_checkpointing": "true",
}
"""A value for each meaning; of the others 4."""


def test_every_name_of_a_meaning_is_understood_as_the_first():
    for meaning in NAMES.keys() - {"init", "output"}:
        value = VALUES.get(meaning, "4")
        first, *others = (
            translate(e=f"{name}: {value}\ntrain_steps_of_mine: 1\n") for name in NAMES[meaning]
        )
        name = NAMES[meaning][0]
        assert [told.fate for told in first.told if told.key == name] != ["param"], meaning
        for other_name, other in zip(NAMES[meaning][1:], others, strict=True):
            one, same = (made.files["e.yaml"] for made in (first, other))
            is_same = same.replace(other_name, "X") == one.replace(name, "X")
            assert is_same or _bare(same) == _bare(one), other_name


def _bare(text: str) -> list[str]:
    return [line.partition(" #")[0] for line in text.splitlines()]


def test_what_has_no_counterpart_is_named_with_the_reason_and_left_out():
    for key, reason in NO_COUNTERPART.items():
        translation = translate(e=f"learning_rate: 0.1\n{key}: 1\n")
        assert fates(translation)[key] == ("none", reason)
        assert key not in "\n".join(_bare(translation.files["e.yaml"]))


def test_the_samples_of_a_step_stay_as_many_and_their_split_is_left_open(tmp_path):
    stage = stage_of(tmp_path, "train_bs: 1\ngrad_accum: 16\ngradient_checkpointing: true\n")
    assert (stage.effective_batch, stage.micro_batch, stage.accumulation) == (16, "auto", None)
    assert stage.gradient_checkpointing == "auto"


def test_files_named_as_stages_become_the_stages_of_one_experiment(tmp_path):
    experiments = load(
        translate(
            exp3_stage10="output_dir: o/c\ninit_checkpoint: o/b/checkpoint-90\n",
            exp3_stage2="output_dir: o/b/\ninit_checkpoint: ./o/a\n",
            exp1="init_checkpoint: o/c\nseed: 1\n",
            exp3_stage1="output_dir: o/a\n",
        ),
        tmp_path,
    )
    assert list(experiments) == ["exp3", "exp1"]
    stages = experiments["exp3"].stages
    assert [stage.name for stage in stages] == ["exp3_stage1", "exp3_stage2", "exp3_stage10"]
    assert [stage.init_from for stage in stages] == ["none", "previous", "previous"]
    assert experiments["exp1"].stages[0].init_from == "exp3/exp3_stage10"


def test_a_start_from_a_file_is_kept_and_one_from_nowhere_is_told(tmp_path):
    assert stage_of(tmp_path, "init_from: old/w.safetensors\n").init_from == "./old/w.safetensors"
    told = fates(translate(e="init_checkpoint: outputs/elsewhere\n"))
    assert told["init_checkpoint"][0] == "none" and "init_from" in told["init_checkpoint"][1]


def test_a_missing_stage_and_defaults_that_differ_are_noted():
    translation = translate(
        x_stage1="learning_rate: 0.1\nseed: 3\n",
        x_stage3="learning_rate: 0.1\nnum_train_epochs: 2\n",
    )
    notes = "\n".join(translation.notes)
    assert "`x` has the stages 1, 3: is a file missing?" in notes
    assert "`seed` is not in x_stage3.yaml: tasuki's default is 0" in notes
    assert "`epochs` is not in x_stage1.yaml" in notes
    assert "`weight_decay` is not in any file" in notes and "`lr`" not in notes
    assert "x_stage3: starts from the weights of the stage before" in notes


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("max_steps: 40\nnum_train_epochs: 3\n", {"length.unit": "steps", "length.count": 40}),
        ("warmup_steps: 0\nwarmup_ratio: 0.1\n", {"warmup": 0.1}),
        ("save_strategy: epoch\nsave_steps: 10\n", {"save.every.unit": "epochs"}),
        ("save_strategy: 'no'\nseed: 1\n", {"save.every.unit": "auto"}),
        ("eval_strategy: 'no'\neval_steps: 10\n", {"validate": None}),
        ("eval_strategy: epoch\n", {"validate.every.unit": "epochs"}),
        ("tf32: true\nbf16: false\n", {"precision": "tf32"}),
        ("gradient_checkpointing: false\n", {"gradient_checkpointing": False}),
        ("dataloader_num_workers: 16\n", {"loader.workers": "auto"}),
        ("training:\n  learning_rate: 0.5\n", {"lr": 0.5}),
        (
            "lr_scheduler_type: polynomial\nseed: 1\n",
            {"params": {"lr_scheduler_type": "polynomial"}},
        ),
    ],
)
def test_where_two_keys_speak_the_one_counts_that_counted_before(tmp_path, text, stage):
    found: Any = stage_of(tmp_path, text)
    for path, wanted in stage.items():
        value = found
        for part in path.split("."):
            value = getattr(value, part)
        assert value == wanted, path


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {"e": "train_bs: 4\nbatch_size: 8\n"},
            "e.yaml:2: `batch_size: 8` contradicts `train_bs: 4`",
        ),
        ({"e": "lr: 1\ntraining: {lr: 2}\n"}, "e.yaml:2: `lr: 2` contradicts `lr: 1` in line 1"),
        ({"e": "bf16: true\nfp16: true\n"}, "e.yaml:2: both `bf16` and `fp16`"),
        ({"e": "bf16: maybe\n"}, "e.yaml:1: `bf16` must be true or false, not `maybe`"),
        ({"e": "a: 1\nlearning_rate: fast\n"}, "e.yaml:2: `learning_rate` must be a number"),
        ({"e": "learning_rate: -1\n"}, "e.yaml:1: `learning_rate` must be larger than 0"),
        ({"e": "save_steps: 0.1\n"}, "e.yaml:1: `save_steps` must be a whole number"),
        ({"e": "num_train_epochs: 1.5\n"}, "e.yaml:1: `num_train_epochs: 1.5` is no whole"),
        ({"e": "x: .nan\n"}, "e.yaml:1: `nan` is not a finite number"),
        ({"e": "a: 1\ntraining: {a: 2}\n"}, "e.yaml:2: `a` is written twice (first in line 1)"),
        ({"e": "# nothing\n"}, "e.yaml:1: the file is empty"),
        ({"e": "just text\n"}, "e.yaml:1: the file holds no keys"),
        ({"tasuki": "seed: 1\n"}, "tasuki.yaml: the spec itself"),
        ({"-rf": "seed: 1\n"}, "stage `-rf` cannot be a name"),
        ({"e": "seed: 1\n", "E": "seed: 1\n"}, "E.yaml: e.yaml is called `e` too"),
        ({"x": "seed: 1\n", "x_stage1": "seed: 1\n"}, "`x` is an experiment by itself already"),
        ({"x_stage1": "seed: 1\n", "x_stage01": "seed: 1\n"}, "this is stage 1 of `x`, and so is"),
    ],
)
def test_what_cannot_be_is_refused_with_their_key_file_and_line(files, told):
    with pytest.raises(SpecError) as raised:
        translate(**files)
    assert told in raised.value.message and raised.value.hint


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def _is_text(value: object) -> bool:
    """Without halves of characters, which no file holds."""
    if isinstance(value, str):
        return not any(0xD800 <= ord(char) <= 0xDFFF for char in value)
    if isinstance(value, dict):
        return all(_is_text(part) for pair in value.items() for part in pair)
    return all(map(_is_text, value)) if isinstance(value, list) else True


@settings(max_examples=40)
@given(value=plain.filter(_is_text))
def test_whatever_a_param_holds_is_written_so_that_it_reads_back(value):
    document = read_yaml(f"key: {spell(value)}\n", file="f")
    found = document.root.plain()
    assert isinstance(found, dict) and same(found["key"], value)
    assert not document.warnings  # no reader of YAML 1.1 would read it otherwise


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("text", ["a\nepochs: 9", "x # y", "\u2028z", "\x07", "'", '"', "{}"])
def test_a_hostile_text_stays_a_text_and_a_hostile_key_a_key(text):
    made = translate(e=f"data_path: {spell_text(text)}\n{spell_text(text)}: [1, two]\n")
    found = read_yaml(made.files["e.yaml"], file="e").root.plain()
    assert found == {"data": text, "params": {text: [1, "two"]}}
