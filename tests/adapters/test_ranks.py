"""Several ranks of a script, however they were started: they meet, stop at one step, and fail
together in words."""

from __future__ import annotations

import itertools
import threading

import pytest
from tests.adapters.subjects import ALIKE, Script, Subject, make_script
from torch.distributed import TCPStore

from tasuki.clock import SystemClock
from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME
from tasuki.integrations import meet as meeting
from tasuki.integrations.place import Place
from tasuki.runs.control import Word, say

pytestmark = pytest.mark.timeout(300)


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
    strike = {"at": "step.done", "do": "term", "count": 3, "rank": 1, "seconds": 0.5}
    assert start(warm, script, strike) == [EXIT_RESUME_ME] * 2, script.said()
    assert start(warm, script, life=1) == [EXIT_DONE] * 2, script.said()
    assert script.differences(whole) == [], script.said()


def test_ranks_that_may_not_go_on_hear_why_and_another_number_with_the_same_batch_does(
    warm, tmp_path
):
    script = make_script(tmp_path / "p", Subject("s", ALIKE, 24))
    strike = {"at": "step.done", "do": "term", "count": 3, "seconds": 0.5}
    assert start(warm, script, strike) == [EXIT_RESUME_ME] * 2, script.said()
    assert start(warm, script, ranks=3, life=1) == [EXIT_FAILED] * 3
    assert "`effective_batch` changed since the last checkpoint: 8 before, 12 now" in script.said()
    say(script.run, Word.HOLD, reason="look at it", claim=2)
    assert start(warm, script, life=2) == [EXIT_FAILED] * 2
    assert "rank 0 could not begin: run `train` is held: look at it" in script.said()
    say(script.run, Word.CANCEL, reason="enough", claim=2)  # unlike a hold, a new start lifts it
    path = script.folder / "train.py"
    path.write_text(path.read_text().replace("batch_size=4", "batch_size=8"))
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    assert "world: 2 → 1" in script.said()


TWICE = (
    ALIKE[: ALIKE.index("with tasuki")]
    + """
rank = os.environ["SLURM_PROCID"]
for name in ("first", "second"):
    with tasuki.open_run(name, save="4 steps") as run:
        run.track(model=model, optimizer=opt)
        for batch in run.steps(loader, steps=2):
            opt.zero_grad(); loss_of(model, batch).backward(); opt.step()
            print(rank, "hears", run.best(loss=-run.step))
    print(rank, "was in", run.path.name)
"""
)


def test_a_script_that_opens_two_runs_meets_for_each_and_rank_0_alone_knows_the_best_weights(
    warm, tmp_path
):
    script = make_script(tmp_path / "p", Subject("s", TWICE, 2))
    assert start(warm, script) == [EXIT_DONE] * 2, script.said()
    said = script.said()
    for name in ("first", "second"):
        assert f"0 was in {name}" in said and f"1 was in {name}" in said
        assert (script.folder / "runs" / name / "training_complete.marker").exists()
    assert list((script.folder / "runs/.ranks").iterdir()) == []
    assert said.count("0 hears True") == 4 and said.count("1 hears None") == 4, said


def test_rank_0_waits_until_all_have_connected_as_it_may_leave_at_once(tmp_path, monkeypatch):
    """Where the run is complete. Who connects to a store that is gone tries for five minutes."""
    monkeypatch.setattr(meeting, "_numbers", itertools.repeat(0))
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    places = [Place(rank=rank, world=2, agent=("127.0.0.1", agent.port)) for rank in (0, 1)]
    clock, met = SystemClock(), []

    def join(place: Place) -> None:
        begin = lambda: (tmp_path / "runs" / "a", 0)  # noqa: E731
        met.append(meeting.meet(place, begin, runs=tmp_path, clock=clock).run.name)

    threads = [threading.Thread(target=join, args=(place,), daemon=True) for place in places]
    threads[0].start()
    agent.wait(["tasuki/meet/0/0"])
    threads[0].join(0.2)
    assert threads[0].is_alive() and met == []
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert met == ["a", "a"]
