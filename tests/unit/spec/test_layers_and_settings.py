"""Which value wins: defaults < config < experiment < stage < environment < `--set`."""

from __future__ import annotations

import pytest

from tasuki.spec.values import Every, Length

LAYERS = ["defaults", "config", "experiment", "stage", "environment", "setting"]


def chain(num_layers: int) -> tuple[str, dict[str, str], list[str]]:
    """A spec in which the first layers each give `lr` their own number."""
    lr = {layer: f"lr: 0.{i}" for i, layer in enumerate(LAYERS[:num_layers], start=1)}
    text = f"""
recipe: a:B
defaults: {{{lr.get("defaults", "")}}}
configs: {{c: {{{lr.get("config", "")}}}}}
experiments:
  e:
    {lr.get("experiment", "seed: 1")}
    stages:
      - {{name: s, {lr.get("stage", "epochs: 1")}}}
"""
    environ = {"TASUKI_SET": "lr=0.5"} if "environment" in lr else {}
    return text, environ, ["lr=0.6"] if "setting" in lr else []


@pytest.mark.parametrize("num_layers", range(1, 7))
def test_each_layer_wins_over_the_weaker_ones(project, num_layers):
    text, environ, sets = chain(num_layers)
    stage = project.stages(text, *sets, config="c", environ=environ)[0]
    assert stage.lr == num_layers / 10


def test_a_config_counts_only_when_it_is_chosen(project):
    text, _, _ = chain(2)
    assert project.stages(text)[0].lr == 0.1
    error = project.refuse(text.replace("{c:", "{big:"), config="bag")
    assert "there is no config `bag`" in error.message
    assert "`big`" in error.hint


def test_mappings_merge_by_key_and_lists_replace(project):
    stage = project.stages("""
        recipe: a:B
        defaults: {params: {a: 1, deep: {x: 1, y: [1, 2]}}, save: {keep: 5}}
        experiments:
          e: {params: {b: 2, deep: {y: [3]}}, save: {every: 5m}, epochs: 1}
        """)[0]
    assert stage.params == {"a": 1, "b": 2, "deep": {"x": 1, "y": [3]}}
    assert (stage.save.keep, stage.save.every) == (5, Every(unit="seconds", count=300.0))


def test_a_later_choice_of_length_replaces_an_earlier_one(project):
    text = """
        recipe: a:B
        defaults: {epochs: 3}
        experiments: {e: {stages: [{name: s, steps: 7}, {name: t}]}}
        """
    assert [s.length for s in project.stages(text)] == [
        Length(unit="steps", count=7),
        Length(unit="epochs", count=3),
    ]
    assert {s.length for s in project.stages(text, "samples=9")} == {
        Length(unit="samples", count=9)
    }
    one = project.stages(text, "experiments.e.stages.0.epochs=2")
    assert one[0].length == Length(unit="epochs", count=2)


def test_params_may_be_called_epochs_and_steps(project):
    text = "recipe: a:B\nexperiments: {e: {params: {epochs: 1, steps: 2}, epochs: 1}}"
    assert project.stages(text, "params.steps=3")[0].params == {"epochs": 1, "steps": 3}


def test_a_stage_may_have_a_command_where_the_others_have_a_recipe(project):
    spec = project.load("""
        recipe: a:B
        experiments:
          e: {stages: [{name: s, epochs: 1}, {name: t, command: [make, t]}]}
        """)
    first, second = spec.experiments[0].stages
    assert (first.recipe, first.command) == ("a:B", None)
    assert (second.recipe, second.command) == (None, ("make", "t"))
    assert spec.warnings == ()


def test_null_takes_a_weaker_value_back(project):
    text = """
        recipe: a:B
        defaults: {validate: {every: 5 steps}, lr: 0.5, clip: 3}
        experiments: {e: {validate: null, lr: null, clip: null, epochs: 1}}
        """
    stage = project.stages(text)[0]
    assert (stage.validate, stage.lr, stage.clip) == (None, 1e-3, None)
    assert project.stages(text, "clip=0")[0].clip is None


@pytest.mark.parametrize(
    ("setting", "lrs"),
    [
        ("lr=0.5", [0.5, 0.5]),
        ("experiments.toy.stages.1.lr=0.5", [1e-3, 0.5]),
        ("experiments.toy.stages.two.lr=0.5", [1e-3, 0.5]),
        ("experiments.toy.lr=0.5", [0.5, 0.5]),
        ("defaults.lr=0.5", [0.5, 0.5]),
    ],
)
def test_a_setting_reaches_the_place_that_it_names(project, small, setting, lrs):
    assert [stage.lr for stage in project.stages(small, setting)] == lrs


@pytest.mark.parametrize(
    ("written", "data"),
    [("*.h5", "*.h5"), ("'it''s # [1'", "it's # [1"), ('"a\\nb: c"', "a\nb: c"), ("' x '", " x ")],
)
def test_a_text_is_set_as_it_is_quoted_or_a_bare_glob(project, small, written, data):
    assert project.stages(small, f"data={written}")[0].data == data


def test_settings_reach_the_cluster_and_nested_keys(project, small):
    spec = project.load(
        small, "cluster.time_limit=12:00:00", "save.every=5m", "params.d_model=8", "cut=fill"
    )
    assert (spec.cluster.time_limit_s, spec.cut) == (43200.0, "fill")
    for stage in spec.experiments[0].stages:
        assert stage.save.every == Every(unit="seconds", count=300.0)
        assert stage.params == {"d_model": 8}


def test_of_two_settings_the_later_wins_and_the_command_line_beats_the_environment(project, small):
    environ = {"TASUKI_SET": 'lr=0.1; seed=5\nparams.text="a;b"'}
    stages = project.stages(small, "experiments.toy.stages.0.lr=0.3", environ=environ)
    assert [stage.lr for stage in stages] == [0.3, 0.1]
    assert [stage.seed for stage in stages] == [5, 5]
    assert stages[0].params == {"text": "a;b"}
    assert project.stages(small, "lr=0.1", "lr=0.2")[0].lr == 0.2
    assert [s.lr for s in project.stages(small, "experiments.toy.stages.0.lr=0.3", "lr=0.4")] == [
        0.4,
        0.4,
    ]


def test_names_with_dots_can_be_set(project):
    text = "recipe: a:B\nexperiments: {v1.2: {stages: [{name: s.3, epochs: 1}]}}"
    assert project.stages(text, "experiments.v1.2.stages.s.3.epochs=7")[0].length.count == 7


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("epochs", "a setting is a key, `=` and a value", "epochs=2"),
        ("eppochs=3", "unknown key `eppochs`", "`epochs`"),
        ("time_limit=3h", "unknown key `time_limit`", "`cluster.time_limit`"),
        ("epochs=[1", "not YAML", "bracket"),
        ("stages=[]", "belongs to one experiment", "experiments.NAME.stages"),
        ("experiments.tyo.lr=1", "there is no experiment `tyo`", "`toy`"),
        ("experiments.toy.stages.7.lr=1", "there is no item `7`", "`one`, `two`"),
        ("cluster.gpuss=1", "unknown key `gpuss`", "`gpus`"),
    ],
)
def test_a_wrong_setting_is_quoted(project, small, setting, message, hint):
    error = project.refuse(small, setting)
    assert error.message.startswith("--set")
    assert message in error.message
    assert hint in error.hint
    wrong = project.refuse(small, environ={"TASUKI_SET": setting})
    assert wrong.message.startswith("TASUKI_SET")


def test_tasuki_stage_restricts_and_tasuki_name_renames(project, small):
    spec = project.load(small, environ={"TASUKI_STAGE": "two", "TASUKI_NAME": "again"})
    assert spec.only_stages == ("two",)
    assert [experiment.name for experiment in spec.experiments] == ["again"]
    assert "`two`" in project.refuse(small, environ={"TASUKI_STAGE": "tow"}).hint
    assert "cannot be a name" in project.refuse(small, environ={"TASUKI_NAME": "a/b"}).message
    two = small + "  other: {epochs: 1}\n"
    assert "the spec has 2" in project.refuse(two, environ={"TASUKI_NAME": "again"}).message
