"""A script by itself is a run like any other: every verb that looks at runs knows it."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest
from tests.adapters.subjects import SUBJECTS, make_script
from tests.harness.warm import warm_server

from tasuki.clock import SystemClock
from tasuki.commands.cancel import cancel_run
from tasuki.commands.logs import join_logs, read_logs
from tasuki.commands.status import describe_run, ledger_of
from tasuki.commands.why import tell_why
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.metrics import read_metrics

pytestmark = pytest.mark.timeout(90)
CLOCK = SystemClock()
FLAT, _, EPOCHS, STREAM = SUBJECTS[:4]
SLOW = FLAT.script.replace("run.log(loss=loss)", "run.log(loss=loss); time.sleep(0.02)")
SLOW = SLOW.replace("import os,", "import time, os,").replace("epochs=5", "epochs=500")
SLOW = SLOW.replace("total_steps=30", "total_steps=3000")


def wait_until(is_so, *, within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_while_it_runs_status_tells_step_total_loss_and_time_left(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    (script.folder / "train.py").write_text(SLOW)
    (started,) = script.start(warm)

    def told() -> dict:
        return describe_run(script.run, now=CLOCK.wall()) if script.run.spec.exists() else {}

    wait_until(lambda: (told().get("step") or 0) > 5 and told().get("loss") is not None)
    found = told()
    assert (found["state"], found["total_steps"], found["stage"]) == ("running", 3000, "train")
    assert found["eta_s"] > 10 and found["samples"] > 0 and found["goodput"] > 0
    assert found["jobs"] == []
    cancelled = cancel_run(script.run, clock=CLOCK)
    assert started.wait() == EXIT_RESUME_ME, script.said()
    assert cancelled["state"] == "cancelled" and cancelled["was_live"]
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and (end["ending"], end["cause"]) == ("handed-over", "cancelled")


def test_the_ledger_of_a_script_adds_up_and_knows_its_parts(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    strike = {"at": "step.done", "do": "term", "count": 9}
    assert script.attempt(warm, strike) == [EXIT_RESUME_ME]
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    ledger = ledger_of(script.run)
    assert abs(sum(ledger.parts.values()) - ledger.wall_s) < 0.01
    assert ledger.parts["step"] > 0 and ledger.parts["restore"] > 0
    assert all(seconds >= -0.01 for seconds in ledger.parts.values()), ledger.parts
    found = describe_run(script.run, now=CLOCK.wall())
    assert (found["state"], found["step"], found["attempts"]) == ("complete", 30, 2)
    logs = "".join(text for _, text in read_logs(script.run)).splitlines()
    losses = [line for line in logs if re.match(r"Step .+ of 30 \(epoch \d\): loss \d", line)]
    assert len(losses) == 3, "the first one of each attempt, and the last one"
    (stage,) = found["stages"]
    assert stage["steps"] == 30 and stage["loss"] == read_metrics(script.run)[-1]["loss"]


def test_imports_of_a_script_are_told_as_its_start_and_taken_off_no_other_part(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    step = FLAT.script.replace("run.log(loss=loss)", "run.log(loss=loss); time.sleep(0.01)")
    (script.folder / "train.py").write_text(f"import time; time.sleep(0.5)\n{step}")
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    ledger = ledger_of(script.run)
    assert abs(sum(ledger.parts.values()) - ledger.wall_s) < 0.01
    assert ledger.parts["start"] >= 0.49 and ledger.parts["step"] >= 0.3, ledger.parts
    assert ledger.wall_s >= 0.79 and ledger.parts["queue"] < 0.01


def test_why_tells_what_attempts_of_a_loop_saved_and_lost_and_which_signal_it_was(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    assert script.attempt(warm, {"at": "step.done", "do": "term", "count": 9}) == [EXIT_RESUME_ME]
    assert script.attempt(warm, {"at": "save.pruned", "do": "kill"}) == [-signal.SIGKILL]
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    told = tell_why(script.run, now=CLOCK.wall())["attempts"]
    first, second, third = (one["sentence"] for one in told)
    assert re.fullmatch(
        r"interrupted by SIGTERM after .+; saved step \d+ in .+; 0 steps lost; back after .+", first
    ), first
    assert re.search(r"died without a word.*; last saved step 14 in .+ lost;", second), second
    assert third.startswith("complete after")
    assert told[1]["saved_step"] == 14 and told[1]["steps_lost"] == told[1]["to_step"] - 14


def test_logs_keep_what_tasuki_said_of_each_attempt(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    strike = {"at": "step.done", "do": "term", "count": 4, "seconds": 0.5}
    assert script.attempt(warm, strike) == [EXIT_RESUME_ME]
    assert script.attempt(warm) == [EXIT_DONE]
    told = join_logs(read_logs(script.run))
    assert list(told) == ["script.1.log", "script.2.log"]
    assert "Handing over at step" in told["script.1.log"]
    assert "Resuming from epoch 0 step" in told["script.2.log"]


def test_the_second_ctrl_c_does_not_wait_for_the_step(warm, tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    text = SLOW.replace("time.sleep(0.02)", "open('in','w').close(); time.sleep(30)")
    (script.folder / "train.py").write_text(text)
    (started,) = script.start(warm)
    wait_until((script.folder / "in").exists)
    started.kill(signal.SIGINT)
    time.sleep(0.3)
    started.kill(signal.SIGINT)
    assert started.wait() == 1
    assert "KeyboardInterrupt" in script.said()
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and end["cause"] == "interrupted"


def test_weights_and_results_are_left_where_every_verb_looks(warm, tmp_path):
    script = make_script(tmp_path / "p", SUBJECTS[1])
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    results = json.loads(script.run.final_results.read_text())
    assert results["weights"] == "stages/train/weights.safetensors"
    assert results["metrics"] == {"seen": 4 * 44 + 3 * 8}
    metrics = json.loads(script.run.final_metrics.read_text())["stages"]["train"]
    assert metrics["best"]["metric"] == "val_loss" and metrics["steps"] == 27
    rows = read_metrics(script.run)
    assert {row["split"] for row in rows} == {"train", "val"}
    assert all(row["nothing"] == "nan" for row in rows if row["split"] == "train")


@pytest.mark.long
def test_tests_leave_no_script_behind_that_they_did_not_wait_for(tmp_path):
    script = make_script(tmp_path / "p", FLAT)
    (script.folder / "train.py").write_text(SLOW)
    (tmp_path / "server").mkdir()
    with warm_server(tmp_path / "server", "tasuki.integrations.open") as server:
        (started,) = script.start(server)
        wait_until(script.run.spec.exists)
    wait_until(lambda: not os.path.exists(f"/proc/{started.pid}"), within_s=5.0)  # noqa: PTH110
