"""Plan against reality, from a plan's file, job folders and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands.timeline.test_curves import make_run

from tasuki.commands.timeline import read_timeline
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.events import EventLog
from tasuki.runs.jobs import job_folder, plan_path
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock


def piece(experiment: str, stage: str, **more: Any) -> dict[str, Any]:
    base = {"experiment": experiment, "stage": stage, "kind": "train"}
    return {**base, "start_s": None, "expected_s": None, **more}


@pytest.fixture
def runs(tmp_path: Path, clock: FakeClock) -> Path:
    """Two runs in one packed job: `a` was preempted and came back, `b` is as planned."""
    runs = tmp_path / "runs"
    lanes = [
        {
            "gpus": [0],
            "stages": [
                piece("a", "one", start_s=0.0, expected_s=60.0),
                piece("a", "one", kind="evaluate", expected_s=5.0),
                piece("other", "one"),
            ],
        },
        {"gpus": [1], "stages": [piece("b", "one", start_s=10.0)]},
    ]
    plan = {"format": 1, "jobs": [{"name": "p-01", "start_s": 0.0, "lanes": lanes}]}
    write(plan_path(runs, "p"), {**plan, "deadline_s": 600.0})
    job = job_folder(runs, "p-01")
    items = [{"gpus": [n], "items": [{"id": n, "run": name}]} for n, name in enumerate("ab")]
    write(job.lanes, {"format": 1, "lanes": items})
    for name in "ab":
        run = make_run(runs / name, ("one",))
        EventLog(run, claim=0, node=0, who="run-p-01", clock=clock).add("submitted", job="p-01")
    work(RunFolder(runs / "a"), clock, start=1, item=0, ending="handed-over", cause="preempted")
    work(RunFolder(runs / "a"), clock, start=2, item=0, ending="done", cause="none")
    work(RunFolder(runs / "b"), clock, start=1, item=1, ending="done", cause="none")
    return runs


def write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def work(
    run: RunFolder, clock: FakeClock, *, start: int, item: int, ending: str, cause: str
) -> None:
    claim = take_claim(run)
    write_holder(run, claim, job="p-01", start=start, at=clock.wall())
    job = job_folder(run.path.parent, "p-01")
    write(job.claim(start, item), {"format": 1, "run": run.name, "claim": claim})
    log = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    log.add("attempt-started", job="p-01", start=start)
    log.add("worker-started", phase="train", stage="one")
    clock.sleep(30)
    log.add("worker-ended", phase="train", stage="one", ending=ending, cause=cause)
    log.add("attempt-ended", ending=ending, cause=cause)
    write_attempt_end(run, claim, {"ending": ending, "cause": cause, "at": clock.wall()})


def read(runs: Path, *names: str, now: float = 1_800_000_000.0) -> dict[str, Any]:
    return read_timeline(runs, [RunFolder(runs / name) for name in names], now=now)


def test_pieces_begin_where_the_plan_says_else_when_their_lane_is_free(runs: Path) -> None:
    told = read(runs, "a", "b")
    spans = [(p["experiment"], p["kind"], p["begins_s"], p["ends_s"]) for p in told["planned"]]
    assert spans == [
        ("a", "train", 0.0, 60.0),
        ("a", "evaluate", 60.0, 65.0),
        ("b", "train", 10.0, None),
    ]
    assert told["planned"][2]["gpus"] == [1] and told["planned"][2]["lane"] == 1
    assert told["planned_from"] == 1_700_000_000.0
    assert told["deadline_at"] == 1_700_000_600.0


def test_every_phase_of_every_attempt_is_told_with_its_lane_and_end(runs: Path) -> None:
    told = read(runs, "a", "b")["actual"]
    brief = [(a["experiment"], a["attempt"], a["lane"], a["ending"], a["cause"]) for a in told]
    assert brief == [
        ("a", 1, 0, "handed-over", "preempted"),
        ("a", 2, 0, "done", "none"),
        ("b", 1, 1, "done", "none"),
    ]
    assert all(one["ended_at"] - one["began_at"] == 30 for one in told)
    assert not any(one["is_running"] for one in told)


def test_only_the_chosen_runs_are_told(runs: Path) -> None:
    told = read(runs, "b")
    assert {one["experiment"] for one in [*told["planned"], *told["actual"]]} == {"b"}


def test_a_phase_that_nobody_saw_the_end_of_runs_while_its_holder_lives(
    runs: Path, clock: FakeClock
) -> None:
    run = RunFolder(runs / "a")
    claim = take_claim(run)
    write_holder(run, claim, job="p-01", start=3, at=clock.wall())
    log = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    log.add("attempt-started")
    log.add("worker-started", phase="train", stage="one")
    clock.sleep(7)
    log.add("notice", cause="limit")
    last = read(runs, "a", now=clock.wall())["actual"][-1]
    assert last["is_running"] and last["ended_at"] is None
    (run.claims / str(claim) / "holder.json").unlink()  # nobody is there any more
    last = read(runs, "a", now=clock.wall())["actual"][-1]
    assert not last["is_running"] and last["ended_at"] - last["began_at"] == 7


@pytest.mark.parametrize("gone", [".plans", ".jobs", "a/events", "a/spec.json", "a/claims"])
def test_what_is_gone_hides_nothing_else(runs: Path, gone: str) -> None:
    path = runs / gone
    path.rename(runs.parent / "away")
    told = read(runs, "a", "b")
    assert [one["experiment"] for one in told["actual"]].count("b") == 1


def test_a_plan_that_holds_nonsense_plans_nothing(runs: Path) -> None:
    for value in ({"format": 1, "jobs": 7}, {"format": 9}, {"jobs": [{"lanes": [{"stages": 1}]}]}):
        write(plan_path(runs, "p"), value)
        assert read(runs, "a")["planned"] == []
