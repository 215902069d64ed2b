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

ESC, BEL, CSI8, OSC8, ST8, DCS8 = "\x1b", "\x07", "\x9b", "\x9d", "\x9c", "\x90"
PAYLOADS = (
    f"{ESC}[31mred{ESC}[0m",
    f"{ESC}[2J{ESC}[1;1H{ESC}[A{ESC}[1K",  # clears and moves
    f"{ESC}[?25l{ESC}[?1049h{ESC}[?1000h{ESC}[?2004h",  # modes
    f"{ESC}[6n{ESC}[c{ESC}[>c{ESC}[21t",  # asks, and so types
    f"{ESC}[4h{ESC}[20h{ESC}[!p",
    f"{ESC}[38;2;255;0;0m",
    f"{ESC}]0;owned{BEL}",
    f"{ESC}]2;owned{ESC}\\",
    f"{ESC}]52;c;b3duZWQ={BEL}",  # the clipboard
    f"{ESC}]8;;http://example.invalid{ESC}\\click{ESC}]8;;{ESC}\\",
    f"{ESC}]4;1;?{BEL}{ESC}]104{BEL}",
    f"{ESC}]1337;File=name=eA==:eA=={BEL}",
    f"{ESC}Pq#0;2;0;0;0{ESC}\\",
    f"{ESC}_Gf=100;AAAA{ESC}\\{ESC}^private{ESC}\\",
    f"{ESC}c{ESC}#8{ESC}(0lqk{ESC}7{ESC}8{ESC}D{ESC}M",
    f"{CSI8}2J{CSI8}31m",
    f"{OSC8}0;owned{ST8}{DCS8}q{ST8}",
    f"done{BEL}{BEL}",
    "good\rbad",
    "abc\b\b\bxyz\x7f",
    "\x0e\x0f\x05\x0b\x0c\x00",
    f"{ESC}",
    f"{ESC}[",
    "\u202egnp.exe\u2066x\u2069",
    "one\u2028two\u2029three\x85four",
)
"""What a terminal would obey: a name or a line of a log could hold it."""


def harmful(text: str) -> list[str]:
    """Characters of a text that a terminal acts on, or that turn what follows around."""
    turning = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
    breaking = "\u2028\u2029\x85"
    return [
        repr(char)
        for char in text
        if (ord(char) < 32 and char not in "\n\t")
        or 127 <= ord(char) < 160
        or char in turning + breaking
    ]


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


def test_what_a_terminal_would_obey_is_inert_in_text():
    for text in PAYLOADS:
        assert harmful(text) and harmful(neutral(f"before{text}after")) == [], repr(text)
    # `logs -f` may read half of an escape.
    assert [neutral(part) for part in ("a\x1b", "[31mb")] == ["a\ufffd", "[31mb"]


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


@pytest.mark.parametrize("words", ["watch", "status", "logs run01 --err", "why run02 --json"])
def test_lists_errors_and_json_are_inert_too(hostile, here, words):
    said = here(hostile, *words.split())
    assert said.code == 0 and harmful(said.out + said.err) == [], said


def test_a_hostile_name_of_a_folder_is_inert(tmp_path, here):
    for number, text in enumerate(PAYLOADS):
        if "\x00" not in text and "/" not in text:
            hostile_run(tmp_path / "runs", f"x{number}{text}", "plain")
    said = here(tmp_path, "watch")
    assert said.code == 0 and harmful(said.out + said.err) == [], said
    name = min(path.name for path in (tmp_path / "runs").iterdir())
    for verb in ("why", "watch", "logs", "status"):
        said = here(tmp_path, verb, name)
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
