"""A person's mistakes: one clear message, a hint, an exit code; nothing is written.

These are found before anything starts, so they are typed into this process.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.commands.person import Said, make_project, until


def assert_refused(said: Said, *, error: str, hint: str, code: int = 2) -> None:
    """`error: …` and `hint: …` on stderr, nothing on stdout, no traceback."""
    assert said.code == code, said
    assert said.out == "", said
    assert said.err.count("error:") == 1 and said.err.count("hint:") == 1, said
    message, _, advice = said.err.partition("hint:")
    assert error in message, said
    assert hint in advice, said
    assert "Traceback" not in said.err, said


@dataclass
class Mistake:
    name: str
    error: str
    hint: str
    words: tuple[str, ...] = ("run",)
    change: dict[str, Any] = field(default_factory=dict)
    spec: str | None = None
    """Instead of a well-formed spec."""
    code: int = 2


STAGE = {"name": "one", "data": "d", "epochs": 4}

MISTAKES = [
    Mistake(
        "a spec that is not there",
        words=("run", "elsewhere.yaml"),
        error="there is no spec at ./elsewhere.yaml",
        hint="tasuki new",
    ),
    Mistake(
        "a YAML syntax error",
        spec="recipe: recipes:Learner\nexperiments: {exp: {epochs: 3\n",
        error="tasuki.yaml:",
        hint="",
    ),
    Mistake("an empty spec", spec="", error="the spec is empty", hint="experiments:"),
    Mistake(
        "a value of the wrong type",
        change={"defaults__lr": "fast"},
        error="`lr` must be a number, not `fast`",
        hint="write for example `lr: 1e-3`",
    ),
    Mistake(
        "an unknown key",
        change={"defaults__effektive_batch": 4},
        error="unknown key `effektive_batch` in `defaults`",
        hint="did you mean `effective_batch`?",
    ),
    Mistake(
        "negative epochs",
        change={"experiments__exp__stages": [STAGE | {"epochs": -3}]},
        error="`epochs` must be at least 1, not `-3`",
        hint="write for example `epochs: 20`",
    ),
    Mistake(
        "a limit shorter than the last save needs",
        change={"cluster__time_limit": "900ms", "defaults__expect": {"wall": "1h"}},
        error="a job of 900ms cannot keep",
        hint="this would work: `cluster.time_limit: 22s`",
    ),
    Mistake(
        "a limit shorter than the evaluation's reserve",
        change={"cluster__time_limit": "5m", "defaults__evaluate": {"reserve": "10m"}},
        error="a job of 5m cannot keep 10m free for the evaluation",
        hint="make `evaluate.reserve` shorter, or `cluster.time_limit` longer",
    ),
    Mistake(
        "an unknown stage",
        words=("run", "--stages", "onne"),
        error="there is no stage `onne`",
        hint="did you mean `one`?",
    ),
    Mistake(
        "an unknown experiment",
        words=("run", "--experiment", "expp"),
        error="there is no experiment `expp`",
        hint="did you mean `exp`?",
    ),
    Mistake(
        "an unknown config",
        words=("run", "--config", "smal"),
        change={"configs": {"small": {"lr": 0.1}}},
        error="there is no config `smal`",
        hint="did you mean `small`?",
    ),
    Mistake(
        "an unknown key in --set",
        words=("run", "--set", "epoch=3"),
        error="--set epoch=3: unknown key `epoch`",
        hint="did you mean `epochs`?",
    ),
    Mistake(
        "a setting without a value",
        words=("run", "--set", "epochs"),
        error="a setting is a key, `=` and a value",
        hint="epochs=2",
    ),
    Mistake(
        "stages: auto",
        change={"experiments__exp__stages": "auto"},
        error="`stages: auto` of `exp` has no `data` to look at",
        hint="write for example `data: data/*.h5`",
    ),
    Mistake(
        "a command that is no program",
        change={"experiments__exp__stages": [{"name": "one", "command": ["pyhton", "a.py"]}]},
        error="the command of stage `one` of `exp` begins with `pyhton`, which is no program",
        hint="it is looked up in PATH and in",
    ),
    Mistake(
        "a script that is not there",
        change={"experiments__exp__stages": [{"name": "one", "command": "python recipe.py"}]},
        error="names `recipe.py`, which is not in",
        hint="did you mean `recipes.py`?",
    ),
    Mistake(
        "no command after --",
        words=("run", "--"),
        error="`--` is followed by no command",
        hint="`tasuki run --help` tells more",
    ),
    Mistake(
        "a spec and a command",
        words=("run", "tasuki.yaml", "--", "python", "recipes.py"),
        error="`SPEC` and a command after `--` cannot both say what is run",
        hint="leave one of them out",
    ),
    Mistake(
        "an experiment whose name is a path",
        change={"experiments": {"a/b": {"data": "d", "epochs": 1}}},
        error="experiment `a/b` cannot be a name",
        hint="use letters, digits",
    ),
    Mistake(
        "a preemption that is no duration",
        words=("run", "--preempt-every", "often"),
        error="`often` is not a duration",
        hint="write for example 8h",
    ),
    Mistake(
        "a recipe that names no class",
        change={"recipe": "recipes.py"},
        error="`recipe` must be a module and a class",
        hint="recipes.matrix_gnn:MatrixGNN",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_named_with_a_hint_and_nothing_is_written(here, tmp_path, mistake):
    project = make_project(tmp_path / "p", **mistake.change)
    if mistake.spec is not None:
        (project.folder / "tasuki.yaml").write_text(mistake.spec)
    before = project.tree()
    said = here(project.folder, *mistake.words)
    assert_refused(said, error=mistake.error, hint=mistake.hint, code=mistake.code)
    assert project.tree() == before


def test_a_mistake_in_the_spec_is_told_with_its_line(here, tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "tasuki.yaml").write_text(
        "recipe: a:B\nexperiments:\n  exp:\n    stages:\n      - {name: one, epochs: -1}\n"
    )
    assert "tasuki.yaml:5: `epochs`" in here(folder, "plan").err


@pytest.mark.parametrize("verb", ["status", "logs", "cancel", "resume"])
def test_an_unknown_run_is_refused_and_the_nearest_named(here, finished, verb):
    assert_refused(
        here(finished.folder, verb, "exq"),
        error="there is no run `exq`",
        hint="did you mean `exp`?",
    )


def test_an_unknown_run_where_there_are_none_says_how_runs_are_made(here, tmp_path):
    said = here(make_project(tmp_path / "p").folder, "logs", "exp")
    assert_refused(said, error="there is no run `exp`", hint="is this the folder of the project?")


@pytest.mark.parametrize("words", [("runn",), ("run", "--stagse", "one"), ("status", "--attempt")])
def test_an_unknown_verb_or_option_is_a_usage_error_that_names_the_nearest(here, tmp_path, words):
    said = here(tmp_path, *words)
    assert said.code == 2 and said.out == "", said
    assert "Traceback" not in said.err
    assert words[0] == "status" or "did you mean" in said.err.lower(), said


@pytest.mark.parametrize("typed", [("run", "--exp", "a"), ("help", "own")])
def test_a_word_that_was_not_written_out_is_answered_with_the_whole(here, tmp_path, typed):
    whole = {"run": "`--experiment`", "help": "`tasuki help own_loop`"}[typed[0]]
    said = here(tmp_path, *typed)
    assert said.code == 2 and f"did you mean {whole}?" in said.err, said


def test_a_usage_error_of_click_looks_like_every_other_error(here, tmp_path):
    assert_refused(here(tmp_path, "runn"), error="no verb `runn`", hint="`run`")


def test_stages_without_a_name_is_refused_instead_of_meaning_all(here, tmp_path):
    project = make_project(tmp_path / "p")
    said = here(project.folder, "plan", "--no-measure", "--stages")
    assert said.code == 2, said


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_there_is_nothing_to_cancel_or_resume_in_a_finished_run(here, finished, verb):
    before = finished.tree()
    said = here(finished.folder, verb, "exp")
    assert said.code == 1 and "run `exp` is complete" in said.err, said
    assert "Traceback" not in said.err
    assert finished.tree() == before


def test_new_never_overwrites_a_file(here, tmp_path):
    project = make_project(tmp_path / "p")
    before = project.tree()
    assert_refused(
        here(tmp_path, "new", "p"), error="p has tasuki.yaml already", hint="name another folder"
    )
    assert project.tree() == before


def test_the_missing_spec_is_refused_by_the_real_command_too(tmp_path):
    project = make_project(tmp_path / "p")
    (project.folder / "tasuki.yaml").unlink()
    assert_refused(
        project.type("run"), error="there is no spec at ./tasuki.yaml", hint="tasuki new"
    )


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
    again = here(project.folder, "run")
    assert_refused(again, error="run `exp` is held", hint="supervisor.1.log", code=1)


def test_a_second_run_is_refused_while_the_first_goes_on_unharmed(project):
    busy = project(params={"pause": 0.3})
    first = busy.start("run", "--json")
    until(lambda: busy.step() >= 1, busy.logs)
    for words in (("run",), ("resume", "exp")):
        assert_refused(
            busy.type(*words), error="run `exp` is live", hint="`tasuki cancel` ends it", code=1
        )
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert '"state": "complete"' in out and busy.run().is_complete()
    assert len(os.listdir(busy.run().claims)) == 1


def test_a_project_name_with_a_slash_runs_under_a_harmless_job_name(project, here):
    named = project(project="a/b c")
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
