"""What users get wrong: one clear message with a hint and an exit code; nothing is written.

Rules of the spec have their tests in tests/unit/spec; here are the words on the command line, what
a command finds before it starts, and what only a worker can find.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasuki.commands.recipes import defines
from tasuki.commands.runs import find_run, split_stage
from tasuki.jobs.after import _has_committed
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tests.commands.projects import Project, Said, make_project, until


def assert_refused(said: Said, *, error: str, hint: str, code: int = 2) -> None:
    """`error: …` and `hint: …` on stderr, nothing on stdout, no traceback."""
    assert said.code == code, said
    assert said.out == "", said
    assert said.err.count("error:") == 1 and said.err.count("hint:") == 1, said
    message, _, advice = said.err.partition("hint:")
    assert error in message, said
    assert hint in advice, said
    assert "Traceback" not in said.err, said


def one_stage(**keys: Any) -> dict[str, Any]:
    return {"experiments__exp__stages": [{"name": "one", **keys}]}


# -- before anything starts -----------------------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    # what is typed: (changes of the spec, words of the error, words of the hint)
    "run elsewhere.yaml": ({}, "there is no spec at ./elsewhere.yaml", "tasuki new"),
    "plan": (
        {"defaults__effektive_batch": 4},
        "unknown key `effektive_batch` in `defaults`",
        "did you mean `effective_batch`?",
    ),
    "run": (
        {"cluster__time_limit": "900ms", "defaults__expect": {"wall": "1h"}},
        "a job of 900ms cannot keep",
        "this would work: `cluster.time_limit: 22s`",
    ),
    "run --stages onne": ({}, "there is no stage `onne`", "did you mean `one`?"),
    "run --experiment expp": ({}, "there is no experiment `expp`", "did you mean `exp`?"),
    "run --config smal": (
        {"configs": {"small": {"lr": 0.1}}},
        "there is no config `smal`",
        "did you mean `small`?",
    ),
    "run --set epoch=3": ({}, "--set epoch=3: unknown key `epoch`", "did you mean `epochs`?"),
    "run --json": (
        one_stage(command=["pyhton", "a.py"]),
        "the command of stage `one` of `exp` begins with `pyhton`, which is no program",
        "it is looked up in PATH and in",
    ),
    "run --dry-run": (
        one_stage(command="python recipe.py"),
        "names `recipe.py`, which is not in",
        "did you mean `recipes.py`?",
    ),
    "run --": ({}, "`--` is followed by no command", "`tasuki run --help` tells more"),
    "run tasuki.yaml -- python recipes.py": (
        {},
        "`SPEC` and a command after `--` cannot both say what is run",
        "leave one of them out",
    ),
    "run --preempt-every often": ({}, "`often` is not a duration", "write for example 8h"),
    "runn": ({}, "no verb `runn`", "`run`"),
    "run --stagse one": ({}, "--stagse", "`--stages`"),
    "run --exp a": ({}, "--exp", "did you mean `--experiment`?"),
    "help own": ({}, "own", "did you mean `tasuki help own_loop`?"),
    "logs exp": ({}, "there is no run `exp`", "is this the folder of the project?"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_named_with_a_hint_and_nothing_is_written(here, tmp_path, words):
    change, error, hint = MISTAKES[words]
    project = make_project(tmp_path / "p", **change)
    before = project.tree()
    assert_refused(here(project.folder, *words.split()), error=error, hint=hint)
    assert project.tree() == before


@pytest.mark.parametrize("verb", ["status", "logs", "cancel", "resume"])
def test_an_unknown_run_is_refused_and_the_nearest_named(here, finished, verb):
    said = here(finished.folder, verb, "exq")
    assert_refused(said, error="there is no run `exq`", hint="did you mean `exp`?")


@pytest.mark.parametrize("words", [("status", "--attempt"), ("plan", "--stages")], ids=" ".join)
def test_an_option_without_its_value_is_a_usage_error(here, tmp_path, words):
    said = here(make_project(tmp_path / "p").folder, *words)
    assert said.code == 2 and said.out == "" and "Traceback" not in said.err, said


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_there_is_nothing_to_cancel_or_resume_in_a_finished_run(here, finished, verb):
    before = finished.tree()
    said = here(finished.folder, verb, "exp")
    assert said.code == 1 and "run `exp` is complete" in said.err, said
    assert "Traceback" not in said.err and finished.tree() == before


def test_debug_shows_the_traceback_and_the_message(tmp_path):
    project = make_project(tmp_path / "p", defaults__lr=-1)
    said = project.type("--debug", "plan")
    assert said.code == 2
    assert "Traceback" in said.err and "error:" in said.err, said


def test_runs_that_is_a_file_is_refused(here, tmp_path):
    project = make_project(tmp_path / "p")
    project.runs.write_text("precious")
    said = here(project.folder, "run")
    assert said.code in (1, 2) and "error:" in said.err and str(project.runs) in said.err, said
    assert project.runs.read_text() == "precious"


def test_a_cluster_python_that_is_not_there_is_refused(here, tmp_path):
    project = make_project(tmp_path / "p", cluster__python="/no/such/python")
    said = here(project.folder, "run")
    assert said.code in (1, 2) and "error:" in said.err and "/no/such/python" in said.err


def test_a_python_that_cannot_run_supervisors_ends_held_after_three_starts(here, tmp_path):
    project = make_project(tmp_path / "p", cluster__python="/bin/false")
    said = here(project.folder, "run")
    assert said.code == 1, said
    assert "exp: held" in said.out and "died 3 times before it could begin" in said.out
    assert here(project.folder, "cancel", "exp", "--json").json()["was_live"] is False
    assert here(project.folder, "status", "--json").run["state"] == "held", "a cancel lifts no hold"
    again = here(project.folder, "run")
    assert_refused(again, error="run `exp` is held", hint="supervisor.1.log", code=1)


def test_a_second_run_is_refused_while_the_first_goes_on_unharmed(project, here):
    busy = project(recipe="Gated", defaults__log_every="1 steps")
    gate = busy.folder / "gate"
    gate.touch()
    first = busy.start("run", "--json")
    until(lambda: busy.step() >= 1, busy.logs)
    for words in (("run",), ("resume", "exp"), ("resume", "exp", "--from", "0")):
        assert_refused(
            here(busy.folder, *words),
            error="run `exp` is live",
            hint="`tasuki cancel` ends it",
            code=1,
        )
    gate.unlink()
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert '"state": "complete"' in out and busy.run().is_complete()
    assert len(os.listdir(busy.run().claims)) == 1


def test_a_project_name_with_a_slash_runs_under_a_harmless_job_name(project, here):
    named = project(project="a/b c", stages=[{"name": "one", "data": "d", "steps": 1}])
    said = here(named.folder, "run", "--json")
    assert said.code == 0, said
    assert said.run["jobs"][0].startswith("a-b-c-")
    assert {path.name for path in named.runs.iterdir()} == {".history", ".jobs", ".plans", "exp"}


def test_a_closed_pipe_ends_the_command_without_a_traceback(finished):
    line = f"{finished.python} -m tasuki status --json | true"
    said = subprocess.run(
        ["bash", "-c", line],
        cwd=finished.folder,
        env=finished.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in said.stderr, said.stderr


# -- what only a worker can find ------------------------------------------------------------------

WORKER_MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    # the mistake: (the project, words of the reason, words of the hint)
    "a class that is not in the module": (
        # One of the spec's folder is refused before anything starts.
        {"recipe": "json:Decoder"},
        "module `json` has no class `Decoder`",
        "it has dump",
    ),
    "a recipe that lacks a method": (
        {"recipe": "NoLoss"},
        "recipe `recipes:NoLoss` has no method `loss`",
        "a recipe needs build_model(self), build_dataset(self, source, split) and loss",
    ),
    "params that the recipe does not take": (
        {"params": {"widht": 3}},
        "recipe `recipes:Learner` cannot be made with params",
        "`params` are the keyword arguments",
    ),
    "data that are not there": (
        {"recipe": "NoData"},
        "data `d` (split train) cannot be opened",
        "relative paths are relative to the spec's folder",
    ),
    "an embedding without the row": (
        {"recipe": "FewRows"},
        "an embedding was asked for a row that it does not have",
        "`TokenDataset.vocab`",
    ),
}


def words_of(text: str) -> str:
    """Without the line breaks of a narrow terminal, which fall between and inside words."""
    return "".join(text.split())


@pytest.mark.parametrize("name", WORKER_MISTAKES)
def test_a_mistake_in_the_recipe_fails_at_once_and_is_told_by_run_and_status(project, here, name):
    keys, reason, hint = WORKER_MISTAKES[name]
    made: Project = project(**keys)
    said = here(made.folder, "run")
    assert said.code == 1 and "exp: failed" in said.out, said
    assert "Traceback" not in said.out + said.err, said
    # At once: no retries, nothing committed but the start.
    assert list_claims(made.run()) == [1]
    assert not list(made.run().checkpoints.glob("step-*[1-9].c1*"))
    run = here(made.folder, "status", "--json").run
    assert run["state"] == "failed" and words_of(reason) in words_of(run["reason"])
    for told in (said, here(made.folder, "status")):
        assert words_of(reason) in words_of(told.out)
        assert words_of(hint) in words_of(told.out + told.err)


def test_what_was_mended_in_the_recipe_goes_on_with_run_alone(project, here):
    """The mistake is an optimizer whose state holds a function."""
    made = project(recipe="Unstorable")
    said = here(made.folder, "run", "--json")
    value = json.loads(said.out)  # and nothing else on stdout
    assert said.code == value["exit_code"] == 1
    assert "the state holds a function at" in value["runs"][0]["reason"]
    told = last_said(made.run())
    assert told is not None and "leave functions and modules out of the state" in told.hint
    path = made.folder / "recipes.py"
    path.write_text(path.read_text().replace("return Strange(", "return torch.optim.SGD("))
    said = here(made.folder, "run", "--json")
    assert said.code == 0 and said.run["state"] == "complete", said


def test_a_recipe_that_always_fails_is_held_with_the_place_of_its_error(project, here):
    made = project(params={"fail_at": 0})
    said = here(made.folder, "run")
    assert said.code == 1 and "exp: held after 3 attempts" in said.out, said
    told = words_of(said.out)
    assert words_of("3 attempts in a row failed without a new checkpoint") in told
    assert words_of("ValueError: planted failure in call 1 (at recipes.py:") in told
    assert "Traceback" not in said.out + said.err
    # The traceback is where users look for it.
    logs = here(made.folder, "logs", "exp", "--err", "--attempt", "3")
    assert "ValueError: planted failure in call 1" in logs.out
    assert "Traceback" in logs.out
    # The checkpoint at a stage's start is not progress.
    assert [path.name for path in made.run().checkpoints.glob("step-*")] == ["step-000000000.c1.s1"]
    assert not _has_committed(made.run(), 1)


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


def test_a_misspelt_class_is_warned_of_for_a_finished_run_and_refused_for_what_is_left(
    finished, here, tmp_path
):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    copy = Project(folder, finished.environment)
    copy.change(recipe="recipes:Lerner")
    said = here(folder, "plan")
    assert said.code == 0 and "has no `Lerner`" in said.out + said.err, said
    assert "nothing left to do" in said.out
    stage = {"name": "a", "data": "d", "expect": {"wall": "1h"}}
    copy.change(experiments__next={"stages": [stage]})
    said = here(folder, "plan")
    assert said.code == 1 and "did you mean `Learner`?" in said.err, said


@pytest.mark.parametrize(
    "text",
    [
        "class R: pass",
        "if True:\n    class R: pass\nelse:\n    R = None",
        "from json import JSONDecoder as R",
        "from json import *",
        "globals()['R'] = type('R', (), {})",
        "import sys\nsetattr(sys.modules[__name__], 'R', object)",
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


def test_a_module_that_is_nearly_a_file_of_the_project_is_a_warning_of_plan(here, tmp_path):
    made = make_project(tmp_path / "p", recipe="recipe:Learner", defaults__expect={"wall": "1h"})
    said = here(made.folder, "plan", "--no-measure")
    assert "there is no recipe.py in" in said.out + said.err, said
    assert "did you mean `recipes`?" in said.out + said.err


# -- which run is meant ---------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path) -> Path:
    """`runs/train` and, made by `--new`, `runs/train-2`."""
    for name in ("train", "train-2"):
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        stages = [{"name": "one", "evaluates": False}]
        (path / "spec.json").write_text(json.dumps({"experiment": "train", "stages": stages}))
    return tmp_path


VERBS = [
    *("status", "watch --once", "logs", "why", "cancel --dry-run", "report -o -"),
    *("checkpoint show", "checkpoint verify", "checkpoint prune --dry-run"),
    *("resume --dry-run", "verify samples", "export", "evaluate"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_which_run_it_took_and_how_the_other_is_named(two, here, verb):
    meant = "`train` means `train-2`, its newest run; the one called so is `runs/train`"
    assert meant in here(two, *verb.split(), "train").err
    assert "newest run" not in here(two, *verb.split(), "runs/train").err
    assert "newest run" not in here(two, *verb.split(), "train-2").err


def test_a_folder_names_the_earlier_run_and_its_stage(two, monkeypatch):
    monkeypatch.chdir(two)
    assert find_run("train", two / "runs").name == "train-2"
    assert find_run("runs/train", two / "runs").name == "train"
    assert find_run("runs/train/one", two / "runs").name == "train"
    assert split_stage("runs/train/one") == ("runs/train", "one")
    assert split_stage("train/one") == ("train", "one")
