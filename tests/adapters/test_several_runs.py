"""Several runs in one script: each is trained to its end, whichever is interrupted, and none is
left out in silence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.subjects import SMALL, Script, Subject, make_script
from tests.adapters.test_frameworks import ROOT

import tasuki.integrations.open as opening
from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME, RunError
from tasuki.integrations import several
from tasuki.integrations.meet import Met
from tasuki.integrations.place import Place
from tasuki.loop.ranks import ALONE
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock

pytestmark = pytest.mark.timeout(300)

GUARD = "    if tasuki.is_complete(name): continue\n"
FOLDS = """
for name in ("a", "b"):
GUARD    with tasuki.open_run(name, save="2 steps") as run:
        run.track(model=model, optimizer=opt)
        for batch in run.steps(loader, epochs=2):
            step(batch)
            tasuki.failpoints.failpoint(f"script.{name}")
print("through")
"""
TERM_IN_B = {"at": "script.b", "do": "term", "count": 3}


def make(folder, *, guard: str = GUARD, body: str = FOLDS) -> Script:
    return make_script(folder / "p", Subject("s", SMALL + body.replace("GUARD", guard), 6))


def of(script: Script, name: str) -> RunFolder:
    return RunFolder(script.folder / "runs" / name)


def test_a_second_run_of_a_script_that_could_not_pass_over_the_first_is_warned_of(warm, tmp_path):
    script = make(tmp_path, guard="")
    assert script.attempt(warm, TERM_IN_B) == [EXIT_RESUME_ME], script.said()
    (told,) = [line for line in script.said().splitlines() if line.startswith("WARNING")]
    assert 'if not tasuki.is_complete("a"):' in told and "would end at run `a`" in told
    assert script.attempt(warm) == [EXIT_DONE]
    said = script.said()
    assert "the script ends here" in said and 'if not tasuki.is_complete("a"):' in said, said


def test_a_complete_run_that_a_script_meets_after_another_is_an_error_and_no_silent_end(
    warm, tmp_path
):
    script = make(tmp_path, guard="", body=FOLDS.replace('print("through")', ""))
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    text = (script.folder / "train.py").read_text()
    (script.folder / "train.py").write_text(text.replace('("a", "b")', '("c", "b")'))
    assert script.attempt(warm) == [EXIT_FAILED], script.said()
    said = script.said()
    assert "error: run `b` is complete: 6 steps, in " in said, said
    assert 'hint: pass over it: `if not tasuki.is_complete("b"):`' in said, said


def test_a_run_that_one_script_opens_twice_is_told_to_be_trained_under_another_name(warm, tmp_path):
    script = make(tmp_path, guard="", body=FOLDS.replace('"b"', '"a"'))
    assert script.attempt(warm) == [EXIT_FAILED], script.said()
    assert "this script has trained it already" in script.said()
    hint = "hint: a second training is another run: tasuki.open_run('other')"
    assert hint in script.said(), script.said()


EARLY = FOLDS.replace(
    '            tasuki.failpoints.failpoint(f"script.{name}")\n',
    "            if run.step == 3: break\n        run.finish({'at': run.step})\n",
)


def test_a_run_that_was_left_early_and_lacks_its_end_only_does_not_end_the_script_of_several(
    warm, tmp_path
):
    script = make(tmp_path, body=EARLY)
    script.attempt(warm, {"at": "finish.begin", "do": "kill"})
    assert not of(script, "a").is_complete(), script.said()
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert of(script, "a").is_complete() and of(script, "b").is_complete(), script.said()
    assert "through" in script.said()


def test_is_complete_knows_the_runs_that_open_run_means(warm, tmp_path):
    asks = """
print("complete:", [tasuki.is_complete(name) for name in (None, "train", "b", "x/train")],
      tasuki.is_complete(os.path.abspath("runs") + "/train"))
"""
    body = FOLDS.replace('("a", "b")', "(None,)")
    script = make(tmp_path, guard="", body=body + asks)
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert "complete: [True, True, False, False] True" in script.said()
    (script.folder / "asks.py").write_text("import os, tasuki\n" + asks)
    environment = {"TASUKI_SITE": "", "TASUKI_NAME": "train"}
    started = warm.start_script(script.folder / "asks.py", log=tmp_path / "log", **environment)
    assert started.wait() == 0
    assert "complete: [True, True, False, False] True" in (tmp_path / "log").read_text()
    assert not (script.folder / "runs" / "b").exists() and not (script.folder / "x").exists()


def test_to_ask_whether_a_run_is_complete_imports_no_torch(tmp_path):
    code = "import sys, tasuki; print(tasuki.is_complete('a'), 'torch' in sys.modules)"
    assert run_python(tmp_path, "-c", code).stdout.split() == ["False", "False"]


def run_python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "TASUKI_SITE": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


AS_JOB = ("-m", "tasuki", "run", "--", "python", "train.py")


@pytest.mark.long
def test_a_script_of_one_job_that_opens_a_second_run_is_told_that_a_job_has_one(warm, tmp_path):
    script = make(tmp_path)
    done = run_python(script.folder, *AS_JOB)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "a script under a job has one run" in said, said
    assert not script.run.is_complete(), said


@pytest.mark.long
def test_a_training_that_failed_may_be_tried_again_by_its_script_also_under_a_job(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("s", SMALL + AGAIN, 6))
    done = run_python(script.folder, *AS_JOB)
    assert done.returncode == EXIT_DONE, done.stdout + done.stderr


AGAIN = """
def train(is_sound):
    with tasuki.open_run() as run:
        run.track(model=model, optimizer=opt)
        for batch in run.steps(loader, epochs=2):
            if not is_sound:
                raise RuntimeError("out of memory, perhaps")
            step(batch)

try:
    train(is_sound=False)
except RuntimeError:
    train(is_sound=True)
"""


def test_a_rank_that_has_ended_a_run_knows_it_as_complete_before_rank_0_has_written_so(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(several, "_completed", set())
    monkeypatch.setattr(several, "_asked_about", set())
    folder = tmp_path / "runs" / "a"
    assert not several.is_complete(folder)
    several.note_completed(RunFolder(folder))
    assert several.is_complete(folder) and not several.is_complete(tmp_path / "runs" / "b")


def test_ranks_that_open_different_runs_are_told_so(tmp_path, monkeypatch):
    met = Met(ALONE, tmp_path / "runs" / "g1", 1)
    monkeypatch.setattr(opening, "meet", lambda *_, **__: met)
    place = Place(rank=1, world=2, launch="here")
    with pytest.raises(RunError, match="rank 1 opens run `g0`, and rank 0 `g1`"):
        opening._meet("g0", place, FakeClock())
    assert opening._meet("g1", place, FakeClock()) is met


def test_the_example_of_the_page_of_ones_own_loop_trains_to_its_end_without_a_warning(
    warm, tmp_path
):
    page = (ROOT / "docs/own_loop.md").read_text()
    block, *_ = re.findall(r"```python\n(.*?)```", page, re.S)
    sched = "sched = torch.optim.lr_scheduler.StepLR(opt, 9)\n"
    script = make_script(tmp_path / "p", Subject("s", SMALL + sched + block, 30))
    assert script.attempt(warm) == [0], script.said()
    assert script.run.is_complete() and "WARNING" not in script.said(), script.said()


def test_the_example_of_the_page_with_several_runs_goes_on_and_ends_as_if_undisturbed(
    warm, tmp_path
):
    page = (ROOT / "docs/own_loop.md").read_text()
    section = page[page.index("## Several runs in one script") :]
    (block,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.S)
    folds = "\ndef folds():\n    for fold in range(3): yield fold, loader\n\n"
    place = " " * 12 + "tasuki.failpoints.failpoint(f'fold.{fold}')\n"
    body = folds + block + place + "print('through')\n"
    whole, script = make(tmp_path / "whole", body=body), make(tmp_path, body=body)
    assert whole.attempt(warm) == [EXIT_DONE], whole.said()
    strike = {"at": "fold.1", "do": "term", "count": 3}
    assert script.attempt(warm, strike) == [EXIT_RESUME_ME], script.said()
    assert of(script, "fold-0").is_complete() and not of(script, "fold-1").is_complete()
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert "WARNING" not in whole.said() + script.said(), script.said()
    for fold in range(3):
        ends = [of(one, f"fold-{fold}").stage("train").weights for one in (whole, script)]
        assert ends[0].read_bytes() == ends[1].read_bytes()
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert script.said().count("through") == 2, "all are complete, and what follows them runs"
