"""Names, logs, errors and metrics cannot speak to a terminal, whatever they hold."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.control import Word, say
from tasuki.runs.events import EventLog
from tasuki.runs.metrics import MetricLog
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock
from tasuki.views.status import show_results, show_status
from tasuki.views.text import neutral
from tests.commands.escapes import PAYLOADS, harmful


def hostile_run(runs: Path, name: str, text: str) -> RunFolder:
    """A run that says `text` wherever anything can be said; and once that it is done: `marked`."""
    run, clock = RunFolder(runs / name), FakeClock()
    run.path.mkdir(parents=True)
    named = text.replace("\x00", "").replace("/", "")  # what a folder may be called
    stage = {"name": f"s{named}", "evaluates": True, "reserve_s": None}
    spec = {"format": 1, "experiment": name, "stages": [stage], "cluster": {}}
    run.spec.write_text(json.dumps(spec))
    claim = take_claim(run)
    write_holder(run, claim, job=f"j{text}", start=1, at=clock.wall())
    boss = EventLog(run, claim=claim, node=0, who="supervisor", clock=clock)
    rank = EventLog(run, claim=claim, node=0, who="rank0", clock=clock)
    boss.add("attempt-started", job=f"j{text}", start=1, gpus=1)
    boss.add("worker-started", phase="train", stage=stage["name"], ranks=1)
    rank.add("warning", text=f"marked {text}")
    rank.add("progress", stage=stage["name"], step=1, total_steps=4, loss=text, from_step=0)
    rank.add("evaluated", stage=stage["name"], metrics={f"m{text}": text})
    end: dict[str, Any] = {"ending": "failed", "cause": "none", "message": f"marked {text}"}
    end |= {"hint": text, "has_progressed": False, "has_stepped": True}
    boss.add("attempt-ended", **end)
    write_attempt_end(run, claim, {**end, "at": clock.wall()})
    say(run, Word.HOLD, reason=f"marked {text}", hint=f"marked {text}", claim=claim)
    metrics = MetricLog(run, claim=claim, clock=clock)
    metrics.add(
        {"stage": stage["name"], "step": 1, "split": "train", f"m{text}": 1.0, "loss": text}
    )
    run.logs.mkdir()
    (run.logs / "j.1.log").write_text(f"marked {text}\nafter\n")
    (run.logs / "j.1.err").write_text(f"marked {text}\n")
    folder = run.stage(stage["name"]).path
    folder.mkdir(parents=True)
    trained = {"format": 1, "steps": 4, "last": {"loss": text}, "stage": stage["name"]}
    (folder / "metrics.json").write_text(json.dumps(trained))
    (folder / "evaluation.json").write_text(json.dumps({"format": 1, "metrics": {text: 1.0}}))
    return run


def test_there_are_at_least_fifty_payloads_and_each_is_one():
    assert len(set(PAYLOADS)) >= 50
    assert all(harmful(text) for text in PAYLOADS)


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_a_payload_in_text_is_inert(number):
    assert harmful(neutral(PAYLOADS[number])) == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for number, text in enumerate(PAYLOADS):
        hostile_run(folder / "runs", f"run{number:02d}", text)
    return folder


@pytest.mark.parametrize("verb", ["why", "watch", "logs", "status"])
def test_every_payload_is_inert_in_what_a_verb_prints(hostile, here, verb):
    for number, text in enumerate(PAYLOADS):
        said = here(hostile, verb, f"run{number:02d}")
        assert said.code == 0, (text, said)
        assert harmful(said.out + said.err) == [], (text, said)
        assert "marked" in said.out, (text, said)


def test_every_payload_is_inert_in_a_list_of_runs_and_in_errors_that_were_printed(hostile, here):
    for words in (("watch",), ("logs", "run01", "--err")):
        said = here(hostile, *words)
        assert said.code == 0 and harmful(said.out + said.err) == [], said


def test_json_holds_no_control_characters_either(hostile, here):
    for number in range(len(PAYLOADS)):
        said = here(hostile, "why", f"run{number:02d}", "--json")
        assert not any(ord(char) < 32 and char != "\n" for char in said.out), said


def test_a_hostile_name_of_a_folder_is_inert(tmp_path, here):
    for number, text in enumerate(PAYLOADS):
        if "\x00" not in text and "/" not in text:
            hostile_run(tmp_path / "runs", f"x{number}{text}", "plain")
    said = here(tmp_path, "watch")
    assert said.code == 0 and harmful(said.out + said.err) == [], said
    name = next(path.name for path in sorted((tmp_path / "runs").iterdir()))
    for words in (("why", name), ("watch", name), ("logs", name)):
        said = here(tmp_path, *words)
        assert said.code == 0 and harmful(said.out + said.err) == [], said


def test_a_text_where_a_number_is_expected_is_shown_as_it_is_and_a_name_is_inert():
    stage = {"name": "s\x1b[2J[b]", "steps": 4, "loss": "[nan]", "metrics": {"m\x1b[2J": "[x]"}}
    stage |= {"is_trained": True, "is_evaluated": True}
    run = {"experiment": "exp", "state": "complete", "stage": None, "loss": "[nan]", "reason": ""}
    run |= {"hint": "", "attempts": 1, "preemptions": 0, "cost": None, "stages": [stage]}
    run |= dict.fromkeys(("step", "total_steps"))
    console = Console(file=io.StringIO(), width=200)
    show_status({"runs": [run]}, folder="runs", console=console)
    show_results({"runs": [run]}, console=console)
    told = console.file.getvalue()
    assert told.count("[nan]") == 2 and "\\" not in told and "\x1b" not in told
    assert "s\ufffd[b]: 4 steps" in told and "m\ufffd [x]" in told
