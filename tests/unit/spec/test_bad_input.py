"""What is wrong is said with file, line and value, and what to write instead."""

from __future__ import annotations

import pytest

from tasuki.errors import SpecError
from tasuki.spec.load import load_spec

STAGE = """
recipe: recipes.toy:Toy
experiments:
  toy:
    stages:
      - name: one
        {}
"""


def test_a_missing_spec_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (".", "tasuki.yaml", "./tasuki.yaml"):
        with pytest.raises(SpecError) as caught:
            load_spec(source, environ={})
        assert caught.value.message == "there is no spec at ./tasuki.yaml"
        assert caught.value.exit_code == 2
        assert "tasuki new DIR" in caught.value.hint
        assert "tasuki run path/to/spec.yaml" in caught.value.hint


def test_a_yaml_syntax_error_names_file_line_and_column(project):
    error = project.refuse("recipe: a:B\nexperiments: {toy: [1\n")
    assert error.message.startswith(f"{project.folder}/tasuki.yaml:2:20: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epochs: ten", "`epochs` must be a whole number, not `ten`"),
        ("epochs: true", "`epochs` must be a whole number, not `true`"),
        ("epochs: -3", "`epochs` must be at least 1, not `-3`"),
        ("epochs: 100000000000000000000000000", "`epochs` must be at least 1, not"),
        ("micro_batch: 0", "`micro_batch` must be a whole number of at least 1, or `auto`"),
        ("accumulation: 0", "`accumulation` must be at least 1, not `0`"),
        ("gpus: 0", "`gpus` must be between 1 and 1024, or `auto`, not `0`"),
        ("lr: 0", "`lr` must be larger than 0 and finite, not `0`"),
        ("lr: .inf", "`inf` is not a finite number"),
        ("weight_decay: -1", "`weight_decay` must be 0 or larger"),
        ("clip: -1", "`clip` must be 0 or larger"),
        ("safety_factor: 0", "`safety_factor` must be larger than 0 and at most 1"),
        ("seed: 9223372036854775808", "`seed` must be between 0 and 2^63 - 1"),
        ("warmup: 1.5", "`warmup` must be a fraction between 0.0 and 1.0, or"),
        ("precision: bf61", "`precision` must be one of fp32, tf32, bf16 or fp16, not `bf61`"),
        ("order: random", "`order` must be one of"),
        ("recipe: toy", "`recipe` must be a module and a class, as in `module.sub:Class`"),
        ("command: ''", "`command`: a command needs a program to start"),
        ("command: python 'train.py", "cannot be split into words: No closing quotation"),
        ("command: python a.py && python b.py", "`&&` means something to a shell only"),
        ("command: []", "`command` must be more than an empty list"),
        ("command: [python, 3e-4]", "`command` must be a list of texts, but item 2 is `0.0003`"),
        ("strict: yes", "`strict` must be true or false, not `yes`"),
        ("size: big", "`size`: `big` is not a size of samples"),
        ("size: 9..3", "`size`: `9..3` is an empty range of sizes"),
        ("params: [1]", "`params` must be a mapping, not a list"),
        ("params: {x: [.nan]}", "`nan` is not a finite number"),
        ("save: 10m", "`save` must be a mapping, not `10m`"),
        ("save: {keep: 0}", "`keep` must be at least 1, not `0`"),
        ("save: {every: 10}", "`every`: `10` does not say every how many of what"),
        ("save: {every: 0 steps}", "`every`: `0 steps` is not often, but never"),
        ("validate: {every: 10m}", "`every`: `10m` is not counted in steps or epochs"),
        ("log_every: 1 epoch", "`log_every`: `1 epoch` is not counted in steps"),
        ("expect: {wall: 4 hours}", "`wall`: `4 hours` is not a duration"),
        ("expect: {peak: lots}", "`peak`: `lots` is not a number of bytes"),
        ("evaluate: {after: never}", "`after` must be one of end or each_stage, not `never`"),
        ("each: {data: [a]}", "stage 1 of experiment `toy` cannot have `each`"),
        ("init_from: previous", "`init_from: previous`, but nothing comes before"),
        ("init_from: oen", "`init_from: oen` names no stage"),
        ("data: $NOWHERE/a.h5", "the variable `NOWHERE` in `$NOWHERE/a.h5` is not set"),
        ("data: a$/b", "the `$` in `a$/b` names no variable"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(project, line, message):
    error = project.refuse(STAGE.format(line))
    assert error.message.startswith(f"{project.folder}/tasuki.yaml:6: ")
    assert message in error.message


@pytest.mark.parametrize(
    ("written", "line", "hint"),
    [
        ("recipe: a:B\nepoch: 3\nexperiments: {}", 2, "`epochs`"),
        ("recipe: a:B\nstages: []\nexperiments: {}", 2, "an experiment or a stage"),
        ("recipe: a:B\ntime_limit: 8h\nexperiments: {}", 2, "belongs in `cluster`"),
        ("recipe: a:B\ncluster:\n  time_limt: 8h\nexperiments: {}", 3, "`time_limit`"),
        ("recipe: a:B\nexperiments:\n  a:\n    epocs: 3", 4, "did you mean `epochs`?"),
        ("recipe: a:B\ndefaults: {save: {evry: 3}}", 2, "did you mean `every`?"),
        ("recipe: a:B\nconfigs:\n  big: {epocs: 3}", 3, "did you mean `epochs`?"),
        ("recipe: a:B\nexperiments: {a: {gpu: x}}", 2, "`gpu` belongs in `cluster`"),
        ("recipe: a:B\ndefaults: {expect: {step: 3ms}}", 2, "known in `expect`: wall peak"),
        ("recipe: a:B\nzzzzzz: 1", 2, "known in the top level: project recipe"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one_and_where_it_belongs(
    project, written, line, hint
):
    error = project.refuse(written)
    assert f"tasuki.yaml:{line}: unknown key" in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("offload: host", "write for example `offload: true`"),
        ("gradient_checkpointing: yess", "write for example `gradient_checkpointing: true`"),
        ("precision: bf61", "did you mean `bf16`?"),
    ],
)
def test_a_switch_in_no_position_of_its_own_is_told_the_one_that_switches_it_on(
    project, small, written, hint
):
    assert hint in project.refuse(small + f"    {written}\n").hint


def test_a_limit_shorter_than_the_reserve_is_refused(project, small):
    text = small + "    evaluate: {reserve: 10m}\ncluster: {time_limit: 5m}\n"
    error = project.refuse(text)
    assert "tasuki.yaml:7: a job of 5m cannot keep 10m free" in error.message
    project.load(text.replace("limit: 5m", "limit: 11m"))
    assert "cannot keep" in project.refuse(text.replace("limit: 5m", "limit: 10m")).message


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("{time_limit: 0s}", "`time_limit`: `0s` is no time at all"),
        ("{nodes: 0}", "`nodes` must be at least 1"),
        ("{gpus: 1000000000}", "`gpus` must be between 1 and 1024"),
        ("{memory: 0}", "`memory`: `0` cannot be a size of memory"),
        ("{backend: pbs}", "`backend` must be one of auto, local or slurm"),
    ],
)
def test_a_wrong_cluster_is_refused_with_its_line(project, small, cluster, message):
    error = project.refuse(f"cluster: {cluster}{small}")
    assert "tasuki.yaml:1: " in error.message
    assert message in error.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the spec is empty"),
        ("[1, 2]", "the top level must be a mapping"),
        ("recipe: a:B", "there are no experiments"),
        ("recipe: a:B\nexperiments: 3", "`experiments` must be a mapping"),
        ("recipe: a:B\nexperiments: {a: }", "experiment `a` has no stages"),
        ("recipe: a:B\nexperiments: {a: {stages: {x: 1}}}", "must be a list of stages"),
        ("recipe: a:B\nexperiments: {a: {stages: [{data: x}]}}", "has no name"),
        ("recipe: a:B\nexperiments: {a: {stages: [{name: none}]}}", "cannot be called `none`"),
        ("recipe: a:B\nexperiments: {a: {stages: [{name: a/b}]}}", "cannot be a name"),
        ("recipe: a:B\nexperiments: {../a: {epochs: 3}}", "cannot be a name"),
        ("recipe: a:B\nexperiments: {a: {stages: [{name: x}, {name: x}]}}", "are called `x`"),
        ("recipe: a:B\nexperiments: {a: {epochs: 1}, b: {name: a, epochs: 1}}", "called `a`"),
        ("recipe: a:B\nexperiments: {a: {epochs: 1, steps: 3}}", "both `epochs` and `steps`"),
        ("recipe: a:B\ncommand: [x]\nexperiments: {a: {epochs: 1}}", "both `recipe` and"),
        ("experiments: {a: {epochs: 1}}", "has neither `recipe` nor `command`"),
        ("recipe: a:B\nexperiments: {a: {stages: auto}}", "has no `data` to look at"),
        (
            "recipe: a:B\ndefaults: {epochs: 1, export: {to: m.pt}}\nexperiments: {a: {}, b: {}}",
            "`a` and `b` would both export to `m.pt`",
        ),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(project, text, message):
    error = project.refuse(text)
    assert f"{project.folder}/tasuki.yaml:" in error.message
    assert message in error.message


def test_a_mistake_in_a_layer_that_is_overruled_is_still_a_mistake(project, small):
    assert "tasuki.yaml:1" in project.refuse(f"defaults: {{epochs: ten}}{small}").message
    assert "config" in project.refuse(f"configs: {{c: {{lrr: 1}}}}{small}").message


def test_a_file_that_is_not_text_is_refused(project):
    path = project.folder / "tasuki.yaml"
    path.write_bytes(b"recipe: \xff\xfe\n")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_spec(str(path), environ={})
