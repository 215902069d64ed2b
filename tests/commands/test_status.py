"""`tasuki status`: keys, states, the time left, the deadline, and jobs that left the queue."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest

from tasuki.clock import utc
from tasuki.commands.queued import Known
from tasuki.commands.status import brief_run, describe_run
from tasuki.errors import StoreError
from tasuki.runs.accounts import keep_accounts
from tasuki.runs.atomic import write_json
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.brief import read_brief_events
from tasuki.runs.claims import take_claim
from tasuki.runs.control import Word, say
from tasuki.runs.cost import add_up_spent
from tasuki.runs.events import EventLog, read_events
from tasuki.runs.jobs import JobFolder, job_folder
from tasuki.runs.ledger import make_ledger
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock
from tasuki.views.live import line
from tests.harness.written import WrittenRun

STATUS = {
    *("experiment", "state", "reason", "stage", "epoch", "step", "total_steps", "samples"),
    *("attempts", "preemptions", "eta_s", "eta_s_p90", "goodput", "last_checkpoint_step"),
    *("stages", "jobs", "updated_at"),
    # These extend the contract.
    *("attempt", "loss", "hint", "queue", "gpu_hours", "cost", "memory", "stage_eta_s"),
    "deadline",
}


# -- a finished run -------------------------------------------------------------------------------
def test_the_json_of_status_has_the_keys_of_the_contract(here, finished):
    value = here(finished.folder, "status", "--json").json()
    assert set(value) == {"format", "runs"}
    (run,) = value["runs"]
    assert set(run) == STATUS
    assert (run["experiment"], run["state"], run["stage"]) == ("exp", "complete", "large")
    assert (run["step"], run["total_steps"], run["last_checkpoint_step"]) == (12, 12, 12)
    assert (run["attempts"], run["preemptions"], len(run["jobs"])) == (1, 0, 1)
    assert [stage["name"] for stage in run["stages"]] == ["small", "large"]
    assert all(stage["is_trained"] and stage["is_evaluated"] for stage in run["stages"])
    assert 0 < run["goodput"] < 1 and run["loss"] is not None


def test_a_run_is_found_by_name_stage_folder_and_the_runs_option(here, finished, tmp_path):
    for name in ("exp", "exp/small"):
        assert here(finished.folder, "status", name, "--json").run["experiment"] == "exp"
    for words in ([str(finished.run().path)], ["--runs", str(finished.runs)]):
        assert here(tmp_path, "status", *words, "--json").run["state"] == "complete"
    assert here(tmp_path, "status").out.startswith("no runs in")
    for verb in ("status", "report", "history"):
        said = here(finished.folder, verb, "--runs", "nowhere")
        assert said.code == 2 and f"there is no folder {finished.folder / 'nowhere'}" in said.err


def test_the_files_of_a_finished_run_are_those_that_users_know(finished):
    run = finished.run()
    for path in (run.spec, run.training_state, run.metrics_history, run.final_metrics, run.marker):
        assert path.is_file()
    assert json.loads(run.training_state.read_text())["state"] == "complete"
    results = json.loads(run.final_results.read_text())
    assert set(results) >= {"weights", "sha256", "data", "metrics"}
    assert (run.path / results["weights"]).is_file()
    assert len(run.marker.read_text().splitlines()) == 1


def test_its_accounts_are_those_of_its_events_and_can_be_made_again(here, finished):
    run = finished.run()
    kept = json.loads(run.accounts.read_text())
    told = here(finished.folder, "status", "--json").run
    keys = ("goodput", "gpu_hours", "cost")
    assert {key: told[key] for key in keys} == {key: kept[key] for key in keys}
    assert kept["goodput"] == round(make_ledger(read_events(run)).goodput or 0.0, 4)
    run.accounts.write_text("{torn")
    try:
        assert here(finished.folder, "status", "--json").run["goodput"] == kept["goodput"]
    finally:
        keep_accounts(run)
    assert json.loads(run.accounts.read_text()) == kept


def test_what_status_reads_of_the_events_makes_the_same_ledger_as_all_of_them(finished):
    run = finished.run()
    for now in (None, time.time()):
        whole, brief = read_events(run), read_brief_events(run)
        assert make_ledger(brief, now=now) == make_ledger(whole, now=now)
        spent = add_up_spent(whole, now=now, price=2.0)
        assert add_up_spent(brief, now=now, price=2.0) == spent


# -- a run that goes on ---------------------------------------------------------------------------
@pytest.fixture
def now() -> float:
    """`status` asks the real clock."""
    return time.time()


def piece(name: str, seconds: float | None) -> dict:
    told = {"experiment": "exp", "stage": name, "kind": "train", "expected_s": seconds}
    return {**told, "from_step": 0, "to_step": 100, "start_s": None}


def make_run(runs: Path, now: float, name: str = "exp", *, deadline_at: float | None = None):
    """Three stages, planned with 100 s each."""
    run = RunFolder(runs / name)
    run.path.mkdir(parents=True)
    stages = [{"name": name, "evaluates": False} for name in "abc"]
    spec = {"experiment": "exp", "stages": stages, "deadline_at": deadline_at}
    run.spec.write_text(json.dumps(spec))
    log = EventLog(run, claim=0, node=0, who="run-p-01-01", clock=FakeClock(wall=now))
    log.add("submitted", job="p-01-01")
    plan = {
        "jobs": [{"lanes": [{"stages": [piece(n, 100.0) for n in "abc"]}]}],
        "makespan_s": 300.0,
        "makespan_s_p90": 360.0,
    }
    (runs / ".plans").mkdir(exist_ok=True)
    (runs / ".plans" / "p-01.json").write_text(json.dumps(plan))
    return run


def make_live(run: RunFolder, now: float, **told) -> EventLog:
    claim = take_claim(run)
    write_holder(run, claim, job="p-01-01", start=1, at=now)
    log = EventLog(run, claim=claim, node=0, who="rank0", clock=FakeClock(wall=now))
    shown = {"stage": "a", "step": 60, "total_steps": 100, "step_s": 1.0, "loss": 0.5, **told}
    log.add("progress", **shown)
    return log


@pytest.mark.parametrize(
    ("stage", "eta_s"), [("a", (80.0, 100.0)), ("before", (40.0, None)), (None, (40.0, None))]
)
def test_the_time_left_is_as_the_stage_forecast_it_else_by_its_steps(
    here, tmp_path, now, stage, eta_s
):
    log = make_live(make_run(tmp_path / "runs", now), now)
    if stage:
        forecast = {"step": 20, "total_steps": 100, "left_s": 160.0, "left_s_p90": 200.0}
        log.beside("forecast").add("forecast", stage=stage, **forecast)
    told = here(tmp_path, "status", "--json").run
    assert (told["state"], told["deadline"]) == ("running", None)
    # The plan tells what comes after the stage.
    assert (told["stage_eta_s"], told["eta_s"]) == (eta_s[0], eta_s[0] + 200.0)
    if eta_s[1]:
        assert told["eta_s_p90"] == pytest.approx(100.0 + 200.0 * 1.2)
        for columns in ("40", "150"):
            assert "4m40s/5m40s" in here(tmp_path, "status", COLUMNS=columns).out
    assert "deadline" not in here(tmp_path, "status", COLUMNS="160").out
    shutil.rmtree(tmp_path / "runs" / ".plans")
    told = here(tmp_path, "status", "--json").run
    assert (told["eta_s"], told["eta_s_p90"], told["stage_eta_s"]) == (None, None, eta_s[0])
    if stage is None:
        assert "> 40s" in here(tmp_path, "status", COLUMNS="150").out


@pytest.mark.parametrize(
    ("in_s", "danger", "words"),
    [(100.0, True, "in danger: "), (10_000.0, False, "kept, "), (-50.0, True, "in danger: ")],
)
def test_a_deadline_is_in_danger_or_kept_in_words_and_in_json(
    here, tmp_path, now, in_s, danger, words
):
    make_live(make_run(tmp_path / "runs", now, deadline_at=now + in_s), now)
    told = here(tmp_path, "status", "--json").run["deadline"]
    assert (told["at"], told["danger"]) == (utc(now + in_s), danger)
    assert told["late_s"] == pytest.approx(240.0 - in_s, abs=60.0)
    for columns in ("40", "160"):
        assert words in here(tmp_path, "status", COLUMNS=columns).out


def test_a_duration_counts_from_the_submission_and_a_finished_run_says_that_it_was_kept(
    project, here
):
    made = project(stages=[{"name": "one", "data": "d", "steps": 1}])
    before = time.time()
    said = here(made.folder, "run", "--deadline", "9h")
    assert said.code == 0, said
    told = here(made.folder, "status", "--json").run
    at = json.loads(made.run().spec.read_text())["deadline_at"]
    assert before + 9 * 3600 <= at <= time.time() + 9 * 3600
    assert (told["state"], told["deadline"]["danger"]) == ("complete", False)
    assert -9 * 3600 < told["deadline"]["late_s"] < -8 * 3600
    assert re.search(r"met, 8h59m\S* early", here(made.folder, "status", COLUMNS="160").out)


ODD = {
    "nan": ({"loss": "nan", "step_s": "nan"}, "nan"),
    "words": ({"loss": "no idea yet, sorry"}, "no idea yet,"),
    "texts for numbers": ({"step": "six", "total_steps": "ten", "step_s": [1]}, "six/ten"),
    "beyond the end": ({"step": 900, "total_steps": 100}, "33%"),
    "nothing": ({"stage": None, "step": None, "total_steps": None, "loss": None}, "–/–"),
}


@pytest.mark.parametrize("name", ODD)
def test_metrics_and_steps_that_are_no_numbers_are_shown_as_they_are(here, tmp_path, now, name):
    told, shown = ODD[name]
    make_live(make_run(tmp_path / "runs", now, deadline_at=now + 50.0), now, **told)
    for columns in ("40", "160"):
        said = here(tmp_path, "status", COLUMNS=columns)
        assert said.code == 0 and shown in said.out, said
    assert here(tmp_path, "status", "--json").code == 0


def test_of_a_week_of_signs_of_life_only_the_last_of_each_stage_is_read(tmp_path, now):
    run = make_run(tmp_path / "runs", now)
    clock = FakeClock(wall=now)
    take_claim(run)
    supervisor = EventLog(run, claim=1, node=0, who="supervisor", clock=clock)
    log = EventLog(run, claim=1, node=0, who="rank0", clock=clock)
    machine = log.beside("machine")
    supervisor.add("attempt-started", job="j", start=1, gpus=1)
    for name in ("a", "b"):
        supervisor.add("worker-started", phase="train", stage=name, ranks=1)
        for step in range(500):
            clock.sleep(1.0)
            log.add("progress", stage=name, step=step, from_step=0, parts={"step": step / 2})
            machine.add("machine", stage=name)
        supervisor.add("worker-ended", phase="train", stage=name, ending="done", cause="none")
    brief = read_brief_events(run)
    assert [e["step"] for e in brief if e["kind"] == "progress"] == [499, 499]
    assert len(brief) < 20
    assert make_ledger(brief, now=clock.wall()) == make_ledger(read_events(run), now=clock.wall())


# -- states ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("word", "state"), [(Word.HOLD, "held"), (Word.FAIL, "failed"), (Word.CANCEL, "cancelled")]
)
def test_the_states_of_status_are_those_of_the_contract(here, tmp_path, now, word, state):
    run = make_run(tmp_path / "runs", now, deadline_at=now + 50.0)
    assert here(tmp_path, "status", "--json").run["state"] == "waiting"
    say(run, word, reason="so [it] is", hint="look at the logs", claim=0)
    told = here(tmp_path, "status", "--json").run
    assert told["state"] == state and told["reason"] == "so [it] is"
    assert told["eta_s"] is None and told["deadline"]["danger"] is True
    # Words of others are no markup.
    assert "exp: so [it] is" in here(tmp_path, "status").out
    if state == "held":
        hint = "look at the logs; when it is mended, `tasuki resume exp` goes on"
        of_why = here(tmp_path, "why", "exp", "--json").json()
        assert told["hint"] == of_why["hint"] == hint


def test_whoever_watches_a_start_sees_what_it_is_at_and_for_how_long(tmp_path):
    clock = FakeClock()
    written = WrittenRun(tmp_path / "runs", clock)
    written.begin(job="j")

    def shown() -> str:
        clock.sleep(62.0)
        return line(brief_run(written.run, now=clock.wall()))

    written.tell("worker-started", phase="train", stage="train", ranks=1)
    assert shown() == "exp  stage 1/1  starting: importing  1m2s  attempt 1"
    written.tell("doing", who="rank0", what="compiling")
    assert shown() == "exp  stage 1/1  starting: compiling  1m2s  attempt 1"
    written.tell("restored", who="rank0", step=0)
    assert "starting: the first steps  1m2s" in shown()
    told = describe_run(written.run, now=clock.wall())["reason"]
    assert told == "starting: the first steps, for 1m2s"
    written.tell("progress", who="rank0", stage="train", step=3, total_steps=10, loss=1.0)
    assert "starting" not in shown() and "3/10" in shown()
    assert describe_run(written.run, now=clock.wall())["reason"] == ""


def test_failures_from_before_the_user_said_resume_are_no_news(tmp_path, now):
    run = make_run(tmp_path / "runs", now)
    end = {"ending": "failed", "cause": "none", "message": "it broke", "at": now}
    end |= {"has_progressed": False, "has_stepped": True}
    for _ in range(2):
        write_attempt_end(run, take_claim(run), end)
    take_claim(run)
    assert brief_run(run, now=now)["notable"] == ["attempt 2 failed: it broke"]
    say(run, Word.LIFT, reason="a person said so", claim=2)
    assert brief_run(run, now=now)["notable"] == []


@pytest.mark.parametrize("text", ['{"format": 1, "stages": 3}', '{"stages": [7]}', '{"spec": []}'])
def test_a_live_line_of_a_run_with_a_damaged_spec_is_words_and_no_traceback(tmp_path, text):
    run = RunFolder(tmp_path / "exp")
    run.path.mkdir()
    run.spec.write_text(text)
    with pytest.raises(StoreError, match="is damaged"):
        brief_run(run, now=0.0)


# -- a job that is gone from the queue ------------------------------------------------------------


@pytest.fixture
def job(written) -> JobFolder:
    """Of number 7, submitted long ago."""
    job = job_folder(written.run.path.parent, "j")
    job.path.mkdir(parents=True)
    write_json(job.submitted, {"format": 1, "number": "7"})
    os.utime(job.submitted, (1.0, 1.0))
    return job


def reason_of(written: WrittenRun, job: JobFolder) -> str:
    now = written.clock.wall()
    known = Known(by_run={}, last={"exp": (job, "7")}, at=now)
    return str(describe_run(written.run, now=now, known=known)["reason"])


def test_of_a_long_log_the_end_alone_is_read(written, job):
    with job.slurm_log("7").open("wb") as file:
        file.seek(64 << 20)
        file.write("\nslurmstepd: error: über\n\n".encode())
    tracemalloc.start()
    try:
        reason = reason_of(written, job)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "without a word: slurmstepd: error: über (see " in reason
    assert peak < 4 << 20


def test_a_pipe_where_the_log_was_keeps_nobody_waiting(written, job):
    os.mkfifo(job.slurm_log("7"))
    assert "is gone from the queue without a word (see " in reason_of(written, job)
