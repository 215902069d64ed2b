"""What a script may get wrong is said in words, and nothing is lost; NaN, texts, notebooks."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.adapters.subjects import SMALL, Script, Subject, make_script

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.clock import SystemClock
from tasuki.commands.back_target import find_target
from tasuki.commands.logs import where_output_went
from tasuki.commands.resume import frozen_spec
from tasuki.commands.status import describe_run, read_status
from tasuki.commands.why import tell_why
from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME, RunError
from tasuki.runs.atomic import read_json, write_json
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.views.status import show_status

pytestmark = pytest.mark.timeout(300)
CLOCK = SystemClock()

LOOP = """
with tasuki.open_run(log_every=1, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=4):
        loss = step(batch)
"""


@pytest.fixture
def script(tmp_path):
    def make(body: str, begin: str = SMALL) -> Script:
        return make_script(tmp_path / "p", Subject("s", begin + body, 12))

    return make


OUTSIDE = """
with tasuki.open_run() as run:
    run.track(model=model, optimizer=opt)
    for batch in loader:
        step(batch)
"""
SHORT = """
with tasuki.open_run() as run:
    run.track(model=model, optimizer=opt)
    for epoch in run.epochs(2):
        for batch in run.steps(loader):
            step(batch)
            break
"""
CASES = {
    "steps-outside": (
        OUTSIDE,
        "the optimizer was stepped outside of `run.steps`",
    ),
    "no-steps": (
        "with tasuki.open_run() as run:\n    run.track(model=model, optimizer=opt)\n",
        "without a step of `run.steps`",
    ),
    "break": (LOOP + "        if run.step == 4:\n            break\n", "was left at step 4 of 12"),
    "exit-0": (LOOP + "        if run.step == 4: sys.exit(0)\n", "was left at step 4 of 12"),
    "tracked-late": (
        LOOP + "        run.track(late=nn.Linear(1, 1))\n",
        "`late` is tracked after the steps have begun",
    ),
    "nothing-tracked": (
        "with tasuki.open_run() as run:\n    for batch in run.steps(loader):\n        pass\n",
        "nothing is tracked",
    ),
    "two-loops": (
        LOOP + "    for batch in run.steps(loader):\n        pass\n",
        "run.steps was called a second time",
    ),
    "two-runs": (
        LOOP.replace("    run.track", "    tasuki.open_run()\n    run.track", 1),
        "is live: attempt 1",
    ),
    "no-state": (
        LOOP.replace("optimizer=opt", "optimizer=opt, thing=object()"),
        "`thing` is a object, of which no state can be taken",
    ),
    "not-storable": (
        LOOP.replace("optimizer=opt", "optimizer=opt, state={'f': print}"),
        "shared.state.f",
    ),
    "not-a-number": (
        LOOP + "        run.log(loss=torch.zeros(3))\n",
        "`loss` was logged as a Tensor of shape (3,)",
    ),
    "both-lengths": (
        LOOP.replace("epochs=4", "epochs=4, steps=3"),
        "either `epochs` or `steps`",
    ),
    "no-length": (
        LOOP.replace("loader, epochs=4", "iter([])"),
        "does not say how many batches",
    ),
    "wrong-wish": (LOOP.replace('"2 steps"', '"2 stepz"'), "does not say every how many"),
    "short-epoch": (
        SHORT,
        "epoch 0 was left before its last batch",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_in_words_with_its_line_and_no_traceback(warm, script, name):
    body, words = CASES[name]
    made = script(body)
    assert made.attempt(warm) == [EXIT_FAILED], made.said()
    assert words in made.said() and "hint: " in made.said(), made.said()
    assert "Traceback" not in made.said() and " (at train.py:" in made.said(), made.said()
    assert not made.run.is_complete()
    if made.run.claims.is_dir():
        (end,) = read_attempt_ends(made.run).values()
        assert end is not None and end["ending"] in ("failed", "mistake", "stuck"), end


def test_a_loop_that_never_steps_its_tracked_optimizer_is_told_that_it_trains_nothing(warm, script):
    """What else the first steps show is in test_first_steps.py."""
    made = script(LOOP.replace("loss = step(batch)", "loss = loss_of(model, batch)"))
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    (told,) = [line for line in made.said().splitlines() if line.startswith("WARNING")]
    assert "WARNING: the tracked `optimizer` (SGD) has not stepped in 10 steps" in told


def test_a_script_that_crashed_has_failed_keeps_its_traceback_and_goes_on_from_its_last_save(
    warm, script
):
    made = script(
        LOOP + "        if run.step == 5 and not os.path.exists('ok'): raise ValueError(7)\n"
    )
    assert made.attempt(warm) == [EXIT_FAILED]
    assert "ValueError: 7" in made.said() and "Traceback" in made.said()
    (end,) = read_attempt_ends(made.run).values()
    assert end is not None and (end["ending"], end["has_progressed"]) == ("failed", True)
    assert "ValueError: 7 (at train.py:" in end["message"]
    assert max(found.step for found in list_checkpoints(made.run)) == 4
    found = describe_run(made.run, now=CLOCK.wall())
    assert (found["state"], found["step"]) == ("failed", 4) and "ValueError: 7" in found["reason"]
    assert "start the script again: it goes on from the last checkpoint" in found["hint"]
    told = tell_why(made.run, now=CLOCK.wall())
    assert (told["state"], told["hint"]) == ("failed", found["hint"])
    assert "went to its terminal" in where_output_went(made.run)
    (made.folder / "ok").touch()
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    assert "Resuming from epoch 1 step 4" in made.said()


def test_nan_and_texts_and_names_of_a_lines_own_break_nothing(warm, script, capsys):
    made = script(
        LOOP
        + "        run.log(loss=float('nan'), text='a\\nb', step=9, flag=True, much=loss * 1e300,\n"
        "                array=np.float32(0.5), count=np.int64(3))\n"
        "        import enum\n"
        "        run.log(phase=enum.StrEnum('Phase', {'WARM': 'warm'}).WARM, name=np.str_('n'),\n"
        "                level=enum.IntEnum('Level', {'LOW': 2}).LOW, half='x\\ud800y',\n"
        "                huge=10**5000, double=np.float64(0.25))\n"
    )
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    row = read_metrics(made.run)[-1]
    assert row["loss"] == "nan" and row["text"] == "a\nb" and row["step"] == 12
    assert (row["own_step"], row["flag"], row["array"], row["count"]) == (9, True, 0.5, 3)
    assert (row["phase"], row["name"], row["level"], row["double"]) == ("warm", "n", 2, 0.25)
    assert row["half"] == "x?y" and row["huge"] == "inf"
    assert row["much"] in ("inf", "-inf") or abs(row["much"]) > 1e200
    assert "Traceback" not in made.said(), made.said()
    assert read_json(made.run.training_state)["loss"] == "nan"
    found = read_status([made.run], now=0.0)
    assert found["runs"][0]["loss"] == "nan"
    show_status(found, folder="runs")
    assert "nan" in capsys.readouterr().out
    lines = (made.run.path / "metrics" / "1.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines)


def test_weights_that_are_not_finite_are_never_committed(warm, script):
    spoil = "        if run.step == 5: model.weight.data[:] = float('nan')\n"
    made = script(LOOP + spoil)
    assert made.attempt(warm) == [EXIT_FAILED]
    assert "weight is NaN or infinite" in made.said()
    assert "lower the learning rate in the script" in made.said()
    assert "--accept-change" not in made.said() and "on_nan" not in made.said()
    assert max(found.step for found in list_checkpoints(made.run)) == 4


CHANGES = [
    ("batch_size=8", "batch_size=4", "`effective_batch` changed since the last checkpoint: 8"),
    ("epochs=4", "epochs=6", "asks for 6 epochs (18 steps), and run `train` was begun with 4"),
    (
        "epochs=4",
        "epochs=5",
        "4 epochs (12 steps) (at train.py:{line})\nhint: ask for 4 epochs again",
    ),
    ("epochs=4", "steps=7", "the loop asks for 7 steps, and run `train` was begun with 12"),
    ("Noisy(24)", "Noisy(32)", "`samples` changed since the last checkpoint: 24 before"),
    ("nn.Linear(6, 1)", "nn.Linear(6, 1, bias=False)", "`model` does not take the state"),
    ("model=model,", "net=model,", "`model` is in the checkpoint and is not tracked"),
    ("model=model,", "model=model, ema=nn.Linear(1, 1),", "`ema` is tracked and not in"),
]


def test_a_loop_that_changed_under_its_run_is_refused_and_goes_on_once_it_is_as_before(
    warm, script
):
    made = script(LOOP)
    assert made.attempt(warm, {"at": "step.done", "do": "term", "count": 3}) == [EXIT_RESUME_ME]
    path = made.folder / "train.py"
    text = path.read_text()
    for before, after, words in CHANGES:
        path.write_text(text.replace(before, after))
        begin = path.read_text().partition("    for batch in run.steps")[0]
        told = len(made.said())
        assert made.attempt(warm) == [EXIT_FAILED]
        assert words.format(line=1 + begin.count("\n")) in made.said()[told:], made.said()
    path.write_text(text)
    log = made.folder / "0.log"
    started = warm.start_script(path, "--lr", "1", log=log, TASUKI_SITE="")
    assert started.wait() == EXIT_FAILED
    assert "was begun with `train.py`, and this is `train.py --lr 1`" in made.said()
    named = {"TASUKI_SITE": "", "TASUKI_NAME": "other"}
    assert warm.start_script(path, "--lr", "1", log=log, **named).wait() == EXIT_DONE, made.said()
    assert (made.folder / "runs" / "other" / "training_complete.marker").exists()
    assert made.attempt(warm) == [EXIT_DONE] and made.run.is_complete(), made.said()


def test_what_is_left_of_a_run_without_checkpoints_or_spec_is_refused_with_what_begins_another(
    warm, script
):
    made = script(LOOP)
    assert made.attempt(warm, {"at": "step.done", "do": "term", "count": 3}) == [EXIT_RESUME_ME]
    shutil.rmtree(made.run.checkpoints)
    assert made.attempt(warm) == [EXIT_FAILED]
    assert "is gone, and all others too" in made.said(), made.said()
    assert "or begin another run: TASUKI_NAME=other" in made.said()
    assert "--new" not in made.said()
    made.run.spec.unlink()
    assert made.attempt(warm) == [EXIT_FAILED]
    assert "is what is left of a run: its spec.json is gone" in made.said()
    assert not made.run.spec.exists()


def test_a_complete_run_of_a_script_says_how_to_train_more_and_names_no_verbs_of_a_spec(
    warm, script
):
    made = script(LOOP + "        run.best(loss=loss)\n")
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    with pytest.raises(RunError) as complete:
        frozen_spec(made.run, {})
    assert "TASUKI_NAME=other" in complete.value.hint and "--new" not in complete.value.hint
    told = read_json(made.run.stage("train").metrics)
    told["best"]["step"] = 1  # of which no checkpoint is kept
    write_json(made.run.stage("train").metrics, told)
    with pytest.raises(RunError) as best:
        find_target(made.run, "best")
    assert "load_file" in best.value.hint and "init_from" not in best.value.hint
    train = made.folder / "train.py"
    train.write_text(train.read_text().replace("epochs=4", "epochs=8"))
    assert made.attempt(warm) == [EXIT_DONE]
    said = made.said().splitlines()[-2:]
    assert said[0].startswith("run `train` is complete: 12 steps, in "), said
    assert "nothing is left to train" in said[0]
    assert "TASUKI_NAME=other" in said[1] and str(made.run.stage("train").weights) in said[1]
    assert made.attempt(warm, TASUKI_NAME="other") == [EXIT_DONE]
    (metrics,) = (made.folder / "runs/other/stages").glob("*/metrics.json")
    assert read_json(metrics)["steps"] == 24


def test_a_name_changes_the_folder_and_nothing_of_what_is_learnt(warm, script):
    made = script(
        "for name in (None, 'third', 'x/fourth'):\n"
        + LOOP.replace("\n", "\n    ").replace("open_run(", "open_run(name, ")
    )
    reset = (
        "    torch.manual_seed(1); random.seed(2); np.random.seed(3); model.reset_parameters()\n"
    )
    path = made.folder / "train.py"
    path.write_text(path.read_text().replace("'x/fourth'):\n", f"'x/fourth'):\n{reset}"))
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    runs = [made.run, RunFolder(made.folder / "runs/third"), RunFolder(made.folder / "x/fourth")]
    first, *others = [run.stage("train").weights.read_bytes() for run in runs]
    assert all(other == first for other in others)


KERNEL = """
import threading
sys.ps1 = ">>> "                                    # as in a notebook or a terminal of Python

def cell(name, strike):
    with tasuki.open_run(name, save="2 steps") as run:
        run.track(model=model, optimizer=opt)
        for batch in run.steps(loader, epochs=4):
            step(batch)
            if strike and run.step == 5: os.kill(os.getpid(), 15)

before = __import__("signal").getsignal(15)
for strike in (True, False):
    try:
        cell("note", strike)
        print("cell is through")
    except tasuki.TasukiError as error:
        print("said:", error, "|", error.hint)
try:
    cell("note", False)
except tasuki.TasukiError as error:
    print("said:", error)
aside = threading.Thread(target=cell, args=("aside", False))
aside.start(); aside.join()
print("alive", before is __import__("signal").getsignal(15))
fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
print("kept", [path for path in map(os.readlink, filter(os.path.exists, fds)) if "/runs/" in path])
"""


def test_a_kernel_lives_on_after_a_handover_and_the_cell_run_again_goes_on(warm, script):
    made = script(KERNEL)
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    said = made.said()
    assert "said: handed over at step 6 of 12 of stage train | run it again" in said, said
    assert "Resuming from epoch 2 step 6" in said and "cell is through" in said, said
    assert "said: run `note` is complete" in said
    assert "alive True" in said and "kept []" in said, "signals and files are as before"
    for name in ("note", "aside"):
        assert (made.folder / "runs" / name / "training_complete.marker").exists(), said


def test_a_script_without_a_name_is_asked_for_one(warm, script):
    made = script(KERNEL.replace('cell("note", strike)', "cell(None, strike)"))
    made.attempt(warm)
    assert "open_run does not know how to call this run" in made.said()


def test_forks_of_the_script_that_leave_end_nothing_of_their_parents_run(warm, script):
    forks = """        for at, leave in ((2, os._exit), (4, sys.exit), (6, sys.exit)):
            if run.step == at:
                if (pid := os.fork()) == 0: leave(3 if at == 4 else 0)
                os.waitpid(pid, 0)
"""
    made = script(LOOP + forks)
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    assert made.run.is_complete() and len(read_metrics(made.run)) == 0
    assert json.loads(made.run.stage("train").metrics.read_text())["steps"] == 12


def test_early_stopping_is_the_scripts_to_declare_and_it_may_leave_with_0_then(warm, script):
    made = script(
        LOOP
        + "        if run.step == 6:\n            break\n    run.finish({'stopped': 'early'})\n"
        "    sys.exit()\n"
    )
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    assert made.run.is_complete()
    results = json.loads(made.run.final_results.read_text())
    assert results["metrics"] == {"stopped": "early"}
    assert json.loads((made.run.stage("train").metrics).read_text())["steps"] == 7
