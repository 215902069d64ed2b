"""`tasuki status`: the whole run's end, its deadline, and folders that nobody would wish for."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from tasuki.clock import utc
from tasuki.commands.status import brief_run
from tasuki.runs.accounts import keep_accounts
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.brief import read_brief_events
from tasuki.runs.claims import take_claim
from tasuki.runs.control import Word, say
from tasuki.runs.cost import add_up_spent
from tasuki.runs.events import EventLog, read_events
from tasuki.runs.ledger import make_ledger
from tasuki.runs.runs import RunFolder
from tasuki.testing.clock import FakeClock
from tests.commands.person import make_project

NOW = time.time()


@pytest.fixture(autouse=True)
def _look_at_the_clock():
    """Other tests may have taken minutes since this file was read."""
    global NOW  # noqa: PLW0603
    NOW = time.time()


def stage(name: str) -> dict:
    return {"name": name, "evaluates": False}


def piece(name: str, seconds: float | None, **more) -> dict:
    told = {"experiment": "exp", "stage": name, "kind": "train", "expected_s": seconds}
    return {**told, "from_step": 0, "to_step": 100, "start_s": None, **more}


def make_run(runs: Path, name: str = "exp", *, deadline_at: float | None = None) -> RunFolder:
    """Three stages, planned with 100 s each."""
    run = RunFolder(runs / name)
    run.path.mkdir(parents=True)
    spec = {"experiment": "exp", "stages": [stage(n) for n in "abc"], "deadline_at": deadline_at}
    run.spec.write_text(json.dumps(spec))
    EventLog(run, claim=0, node=0, who="run-p-01-01", clock=FakeClock(wall=NOW)).add(
        "submitted", job="p-01-01"
    )
    plan = {
        "jobs": [{"lanes": [{"stages": [piece(n, 100.0) for n in "abc"]}]}],
        "makespan_s": 300.0,
        "makespan_s_p90": 360.0,
    }
    (runs / ".plans").mkdir(exist_ok=True)
    (runs / ".plans" / "p-01.json").write_text(json.dumps(plan))
    return run


def make_live(run: RunFolder, **told) -> EventLog:
    claim = take_claim(run)
    write_holder(run, claim, job="p-01-01", start=1, at=NOW)
    log = EventLog(run, claim=claim, node=0, who="rank0", clock=FakeClock(wall=NOW))
    shown = {"stage": "a", "step": 60, "total_steps": 100, "step_s": 1.0, "loss": 0.5, **told}
    log.add("progress", **shown)
    return log


def test_the_time_left_is_that_of_the_whole_run_at_50_and_90_percent(here, tmp_path):
    run = make_run(tmp_path / "runs")
    log = make_live(run)
    forecast = {"stage": "a", "step": 20, "total_steps": 100, "left_s": 160.0, "left_s_p90": 200.0}
    log.beside("forecast").add("forecast", **forecast)
    told = here(tmp_path, "status", "--json").run
    assert (told["eta_s"], told["stage_eta_s"]) == (80.0 + 200.0, 80.0)
    assert told["eta_s_p90"] == pytest.approx(100.0 + 200.0 * 1.2)
    assert "4m40s/5m40s" in here(tmp_path, "status", COLUMNS="150").out
    assert "4m40s/5m40s" in here(tmp_path, "status", COLUMNS="40").out


def test_without_its_plan_the_stage_s_own_time_is_told_as_the_least(here, tmp_path):
    run = make_run(tmp_path / "runs")
    make_live(run)
    shutil.rmtree(tmp_path / "runs" / ".plans")
    told = here(tmp_path, "status", "--json").run
    assert (told["eta_s"], told["eta_s_p90"], told["stage_eta_s"]) == (None, None, 40.0)
    assert "> 40s" in here(tmp_path, "status", COLUMNS="150").out


@pytest.mark.parametrize(
    ("in_s", "danger", "words"),
    [(100.0, True, "in danger: "), (10_000.0, False, "kept, "), (-50.0, True, "in danger: ")],
)
def test_a_deadline_is_in_danger_or_kept_in_words_and_in_json(here, tmp_path, in_s, danger, words):
    run = make_run(tmp_path / "runs", deadline_at=NOW + in_s)
    make_live(run)
    told = here(tmp_path, "status", "--json").run["deadline"]
    assert (told["at"], told["danger"]) == (utc(NOW + in_s), danger)
    assert told["late_s"] == pytest.approx(240.0 - in_s, abs=60.0)
    for columns in ("40", "80", "160"):
        assert words in here(tmp_path, "status", COLUMNS=columns).out


def test_who_has_no_deadline_sees_no_column_for_it(here, tmp_path):
    make_live(make_run(tmp_path / "runs"))
    assert here(tmp_path, "status", "--json").run["deadline"] is None
    assert "deadline" not in here(tmp_path, "status", COLUMNS="160").out


def test_nobody_counts_on_a_run_that_is_held_yet_its_deadline_is_looked_at(here, tmp_path):
    run = make_run(tmp_path / "runs", deadline_at=NOW + 50.0)
    say(run, Word.HOLD, reason="look at it", claim=0)
    told = here(tmp_path, "status", "--json").run
    assert (told["state"], told["eta_s"], told["deadline"]["danger"]) == ("held", None, True)


def test_a_duration_counts_from_the_submission_and_a_finished_run_says_that_it_was_kept(
    project, here
):
    made = project()
    before = time.time()
    said = made.type("run", "--deadline", "1h")
    assert said.code == 0, said
    told = here(made.folder, "status", "--json").run
    at = json.loads(made.run().spec.read_text())["deadline_at"]
    assert before + 3600 <= at <= time.time() + 3600
    assert (told["state"], told["deadline"]["danger"]) == ("complete", False)
    assert -3600 < told["deadline"]["late_s"] < -3500
    assert re.search(r"met, 59m\S* early", here(made.folder, "status", COLUMNS="160").out)


# -- folders that nobody would wish for ---------------------------------------------------------


@pytest.mark.parametrize("part", ["claims", "events", "stages", "training_state.json", "logs"])
def test_a_finished_run_that_was_half_deleted_is_still_shown(here, finished, tmp_path, part):
    run = RunFolder(tmp_path / "runs" / "exp")
    shutil.copytree(finished.run().path, run.path)
    gone = run.path / part
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    said = here(tmp_path, "status")
    assert said.code == 0 and "complete" in said.out, said


def test_a_run_that_lost_its_spec_is_named_beside_those_that_are_whole(here, tmp_path):
    make_live(make_run(tmp_path / "runs", "whole"))
    run = make_run(tmp_path / "runs", "torn")
    run.spec.unlink()
    (tmp_path / "runs" / "notes").mkdir()  # somebody's own folder is no run
    told = {one["experiment"]: one for one in here(tmp_path, "status", "--json").json()["runs"]}
    assert set(told) == {"whole", "torn"}
    assert told["torn"]["state"] is None and "spec.json" in told["torn"]["reason"]
    said = here(tmp_path, "status", COLUMNS="40")
    assert said.code == 0 and "torn  unknown" in said.out


ODD = {
    "nan": ({"loss": "nan", "step_s": "nan"}, "nan"),
    "inf": ({"loss": float("inf")}, "inf"),
    "words": ({"loss": "no idea yet, sorry"}, "no idea yet,"),
    "texts for numbers": ({"step": "six", "total_steps": "ten", "step_s": [1]}, "six/ten"),
    "beyond the end": ({"step": 900, "total_steps": 100}, "33%"),
    "nothing": ({"stage": None, "step": None, "total_steps": None, "loss": None}, "–/–"),
}


@pytest.mark.parametrize("name", ODD)
def test_metrics_and_steps_that_are_no_numbers_are_shown_as_they_are(here, tmp_path, name):
    told, shown = ODD[name]
    make_live(make_run(tmp_path / "runs", deadline_at=NOW + 50.0), **told)
    for columns in ("40", "160"):
        said = here(tmp_path, "status", COLUMNS=columns)
        assert said.code == 0 and shown in said.out, said
    assert here(tmp_path, "status", "--json").code == 0


def test_events_of_a_newer_tasuki_and_torn_ones_are_passed_over(here, tmp_path):
    run = make_run(tmp_path / "runs")
    log = make_live(run)
    log.add("quantum-leap", stage={"of": "a"}, step=None)
    with (run.events / "1.0.rank0.jsonl").open("a") as file:
        file.write('{"t": 5, "claim": 1, "kind": "progress", "stage": "a", "st')
    told = here(tmp_path, "status", "--json").run
    assert (told["state"], told["step"], told["stage_eta_s"]) == ("running", 60, 40.0)


def test_a_clock_that_went_backwards_makes_no_time_left_that_cannot_be(here, tmp_path):
    run = make_run(tmp_path / "runs", deadline_at=NOW + 400.0)
    clock = FakeClock(wall=NOW + 10_000.0)
    claim = take_claim(run)
    write_holder(run, claim, job="p-01-01", start=1, at=clock.wall())
    supervisor = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    supervisor.add("attempt-started", job="p-01-01", start=1, gpus=1)
    supervisor.add("worker-started", phase="train", stage="a", ranks=1)
    log = EventLog(run, claim=claim, node=0, who="rank0", clock=clock)
    log.add("progress", stage="a", step=60, total_steps=100, step_s=1.0)
    said = here(tmp_path, "status", "--json")
    assert said.code == 0 and said.run["eta_s"] == 240.0
    assert said.run["gpu_hours"] == 0.0


HOSTILE = "x\x1b[2J\x1b]0;owned\x07[red]y\nz"


def test_hostile_names_are_inert_at_any_width(here, tmp_path):
    run = make_run(tmp_path / "runs", HOSTILE)
    make_live(run, stage="[bold]\x1b[31ms\n")
    for columns in ("40", "80", "200"):
        said = here(tmp_path, "status", COLUMNS=columns)
        assert said.code == 0 and "[red]y" in said.out, said
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said.out), said
        assert len([line for line in said.out.splitlines() if "[red]y" in line]) <= 2
        assert max(map(len, said.out.splitlines())) <= int(columns)


def test_long_names_give_way_before_the_figures(here, tmp_path):
    make_live(make_run(tmp_path / "runs", "n" * 120), stage="s" * 120)
    for columns in ("40", "80", "120"):
        said = here(tmp_path, "status", COLUMNS=columns)
        table = said.out.splitlines()[:3]  # what is told below it has the whole name
        assert max(map(len, table)) <= int(columns), said
        assert "60/100" in said.out and "0.5" in said.out


# -- many runs, long runs -----------------------------------------------------------------------


def test_what_status_reads_of_the_events_makes_the_same_ledger_as_all_of_them(finished):
    run = finished.run()
    for now in (None, time.time()):
        whole, brief = read_events(run), read_brief_events(run)
        assert make_ledger(brief, now=now) == make_ledger(whole, now=now)
        spent = add_up_spent(whole, now=now, price=2.0)
        assert add_up_spent(brief, now=now, price=2.0) == spent


def test_of_a_week_of_signs_of_life_only_the_last_of_each_stage_is_read(tmp_path):
    run = make_run(tmp_path / "runs")
    clock = FakeClock(wall=NOW)
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


def test_a_finished_run_s_accounts_are_those_of_its_events_and_can_be_made_again(here, finished):
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


def test_a_project_without_runs_says_so(here, tmp_path):
    project = make_project(tmp_path / "p")
    assert here(project.folder, "status").out.startswith("no runs in")


def test_of_a_held_run_the_verb_that_goes_on_is_named_beside_any_advice(here, tmp_path):
    run = make_run(tmp_path / "runs")
    say(run, Word.HOLD, reason="three failures", hint="look at the logs", claim=0)
    of_status = here(tmp_path, "status", "--json").run
    of_why = here(tmp_path, "why", "exp", "--json").json()
    for told in (of_status, of_why):
        assert told["hint"] == "look at the logs; when it is mended, `tasuki resume exp` goes on"


def test_failures_from_before_a_person_said_resume_are_no_news(tmp_path):
    run = make_run(tmp_path / "runs")
    for _ in range(2):
        end = {"ending": "failed", "cause": "none", "message": "it broke", "at": NOW}
        write_attempt_end(
            run, take_claim(run), {**end, "has_progressed": False, "has_stepped": True}
        )
    take_claim(run)
    assert brief_run(run, now=NOW)["notable"] == ["attempt 2 failed: it broke"]
    say(run, Word.LIFT, reason="a person said so", claim=2)
    assert brief_run(run, now=NOW)["notable"] == []


@pytest.mark.parametrize("text", ['{"format": 1, "stages": 3}', '{"stages": [7]}', '{"spec": []}'])
def test_a_live_line_of_a_run_with_a_damaged_spec_is_words_and_no_traceback(tmp_path, text):
    from tasuki.commands.status import brief_run
    from tasuki.errors import StoreError
    from tasuki.runs.runs import RunFolder

    run = RunFolder(tmp_path / "exp")
    run.path.mkdir()
    run.spec.write_text(text)
    with pytest.raises(StoreError, match="is damaged"):
        brief_run(run, now=0.0)
