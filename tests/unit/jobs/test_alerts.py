"""Who is told what became of a run: once, in time, and never in the run's way."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasuki.clock import SystemClock
from tasuki.jobs import alerts as alerts_module
from tasuki.jobs import loop
from tasuki.jobs.__main__ import main
from tasuki.jobs.after import settle_job
from tasuki.jobs.job import read_job
from tasuki.jobs.place import Place
from tasuki.runs.atomic import write_json
from tasuki.runs.control import Word, last_said, say
from tasuki.runs.events import EventLog, read_events
from tasuki.runs.jobs import last_start, read_outcome, write_outcome
from tests.harness.packed import make_packed
from tests.harness.project import Project, make_project
from tests.unit.jobs.supervised import CRASHED, MISTAKE, PREEMPTED, Said, saying
from tests.unit.jobs.supervised import supervise as supervise_job

TELL = """
import json, os, sys
told = json.load(sys.stdin)
told["environment"] = {key: value for key, value in os.environ.items() if "TASUKI" in key}
print("so it goes")
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(told) + "\\n")
"""
OUTCOMES = ("complete", "held", "deadline-risk")


@pytest.fixture
def told(tmp_path):
    """What the command of `on` was told, in order."""

    def read(name: str = "told") -> list[dict]:
        path = tmp_path / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


def make(tmp_path: Path, command: list[str] | None = None, **more: object) -> Project:
    tell = command or ["python", "tell.py", str(tmp_path / "told.jsonl")]
    on = dict.fromkeys(OUTCOMES, tell)
    return make_project(tmp_path / "p", files={"tell.py": TELL}, on=on, **more)


def supervise(project: Project, words: list[dict] = (), status: int = 1) -> int:
    return supervise_job(read_job(project.job.path), saying(list(words), status), **os.environ)


def train(project: Project) -> None:
    """As if all its stages were."""
    for stage in project.stages:
        project.run.stage(stage).path.mkdir(parents=True, exist_ok=True)
        value = {"last": {"loss": "inf"}, "steps": 4, "sha256": "x"}
        project.run.stage(stage).metrics.write_text(json.dumps(value))


def warnings_of(project: Project) -> list[str]:
    return [e["text"] for e in read_events(project.run) if e["kind"] == "warning"]


def set_deadline(project: Project, in_s: float) -> None:
    spec = json.loads(project.run.spec.read_text())
    write_json(project.run.spec, {**spec, "deadline_at": time.time() + in_s})


def test_who_waits_for_a_run_is_told_when_it_is_complete(tmp_path, told):
    project = make(tmp_path)
    train(project)
    set_deadline(project, 3600.0)
    assert supervise(project) == 0
    (one,) = told()
    assert (one["outcome"], one["state"], one["run"]) == ("complete", "complete", "exp")
    assert one["text"] == "t: run exp is complete"
    assert one["metrics"] == {"one": {"loss": "inf"}}, "what JSON has no number for is a word"
    assert one["attempt"] == 1 and one["deadline"]["danger"] is False
    assert one["paths"]["run"] == str(project.run.path)
    assert Path(one["paths"]["results"]).is_file()
    environment = one["environment"]
    assert (environment["TASUKI_RUN"], environment["TASUKI_OUTCOME"]) == (
        str(project.run.path),
        "complete",
    )
    (log,) = project.run.logs.glob("*.1.alerts.txt")
    assert log.read_text() == "so it goes\n"
    assert warnings_of(project) == []


KEYS = {
    *("format", "outcome", "text", "run", "experiment", "project", "state", "reason", "hint"),
    *("stage", "epoch", "step", "total_steps", "samples", "loss", "metrics", "attempt"),
    *("preemptions", "eta_s", "eta_s_p90", "deadline", "job", "host", "at", "paths"),
}


def test_the_payload_has_the_keys_of_the_reference_and_no_secret_that_an_error_told(tmp_path, told):
    said = "HTTPError: 401 for GET https://me:hunter2@host/x?api_key=sk-hunter2"
    project = make(tmp_path)
    supervise(project, [{**MISTAKE[0], "message": said, "hint": f"try {said}"}])
    (one,) = told()
    assert set(one) - {"environment"} == KEYS
    assert set(one["paths"]) == {"run", "log", "err", "results"}
    assert "HTTPError: 401" in one["text"] and "HTTPError: 401" in one["reason"]
    assert "hunter2" not in json.dumps(one)


@pytest.mark.parametrize(
    ("words", "state", "text"),
    [
        (CRASHED, "held", "t: run exp is held: "),
        (MISTAKE, "failed", "t: run exp has failed: no such layer"),
    ],
)
def test_a_run_that_waits_for_a_person_tells_them_why_once(tmp_path, told, words, state, text):
    project = make(tmp_path)
    assert supervise(project, words) == 1
    (one,) = told()
    assert (one["outcome"], one["state"]) == ("held", state)
    assert one["text"].startswith(text)
    assert one["reason"] == last_said(project.run).reason
    supervise(project, words)
    settle_job(read_job(project.job.path), Place(), clock=SystemClock(), environment=os.environ)
    assert len(told()) == 1, "another start of the job tells nothing new"
    say(project.run, Word.LIFT, reason="a person looked", claim=3)
    supervise(project, words)
    assert len(told()) == 2, "it is held again, and that is news"


def test_retries_and_handovers_are_no_outcome(tmp_path, told):
    project = make(tmp_path)
    assert supervise(project, PREEMPTED, 75) == 75
    say(project.run, Word.CANCEL, reason="enough", claim=1)
    supervise(project)
    assert told() == []


def test_an_outcome_of_which_a_killed_supervisor_told_nobody_is_told_by_the_next_start(
    tmp_path, told
):
    project = make(tmp_path)
    train(project)
    supervise(project)
    for path in (*project.run.alerts.iterdir(), tmp_path / "told.jsonl"):
        path.unlink()  # as if it had died behind the completion marker
    for _ in range(2):
        assert main([str(project.job.path)]) == 0
        assert [one["outcome"] for one in told()] == ["complete"]


def test_a_hold_that_only_its_undertaker_could_say_is_told_when_the_job_ends(tmp_path, told):
    project = make(tmp_path)
    supervise(project, PREEMPTED, 75)
    say(project.run, Word.HOLD, reason="it died three times", claim=1)
    value = {"verdict": "end", "exit_code": 1, "lanes": []}
    write_outcome(project.job, last_start(project.job), value)
    code = settle_job(
        read_job(project.job.path), Place(), clock=SystemClock(), environment=os.environ
    )
    assert code == 1
    assert [one["reason"] for one in told()] == ["it died three times"]


BAD = {
    "fails": (["python", "-c", "import sys; print('ouch'); sys.exit(3)"], "ended with 3"),
    "is not there": (["no-such-program-anywhere"], "cannot be started"),
    "is a folder": (["./"], "cannot be started"),
    "reads nothing": (["true"], ""),
}


@pytest.mark.parametrize("how", BAD)
def test_a_command_that_goes_wrong_is_told_of_and_changes_nothing(tmp_path, how):
    words, warning = BAD[how]
    project = make(tmp_path, words)
    train(project)
    assert supervise(project) == 0 and project.run.is_complete()
    assert [warning in text for text in warnings_of(project)] == ([True] if warning else [])
    if how == "fails":
        (log,) = project.run.logs.glob("*.alerts.txt")
        assert "ouch" in log.read_text()
        assert "ouch" not in str(warnings_of(project))


HANGS = "import os, sys, time; os.fork(); open(sys.argv[1], 'a').write('x'); time.sleep(600)"


def is_hanging(path: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(path) in (process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE
    ]


def wait_until(is_so, what: str) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, f"not {what}"
        time.sleep(0.02)


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path, monkeypatch):
    for module in (alerts_module, loop):
        monkeypatch.setattr(module, "LIMIT_S", 1.0)
    mark = tmp_path / "hangs"
    project = make(tmp_path, ["python", "-c", HANGS, str(mark)])
    train(project)
    assert supervise(project) == 0
    assert mark.exists()
    wait_until(lambda: not is_hanging(mark), "ended")
    (warning,) = warnings_of(project)
    assert "took too long and was killed" in warning


class Patient(Said):
    """A rank that tells of its slow steps, and hands over when it is noticed."""

    def __init__(self, launch, ends_when) -> None:
        self._fd, self._ends_when = os.dup(launch.fd), ends_when
        super().__init__(launch.fd, [{"kind": "step", "step": 1, "total": 100}], 75)

    def poll(self) -> int | None:
        if not self._ends_when():
            return None
        super().__init__(self._fd, PREEMPTED[1:], 75)
        return 75


def supervise_slowly(project: Project, ends_when) -> int:
    """A rank whose steps take 10 s each, of which 100 are to be done."""

    def launch(order):
        rank = EventLog(project.run, claim=1, node=0, who="rank0", clock=SystemClock())
        rank.add("progress", stage="one", step=1, total_steps=100, step_s=10.0, loss=0.25)
        return Patient(order, ends_when)

    return supervise_job(read_job(project.job.path), launch, **os.environ)


@pytest.fixture
def looks(monkeypatch) -> list[float]:
    """Each look at a deadline, which come one after another at every turn."""
    seen: list[float] = []
    watch = alerts_module.Alerts._watch_deadline

    def watch_counted(self, run, now):
        seen.append(now)
        watch(self, run, now)

    monkeypatch.setattr(alerts_module.Alerts, "_watch_deadline", watch_counted)
    for name in ("_OFTEN_S", "_SELDOM_S"):
        monkeypatch.setattr(alerts_module, name, 0.0)
    return seen


def test_who_may_miss_a_deadline_says_so_once_while_it_runs(tmp_path, told, looks):
    project = make(tmp_path)
    set_deadline(project, 300.0)
    turns: list[int] = []

    def ends() -> bool:
        if told():
            turns.append(len(looks))
        return len(turns) > 2  # it had time to say it again

    assert supervise_slowly(project, ends) == 75
    (one,) = told()
    assert (one["outcome"], one["state"], one["step"]) == ("deadline-risk", "running", 1)
    assert one["eta_s"] == 990.0 and one["deadline"]["danger"] is True
    assert 600.0 < one["deadline"]["late_s"] < 800.0
    assert one["text"].startswith("t: run exp may miss its deadline by 1")
    assert supervise(project, PREEMPTED, 75) == 75 and len(told()) == 1, "nor do later attempts"


def test_who_will_be_in_time_alarms_nobody(tmp_path, told, looks):
    project = make(tmp_path)
    set_deadline(project, 5000.0)
    assert supervise_slowly(project, lambda: len(looks) > 2) == 75
    assert told() == []


def test_a_command_that_hangs_holds_no_handover_up(tmp_path, monkeypatch, looks):
    for module in (alerts_module, loop):
        monkeypatch.setattr(module, "AT_HANDOVER_S", 0.5)
        monkeypatch.setattr(module, "LIMIT_S", 600.0)  # so long would it be waited for
    mark = tmp_path / "hangs"
    project = make(tmp_path, ["python", "-c", HANGS, str(mark)])
    set_deadline(project, 1.0)
    assert supervise_slowly(project, mark.exists) == 75
    outcome = read_outcome(project.job, 1)
    assert outcome is not None and outcome["verdict"] == "requeue"
    assert time.time() - outcome["at"] > 0.4, "it was written before anybody waited"
    wait_until(lambda: not is_hanging(mark), "ended")


def test_runs_that_share_a_job_are_told_of_one_by_one(tmp_path):
    tell, names = ["python", "tell.py", str(tmp_path / "told.jsonl")], ("good", "bad")
    packed = make_packed(tmp_path / "p", {key: {} for key in names})
    (packed.folder / "tell.py").write_text(TELL)
    for name in names:
        spec = json.loads(packed.runs[name].spec.read_text())
        write_json(packed.runs[name].spec, {**spec, "on": dict.fromkeys(OUTCOMES, tell)})
    folder = packed.runs["good"].stage("one")
    folder.path.mkdir(parents=True)
    folder.metrics.write_text("{}")
    packed.pack([([0], [{"run": "good"}]), ([1], [{"run": "bad"}])])
    assert supervise_job(read_job(packed.job.path), saying(MISTAKE, 1), **os.environ) == 1
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert {(one["run"], one["state"]) for one in told} == {("good", "complete"), ("bad", "failed")}
    assert len(told) == 2


def test_python_means_the_interpreter_that_ranks_have(tmp_path, told):
    code = "import sys; sys.stdout.write(sys.executable)"
    project = make(tmp_path, ["python", "-c", code])
    train(project)
    supervise(project)
    (log,) = project.run.logs.glob("*.alerts.txt")
    assert log.read_text() == sys.executable
