"""Several ranks of a script, however they were started: they meet, stop at one step, and fail
together in words."""

from __future__ import annotations

import pytest
from tests.adapters.subjects import DATA, Script, Subject, make_script

from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME
from tasuki.runs.control import Word, say

pytestmark = pytest.mark.timeout(60)

ALIKE = (
    DATA
    + """
import time
model = build(nn.LayerNorm)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(24), batch_size=4, shuffle=True)
with tasuki.open_run(save="4 steps", log_every=2) as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=8):
        loss = loss_of(model, batch)
        opt.zero_grad(); loss.backward(); opt.step()
        run.log(loss=loss)
        time.sleep(0.03)  # no collective keeps these ranks together
"""
)


def start(warm, script: Script, *failpoints: dict, ranks: int = 2, life: int = 0) -> list[int]:
    """As srun does; nobody has a process group."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
    step |= {"SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_RESTART_COUNT": str(life), "PATH": ""}
    started = []
    for rank in range(ranks):
        own = Script(script.folder, Subject("one", "", 9))
        place = {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        started += own.start(warm, *failpoints, **place)
    return [one.wait() for one in started]


def test_ranks_of_srun_meet_by_a_file_and_stop_at_one_step(warm, tmp_path):
    whole, script = (make_script(tmp_path / name, Subject("s", ALIKE, 24)) for name in ("w", "p"))
    assert start(warm, whole) == [EXIT_DONE] * 2, whole.said()
    strike = {"at": "step.done", "do": "term", "count": 3, "rank": 1}
    assert start(warm, script, strike) == [EXIT_RESUME_ME] * 2, script.said()
    assert start(warm, script, life=1) == [EXIT_DONE] * 2, script.said()
    assert script.differences(whole) == [], script.said()


def test_when_rank_0_cannot_begin_the_others_hear_why(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("s", ALIKE, 24))
    assert start(warm, script, {"at": "step.done", "do": "term", "count": 3, "seconds": 0.5}) == [
        75,
        75,
    ]
    say(script.run, Word.HOLD, reason="look at it", claim=1)
    assert start(warm, script, life=1) == [EXIT_FAILED] * 2
    assert "rank 0 could not begin: run `train` is held: look at it" in script.said()


def test_another_number_of_ranks_means_another_batch_and_is_refused(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("s", ALIKE, 24))
    assert start(warm, script, {"at": "step.done", "do": "term", "count": 3, "seconds": 0.5}) == [
        75,
        75,
    ]
    assert start(warm, script, ranks=3, life=1) == [EXIT_FAILED] * 3
    assert "`effective_batch` changed since the last checkpoint: 8 before, 12 now" in script.said()


def test_another_number_of_ranks_with_the_same_batch_goes_on_with_the_same_samples(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("s", ALIKE, 24))
    assert start(warm, script, {"at": "step.done", "do": "term", "count": 3, "seconds": 0.5}) == [
        75,
        75,
    ]
    path = script.folder / "train.py"
    path.write_text(path.read_text().replace("batch_size=4", "batch_size=8"))
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert "world: 2 → 1" in script.said()


TWICE = (
    ALIKE[: ALIKE.index("with tasuki")]
    + """
for name in ("first", "second"):
    with tasuki.open_run(name, save="4 steps") as run:
        run.track(model=model, optimizer=opt)
        for batch in run.steps(loader, steps=3):
            opt.zero_grad(); loss_of(model, batch).backward(); opt.step()
    print(os.environ["SLURM_PROCID"], "was in", run.path.name)
"""
)


def test_a_script_that_opens_two_runs_meets_for_each_and_leaves_no_file_of_it(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("s", TWICE, 3))
    assert start(warm, script) == [EXIT_DONE] * 2, script.said()
    for rank, name in ((0, "first"), (0, "second"), (1, "first"), (1, "second")):
        assert f"{rank} was in {name}" in script.said()
        assert (script.folder / "runs" / name / "training_complete.marker").exists()
    assert list((script.folder / "runs/.ranks").iterdir()) == []


BEST = ALIKE.replace("epochs=8", "steps=2").replace(
    "        run.log(loss=loss)\n",
    "        print(os.environ['SLURM_PROCID'], 'hears', run.best(loss=-run.step))\n",
)


def test_rank_0_alone_knows_whether_weights_were_the_best_and_the_others_know_that(warm, tmp_path):
    script = make_script(tmp_path / "p", Subject("s", BEST, 2))
    assert start(warm, script) == [EXIT_DONE] * 2, script.said()
    assert script.said().count("0 hears True") == 2 and script.said().count("1 hears None") == 2
