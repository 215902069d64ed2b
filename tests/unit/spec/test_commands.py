"""What a spec may say about stages that are commands, and what it hears about the rest."""

from __future__ import annotations

import pytest

from tasuki.errors import SpecError
from tasuki.spec.commands import name_of
from tasuki.spec.load import load_command


def test_a_command_alone_is_an_experiment(project):
    [stage] = project.stages("experiments: {e: {command: [python, train.py]}}")
    assert (stage.name, stage.command, stage.recipe) == ("train", ("python", "train.py"), None)


def test_one_text_is_split_into_words_and_that_is_said(project):
    spec = project.load("experiments: {e: {command: python train.py --name 'a b'}}")
    assert spec.experiments[0].stages[0].command == ("python", "train.py", "--name", "a b")
    [warning] = spec.warnings
    assert "no shell reads it, as if it were `[python, train.py, --name, a b]`" in warning


def test_keys_that_only_a_recipe_could_use_warn_with_their_place(project):
    spec = project.load("""
        experiments:
          e: {command: [a], effective_batch: 16, precision: bf16, ranks: own, expect: {wall: 1h}}
        """)
    [warning] = spec.warnings
    assert "`effective_batch`, `precision` have no effect on stage `train`" in warning
    assert warning.startswith(f"{project.folder}/tasuki.yaml:")


def test_defaults_that_a_recipe_uses_do_not_warn_for_the_commands_beside_it(project):
    spec = project.load("""
        recipe: a:B
        defaults: {lr: 0.1, precision: bf16}
        experiments:
          one: {epochs: 1}
          two: {command: [a], lr: 0.2}
        """)
    assert [w.partition(": ")[2][:25] for w in spec.warnings] == ["`lr` has no effect on stag"[:25]]


@pytest.mark.parametrize("init_from", ["", ", init_from: previous", ", init_from: c"])
def test_a_recipe_cannot_start_from_what_a_command_leaves(project, init_from):
    stages = f"[{{name: c, command: [a]}}, {{name: r, recipe: 'm:R'{init_from}}}]"
    with pytest.raises(SpecError, match="starts from the weights of `c`, which runs a command"):
        project.load(f"experiments: {{e: {{stages: {stages}}}}}")


def test_what_evaluates_a_command_is_a_command(project):
    text = "experiments: {e: {command: [a], evaluate: {data: d, command: [b, c]}}}"
    spec = project.load(text)
    evaluate = spec.experiments[0].stages[0].evaluate
    assert evaluate is not None and evaluate.command == ("b", "c")
    assert any("`evaluate.data` has no effect" in warning for warning in spec.warnings)
    with pytest.raises(SpecError, match="there is no recipe that could evaluate"):
        project.load("experiments: {e: {command: [a], evaluate: {data: d}}}")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "train.py", "--lr", "3e-4"], "train"),
        (["torchrun", "--nproc-per-node", "4", "src/fit model.py"], "fit_model"),
        (["python", "-m", "pkg.train"], "train"),
        (["./run.sh"], "run"),
        (["..."], "command"),
    ],
)
def test_a_typed_command_is_named_after_its_script(words, name):
    assert name_of(words) == name


def test_a_typed_command_takes_the_cluster_of_the_spec_here_and_nothing_else(project, monkeypatch):
    project.load("""
        project: mine
        runs: elsewhere
        cluster: {time_limit: 8h, gpus: 2}
        defaults: {lr: 0.5}
        recipe: a:B
        experiments: {e: {epochs: 1}}
        """)
    monkeypatch.chdir(project.folder)
    words = ["python", "train.py", "--", "x"]
    spec = load_command(words, settings=["cluster.gpus=4"], environ={})
    [experiment] = spec.experiments
    assert (experiment.name, experiment.stages[0].command) == ("train", tuple(words))
    assert (spec.project, spec.cluster.gpus, spec.cluster.time_limit_s) == ("mine", 4, 28800)
    assert spec.runs == str(project.folder / "elsewhere") and spec.folder == str(project.folder)
    assert spec.warnings == ()
