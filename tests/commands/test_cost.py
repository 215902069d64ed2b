"""Money: a price in the spec or the site file shows in plan, status and at the end."""

from __future__ import annotations

import json

import pytest

from tasuki.runs.events import read_events
from tasuki.views.text import money
from tests.commands.projects import make_project

STAGES = [{"name": n, "data": "d", "epochs": 1, "expect": {"wall": "5h"}} for n in "ab"]


def test_a_plan_costs_its_jobs_gpus_for_as_long_as_each_is_expected_to_last(here, tmp_path):
    made = make_project(
        tmp_path / "p",
        stages=STAGES,
        cluster__time_limit="8h",
        cluster__gpus=2,
        cluster__price_per_gpu_hour=1.5,
    )
    plan = here(made.folder, "plan", "--json").json()
    costs = [job["cost"] for job in plan["jobs"]]
    assert costs == [pytest.approx(job["expected_s"] / 3600 * 2 * 1.5) for job in plan["jobs"]]
    assert plan["cost"] == pytest.approx(sum(costs)) and plan["cost"] > 30
    assert f"cost {plan['cost']:.2f}" in here(made.folder, "plan").out
    wide = here(made.folder, "plan", COLUMNS="120").out
    assert f"{costs[0]:.2f}" in wide and f"{costs[1]:.2f}" in wide


def test_several_nodes_cost_as_many_times_where_they_are_asked_for(tmp_path, monkeypatch):
    from dataclasses import replace

    from tasuki.api.inputs import make_request
    from tasuki.commands.discover import load_resolved_spec
    from tasuki.commands.plan import make_plan

    made = make_project(
        tmp_path / "p", stages=STAGES, cluster__nodes=3, cluster__price_per_gpu_hour=1.0
    )
    monkeypatch.chdir(made.folder)
    request = make_request(load_resolved_spec("tasuki.yaml"), (), ())
    here_alone = make_plan(request).cost
    assert make_plan(replace(request, is_slurm=True)).cost == pytest.approx(3 * here_alone)


def test_a_run_costs_what_its_attempts_held_in_status_at_its_end_and_in_its_metrics(project, here):
    stages = [{"name": "one", "data": "d", "steps": 1}]
    made = project(stages=stages, cluster__price_per_gpu_hour=100.0)
    said = here(made.folder, "run")
    assert said.code == 0, said
    (run,) = here(made.folder, "status", "--json").json()["runs"]
    events = read_events(made.run())
    times = {event["kind"]: event["t"] for event in events}
    held = (times["attempt-ended"] - times["attempt-started"]) / 3600
    assert run["gpu_hours"] == pytest.approx(held, abs=1e-6)
    assert run["cost"] == pytest.approx(100 * held, abs=1e-4) and run["cost"] > 0
    final = json.loads(made.run().final_metrics.read_text())
    assert 0 < final["cost"] <= run["cost"]
    assert f"exp: complete, cost {money(run['cost'])}\n" in said.out
    assert "cost" in here(made.folder, "status", COLUMNS="120").out


def test_without_a_price_nothing_is_said_of_money(here, finished):
    plan = here(finished.folder, "plan", "--new", "--json").json()
    assert plan["cost"] is None and plan["jobs"][0]["cost"] is None
    run = here(finished.folder, "status", "--json").run
    assert run["cost"] is None and run["gpu_hours"] > 0
    for words in (("plan", "--new"), ("status",)):
        assert "cost" not in here(finished.folder, *words, COLUMNS="120").out
    final = json.loads(finished.run().final_metrics.read_text())
    assert final["cost"] is None
