"""`tasuki plan`: its JSON, several experiments in one job, deadlines, and times that are kept."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tasuki.clock import SystemClock
from tasuki.commands.items import items_of
from tasuki.commands.jobs import Terms, write_jobs
from tasuki.commands.plan import make_plan, request_plan
from tasuki.runs.atomic import read_json
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tests.commands.projects import Project, make_project

PLAN = {
    *("format", "jobs", "makespan_s", "lower_bound_s", "gap", "optimal", "cost"),
    *("reasons", "warnings"),
}
JOB = {
    *("name", "after", "limit_s", "expected_s", "reserve_s", "gpus", "cpus", "host_bytes"),
    "lanes",
}
PIECE = {
    *("experiment", "stage", "kind", "from_step", "to_step", "micro_batch", "accumulation"),
    *("effective_batch", "gradient_checkpointing", "expected_s", "peak_bytes", "source"),
}


def test_the_json_of_plan_has_the_keys_of_the_contract(here, finished):
    plan = here(finished.folder, "plan", "--new", "--json").json()
    # They extend the contract: `id` names plan and job folders, `predictions` are learnt from.
    more = {"makespan_s_p10", "makespan_s_p90", "gpu_hours", "deadline_s", "fits"}
    assert set(plan) == PLAN | {"id", "predictions"} | more
    (job,) = plan["jobs"]
    assert set(job) == JOB | {"cost", "start_s", "useful"}  # which extend the contract
    (lane,) = job["lanes"]
    assert set(lane) == {"gpus", "stages"}
    for piece in lane["stages"]:
        more = {"budget", "batch_source", "start_s", "cpus", "measured_ago_s"}
        assert set(piece) == PIECE | more  # which extend the contract
    told = [(p["stage"], p["kind"], p["from_step"], p["to_step"]) for p in lane["stages"]]
    assert told == [
        ("small", "train", 0, 18),
        ("small", "evaluate", None, None),
        ("large", "train", 0, 12),
        ("large", "evaluate", None, None),
    ]
    assert {piece["source"] for piece in lane["stages"]} == {"history"}


def test_reading_writes_nothing(here, finished):
    before = finished.tree()
    for words in ("plan --new", "run --dry-run --new", "status", "logs exp", "logs exp -f"):
        assert here(finished.folder, *words.split()).code == 0
    assert finished.tree() == before


def test_a_plan_of_a_finished_run_has_nothing_left_to_do(here, finished):
    assert here(finished.folder, "plan").out == "nothing left to do\n"
    assert here(finished.folder, "plan", "--json").json()["jobs"] == []
    # The commands of a plan are those that `run` starts.
    said = here(finished.folder, "plan", "--new")
    (line,) = [line for line in said.out.splitlines() if "tasuki.jobs" in line]
    assert line.split()[-1].startswith(f"{finished.runs}/.jobs/t-")


def test_expect_and_a_limit_cut_a_plan_into_jobs_that_fit(here, tmp_path):
    stages = [{"name": n, "data": "d", "epochs": 1, "expect": {"wall": "5h"}} for n in "ab"]
    folder = make_project(tmp_path / "p", stages=stages, cluster__time_limit="8h").folder
    plan = here(folder, "plan", "--json").json()
    stages_of = [[p["stage"] for p in job["lanes"][0]["stages"]] for job in plan["jobs"]]
    assert stages_of == [["a"], ["b"]]
    first, second = plan["jobs"]
    assert second["after"] == [first["name"]]
    for job in plan["jobs"]:
        assert job["expected_s"] + job["reserve_s"] <= job["limit_s"] == 8 * 3600
        assert {p["source"] for p in job["lanes"][0]["stages"]} == {"given"}
    assert not (folder / "runs").exists()


def test_stages_and_experiments_may_be_chosen_with_several_words(here, tmp_path):
    stages = [{"name": name, "data": "d", "epochs": 1} for name in "abc"]
    other = {"data": "d", "epochs": 1}
    project = make_project(tmp_path / "p", stages=stages, experiments__other=other)

    def chosen(*words: str) -> list[tuple[str, str]]:
        plan = here(project.folder, "plan", "--no-measure", "--json", *words).json()
        pieces = [piece for job in plan["jobs"] for piece in job["lanes"][0]["stages"]]
        return [(piece["experiment"], piece["stage"]) for piece in pieces]

    assert chosen("--stages", "a", "b", "tasuki.yaml") == [("exp", "a"), ("exp", "b")]
    # What comes before a stage is needed too.
    assert chosen("--stages", "b", "--experiment", "exp") == [("exp", "a"), ("exp", "b")]
    assert ("other", "train") in chosen() and ("other", "train") in chosen("--experiment", "other")
    assert chosen("--experiment", "other", "exp") == chosen()


FROM_ANOTHER = """
recipe: recipes:Toy
cluster: {gpu: cpu, gpus: 1, cpus: 1}
defaults: {effective_batch: 4, epochs: 1, expect: {wall: 1m}}
experiments:
  first: {stages: [{name: pre}, {name: train}]}
  second: {stages: [{name: easy, init_from: first/train}, {name: all}]}
"""


def test_a_start_from_an_experiment_that_was_never_trained_is_refused_before_a_job_starts(
    here, tmp_path
):
    (tmp_path / "tasuki.yaml").write_text(FROM_ANOTHER)
    for words in (("plan",), ("run", "--dry-run")):
        refused = here(tmp_path, *words, "--experiment", "second")
        assert refused.code == 2 and "`first/train`, which was never trained" in refused.err
        assert "--experiment first second" in refused.err
    half = here(tmp_path, "plan", "--experiment", "first", "second", "--stages", "easy")
    assert half.code == 2 and "--stages train easy" in half.err
    assert here(tmp_path, "plan").code == 0
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"format": 1, "experiment": "first"}))
    assert here(tmp_path, "plan", "--experiment", "second").code == 0, "somebody trains it"


# -- many experiments in one job -----------------------------------------------------------------
PACKED_CLUSTER = {"time_limit": "6h", "gpus": 4, "gpu": "a100-40gb", "cpus": 32, "memory": "240G"}


def stage(name: str, wall: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "data": "d", "epochs": 10, "expect": {"wall": wall}, **more}


def five() -> dict[str, Any]:
    """The case of requirements E: eight stages, training of one to two hours, evaluation."""
    walls = {"exp1": ["2h"], "exp2": ["2h"], "exp3": ["40m", "40m", "40m"], "exp4": ["1h", "1h"]}
    walls["exp5"] = ["90m"]
    return {
        name: {"stages": [stage(f"s{n}", wall) for n, wall in enumerate(own, 1)]}
        for name, own in walls.items()
    }


def write_packed(folder: Path, experiments: Any, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    value = {
        "project": "five",
        "cluster": PACKED_CLUSTER,
        "defaults": {"gpus": 1, "effective_batch": 16, "evaluate": {"reserve": "18m"}},
        "experiments": experiments,
        **more,
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))
    return folder


def plan_of(folder: Path, **more: Any) -> tuple[Any, Any]:
    spec = load_spec(str(folder / "tasuki.yaml"), environ={})
    request = request_plan(spec, python="python", environment={}, **more)
    return make_plan(request), request


def test_eight_stages_of_five_experiments_make_one_job_with_four_lanes(here, tmp_path):
    folder = write_packed(tmp_path / "p", five(), deadline="6h")
    plan = here(folder, "plan", "--json").json()
    (job,) = plan["jobs"]
    assert [lane["gpus"] for lane in job["lanes"]] == [[0], [1], [2], [3]]
    assert plan["optimal"] is True and plan["gap"] == 0.0
    assert plan["lower_bound_s"] == pytest.approx(plan["makespan_s"])
    assert plan["makespan_s"] == job["expected_s"] <= 4 * 3600 < plan["deadline_s"] == 6 * 3600
    assert job["expected_s"] + job["reserve_s"] <= job["limit_s"]
    assert {p["cpus"] for lane in job["lanes"] for p in lane["stages"]} == {8}
    assert plan["gpu_hours"] == pytest.approx(4 * plan["makespan_s"] / 3600)
    assert 0.7 < job["useful"] <= 1.0
    assert any("nothing is shorter" in reason for reason in plan["reasons"])


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("--deadline 2h", "misses its deadline of 2h", "this would work: "),
        ("--deadline 2020-01-01", "the deadline was", "hint: "),
        ("--deadline soon", "`soon` is neither a duration nor a date", "hint: "),
        ("--set gpus=0", "or `auto`, not `0`", "hint: "),
        ("--set gpus=8", "asks for `gpus: 8`, but a job has 4 on a node", "hint: "),
        ("--set cluster.nodes=2", "with `cluster.nodes: 2` a stage uses the whole job", "hint: "),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(here, tmp_path, words, error, hint):
    folder = write_packed(tmp_path / "p", five(), deadline="9h")
    said = here(folder, "plan", *words.split())
    assert said.code == 2 and error in said.err and hint in said.err, said


def test_what_ranks_cannot_share_is_told(here, tmp_path):
    uneven = stage("s", "1h", gpus=3, recipe="recipes:Learner")
    own = {**five(), "a": {"stages": [uneven]}}
    own["exp5"] = {"stages": [stage("s", "1h", loader={"workers": 16})]}
    told = "\n".join(warnings_of(here, write_packed(tmp_path / "p", own)))
    assert "16 is shared unevenly by 3 ranks (some take 6 samples, others 5)" in told
    assert "`loader.workers: 16` of `exp5/s` are cut to 7" in told and "8 CPUs" in told


def test_experiments_that_are_left_out_are_named(here, tmp_path):
    folder = write_packed(tmp_path / "p", five())
    plan = here(folder, "plan", "--experiment", "exp1", "exp3", "--stages", "s1", "--json").json()
    assert "not in this plan: experiment `exp2`, `exp4`, `exp5`" in plan["warnings"]
    assert "not in this plan: stage `exp3/s2`, `exp3/s3`" in plan["warnings"]


def test_a_file_beside_the_listed_experiments_that_looks_like_one_is_named(here, tmp_path):
    folder = write_packed(tmp_path / "p", ["one.yaml"])
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(json.dumps({"stages": [stage("s", "1h")]}))
    (folder / "other.yaml").write_text("services: {web: 1}\n")
    (warning,) = [w for w in here(folder, "plan", "--json").json()["warnings"] if "not listed" in w]
    assert "`two.yaml`" in warning and "one.yaml" not in warning and "other" not in warning


# -- what a supervisor reads ----------------------------------------------------------------------
def written(plan: Any, request: Any, tmp_path: Path) -> list[dict[str, Any]]:
    names = [experiment.name for experiment in request.experiments]
    folders = {name: RunFolder(tmp_path / "p" / "runs" / name) for name in names}
    for folder in folders.values():
        folder.path.mkdir(parents=True, exist_ok=True)
    terms = Terms(backend="local", grace_s=10.0)
    made = write_jobs(plan, folders, request, terms, SystemClock())
    return [read_json(job.folder.lanes) for job in made]


def test_pieces_of_one_run_in_one_lane_are_one_item_with_its_share_and_its_time(tmp_path):
    plan, request = plan_of(write_packed(tmp_path / "p", five()))
    (value,) = written(plan, request, tmp_path)
    items = [item for lane in value["lanes"] for item in lane["items"]]
    assert [item["id"] for item in items] == list(range(len(items)))
    assert {item["cpus"] for item in items} == {8} and value["cpus"] == 32
    assert all(item["seconds"] > 0 and item["start_s"] >= 0 for item in items)
    by_id = {item["id"]: item for item in items}
    for run in ("exp3", "exp4"):
        own = sorted((i for i in items if i["run"] == run), key=lambda i: i["start_s"])
        assert own[-1]["until"] is None and all(item["until"] for item in own[:-1])
        for before, item in pairwise(own):
            assert item["after"] == [before["id"]]
            assert item["start_s"] >= before["start_s"] + before["seconds"] - 0.002
    assert all(before in by_id for item in items for before in item["after"])


def test_who_starts_from_another_s_weights_waits_for_the_item_that_makes_them(tmp_path):
    own = {
        "base": {"stages": [stage("one", "1h"), stage("two", "1h")]},
        "leaf": {"stages": [stage("s", "1h", init_from="base/one")]},
    }
    plan, request = plan_of(write_packed(tmp_path / "p", own, defaults={"gpus": 1}))
    (job,) = plan.jobs
    items = items_of(job, request)
    (leaf,) = [item for item in items if item.experiment == "leaf"]
    (base,) = [item for item in items if item.id in leaf.after]
    assert (base.experiment, base.stage) == ("base", "one")
    assert leaf.start_s == pytest.approx(base.seconds, abs=0.002)


def test_a_wide_stage_is_evaluated_on_one_gpu_while_others_use_the_rest(tmp_path):
    own = {
        "wide": {"stages": [stage("s", "1h", gpus=4), stage("t", "1h", gpus=4)]},
        "thin": {"stages": [stage("s", "18m")]},
    }
    evaluate = {"after": "each_stage", "reserve": "30m"}
    defaults = {"gpus": 1, "evaluate": evaluate}
    plan, request = plan_of(write_packed(tmp_path / "p", own, defaults=defaults))
    (job,) = plan.jobs
    items = [item for item in items_of(job, request) if item.experiment == "wide"]
    told = [(item.stage, len(job.lanes[item.lane].gpus), item.trains_only) for item in items]
    assert sorted(told) == [("s", 1, False), ("s", 4, True), ("t", 1, False), ("t", 4, True)]


def test_a_run_that_goes_on_in_a_later_job_is_continued_there(tmp_path):
    own = {"long": {"stages": [stage("s", "9h")]}, "short": {"stages": [stage("s", "1h")]}}
    plan, request = plan_of(write_packed(tmp_path / "p", own, defaults={"gpus": 1}))
    first, second = written(plan, request, tmp_path)
    told = {i["run"]: (i["continued"], i["until"]) for la in first["lanes"] for i in la["items"]}
    assert told == {"long": (True, "s"), "short": (False, None)}
    assert second["after"] == [plan.jobs[0].name]
    ((item,),) = [lane["items"] for lane in second["lanes"]]
    assert (item["run"], item["continued"], item["until"]) == ("long", False, None)
    assert plan.jobs[1].gpus == 1 and plan.jobs[1].cpus == 8  # the rest needs no more
    assert item["start_s"] == 0.0


# -- what a site allows, and what could be shared -------------------------------------------------
def test_a_limit_that_the_partition_does_not_give_is_refused_with_the_plan_that_it_gives(
    here, tmp_path
):
    folder = write_packed(tmp_path / "p", five(), cluster={**PACKED_CLUSTER, "partition": "short"})
    (tmp_path / "site.yaml").write_text("partitions: {short: {longest: 2h}}\n")
    said = here(folder, "plan", TASUKI_SITE=str(tmp_path / "site.yaml"))
    assert said.code == 2 and "a job on `short` may last 2h" in said.err
    assert "this would work: `cluster.time_limit: 2h` (" in said.err.replace("\n", " ")


def history_of(folder: Path, ranks: int, seconds: float) -> None:
    """One finished stage `s` of each of two experiments, on so many ranks."""
    from tasuki.estimation.facts import family_key, stage_key
    from tasuki.runs.history import append_history

    spec = load_spec(str(folder / "tasuki.yaml"), environ={})
    own = spec.experiments[0].stages[0]
    fact = {
        "format": 1, "kind": "stage", "at": 1.0 + ranks, "run": "e", "experiment": "a",
        "stage": "s", "claim": 1, "key": stage_key(own, device="cuda", ranks=ranks),
        "family": family_key(own, device="cuda", ranks=ranks), "ranks": ranks, "steps": 100,
        "steps_per_epoch": 10, "step_s": seconds / 100, "effective_batch": 8,
    }  # fmt: skip
    append_history(Path(spec.runs), f"r{ranks}", fact)


def test_experiments_that_take_all_gpus_in_turn_hear_what_sharing_them_would_bring(here, tmp_path):
    own = {name: {"stages": [{"name": "s", "data": "d", "epochs": 10}]} for name in ("a", "b")}
    cluster = {"gpus": 2, "gpu": "a100-40gb", "cpus": 4}
    folder = write_packed(
        tmp_path / "p", own, cluster=cluster, defaults={}, recipe="recipes:Learner"
    )
    history_of(folder, 2, 3600.0)
    assert not [w for w in warnings_of(here, folder) if "side by side" in w]
    history_of(folder, 1, 5400.0)
    (words,) = [w for w in warnings_of(here, folder) if "side by side" in w]
    assert words.startswith("2 experiments take all 2 GPUs one after another: 2h; ")
    assert words.endswith("with `gpus: 1` each, 1h30m")


def warnings_of(here: Any, folder: Path) -> list[str]:
    return list(here(folder, "plan", "--no-measure", "--json").json()["warnings"])


# -- measured steps ------------------------------------------------------------------------------
COUNTS = """

with open({path!r}, "a") as file:
    file.write("x")
"""


@pytest.fixture
def counting(project) -> Project:
    """A project that counts how often its recipe is imported."""
    made = project(stages=[{"name": "a", "data": "24", "epochs": 2}])
    recipe = made.folder / "recipes.py"
    recipe.write_text(recipe.read_text() + COUNTS.format(path=str(made.folder / "asked")))
    return made


def times_asked(project: Project) -> int:
    path = project.folder / "asked"
    return path.stat().st_size if path.exists() else 0


def pieces(plan: dict) -> list[dict]:
    return [piece for job in plan["jobs"] for lane in job["lanes"] for piece in lane["stages"]]


def test_a_plan_measures_once_and_later_ones_say_when_also_where_nothing_may_be(counting, here):
    def plan(*words: str) -> dict:
        (piece,) = pieces(here(counting.folder, "plan", "--json", *words).json())
        return piece

    assert plan("--no-measure")["expected_s"] is None and times_asked(counting) == 0
    first = plan()
    assert times_asked(counting) == 1 and first["measured_ago_s"] is None
    for file in (counting.runs / ".probes").glob("*.json"):  # as if it had been long ago
        kept = json.loads(file.read_text())
        kept["value"]["at"] -= 3 * 3600 + 7
        file.write_text(json.dumps(kept))
    again = here(counting.folder, "plan")
    assert times_asked(counting) == 1 and "measuring" not in again.err
    assert "measured here 3h ago; `tasuki plan --fresh` measures again" in again.out
    assert 3 * 3600 < plan()["measured_ago_s"] < 4 * 3600
    assert plan("--no-measure")["expected_s"] == plan()["expected_s"] == first["expected_s"]
    assert here(counting.folder, "run").code == 0
    (used,) = (counting.runs / ".plans").glob("*.json")
    assert pieces(json.loads(used.read_text()))[0]["expected_s"] == first["expected_s"]


@pytest.mark.long
def test_plan_tells_a_worker_side_mistake_as_an_error_with_a_hint(real_project):
    said = real_project(recipe="NoLoss").type("plan", "--json")
    assert said.code == 1 and said.out == "", said
    assert "error: experiment `exp`: recipe `recipes:NoLoss` has no method `loss`" in said.err
    assert "hint: a recipe needs" in said.err and "Traceback" not in said.err


def test_the_child_that_measures_is_told_to_write_no_bytecode(here, real_project, monkeypatch):
    """A child that imports the recipe leaves `__pycache__` beside it; this one tells how it was
    called instead."""
    made = real_project()
    fake = made.folder / "fake-python"
    fake.write_text('#!/bin/sh\necho "$@ B=$PYTHONDONTWRITEBYTECODE" > called\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(sys, "executable", str(fake))
    assert here(made.folder, "plan").code == 1
    called = (made.folder / "called").read_text().split()
    assert "-B" in called or "B=1" in called, called
