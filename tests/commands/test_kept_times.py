"""Steps that a plan measured are kept: the next plan is quick, and equal work has equal times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tasuki
from tests.commands.person import Project, make_project

COUNTS = """

with open({path!r}, "a") as file:
    file.write("x")
"""


def counting(folder: Path, **more: object) -> Project:
    """A project that counts how often its recipe is imported."""
    stages = [{"name": "a", "data": "24", "epochs": 2}]
    project = make_project(folder, stages=stages, **more)
    recipe = folder / "recipes.py"
    recipe.write_text(recipe.read_text() + COUNTS.format(path=str(folder / "asked")))
    return project


def times_asked(project: Project) -> int:
    path = project.folder / "asked"
    return path.stat().st_size if path.exists() else 0


def pieces(plan: dict) -> list[dict]:
    return [piece for job in plan["jobs"] for lane in job["lanes"] for piece in lane["stages"]]


def age_by(project: Project, seconds: float) -> None:
    """As if all of it had been measured so long ago."""
    for file in (project.runs / ".probes").glob("*.json"):
        kept = json.loads(file.read_text())
        kept["value"]["at"] -= seconds
        file.write_text(json.dumps(kept))


def test_a_second_plan_measures_nothing_and_says_when_it_was_measured(tmp_path, here):
    project = counting(tmp_path / "p")
    first = here(project.folder, "plan", "--json").json()
    assert times_asked(project) == 1 and pieces(first)[0]["measured_ago_s"] is None
    age_by(project, 3 * 3600 + 7)
    again = here(project.folder, "plan")
    assert times_asked(project) == 1 and "measuring" not in again.err
    assert "measured here 3h ago; `tasuki plan --fresh` measures again" in again.out
    second = here(project.folder, "plan", "--json").json()
    assert pieces(second)[0]["expected_s"] == pieces(first)[0]["expected_s"]
    assert 3 * 3600 < pieces(second)[0]["measured_ago_s"] < 4 * 3600


def test_what_was_measured_counts_also_where_nothing_may_be(tmp_path, here):
    project = counting(tmp_path / "p")
    unknown = here(project.folder, "plan", "--no-measure", "--json").json()
    assert times_asked(project) == 0 and pieces(unknown)[0]["expected_s"] is None
    measured = here(project.folder, "plan", "--json").json()
    kept = here(project.folder, "plan", "--no-measure", "--json").json()
    assert pieces(kept)[0]["expected_s"] == pieces(measured)[0]["expected_s"]
    assert times_asked(project) == 1
    assert here(project.folder, "run").code == 0
    (plan,) = (project.runs / ".plans").glob("*.json")
    assert pieces(json.loads(plan.read_text()))[0]["expected_s"] == pieces(kept)[0]["expected_s"]


@pytest.mark.long
def test_fresh_and_other_code_batches_or_variables_measure_again(tmp_path, here):
    project = counting(tmp_path / "p")
    here(project.folder, "plan")
    here(project.folder, "plan", "--fresh")
    assert times_asked(project) == 2
    here(project.folder, "plan", "--set", "effective_batch=4")
    assert times_asked(project) == 3
    here(project.folder, "plan", MKL_DEBUG_CPU_TYPE="5")
    assert times_asked(project) == 4
    recipe = project.folder / "recipes.py"
    recipe.write_text(recipe.read_text() + "\n# a change\n")
    here(project.folder, "plan")
    assert times_asked(project) == 5
    here(project.folder, "plan", "--set", "experiments.exp.stages.0.lr=0.3")
    assert times_asked(project) == 5


@pytest.mark.long
def test_ranks_that_each_do_the_same_have_the_same_times_in_a_comparison(tmp_path, monkeypatch):
    batch = {"micro_batch": 2, "accumulation": 1, "params": {"samples": 16}}
    project = counting(tmp_path / "p", cluster__cpus=2, defaults=batch)
    monkeypatch.chdir(project.folder)
    steps = {}
    for gpus in (2, 4):
        plan = tasuki.plan(settings=[f"cluster.gpus={gpus}"])
        steps[gpus] = pieces(plan)[0]
    assert [steps[gpus]["effective_batch"] for gpus in (2, 4)] == [4, 8]
    assert [steps[gpus]["to_step"] for gpus in (2, 4)] == [8, 4]
    kept = [json.loads(file.read_text()) for file in (project.runs / ".probes").glob("*.json")]
    assert len({one["value"]["step_s"] for one in kept}) == 1
    assert len({one["value"]["start_s"] for one in kept}) == 1


@pytest.mark.long
def test_a_folder_where_nothing_can_be_written_costs_a_warning_and_no_plan(tmp_path, here):
    project = counting(tmp_path / "p")
    project.runs.mkdir()
    (project.runs / ".probes").write_text("not a folder")
    said = here(project.folder, "plan")
    assert said.code == 0 and "measured here" in said.out
    assert "nothing is kept for the next time" in said.out + said.err
