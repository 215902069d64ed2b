"""Mistakes that only a worker can find: their words reach who typed `tasuki run`, and `status`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

from tasuki.commands.recipes import defines
from tasuki.jobs.after import _has_committed
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tests.commands.person import Project, Said


@dataclass
class Mistake:
    name: str
    reason: tuple[str, ...]
    hint: str
    recipe: str = "Learner"
    change: dict[str, Any] = field(default_factory=dict)


MISTAKES = [
    Mistake(
        "a recipe that cannot be imported",
        recipe="nowhere:Thing",
        reason=("recipe `nowhere:Thing` cannot be imported", "No module named 'nowhere'"),
        hint="the spec's folder is on the import path",
    ),
    Mistake(
        "a class that is not in the module",
        recipe="json:Decoder",  # one of the spec's folder is refused before anything starts
        reason=("module `json` has no class `Decoder`",),
        hint="it has dump",
    ),
    Mistake(
        "a recipe that lacks a method",
        recipe="NoLoss",
        reason=("recipe `recipes:NoLoss` has no method `loss`",),
        hint="a recipe needs build_model(self), build_dataset(self, source, split) and loss",
    ),
    Mistake(
        "params that the recipe does not take",
        change={"defaults__params": {"widht": 3}},
        reason=("recipe `recipes:Learner` cannot be made with params", "'widht'"),
        hint="`params` are the keyword arguments",
    ),
    Mistake(
        "data that are not there",
        recipe="NoData",
        reason=("data `d` (split train) cannot be opened", "No such file or directory: 'd'"),
        hint="relative paths are relative to the spec's folder",
    ),
    Mistake(
        "an optimizer whose state holds a function",
        recipe="Unstorable",
        reason=("the state holds a function at", "optimizer.state[0]['rule']"),
        hint="leave functions and modules out of the state",
    ),
]


def words_of(text: str) -> str:
    """Without the line breaks of a narrow terminal, which fall between and inside words."""
    return "".join(text.split())


def assert_told(said: Said, mistake: Mistake) -> None:
    assert said.code == 1, said
    assert "exp: failed" in said.out, said
    for words in mistake.reason:
        assert words_of(words) in words_of(said.out), said
    assert "Traceback" not in said.out + said.err, said


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_recipe_fails_at_once_and_is_told_by_run_and_status(
    project, here, mistake
):
    made: Project = project(recipe=mistake.recipe, **mistake.change)
    assert_told(here(made.folder, "run"), mistake)
    # At once: no retries, nothing committed.
    assert list_claims(made.run()) == [1]
    assert not made.run().checkpoints.exists() or not list(made.run().checkpoints.glob("step-*"))
    told = words_of(here(made.folder, "status").out)
    run = here(made.folder, "status", "--json").run
    assert run["state"] == "failed"
    for words in mistake.reason:
        assert words_of(words) in told and words in run["reason"]
    said = last_said(made.run())
    assert said is not None and mistake.hint in said.hint


def test_an_embedding_without_the_row_fails_at_once_with_what_to_count(project, here):
    made = project(recipe="FewRows")
    said = here(made.folder, "run")
    told = words_of(said.out)
    assert said.code == 1 and "exp: failed" in said.out and list_claims(made.run()) == [1], said
    assert words_of("index out of range in self (at recipes.py:") in told
    assert words_of("an embedding was asked for a row that it does not have") in told
    hint = last_said(made.run())
    assert hint is not None and "`TokenDataset.vocab`" in hint.hint


def test_what_was_mended_in_the_recipe_goes_on_with_run_alone(project, here):
    made = project(recipe="Unstorable")
    assert here(made.folder, "run").code == 1
    path = made.folder / "recipes.py"
    path.write_text(path.read_text().replace("return Strange(", "return torch.optim.SGD("))
    said = here(made.folder, "run", "--json")
    assert said.code == 0 and said.run["state"] == "complete", said


def test_the_hint_is_shown_to_who_typed_run(project, here):
    said = here(project(recipe="NoLoss").folder, "run")
    assert words_of("build_dataset(self, source, split)") in words_of(said.out + said.err), said


def test_the_hint_is_shown_by_status(project, here):
    made = project(recipe="NoLoss")
    here(made.folder, "run")
    said = here(made.folder, "status")
    assert words_of("build_dataset(self, source, split)") in words_of(said.out + said.err), said


def test_weights_of_another_architecture_are_refused_and_the_layers_named(project, here, finished):
    made = project(recipe="Wide")
    weights = finished.run().stage("small").weights
    (made.folder / "base.safetensors").write_bytes(weights.read_bytes())
    stages = [{"name": "one", "data": "d", "epochs": 1, "init_from": "base.safetensors"}]
    made.change(experiments__exp__stages=stages)
    said = here(made.folder, "run")
    assert said.code == 1 and "exp: failed" in said.out, said
    for words in (
        "base.safetensors do not fit this model",
        "4 missing in the weights: 2.weight, 2.bias, head.weight, head.bias",
        "0.weight (16x6, the model has 9x6)",
        "7 unknown to the model: ",
    ):
        assert words_of(words) in words_of(said.out), said
    assert "Traceback" not in said.out + said.err


def test_weights_that_are_not_there_are_refused(project, here):
    stages = [{"name": "one", "data": "d", "epochs": 1, "init_from": "./base.safetensors"}]
    said = here(project(stages=stages).folder, "run")
    assert said.code == 1 and words_of("there are no weights at") in words_of(said.out), said


def test_a_recipe_that_always_fails_is_held_with_the_place_of_its_error(project, here):
    made = project(params={"fail_at": 1})
    said = here(made.folder, "run")
    assert said.code == 1 and "exp: held after 3 attempts" in said.out, said
    told = words_of(said.out)
    assert words_of("3 attempts in a row failed without a new checkpoint") in told
    assert words_of("ValueError: planted failure in call 2 (at recipes.py:") in told
    assert "Traceback" not in said.out + said.err
    # The traceback is where a person looks for it.
    logs = here(made.folder, "logs", "exp", "--err", "--attempt", "3")
    assert "ValueError: planted failure in call 2" in logs.out
    assert "Traceback" in logs.out


def test_the_checkpoint_at_a_stages_start_is_no_progress_for_the_backend(project, here):
    made = project(params={"fail_at": 0})
    assert here(made.folder, "run").code == 1
    assert [path.name for path in made.run().checkpoints.glob("step-*")] == ["step-000000000.c1.s1"]
    assert not _has_committed(made.run(), 1)


def test_run_with_json_tells_the_reason_on_stdout_and_nothing_else(project, here):
    said = here(project(recipe="NoLoss").folder, "run", "--json")
    value = json.loads(said.out)
    assert said.code == value["exit_code"] == 1
    assert value["runs"][0]["reason"] == "recipe `recipes:NoLoss` has no method `loss`"


def test_a_misspelt_class_is_refused_before_anything_starts_whatever_is_known_of_its_times(
    project, here
):
    stages = [{"name": "one", "data": "d", "epochs": 4, "expect": {"wall": "1h"}}]
    made = project(recipe="Lerner", stages=stages)
    for verb in ("plan", "run"):
        said = here(made.folder, verb)
        assert said.code == 1 and "recipes.py has no `Lerner`" in said.err, said
        assert "did you mean `Learner`?" in said.err
    assert not made.run().path.exists()


def test_a_misspelt_class_beside_a_finished_run_is_warned_of_and_refused_for_what_is_left(
    finished, here, tmp_path
):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    spec = json.loads((folder / "tasuki.yaml").read_text())
    spec["recipe"] = "recipes:Lerner"
    (folder / "tasuki.yaml").write_text(json.dumps(spec))
    said = here(folder, "plan")
    assert said.code == 0 and "has no `Lerner`" in said.out + said.err, said
    expect = {"wall": "1h"}
    spec["experiments"]["next"] = {"stages": [{"name": "a", "data": "d", "expect": expect}]}
    (folder / "tasuki.yaml").write_text(json.dumps(spec))
    said = here(folder, "plan")
    assert said.code == 1 and "did you mean `Learner`?" in said.err, said


@pytest.mark.parametrize(
    "text",
    [
        "class R: pass",
        "if True:\n    class R: pass\nelse:\n    R = None",
        "from json import JSONDecoder as R",
        "from json import *",
        "R = type('R', (), {})",
        "globals()['R'] = type('R', (), {})",
        "import sys\nsetattr(sys.modules[__name__], 'R', object)",
        "import sys\nsys.modules[__name__].R = object",
        "def __getattr__(name): return object",
        "exec('class R: pass')",
        "match [1]:\n    case [R]: pass",
        "# coding: latin-1\nclass R: pass",
    ],
)
def test_no_recipe_is_refused_that_python_would_find(tmp_path, text):
    (tmp_path / "m.py").write_text(text)
    assert defines(tmp_path / "m.py", "R", what="it")
    (tmp_path / "m.py").write_text(text.replace("R", "Q"))
    is_seen = not any(word in text for word in ("globals", "sys", "__getattr__", "exec", "*"))
    assert defines(tmp_path / "m.py", "R", what="it") is not is_seen


def test_a_module_that_is_nearly_a_file_of_the_project_is_a_warning_of_plan(here, project):
    made = project(recipe="recipe:Learner", defaults__expect={"wall": "1h"})
    said = here(made.folder, "plan", "--no-measure")
    assert "there is no recipe.py in" in said.out + said.err, said
    assert "did you mean `recipes`?" in said.out + said.err
