"""What scripts read: keys, states, and that reading changes nothing."""

from __future__ import annotations

import json
import time

import pytest

from tasuki.clock import SystemClock
from tasuki.commands.status import brief_run, describe_run
from tasuki.runs.attempts import write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.control import Word, say
from tasuki.runs.events import EventLog
from tasuki.testing.clock import FakeClock
from tasuki.views.live import line
from tests.commands.person import make_project

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
STATUS = {
    *("experiment", "state", "reason", "stage", "epoch", "step", "total_steps", "samples"),
    *("attempts", "preemptions", "eta_s", "eta_s_p90", "goodput", "last_checkpoint_step"),
    *("stages", "jobs", "updated_at"),
}
STATES = {"waiting", "running", "handed-over", "complete", "failed", "held", "cancelled"}


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


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--new"),
        ("plan", "--new", "--json"),
        ("run", "--dry-run", "--new"),
        ("status",),
        ("logs", "exp"),
        ("logs", "exp", "-f"),
    ],
    ids=" ".join,
)
def test_reading_writes_nothing(here, finished, words):
    before = finished.tree()
    assert here(finished.folder, *words).code == 0
    assert finished.tree() == before


def test_a_plan_of_a_finished_run_has_nothing_left_to_do(here, finished):
    assert here(finished.folder, "plan").out == "nothing left to do\n"
    assert here(finished.folder, "plan", "--json").json()["jobs"] == []


def test_expect_and_a_limit_cut_a_plan_into_jobs_that_fit(here, tmp_path):
    stages = [{"name": n, "data": "d", "epochs": 1, "expect": {"wall": "5h"}} for n in "ab"]
    folder = make_project(tmp_path / "p", stages=stages, cluster__time_limit="8h").folder
    plan = here(folder, "plan", "--json").json()
    assert [[p["stage"] for p in job["lanes"][0]["stages"]] for job in plan["jobs"]] == [
        ["a"],
        ["b"],
    ]
    first, second = plan["jobs"]
    assert second["after"] == [first["name"]]
    for job in plan["jobs"]:
        assert job["expected_s"] + job["reserve_s"] <= job["limit_s"] == 8 * 3600
        assert {p["source"] for p in job["lanes"][0]["stages"]} == {"given"}
    assert not (folder / "runs").exists()


def test_the_commands_of_a_plan_are_those_that_run_starts(here, finished):
    said = here(finished.folder, "plan", "--new")
    (line,) = [line for line in said.out.splitlines() if "tasuki.jobs" in line]
    assert line.split()[-1].startswith(f"{finished.runs}/.jobs/t-")


def test_the_json_of_status_has_the_keys_of_the_contract(here, finished):
    value = here(finished.folder, "status", "--json").json()
    assert set(value) == {"format", "runs"}
    (run,) = value["runs"]
    assert set(run) == STATUS | {
        "attempt",
        "loss",
        "hint",
        "queue",
        "gpu_hours",
        "cost",
        "memory",
        "stage_eta_s",
        "deadline",
    }  # extends the contract
    assert (run["experiment"], run["state"], run["stage"]) == ("exp", "complete", "large")
    assert (run["step"], run["total_steps"], run["last_checkpoint_step"]) == (12, 12, 12)
    assert (run["attempts"], run["preemptions"], len(run["jobs"])) == (1, 0, 1)
    assert [stage["name"] for stage in run["stages"]] == ["small", "large"]
    assert all(stage["is_trained"] and stage["is_evaluated"] for stage in run["stages"])
    assert 0 < run["goodput"] < 1


def test_status_tells_the_last_loss_of_a_finished_run_as_its_help_says(here, finished):
    assert here(finished.folder, "status", "--json").run["loss"] is not None


@pytest.mark.parametrize(
    ("word", "state"), [(Word.HOLD, "held"), (Word.FAIL, "failed"), (Word.CANCEL, "cancelled")]
)
def test_the_states_of_status_are_those_of_the_contract(here, tmp_path, word, state):
    project = make_project(tmp_path / "p")
    (project.runs / "exp").mkdir(parents=True)
    project.run().spec.write_text(json.dumps({"experiment": "exp", "stages": []}))
    assert here(project.folder, "status", "--json").run["state"] == "waiting"
    say(project.run(), word, reason="so [it] is", claim=0)
    run = here(project.folder, "status", "--json").run
    assert run["state"] == state in STATES and run["reason"] == "so [it] is"
    # Words of others are no markup.
    assert "exp: so [it] is" in here(project.folder, "status").out


@pytest.mark.parametrize(
    ("forecast", "eta"),
    [
        (None, (40.0, None)),
        ({"stage": "one", "step": 20, "left_s": 160.0, "left_s_p90": 200.0}, (80.0, 100.0)),
        ({"stage": "before", "step": 20, "left_s": 160.0, "left_s_p90": 200.0}, (40.0, None)),
    ],
)
def test_what_is_left_is_as_the_stage_forecast_it_else_by_its_steps(here, tmp_path, forecast, eta):
    project = make_project(tmp_path / "p")
    run = project.run()
    run.path.mkdir(parents=True)
    run.spec.write_text(json.dumps({"experiment": "exp", "stages": []}))
    claim = take_claim(run)
    write_holder(run, claim, job="j", start=1, at=time.time())
    told = {"stage": "one", "step": 60, "total_steps": 100, "step_s": 1.0}
    log = EventLog(run, claim=claim, node=0, who="rank0", clock=SystemClock())
    log.add("progress", **told)
    if forecast:
        log.beside("forecast").add("forecast", total_steps=100, **forecast)
    shown = here(project.folder, "status", "--json").run
    assert shown["state"] == "running"
    assert (shown["eta_s"], shown["eta_s_p90"]) == eta


def test_whoever_watches_a_start_sees_what_it_is_at_and_for_how_long(tmp_path):
    run, stage = make_project(tmp_path / "p").run(), {"name": "one", "evaluates": False}
    run.path.mkdir(parents=True)
    run.spec.write_text(json.dumps({"experiment": "exp", "stages": [stage]}))
    clock, claim = FakeClock(wall=time.time()), take_claim(run)
    write_holder(run, claim, job="j", start=1, at=clock.wall())
    supervisor = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    rank = EventLog(run, claim=claim, node=0, who="rank0", clock=clock)

    def shown() -> str:
        clock.sleep(62.0)
        return line(brief_run(run, now=clock.wall()))

    supervisor.add("worker-started", phase="train", stage="one", ranks=1)
    assert shown() == "exp  stage 1/1  starting: importing  1m2s  attempt 1"
    rank.add("doing", what="compiling")
    assert shown() == "exp  stage 1/1  starting: compiling  1m2s  attempt 1"
    rank.add("restored", step=0)
    assert "starting: the first steps  1m2s" in shown()
    told = describe_run(run, now=clock.wall())["reason"]
    assert told == "starting: the first steps, for 1m2s"
    rank.add("progress", stage="one", step=3, total_steps=10, loss=1.0)
    assert "starting" not in shown() and "3/10" in shown()
    assert describe_run(run, now=clock.wall())["reason"] == ""


def test_status_finds_runs_by_the_runs_option_from_anywhere(here, finished, tmp_path):
    said = here(tmp_path, "status", "--runs", str(finished.runs), "--json")
    assert said.run["state"] == "complete"
    assert here(tmp_path, "status").out.startswith("no runs in")


def test_a_run_is_found_by_name_by_stage_and_by_folder(here, finished, tmp_path):
    for name in ("exp", "exp/small"):
        assert here(finished.folder, "status", name, "--json").run["experiment"] == "exp"
    folder = str(finished.run().path)
    assert here(tmp_path, "status", folder, "--json").run["experiment"] == "exp"


def test_a_run_folder_of_a_newer_tasuki_is_refused_by_name(here, tmp_path):
    project = make_project(tmp_path / "p")
    (project.runs / "exp").mkdir(parents=True)
    project.run().spec.write_text(json.dumps({"format": 99, "experiment": "exp", "stages": []}))
    said = here(project.folder, "status")
    assert said.code == 1 and "spec.json has format 99" in said.err, said
    assert "hint: use the tasuki that wrote it" in said.err


def test_the_files_of_a_finished_run_are_those_that_users_know(finished):
    run = finished.run()
    for path in (run.spec, run.training_state, run.metrics_history, run.final_metrics, run.marker):
        assert path.is_file()
    assert json.loads(run.training_state.read_text())["state"] == "complete"
    results = json.loads(run.final_results.read_text())
    assert set(results) >= {"weights", "sha256", "data", "metrics"}
    assert (run.path / results["weights"]).is_file()
    assert len(run.marker.read_text().splitlines()) == 1


def test_overrides_act_in_the_order_that_the_reference_says(here, tmp_path):
    """defaults < config < TASUKI_SET < --set."""
    project = make_project(tmp_path / "p", configs={"big": {"effective_batch": 16}})

    def batch(*words: str, **environment: str) -> int:
        said = here(project.folder, "plan", "--no-measure", "--json", *words, **environment)
        (piece,) = said.json()["jobs"][0]["lanes"][0]["stages"]
        return piece["effective_batch"]

    assert batch() == 8
    assert batch("--config", "big") == 16
    assert batch("--config", "big", TASUKI_SET="effective_batch=12") == 12
    assert batch("--set", "effective_batch=6", TASUKI_SET="effective_batch=12") == 6
    assert batch("--set", "experiments.exp.stages.0.effective_batch=3") == 3


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


def test_a_function_may_be_the_spec(here, tmp_path):
    project = make_project(tmp_path / "p")
    (project.folder / "specs.py").write_text(
        "from tasuki import Experiment, Spec, Stage\n\n\n"
        "def make():\n"
        "    stages = [Stage(name=name, data='d', epochs=1) for name in 'xy']\n"
        "    return Spec(recipe='recipes:Learner', experiments={'e': Experiment(stages=stages)})\n"
    )
    said = here(project.folder, "plan", "specs.py:make", "--no-measure", "--json")
    assert said.code == 0, said
    pieces = said.json()["jobs"][0]["lanes"][0]["stages"]
    assert [(piece["experiment"], piece["stage"]) for piece in pieces] == [("e", "x"), ("e", "y")]


def test_the_environment_names_stages_and_experiment_too(here, tmp_path):
    stages = [{"name": name, "data": "d", "epochs": 1} for name in "ab"]
    project = make_project(tmp_path / "p", stages=stages)
    said = here(
        project.folder, "plan", "--no-measure", "--json", TASUKI_STAGE="a", TASUKI_NAME="mine"
    )
    (piece,) = said.json()["jobs"][0]["lanes"][0]["stages"]
    assert (piece["experiment"], piece["stage"]) == ("mine", "a")


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


@pytest.mark.parametrize("width", [70, 80, 140])
def test_rows_of_a_plan_stay_on_one_line_and_what_has_no_room_is_said_below(here, tmp_path, width):
    stages = [
        {"name": f"small_{size}", "data": "d", "steps": 12345, "expect": {"wall": "5h"}}
        for size in (512, 1024)
    ]
    folder = make_project(tmp_path / "p", stages=stages, cluster__time_limit="8h").folder
    out = here(folder, "plan", COLUMNS=str(width)).out
    rows = [line for line in out.splitlines() if "train small_" in line]
    assert len(rows) == 2 and all("0 – 12,345" in row and "5h" in row for row in rows)
    assert "8h" in rows[0]
    told = "known from" in out.split("commands")[0] and "given" in out
    assert told and ("times known from: given (2)" in out) == (
        not rows[0].rstrip().endswith("given")
    )


def test_a_plan_without_limits_has_no_column_for_them(here, tmp_path):
    stages = [{"name": "one", "data": "d", "expect": {"wall": "1h"}}]
    made = make_project(tmp_path / "p", stages=stages)
    for columns in ("120", "60"):
        assert "limit " not in here(made.folder, "plan", COLUMNS=columns).out
    made.change(cluster__time_limit="8h")
    for columns in ("120", "60"):
        assert "limit " in here(made.folder, "plan", COLUMNS=columns).out


def test_a_wrong_recipe_for_a_finished_run_is_told_with_what_to_do(finished, here):
    said = here(finished.folder, "plan", "--set", "recipe=recipes:Nope", COLUMNS="400")
    assert said.code == 0 and "nothing left to do" in said.out
    assert "was begun with another spec" in said.err + said.out
    assert "`--new` plans another run" in said.err + said.out


def test_slips_of_a_person_are_named_and_not_taken_for_nothing(here, finished):
    said = here(finished.folder, "logs", "exp", "--attempt", "9")
    assert said.code == 2 and "has no attempt 9" in said.err and "there are: 1" in said.err, said
    for verb in ("status", "report", "history"):
        said = here(finished.folder, verb, "--runs", "nowhere")
        assert said.code == 2 and f"there is no folder {finished.folder / 'nowhere'}" in said.err
