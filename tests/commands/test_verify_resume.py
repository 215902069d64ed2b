"""`tasuki verify resume`: sound training is equal, and each kind of bug gets its right name."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tasuki.cli.main import run
from tests.adapters.subjects import FRAMEWORKS
from tests.commands import resume_recipes
from tests.commands.resume_scripts import BUGS, SOUND_SCRIPTS

RECIPE_BUGS = {
    # recipe: (status, the cause that is named first)
    "Counter": ("state_lost", "untracked_state"),
    "OwnGenerator": ("state_lost", "own_generator"),
    "AttemptRate": ("state_lost", "lr_schedule"),
    "AddressOrder": ("never_equal", "address_order"),
    "ProcessNumber": ("never_equal", "process_or_clock"),
    "WrongValidation": ("state_lost", "logged_value"),
}
SCRIPT_BUGS = {
    "counter": ("state_lost", "untracked_state"),
    "generator": ("state_lost", "own_generator"),
    "attempt_rate": ("state_lost", "lr_schedule"),
    "address_order": ("never_equal", "address_order"),
    "clock": ("never_equal", "process_or_clock"),
}
SOUND_RECIPES = [
    "UncountedCalls",
    "TorchLoader",
    "StatefulLoader",
    "Sizes",
    "Augmentation",
    "OwnSchedule",
    "Frozen",
    "Recurrent",
]
KINDS = ["preempted", "killed", "preempted", "killed_in_save"]


@pytest.fixture
def verify(tmp_path, monkeypatch, capsys):
    """Call `verify resume` in the folder of a project: its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    for name in ("TASUKI_SITE", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tasuki", "verify", "resume", *words])
        capsys.readouterr()  # of what the test did before
        code = run()
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def write_recipe(folder: Path, name: str, **keys: object) -> None:
    source = inspect.getsource(resume_recipes)
    classes = [resume_recipes.Sound, getattr(resume_recipes, name)]
    helpers = [
        c
        for c in (resume_recipes.Augmented, resume_recipes.BadLoad)
        if c.__name__ in inspect.getsource(classes[1])
    ]
    texts = [source[: source.index("class Sound")]]
    texts += [inspect.getsource(one) for one in dict.fromkeys([classes[0], *helpers, classes[1]])]
    (folder / "recipes.py").write_text("\n\n".join(texts))
    stage = {
        "recipe": f"recipes:{name}",
        "data": "none",
        "epochs": 40,
        "effective_batch": 8,
        **keys,
    }
    spec = {
        "cluster": {"gpu": "cpu"},
        "experiments": {"exp": {"stages": [{"name": "one", **stage}]}},
    }
    (folder / "tasuki.yaml").write_text(json.dumps(spec))


def check_bug(found: tuple[int, str, str], expected: tuple[str, str]) -> None:
    code, out, err = found
    assert code == 1, err
    report = json.loads(out)
    assert (report["status"], report["causes"][0]["name"]) == expected, out
    assert report["first_difference"]["entry"] and Path(report["folder"]).is_dir()


def check_equal(found: tuple[int, str, str]) -> dict:
    code, out, err = found
    assert code == 0, out + err
    report = json.loads(out)
    assert report["equal"] and not report["causes"], out
    assert [one["kind"] for one in report["interruptions"]] == KINDS
    return report


@pytest.mark.timeout(300)
def test_a_sound_stage_is_interrupted_four_times_is_equal_and_leaves_nothing(verify, tmp_path):
    write_recipe(tmp_path, "Sound", validate={"every": "1 epoch"})
    report = check_equal(verify("--json"))
    preempted, killed, at_border, in_save = report["interruptions"]
    assert preempted["step"] % report["steps_per_epoch"] != 0 and at_border["is_epoch_end"]
    assert killed["resumed_from"] == preempted["step"] < killed["step"]
    assert in_save["resumed_from"] == at_border["step"] < in_save["step"]
    assert report["compared_checkpoints"] and report["compared_metric_lines"]
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert names - {"recipes.py", "tasuki.yaml"} == {"runs", "runs/.verify"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_lost_counter_is_told_with_step_entry_cause_and_the_kept_runs(verify, tmp_path):
    write_recipe(tmp_path, "Counter")
    code, out, err = verify()
    assert code == 1, err
    assert "attempt 1 preempted after step 4, resumed from 4" in out
    assert "state lost: the interrupted run differs after a resume" in out
    # How far the first run goes depends on the machine, and so which checkpoints are compared.
    assert re.search(r"first difference: step (6|\d\d), (model\.0\.weight|loss): ", out), out
    assert "likely cause: state that is not in the checkpoints changes the loss" in out
    kept = tmp_path / "runs" / ".verify" / "exp.one"
    assert f"the runs are kept in {kept}" in out and (kept / "interrupted").is_dir()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", RECIPE_BUGS)
def test_each_bug_of_a_recipe_gets_its_right_name(verify, tmp_path, recipe):
    keys = {"validate": {"every": "1 epoch"}} if recipe == "WrongValidation" else {}
    write_recipe(tmp_path, recipe, **keys)
    check_bug(verify("--json"), RECIPE_BUGS[recipe])


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", SCRIPT_BUGS)
def test_each_bug_of_a_script_gets_its_right_name(verify, tmp_path, script):
    (tmp_path / "train.py").write_text(BUGS[script])
    check_bug(verify("--json", "--", sys.executable, "train.py"), SCRIPT_BUGS[script])


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", SOUND_RECIPES)
def test_a_sound_recipe_raises_no_alarm(verify, tmp_path, recipe):
    write_recipe(tmp_path, recipe)
    check_equal(verify("--json"))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", SOUND_SCRIPTS)
def test_a_sound_script_raises_no_alarm(verify, tmp_path, script):
    # Their `save="1h"` does not count here: see the failpoint "open.settings".
    (tmp_path / "train.py").write_text(SOUND_SCRIPTS[script])
    check_equal(verify("--json", "--", sys.executable, "train.py"))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["light", "hugging"])
def test_a_training_of_a_framework_is_equal(verify, tmp_path, monkeypatch, name):
    for file in ("common", name):
        shutil.copy(FRAMEWORKS / f"{file}.py", tmp_path)
    lines = ["import sys, runpy, tasuki", "sys.argv = ['x', 'it']", f"runpy.run_path('{name}.py')"]
    (tmp_path / "train.py").write_text("\n".join(lines))
    for key, value in {"EPOCHS": "100", "ACCUMULATION": "2", "STRIKE": ""}.items():
        monkeypatch.setenv(key, value)
    check_equal(verify("--json", "--", sys.executable, "train.py"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_several_ranks_are_equal(verify, tmp_path):
    write_recipe(tmp_path, "Sound")
    check_equal(verify("--json", "--set", "cluster.gpus=2"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_state_that_cannot_be_restored_is_a_failed_resume_with_its_reason(verify, tmp_path):
    write_recipe(tmp_path, "Unloadable")
    code, out, err = verify("--json")
    assert code == 1, err
    report = json.loads(out)
    assert report["status"] == "resume_failed" and "does not come back" in report["message"], out


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_is_verified_by_its_name_with_the_spec_it_began_with(verify, tmp_path, monkeypatch):
    write_recipe(tmp_path, "Sound")
    monkeypatch.setattr(sys, "argv", ["tasuki", "run", "--set", "epochs=2"])
    assert run() == 0
    (tmp_path / "tasuki.yaml").unlink()
    report = check_equal(verify("exp", "--json"))
    assert report["steps"] <= 16
    code, _, err = verify("exp", "--set", "lr=1")
    assert code == 2 and "its settings are fixed" in err


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stage_of_three_steps_is_refused(verify, tmp_path):
    write_recipe(tmp_path, "Sound")
    code, _, err = verify("--set", "steps=3")
    assert code == 2 and "only 3 steps" in err


def test_a_script_without_tasuki_is_refused_before_it_runs(verify, tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    code, _, err = verify("--", sys.executable, "train.py")
    assert code == 2 and not (tmp_path / "ran").exists()
    assert "`train.py` saves no checkpoints with tasuki" in err and "tasuki.open_run" in err
