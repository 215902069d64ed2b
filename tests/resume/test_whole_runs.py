"""Stages, evaluation, best weights, limits: whole runs, disturbed and undisturbed."""

from __future__ import annotations

import json
import signal
import time

import pytest
from safetensors.torch import load_file
from tests.harness.project import differences, make_project

from tasuki.commands.status import ledger_of
from tasuki.runs.atomic import read_json
from tasuki.runs.events import read_events
from tasuki.runs.jobs import read_outcome
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder

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


def test_a_notice_during_evaluation_drops_it_and_the_next_attempt_repeats_it(warm, tmp_path, three):
    project = make_project(tmp_path / "p", stages=THREE, defaults=WATCHED)
    started = warm.start(project.job.path)
    until = time.monotonic() + 30
    while not any(
        e["kind"] == "worker-started" and e["phase"] == "evaluate" for e in read_events(project.run)
    ):
        assert time.monotonic() < until, project.logs()
        time.sleep(0.001)
    started.kill(signal.SIGTERM)
    started.wait()
    while not project.run.is_complete():
        assert warm.start(project.job.path).wait() in (0, 75), project.logs()
    assert differences(three, project) == []
    assert (
        read_json(project.run.final_results)["metrics"]
        == read_json(three.run.final_results)["metrics"]
    )


@pytest.mark.long
def test_an_attempt_ends_on_its_own_clock_before_the_limit_and_the_next_goes_on(
    warm, tmp_path, three
):
    project = make_project(tmp_path / "p", stages=THREE, defaults=WATCHED, params={"pause": 0.05})
    lanes = read_json(project.job.lanes)
    project.job.lanes.write_text(json.dumps({**lanes, "limit_s": 2.5}))
    codes = []
    while not project.run.is_complete():
        codes.append(warm.start(project.job.path).wait())
        assert len(codes) < 12, project.logs()
    assert codes[:-1] == [75] * (len(codes) - 1) and len(codes) >= 2
    first = read_outcome(project.job, 1)
    assert first is not None and first["lanes"][0]["cause"] == "limit"
    weights = [p.run.stage("c").weights.read_bytes() for p in (project, three)]
    assert weights[0] == weights[1]


def count_events(run: RunFolder) -> int:
    """Without the parts of a start: as many say that steps are made."""
    return sum(event["kind"] != "doing" for event in read_events(run))


def test_the_ledger_of_a_disturbed_run_adds_up_to_the_wall_clock(warm, tmp_path):
    project = make_project(tmp_path / "p", params={"pause": 0.02})
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        started = warm.start(project.job.path)
        until = time.monotonic() + 30
        seen = count_events(project.run)
        while count_events(project.run) < seen + 6 and not project.run.is_complete():
            assert time.monotonic() < until, project.logs()
            time.sleep(0.005)
        if number is not None:
            started.kill(number)
        started.wait()
    assert project.run.is_complete(), project.logs()
    ledger = ledger_of(project.run)
    events = read_events(project.run)
    wall = max(e["t"] for e in events) - min(e["t"] for e in events)
    assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert ledger.wall_s == pytest.approx(wall, abs=0.01)
    assert all(seconds >= -1e-9 for seconds in ledger.parts.values()), ledger.parts
    assert ledger.parts["step"] > 0.2 and ledger.parts["recomputed"] > 0
    assert ledger.parts["other"] < 0.25 * ledger.wall_s, ledger.parts
