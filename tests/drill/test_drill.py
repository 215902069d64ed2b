"""`tasuki drill` end to end: it passes where it should and names each planted bug."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasuki.commands.drill_scenarios import NAMES
from tests.cli.person import Project, Said, finish, person_environment, processes_about, until
from tests.drill import planted

EXAMPLE = Path(__file__).parents[2] / "examples" / "matrix_gnn"

BUGS = {
    # recipe: (cause, suspect, the first entry that differs, a word of the advice)
    "OwnGenerator": ("hidden", "recipe.noise", "loss", "torch's global random numbers"),
    "PythonCounter": ("hidden", "recipe.calls", "loss", "buffer"),
    "OwnShuffle": ("loader", "data.rng", "batch", "load_state_dict"),
    "UnseededData": ("nondeterministic", "data.rng", "batch", "tasuki seeds them"),
    "LeakyOptimizer": ("hidden", "optimizer.boost", "model.0.weight", "state_dict"),
    "RunningValue": ("hidden", "model.mean", "loss", "register_buffer"),
    "Urandom": ("nondeterministic", "", "loss", "deterministic form"),
}
MORE_BUGS = {
    "SeededData": ("data", "data.rng", "batch", "tasuki seeds them"),
    "UnseededGenerator": ("nondeterministic", "recipe.rng", "loss", "torch's global"),
    "UnseededShuffle": ("nondeterministic", "data.rng", "batch", "torch.randperm"),
    "ClassCounter": ("hidden", "recipe.calls", "loss", "buffer"),
    "TopCounter": ("hidden", "module planted.TOP[0]", "loss", "buffer"),
    "Average": ("hidden", "recipe.teacher.0.weight", "loss", "buffer"),
    "LostMomentum": (
        "hidden",
        "optimizer.state.0.weight.momentum_buffer",
        "model.0.weight",
        "state_dict",
    ),
    "LeakySchedule": ("hidden", "schedule._count", "optimizer.group0.lr", "state_dict"),
    "Closure": ("unseen", "", "loss", "beside the model and the batch"),
    "Guesser": ("validation", "", "loss", "model and the data alone"),
    "BadLoad": ("failed", "", "", "`load_state_dict` must take"),
}


@pytest.fixture
def plant(project) -> Callable[..., Project]:
    """A project with one of the planted recipes."""

    def make(recipe: str, **more: Any) -> Project:
        made = project(recipe=f"planted:{recipe}", **more)
        shutil.copy(planted.__file__, made.folder)
        return made

    return make


def check_bug(said: Said, bug: tuple[str, str, str, str]) -> None:
    cause, suspect, entry, advice = bug
    assert said.code == 1, said
    report = said.json()
    assert not report["equal"]
    (scenario,) = report["scenarios"]
    found = scenario["finding"]
    assert (found["cause"], found["suspect"], found["entry"]) == (cause, suspect, entry), said
    assert advice in found["advice"]
    assert Path(report["folder"]).is_dir()


@pytest.mark.parametrize("recipe", BUGS)
def test_each_planted_resume_bug_is_named_with_step_entry_and_cause(plant, here, recipe):
    project = plant(recipe)
    said = here(project.folder, "drill", "--scenarios", "term", "--json")
    check_bug(said, BUGS[recipe])
    found = said.json()["scenarios"][0]["finding"]
    first = 1 if found["cause"] == "nondeterministic" else 10  # TERM in step 9
    assert found["step"] == first
    print(f"drill: {recipe}: {found['suspect'] or found['cause']} named at step {found['step']}")


@pytest.mark.long
@pytest.mark.parametrize("recipe", MORE_BUGS)
def test_more_planted_bugs_are_named(plant, here, recipe):
    more = {"defaults__validate": {"every": "1 epoch"}} if recipe == "Guesser" else {}
    project = plant(recipe, **more)
    check_bug(here(project.folder, "drill", "--scenarios", "term", "--json"), MORE_BUGS[recipe])


def test_a_sound_run_gets_a_certificate_and_leaves_nothing_but_that(plant, here):
    project = plant("Sound", defaults__validate={"every": "1 epoch"})
    before = project.tree()
    said = here(project.folder, "drill", "--certificate", "proof.txt")
    assert said.code == 0, said
    assert said.out.startswith("Certificate: an interrupted run equals an undisturbed one")
    assert said.out == (project.folder / "proof.txt").read_text()
    folder = project.runs / ".drill" / "exp.one"
    assert [path.name for path in folder.iterdir()] == ["drill.json"]
    report = json.loads((folder / "drill.json").read_text())
    assert report["equal"] and [one["name"] for one in report["scenarios"]] == list(NAMES)
    for one in report["scenarios"]:
        assert one["equal"] and one["attempts"] == len(one["struck"]) + 1, one
        assert one["each_sample_once"] and all(check["equal"] for check in one["checks"])
        assert one["title"] and one["struck"][-1] in " ".join(said.out.split())
    ours = {"proof.txt", "runs", "runs/.drill", "runs/.drill/exp.one"}
    ours |= {"runs/.drill/exp.one/drill.json"}
    left = {name: text for name, text in project.tree().items() if name not in ours}
    assert left == before


def test_what_is_lost_without_effect_is_noted_and_passes(plant, here):
    said = here(plant("Sloppy").folder, "drill", "--scenarios", "twice")
    assert said.code == 0, said
    told = " ".join(said.out.split())
    assert "the recipe's `self.num_calls` (an int: 8 undisturbed, 0 resumed): changed noth" in told


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("Sound", {"cluster__gpus": 2, "cluster__cpus": 2}),
        ("Sound", {"defaults__loader": {"workers": 1}, "cluster__cpus": 2}),
        ("TorchLoader", {"defaults__accumulation": 2}),
        ("StatefulLoader", {}),
        ("Sized", {"defaults__micro_batch": 3, "defaults__order": "largest_first"}),
    ],
    ids=["two ranks", "loader workers", "its own loader", "a loader with state", "buckets"],
)
@pytest.mark.long
def test_sound_runs_of_other_kinds_get_a_certificate_too(plant, here, recipe, more):
    said = here(plant(recipe, **more).folder, "drill", "--json")
    assert said.code == 0, said
    assert all(one["equal"] for one in said.json()["scenarios"])


@pytest.mark.long
def test_a_bug_on_two_ranks_is_named(plant, here):
    project = plant("OwnGenerator", cluster__gpus=2, cluster__cpus=2)
    check_bug(
        here(project.folder, "drill", "--scenarios", "border", "--json"), BUGS["OwnGenerator"]
    )


def test_a_certificate_is_not_given_for_a_disturbance_that_did_not_happen(plant, here, monkeypatch):
    from tasuki.commands import drill_scenarios

    def strike(step: int) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            real = drill_scenarios._term_in
            patch.setattr(drill_scenarios, "_term_in", lambda _, shape: real(step, shape))
            said = here(project.folder, "drill", "--scenarios", "border", "--json")
        assert said.code == 1, said
        return said.json()["scenarios"][0]["finding"]

    project = plant("Sound")
    never = strike(999)
    assert never["cause"] == "not-struck" and "1 attempts instead of 2" in never["words"]
    beside = strike(7)
    assert beside["cause"] == "not-struck" and "from step 7 instead of 6" in beside["words"]


def test_a_run_of_the_users_own_is_not_touched(plant, here):
    project = plant("Sound")
    assert here(project.folder, "run").code == 0
    before = {name: text for name, text in project.tree().items() if ".drill" not in name}
    said = here(project.folder, "drill", "--scenarios", "term", "--keep")
    assert said.code == 0, said
    after = {name: text for name, text in project.tree().items() if ".drill" not in name}
    assert after == before
    kept = {path.name for path in (project.runs / ".drill" / "exp.one").iterdir()}
    assert {"twin", "term", "drill.json"} <= kept
    code = {path.name for path in (project.runs / ".drill/exp.one/twin/code").iterdir()}
    assert {"planted.py", "tasuki.yaml"} <= code and "runs" not in code


def test_a_recipe_that_fails_by_itself_is_said_to_be_broken_before_anything_is_interrupted(
    plant, here
):
    project = plant("Sound")
    (project.folder / "planted.py").write_text("class Sound:\n    def loss(self): ...\n")
    said = here(project.folder, "drill")
    assert said.code == 1 and "does not get through even undisturbed" in said.err, said
    assert "build_model" in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--stage", "two"], "`exp` has no stage `two`"),
        (["--experiment", "nope"], "there is no experiment `nope`"),
        (["--scenarios", "term,fire"], "there is no scenario `fire`"),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_is_made(plant, here, words, told):
    project = plant("Sound")
    said = here(project.folder, "drill", *words)
    assert said.code == 2 and told in said.err, said
    assert not project.runs.exists()


def test_the_python_function_returns_what_json_prints(plant, monkeypatch):
    import tasuki

    project = plant("Sound")
    monkeypatch.chdir(project.folder)
    report = tasuki.drill(scenarios=["border"])
    assert report == json.loads((project.runs / ".drill/exp.one/drill.json").read_text())
    assert report["equal"] and report["shortened"]["steps_per_epoch"] == 6


def test_ctrl_c_ends_a_drill_and_leaves_nothing_behind(plant):
    project = plant("Sound")
    process = project.start("drill")
    twin = project.runs / ".drill" / "exp.one" / "twin"
    until(lambda: list(twin.glob("claims/*/holder.json")), lambda: finish(process))
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert said.code == 75 and "interrupted" in said.err, said
    assert not twin.parent.exists()
    until(lambda: not processes_about(project.folder), lambda: processes_about(project.folder))


# -- as people have it -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_example_gets_a_certificate(tmp_path):
    folder = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("data*", "runs*", "__pycache__")
    shutil.copytree(EXAMPLE, folder, ignore=ignored)
    generate(folder)
    said = type_for_long(folder, "drill", "--config", "quick", "--json")
    assert said.code == 0, said
    report = said.json()
    assert report["equal"] and report["other_stages"] == ["size_64"]
    assert all(one["equal"] for one in report["scenarios"])
    print(f"drill: matrix_gnn: 6 of 6 equal in {report['seconds']} s")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_new_project_gets_a_certificate(tmp_path):
    assert type_for_long(tmp_path, "new", "first").code == 0
    said = type_for_long(tmp_path / "first", "drill", "--stage", "fine", "--json")
    assert said.code == 0, said
    report = said.json()
    assert report["equal"] and report["stage"] == "fine" and report["validates"]
    print(f"drill: tasuki new: 6 of 6 equal in {report['seconds']} s")


def generate(folder: Path) -> None:
    words = [sys.executable, "generate.py"]
    subprocess.run(words, cwd=folder, env=person_environment(), check=True, timeout=120)


def type_for_long(folder: Path, *words: str) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "tasuki", *words],
        cwd=folder,
        env=person_environment(),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
