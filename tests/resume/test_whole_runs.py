"""Stages, evaluation, best weights, limits: whole runs, disturbed and undisturbed."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file
from tests.harness.project import make_project

from tasuki.runs.atomic import read_json
from tasuki.runs.metrics import read_metrics

THREE = [
    {"name": "a", "data": "d", "epochs": 2},
    {"name": "b", "data": "d", "steps": 9},
    {"name": "c", "data": "d", "samples": 100, "init_from": "a"},
]
WATCHED = {"validate": {"every": "4 steps"}, "evaluate": {"after": "each_stage"}}


@pytest.fixture(scope="module")
def three(warm, tmp_path_factory):
    project = make_project(tmp_path_factory.mktemp("three") / "p", stages=THREE, defaults=WATCHED)
    assert warm.start(project.job.path).wait() == 0, project.logs()
    return project


def test_a_finished_run_has_all_the_files_that_people_know(three):
    run = three.run
    assert json.loads(run.marker.read_text())["experiment"] == "exp"
    results = read_json(run.final_results)
    assert results["weights"] == "stages/c/weights.safetensors"
    assert set(results["metrics"]) == {"loss"}
    assert set(read_json(run.final_metrics)["stages"]) == {"a", "b", "c"}
    rows = [json.loads(line) for line in run.metrics_history.read_text().splitlines()]
    assert rows == read_metrics(run)
    state = read_json(run.training_state)
    assert (state["state"], state["stage"], state["step"]) == ("complete", "c", 14)
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    assert len(kept) == 3 and all(name.startswith("step-") for name in kept)


def test_lengths_in_epochs_steps_and_samples_mean_what_they_say(three):
    steps = {s: read_json(three.run.stage(s).metrics)["steps"] for s in "abc"}
    # 44 samples by 8: six steps an epoch, one of them of 4. Two epochs have 88 samples; two more
    # steps are needed for 100.
    assert steps == {"a": 12, "b": 9, "c": 14}


def test_validation_begins_before_the_first_step_and_decides_the_best(three):
    rows = [row for row in read_metrics(three.run) if row["split"] == "val" and row["stage"] == "a"]
    assert [row["step"] for row in rows] == [0, 4, 8, 12]
    best = read_json(three.run.stage("a").metrics)["best"]
    assert best["value"] == min(row["loss"] for row in rows)
    assert not list(three.run.stage("a").path.glob("best-*"))
    assert (
        f"best weights: step {best['step']} (validation loss {best['value']:.4g})" in three.logs()
    )


def test_a_stage_that_brings_nothing_better_than_its_start_says_so(warm, tmp_path):
    idle = {"lr": 1e-30, "weight_decay": 0, "validate": {"every": "4 steps"}}
    stages = [{"name": "a", "data": "d", "epochs": 1, **idle}]
    project = make_project(tmp_path / "p", stages=stages, params={"norm": "layer"})
    assert warm.start(project.job.path).wait() == 0, project.logs()
    assert read_json(project.run.stage("a").metrics)["best"]["step"] == 0
    assert "none was better than the weights it started from (loss " in project.logs()


def test_a_stage_starts_from_the_weights_it_names_with_a_fresh_optimizer(warm, tmp_path):
    stages = [
        {"name": "a", "data": "d", "epochs": 1},
        {"name": "b", "data": "d", "epochs": 1, "lr": 1e-30, "weight_decay": 0},
        {"name": "c", "data": "d", "epochs": 1, "lr": 1e-30, "weight_decay": 0, "init_from": "a"},
        {"name": "d", "data": "d", "steps": 1, "lr": 1e-30, "init_from": "none"},
    ]
    project = make_project(tmp_path / "p", stages=stages)
    assert warm.start(project.job.path).wait() == 0, project.logs()
    weights = {s: load_file(project.run.stage(s).weights)["0.weight"] for s in "abcd"}
    assert weights["a"].equal(weights["b"]) and weights["a"].equal(weights["c"])
    assert not weights["a"].equal(weights["d"])


def test_validation_and_saving_do_not_change_what_is_learnt(warm, tmp_path, three):
    stages = [{"name": "a", "data": "d", "epochs": 2}]
    plain = make_project(tmp_path / "p", stages=stages, defaults={"save": {"every": "1 steps"}})
    assert warm.start(plain.job.path).wait() == 0, plain.logs()
    loss = {
        run.path: [
            r["loss"] for r in read_metrics(run) if r["split"] == "train" and r["stage"] == "a"
        ]
        for run in (plain.run, three.run)
    }
    assert loss[plain.run.path] == loss[three.run.path]
