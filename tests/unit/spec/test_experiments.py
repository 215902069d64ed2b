"""Experiments and stages: files, `each`, one stage, where weights come from, paths, warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.spec.load import load_spec
from tasuki.spec.resolved import start_of
from tasuki.spec.values import Every, Length


def test_what_is_not_written_has_the_defaults_of_the_contract(project):
    spec = project.load("recipe: a:B\nexperiments: {e: {data: x.h5}}")
    (stage,) = spec.experiments[0].stages
    assert stage.name == "train"
    assert (stage.length, stage.effective_batch) == (Length(unit="epochs", count=1), 8)
    assert (stage.precision, stage.lr, stage.weight_decay) == ("fp32", 1e-3, 0.01)
    assert (stage.clip, stage.schedule, stage.seed, stage.split) == (1.0, "onecycle", 0, "train")
    assert stage.log_every == Every(unit="steps", count=10.0)
    assert (stage.validate, stage.evaluate, stage.init_from) == (None, None, "none")
    assert (spec.cluster.grace_s, spec.cut, spec.cluster.requeue) == (60.0, "stage", True)
    assert spec.runs == str(project.folder / "runs")
    assert spec.warnings == ()
    (stage,) = project.stages("recipe: a:B\nexperiments: {e: {validate: {}, evaluate: {}}}")
    assert stage.validate is not None and stage.evaluate is not None
    assert (stage.validate.split, stage.validate.every.label()) == ("val", "1 epoch")
    assert (stage.evaluate.split, stage.evaluate.after) == ("test", "end")


def test_the_effective_batch_may_follow_from_the_other_two(project):
    text = "recipe: a:B\nexperiments: {e: {epochs: 1, micro_batch: 4, accumulation: 2}}"
    assert project.stages(text)[0].effective_batch is None
    assert project.stages(text, "effective_batch=16")[0].effective_batch == 16
    assert project.stages(text, "micro_batch=auto")[0].effective_batch == 8


def test_experiments_may_be_files_named_by_their_stem(project):
    (project.folder / "sub").mkdir()
    project.write("lr: 0.1\nstages: [s1.yaml, {name: two, epochs: 2}]", "sub/exp1.yaml")
    project.write("data: a.h5\nepochs: 1", "sub/s1.yaml")
    project.write("epochs: 5", "exp2.yaml")
    text = "recipe: a:B\nexperiments: [$SUB/exp1.yaml, exp2.yaml]"
    spec = project.load(text, "experiments.exp1.stages.s1.epochs=9", environ={"SUB": "sub"})
    assert [e.name for e in spec.experiments] == ["exp1", "exp2"]
    assert [s.name for s in spec.experiments[0].stages] == ["s1", "two"]
    assert spec.experiments[0].stages[0].length.count == 9
    assert spec.experiments[0].stages[1].lr == 0.1


def test_a_mistake_in_an_included_file_names_that_file(project):
    project.write("lr: 0.1\nepochs: ten", "exp1.yaml")
    error = project.refuse("recipe: a:B\nexperiments: [exp1.yaml]")
    assert error.message.startswith(f"{project.folder}/exp1.yaml:2: `epochs`")
    error = project.refuse("recipe: a:B\nexperiments:\n  - gone.yaml")
    assert "tasuki.yaml:3: there is no file `gone.yaml`" in error.message
    error = project.refuse("recipe: a:B\nexperiments: {e: {stages: [gone.yaml]}}")
    assert "tasuki.yaml:2: there is no file `gone.yaml`" in error.message


def test_each_expands_an_experiment_over_values(project):
    spec = project.load(
        """
        recipe: a:B
        experiments:
          can:
            each: {data: [$D/hcrl_sa.h5, data/set 02.h5], params.width: [8, 0.5]}
            stages: [{name: s, epochs: 1}, {name: t, epochs: 1}]
        """,
        environ={"D": "/d"},
    )
    assert [e.name for e in spec.experiments] == [
        "can_hcrl_sa_8",
        "can_hcrl_sa_0.5",
        "can_set_02_8",
        "can_set_02_0.5",
    ]
    assert {s.data for s in spec.experiments[1].stages} == {"/d/hcrl_sa.h5"}
    assert {s.params["width"] for s in spec.experiments[1].stages} == {0.5}


def test_settings_reach_expanded_experiments_by_either_name(project):
    text = "recipe: a:B\nexperiments: {e: {epochs: 1, each: {data: [a.h5, b.h5]}}}"

    def seeds(*settings: str) -> list[int]:
        return [e.stages[0].seed for e in project.load(text, *settings).experiments]

    assert seeds("experiments.e.seed=3") == [3, 3]
    assert seeds("experiments.e_b.seed=3") == [0, 3]
    assert len(seeds("experiments.e.each.data=[a.h5, b.h5, c.h5]")) == 3


MANY = list(range(40))


@pytest.mark.parametrize(
    ("experiments", "message"),
    [
        ("{e: {epochs: 1, each: {data: [x/a.h5, y/a.h5]}}}", "two experiments are called `e_a`"),
        ("{e: {epochs: 1, each: {data: []}}}", "lists of at least one value"),
        ("{e: {epochs: 1, each: {dta: [1]}}}", "unknown key `dta`"),
        ("{e: {epochs: 1, each: {data: ['*']}}}", "leaves no letters"),
        ("{e: {stages: [{name: s, data: x}], each: {data: [a, b]}}}", "changes nothing"),
        ("{e: {epochs: 1, each: {params: [{a: 1}]}}}", "not a mapping"),
        (f"{{e: {{epochs: 1, each: {{seed: {MANY}, steps: {MANY}}}}}}}", "more than 1,000"),
    ],
)
def test_an_each_that_cannot_be_is_refused(project, experiments, message):
    error = project.refuse(f"recipe: a:B\nexperiments: {experiments}")
    assert "tasuki.yaml:2: " in error.message
    assert message in error.message


def test_a_stage_may_start_from_stages_experiments_and_files(project):
    spec = project.load(
        """
        recipe: a:B
        experiments:
          a: {stages: [{name: x, init_from: base.safetensors}, {name: y, init_from: none}]}
          b: {stages: [{name: x, init_from: a/y}, {name: z}, {name: w, init_from: x}]}
          c: {stages: [{name: x, init_from: ~/w.pt}, {name: y, init_from: $HOME/v}]}
        """,
        environ={"HOME": "/home/me"},
    )
    starts = [s.init_from for e in spec.experiments for s in e.stages]
    assert starts == [
        "./base.safetensors",
        "none",
        "a/y",
        "previous",
        "x",
        "/home/me/w.pt",
        "/home/me/v",
    ]
    assert [start_of(start) for start in starts] == [
        "file",
        "none",
        "experiment",
        "previous",
        "stage",
        "file",
        "file",
    ]


@pytest.mark.parametrize(
    "experiments",
    [
        "{a: {stages: [{name: x, init_from: x}]}}",
        "{a: {stages: [{name: x, init_from: y}, {name: y}]}}",
        "{a: {stages: [{name: x, init_from: b/x}]}, b: {stages: [{name: x, init_from: a/x}]}}",
    ],
)
def test_stages_that_wait_for_each_other_are_refused(project, experiments):
    error = project.refuse(f"recipe: a:B\nexperiments: {experiments}")
    assert "tasuki.yaml:2: `init_from:" in error.message
    assert "goes in a circle: a/x" in error.message


def test_an_unknown_start_names_the_nearest_stage(project, small):
    assert "`one`" in project.refuse(small, "init_from=oen").hint
    assert "`toy/two`" in project.refuse(small, "init_from=toy/tow").hint


def test_a_start_that_all_stages_share_warns(project, small):
    spec = project.load(f"defaults: {{init_from: ./w.pt}}{small}")
    assert any("holds for every stage" in warning for warning in spec.warnings)


def test_variables_expand_in_paths_only(project):
    spec = project.load(
        """
        recipe: a:B
        runs: ~/runs/../here
        cluster: {setup: $HOME/env.sh, python: "${PY:-python3}"}
        experiments:
          e:
            data: ["$HOME/a.h5", "${X:-$HOME/b}.h5"]
            validate: {data: $HOME/v.h5}
            evaluate: {data: $HOME/t.h5}
            params: {text: $HOME}
        """,
        environ={"HOME": "/home/me"},
    )
    (stage,) = spec.experiments[0].stages
    assert spec.runs == "/home/me/here"
    assert (spec.cluster.setup, spec.cluster.python) == ("/home/me/env.sh", "python3")
    assert stage.data == ["/home/me/a.h5", "/home/me/b.h5"]
    assert stage.validate is not None and stage.validate.data == "/home/me/v.h5"
    assert stage.evaluate is not None and stage.evaluate.data == "/home/me/t.h5"
    assert stage.params == {"text": "$HOME"}
    error = project.refuse("recipe: a:B\nruns: $GONE/x\nexperiments: {e: {epochs: 1}}")
    assert "tasuki.yaml:2: the variable `GONE`" in error.message


def test_a_spec_in_another_folder_is_relative_to_that_folder(project, monkeypatch):
    (project.folder / "sub").mkdir()
    project.write("recipe: a:B\nruns: out\nexperiments: {e: {epochs: 1}}", "sub/tasuki.yaml")
    monkeypatch.chdir(project.folder)
    spec = load_spec("sub", environ={})
    assert spec.runs == str(Path.cwd() / "sub" / "out")
    assert spec.project == "sub"


@pytest.mark.parametrize(
    ("written", "key", "why"),
    [
        ("micro_batch: 4, safety_factor: 0.4", "safety_factor", "never touches a given"),
        ("accumulation: 2, safety_factor: 0.4", "safety_factor", "follows from `accumulation`"),
        ("accumulation: 2, micro_batch: auto", "micro_batch", "follows from `accumulation`"),
        ("micro_batch: auto, safety_factor: 0.4", None, ""),
        ("micro_batch: 4", None, ""),
    ],
)
def test_what_has_no_batch_to_fit_warns(project, written, key, why):
    text = f"recipe: a:B\nexperiments:\n  e:\n    stages: [{{name: s, {written}}}]\n"
    spec = project.load(f"cluster: {{gpu: a100-40gb}}\n{text}")
    said = [w for w in spec.warnings if "has no effect on stage `s`" in w]
    assert len(said) == (key is not None)
    assert all(f"`{key}: " in w and why in w for w in said)


def test_a_batch_left_open_on_a_cpu_warns(project, small):
    spec = project.load(small, "cluster.gpu=cpu", "micro_batch=auto")
    assert any("the memory of a CPU has no end" in warning for warning in spec.warnings)
    assert not any("of a CPU" in w for w in project.load(small, "cluster.gpu=cpu").warnings)


@pytest.mark.parametrize(("factor", "warns"), [("0.2", True), ("0.5", False)])
def test_a_safety_factor_beyond_reason_warns(project, small, factor, warns):
    spec = project.load(small, f"safety_factor={factor}")
    assert any("outside 0.3 to 0.7" in warning for warning in spec.warnings) is warns


def test_with_expectations_a_plan_needs_no_recipe(project):
    (stage,) = project.stages("experiments: {e: {expect: {wall: 4h, peak: 2.5G}}}")
    assert (stage.expect_wall_s, stage.expect_peak_bytes) == (14400.0, 2_684_354_560)


def test_one_value_of_a_cost_budget_can_be_set(project):
    text = """
        recipe: a:B
        cluster: {gpu: a100-40gb}
        defaults: {buckets: {cost: nodes+edges, budget: auto}}
        experiments: {e: {epochs: 1}}
        """
    (stage,) = project.stages(text, "buckets.budget=900")
    assert stage.buckets.label() == {"cost": "nodes+edges", "budget": 900}
    (stage,) = project.stages(text, "buckets.cost=n^2")
    assert stage.buckets.label() == {"cost": "n^2", "budget": "auto"}
    assert "--set" in project.refuse(text, "buckets.budget=some").message
    without = text.replace("{cost: nodes+edges, budget: auto}", "exact")
    assert "needs `cost`" in project.refuse(without, "buckets.budget=900").message
    given = project.load(text, "buckets.budget=900", "safety_factor=0.4")
    assert any("the `budget` of `buckets` bounds" in warning for warning in given.warnings)
