"""A script by itself is a run like any other: every verb that looks at runs knows it."""

from __future__ import annotations

import json
import re
import signal

import pytest
from tests.adapters.subjects import SUBJECTS, Script, make_script
from tests.commands.projects import until

from tasuki.clock import SystemClock
from tasuki.commands.cancel import cancel_run
from tasuki.commands.logs import join_logs, read_logs
from tasuki.commands.status import describe_run, ledger_of
from tasuki.commands.why import tell_why
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.metrics import read_metrics

pytestmark = pytest.mark.timeout(300)
CLOCK = SystemClock()
FLAT, MORE = SUBJECTS[:2]
SLOW = FLAT.script.replace("run.log(loss=loss)", "run.log(loss=loss); time.sleep(0.02)")
SLOW = SLOW.replace("import os,", "import time, os,").replace("epochs=5", "epochs=500")
SLOW = SLOW.replace("total_steps=30", "total_steps=3000")


def test_while_it_runs_status_tells_step_total_loss_and_time_left(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    (script.folder / "train.py").write_text(SLOW)
    (started,) = script.start(warm)

    def told() -> dict:
        return describe_run(script.run, now=CLOCK.wall()) if script.run.spec.exists() else {}

    until(lambda: (told().get("step") or 0) > 5 and told().get("loss") is not None)
    found = told()
    assert (found["state"], found["total_steps"], found["stage"]) == ("running", 3000, "train")
    assert found["eta_s"] > 10 and found["samples"] > 0 and found["goodput"] > 0
    assert found["jobs"] == []
    cancelled = cancel_run(script.run, clock=CLOCK)
    assert started.wait() == EXIT_RESUME_ME, script.said()
    assert cancelled["state"] == "cancelled" and cancelled["was_live"]
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and (end["ending"], end["cause"]) == ("handed-over", "cancelled")


@pytest.fixture(scope="module")
def told(warm, tmp_path_factory) -> Script:
    """Interrupted, killed, and then trained to its end; only read. Its imports take a while."""
    script = make_script(tmp_path_factory.mktemp("told") / "p", FLAT)
    step = FLAT.script.replace("run.log(loss=loss)", "run.log(loss=loss); time.sleep(0.01)")
    (script.folder / "train.py").write_text(f"import time; time.sleep(0.5)\n{step}")
    assert script.attempt(warm, {"at": "step.done", "do": "term", "count": 9}) == [EXIT_RESUME_ME]
    assert script.attempt(warm, {"at": "save.pruned", "do": "kill"}) == [-signal.SIGKILL]
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    return script


def test_the_ledger_of_a_script_adds_up_and_knows_its_parts(told):
    ledger = ledger_of(told.run)
    assert abs(sum(ledger.parts.values()) - ledger.wall_s) < 0.01
    assert ledger.parts["step"] > 0 and ledger.parts["restore"] > 0
    assert ledger.parts["start"] >= 3 * 0.49, "the imports, and taken off no other part"
    assert ledger.parts["step"] + ledger.parts["recomputed"] >= 30 * 0.0099, ledger.parts
    assert all(seconds >= -0.01 for seconds in ledger.parts.values()), ledger.parts
    found = describe_run(told.run, now=CLOCK.wall())
    assert (found["state"], found["step"], found["attempts"]) == ("complete", 30, 3)
    (stage,) = found["stages"]
    assert stage["steps"] == 30 and stage["loss"] == read_metrics(told.run)[-1]["loss"]


def test_why_tells_what_attempts_of_a_loop_saved_and_lost_and_which_signal_it_was(told):
    attempts = tell_why(told.run, now=CLOCK.wall())["attempts"]
    first, second, third = (one["sentence"] for one in attempts)
    assert re.fullmatch(
        r"interrupted by SIGTERM after .+; saved step 9 in .+; 0 steps lost; back after .+", first
    ), first
    assert re.search(r"died without a word.*; last saved step 14 in .+ lost;", second), second
    assert third.startswith("complete after")
    assert attempts[1]["saved_step"] == 14
    assert attempts[1]["steps_lost"] == attempts[1]["to_step"] - 14


def test_logs_keep_what_tasuki_said_of_each_attempt(told):
    logs = join_logs(read_logs(told.run))
    assert list(logs) == [f"script.{attempt}.log" for attempt in (1, 2, 3)]
    assert "Handing over at step 9 of 30" in logs["script.1.log"]
    assert "Resuming from epoch 1 step 9" in logs["script.2.log"]
    losses = [
        re.findall(r"^Step .+ of 30 \(epoch \d\): loss \d", log, re.M) for log in logs.values()
    ]
    assert [len(found) for found in losses] == [1, 1, 2], "the first of each attempt, and the last"


def test_the_second_ctrl_c_does_not_wait_for_the_step(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    # A Ctrl-C in the middle of a file's destructor would be lost, so the wait is a sleep.
    stuck = """open('in', 'w').close()
        while not run.should_stop:
            time.sleep(0.01)
        open('heard', 'w').close()
        time.sleep(600)"""
    (script.folder / "train.py").write_text(SLOW.replace("time.sleep(0.02)", stuck))
    (started,) = script.start(warm)
    for name in ("in", "heard"):
        until((script.folder / name).exists, script.said)
        started.kill(signal.SIGINT)
    assert started.wait() == 1
    assert "KeyboardInterrupt" in script.said()
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and end["cause"] == "interrupted"


def test_weights_and_results_are_left_where_every_verb_looks(warm, tmp_path):
    script = make_script(tmp_path / "p", MORE)
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    results = json.loads(script.run.final_results.read_text())
    assert results["weights"] == "stages/train/weights.safetensors"
    assert results["metrics"] == {"seen": 4 * 44 + 3 * 8}
    metrics = json.loads(script.run.final_metrics.read_text())["stages"]["train"]
    assert metrics["best"]["metric"] == "val_loss" and metrics["steps"] == 27
    rows = read_metrics(script.run)
    assert {row["split"] for row in rows} == {"train", "val"}
    assert all(row["nothing"] == "nan" for row in rows if row["split"] == "train")
