"""Many experiments on the GPUs of one job: what `tasuki plan` and the job folders say of them."""

from __future__ import annotations

import json
import time
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

CLUSTER = {"time_limit": "6h", "gpus": 4, "gpu": "a100-40gb", "cpus": 32, "memory": "240G"}


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


def write(folder: Path, experiments: Any, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    value = {
        "project": "five",
        "cluster": CLUSTER,
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
    folder = write(tmp_path / "p", five(), deadline="6h")
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


def test_hours_4_3_6_6_8_6_at_8_h_still_split_as_one_stage_after_another(here, tmp_path):
    stages = [stage(f"s{n}", f"{h}h") for n, h in enumerate((4, 3, 6, 6, 8, 6), 1)]
    cluster = {"time_limit": "8h", "gpus": 1, "gpu": "a100-40gb"}
    folder = write(tmp_path / "p", {"grow": {"stages": stages}}, cluster=cluster, defaults={})
    plan = here(folder, "plan", "--json").json()
    told = [[p["stage"] for p in job["lanes"][0]["stages"]] for job in plan["jobs"]]
    assert told == [["s1", "s2"], ["s3"], ["s4"], ["s5"], ["s5", "s6"]]
    assert plan["gap"] == pytest.approx(0.0, abs=0.001) and plan["optimal"] is False


# -- deadlines ------------------------------------------------------------------------------------


def test_a_deadline_that_is_missed_is_refused_with_the_nearest_plan_that_works(here, tmp_path):
    said = here(write(tmp_path / "p", five()), "plan", "--deadline", "2h")
    assert said.code == 2 and "misses its deadline of 2h" in said.err
    assert "this would work: " in said.err and "`deadline: " in said.err


@pytest.mark.parametrize("when", ["2020-01-01 08:00", "2020-01-01"])
def test_a_deadline_in_the_past_is_refused(here, tmp_path, when):
    said = here(write(tmp_path / "p", five(), deadline=when), "plan")
    assert said.code == 2 and "the deadline was" in said.err and "ago" in said.err


def test_the_command_line_s_deadline_goes_before_the_spec_s(here, tmp_path):
    folder = write(tmp_path / "p", five(), deadline="1h")
    assert here(folder, "plan", "--deadline", "2099-01-01T00:00+00:00", "--json").code == 0


def test_what_is_no_deadline_is_refused_with_an_example(here, tmp_path):
    said = here(write(tmp_path / "p", five(), deadline="soon"), "plan")
    assert said.code == 2 and "`soon` is neither a duration nor a date" in said.err


def test_a_deadline_is_met_by_jobs_side_by_side_on_a_cluster(here, tmp_path):
    many = {f"e{n}": {"stages": [stage("s", "1h")]} for n in range(16)}
    cluster = {**CLUSTER, "partition": "gpu"}
    folder = write(tmp_path / "p", many, cluster=cluster, defaults={"gpus": 1})
    assert len(here(folder, "plan", "--json").json()["jobs"]) == 1
    plan = here(folder, "plan", "--deadline", "2h10m", "--json").json()
    assert [job["start_s"] for job in plan["jobs"]] == [0.0, 0.0]
    assert all(job["after"] == [] for job in plan["jobs"])


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["gpus=0"], "or `auto`, not `0`"),
        (["gpus=8"], "asks for `gpus: 8`, but a job has 4 on a node"),
        (["cluster.nodes=2"], "with `cluster.nodes: 2` a stage uses the whole job"),
    ],
)
def test_gpus_that_cannot_be_are_refused_in_words(here, tmp_path, settings, words):
    said = here(write(tmp_path / "p", five()), "plan", *(w for s in settings for w in ("--set", s)))
    assert said.code == 2 and words in said.err and "hint: " in said.err


def test_a_batch_that_ranks_cannot_share_evenly_is_told(here, tmp_path):
    own = {"a": {"stages": [stage("s", "1h", gpus=3, recipe="recipes:Learner")]}}
    plan = here(write(tmp_path / "p", own), "plan", "--json").json()
    (words,) = [w for w in plan["warnings"] if "unevenly" in w]
    assert "16 is shared unevenly by 3 ranks (some take 6 samples, others 5)" in words


def test_loader_workers_beyond_their_share_are_cut_and_that_is_told(here, tmp_path):
    own = {**five(), "exp5": {"stages": [stage("s", "1h", loader={"workers": 16})]}}
    plan = here(write(tmp_path / "p", own), "plan", "--json").json()
    (words,) = [w for w in plan["warnings"] if "loader.workers" in w]
    assert "`loader.workers: 16` of `exp5/s` are cut to 7" in words and "8 CPUs" in words


def test_two_experiments_of_one_name_are_refused(here, tmp_path):
    folder = write(tmp_path / "p", ["a/e.yaml", "b/e.yaml"])
    for name in "ab":
        (folder / name).mkdir()
        (folder / name / "e.yaml").write_text(json.dumps({"stages": [stage("s", "1h")]}))
    said = here(folder, "plan")
    assert said.code == 2 and "two experiments are called `e`" in said.err


def test_experiments_that_are_left_out_are_named(here, tmp_path):
    folder = write(tmp_path / "p", five())
    plan = here(folder, "plan", "--experiment", "exp1", "exp3", "--stages", "s1", "--json").json()
    assert "not in this plan: experiment `exp2`, `exp4`, `exp5`" in plan["warnings"]
    assert "not in this plan: stage `exp3/s2`, `exp3/s3`" in plan["warnings"]


def test_a_file_beside_the_listed_experiments_that_looks_like_one_is_named(here, tmp_path):
    folder = write(tmp_path / "p", ["one.yaml"])
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(json.dumps({"stages": [stage("s", "1h")]}))
    (folder / "other.yaml").write_text("services: {web: 1}\n")
    (warning,) = [w for w in here(folder, "plan", "--json").json()["warnings"] if "not listed" in w]
    assert "`two.yaml`" in warning and "one.yaml" not in warning and "other" not in warning


@pytest.mark.long
def test_two_thousand_experiments_are_planned_in_seconds(here, tmp_path):
    many = {f"e{n}": {"stages": [stage("s", "1h")]} for n in range(2000)}
    folder = write(tmp_path / "p", many, defaults={"gpus": 1})
    began = time.process_time()
    plan = here(folder, "plan", "--json").json()
    assert time.process_time() - began < 30.0
    assert sum(len(lane["stages"]) for job in plan["jobs"] for lane in job["lanes"]) == 2000


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
    plan, request = plan_of(write(tmp_path / "p", five()))
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
    plan, request = plan_of(write(tmp_path / "p", own, defaults={"gpus": 1}))
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
    plan, request = plan_of(write(tmp_path / "p", own, defaults=defaults))
    (job,) = plan.jobs
    items = [item for item in items_of(job, request) if item.experiment == "wide"]
    told = [(item.stage, len(job.lanes[item.lane].gpus), item.trains_only) for item in items]
    assert sorted(told) == [("s", 1, False), ("s", 4, True), ("t", 1, False), ("t", 4, True)]


def test_a_run_that_goes_on_in_a_later_job_is_continued_there(tmp_path):
    own = {"long": {"stages": [stage("s", "9h")]}, "short": {"stages": [stage("s", "1h")]}}
    plan, request = plan_of(write(tmp_path / "p", own, defaults={"gpus": 1}))
    first, second = written(plan, request, tmp_path)
    told = {i["run"]: (i["continued"], i["until"]) for la in first["lanes"] for i in la["items"]}
    assert told == {"long": (True, "s"), "short": (False, None)}
    assert second["after"] == [plan.jobs[0].name]
    ((item,),) = [lane["items"] for lane in second["lanes"]]
    assert (item["run"], item["continued"], item["until"]) == ("long", False, None)
    assert plan.jobs[1].gpus == 1 and plan.jobs[1].cpus == 8  # the rest needs no more
    assert item["start_s"] == 0.0


def test_a_job_of_one_lane_says_the_same_of_its_item(tmp_path):
    own = {"grow": {"stages": [stage("s", "1h"), stage("t", "1h")]}}
    plan, request = plan_of(write(tmp_path / "p", own, defaults={}))
    (value,) = written(plan, request, tmp_path)
    (lane,) = value["lanes"]
    (item,) = lane["items"]
    assert lane["gpus"] == [0, 1, 2, 3]
    assert (item["id"], item["after"], item["until"]) == (0, [], None)
    assert item["cpus"] == value["cpus"] == 32
    assert item["start_s"] == 0.0 and item["seconds"] == pytest.approx(2 * 3609)


# -- what a site allows, and what could be shared -------------------------------------------------


def site(folder: Path, text: str) -> dict[str, str]:
    (folder / "site.yaml").write_text(text)
    return {"TASUKI_SITE": str(folder / "site.yaml")}


def test_a_limit_that_the_partition_does_not_give_is_refused_with_the_plan_that_it_gives(
    here, tmp_path
):
    folder = write(tmp_path / "p", five(), cluster={**CLUSTER, "partition": "short"})
    environment = site(tmp_path, "partitions: {short: {longest: 2h}}\n")
    said = here(folder, "plan", **environment)
    assert said.code == 2 and "a job on `short` may last 2h" in said.err
    assert "this would work: `cluster.time_limit: 2h` (" in said.err.replace("\n", " ")


def test_more_jobs_than_the_site_takes_are_refused_before_submission(here, tmp_path):
    cluster = {**CLUSTER, "partition": "short", "time_limit": "1h"}
    folder = write(tmp_path / "p", five(), cluster=cluster)
    said = here(folder, "plan", **site(tmp_path, "queue: {max_jobs: 2}\n"))
    assert said.code == 2 and "but this site takes 2 of a user" in said.err
    assert "`cluster.time_limit: " in said.err


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
    folder = write(tmp_path / "p", own, cluster=cluster, defaults={}, recipe="recipes:Learner")
    history_of(folder, 2, 3600.0)
    assert not [w for w in warnings_of(here, folder) if "side by side" in w]
    history_of(folder, 1, 5400.0)
    (words,) = [w for w in warnings_of(here, folder) if "side by side" in w]
    assert words.startswith("2 experiments take all 2 GPUs one after another: 2h; ")
    assert words.endswith("with `gpus: 1` each, 1h30m")


def warnings_of(here: Any, folder: Path) -> list[str]:
    return list(here(folder, "plan", "--no-measure", "--json").json()["warnings"])
