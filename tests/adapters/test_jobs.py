"""A loop of one's own under whoever may start it: a supervisor (one rank or several), torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.subjects import SUBJECTS, Script, make_script
from tests.commands.projects import until
from tests.harness.commands import make_commands

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.clock import SystemClock
from tasuki.commands.status import describe_run
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.integrations.place import Job, Place, find_place
from tasuki.integrations.watch import LoopWatch
from tasuki.jobs.local import Preemption
from tasuki.loop.agreement import Decision, SoloAgreement
from tasuki.runs.atomic import read_json
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.events import read_events
from tasuki.runs.runs import CommandFolder, RunFolder
from tasuki.runs.values import Cause
from tasuki.signals import SignalPipe
from tasuki.testing import FakeClock

pytestmark = pytest.mark.timeout(300)
FLAT, RANKS = SUBJECTS[0], next(s for s in SUBJECTS if s.name == "own-loop-2-ranks")


def slowly(script: str) -> str:
    """Long enough to be interrupted in the middle, however long imports take."""
    return "import time\n" + script.replace(
        "        run.log(loss=loss)\n", "        run.log(loss=loss); time.sleep(0.05)\n"
    )


def has_saved(run: RunFolder, claim: int) -> bool:
    return any(f.claim == claim and f.start_of is None for f in list_checkpoints(run))


@pytest.mark.long
@pytest.mark.parametrize("subject", [FLAT, RANKS], ids=str)
def test_as_a_stage_of_a_spec_it_is_preempted_and_ends_as_if_undisturbed(
    warm, tmp_path, subject, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the undisturbed one has
    whole = make_script(tmp_path / "whole", subject)
    assert whole.attempt(warm) == [EXIT_DONE] * subject.ranks, whole.said()
    stage = {"save": {"every": "5 steps"}, "ranks": subject.ranks} if subject.ranks > 1 else {}
    made = make_commands(
        tmp_path / "p",
        script=slowly(subject.script),
        stage=stage,
        experiments={"train": {"command": ["python", "train.py"], **stage}},
        cluster={"cpus": 2},
    )
    run = made.run_folder("train")
    result = made.start(Preemption(when=lambda: has_saved(run, 1)))
    assert result.exit_code == EXIT_DONE, made.logs()
    ends = read_attempt_ends(run)
    assert [(e or {}).get("ending") for e in ends.values()] == ["handed-over", "done"], ends
    assert ends[1] is not None and ends[1]["has_progressed"]
    assert whole.differences(Script(tmp_path / "p", subject)) == [], made.logs()
    metrics = read_json(run.stage("train").metrics)
    assert metrics["steps"] == subject.steps and metrics["sha256"] and metrics["wall_s"] > 0
    found = describe_run(run, now=SystemClock.wall())
    assert (found["state"], found["step"]) == ("complete", subject.steps)
    ranks = {e["ranks"] for e in read_events(run) if e["kind"] == "worker-started"}
    assert ranks == {subject.ranks}


@pytest.mark.long
def test_status_keeps_the_progress_of_a_loop_whose_next_attempt_dies_while_it_imports(
    warm, tmp_path
):
    script = make_script(tmp_path / "p", FLAT)
    dying = "import os\nif os.path.exists('dies'): raise SystemExit(3)\n" + FLAT.script
    (script.folder / "train.py").write_text(dying)
    strike = {"at": "step.done", "do": "term", "count": 9}
    assert script.attempt(warm, strike) == [EXIT_RESUME_ME], script.said()
    before = describe_run(script.run, now=SystemClock.wall())["step"]
    assert before >= 9
    (script.folder / "dies").touch()
    command = {"train": {"command": ["python", "train.py"]}}
    assert make_commands(script.folder, script=dying, experiments=command).start().exit_code == 1
    found = describe_run(script.run, now=SystemClock.wall())
    assert (found["state"], found["attempts"]) == ("held", 4)
    assert (found["step"], found["total_steps"], found["last_checkpoint_step"]) == (
        before,
        30,
        before,
    )


@pytest.mark.long
def test_under_torchrun_a_notice_to_one_rank_stops_all_at_one_step_and_typed_again_it_goes_on(
    warm, tmp_path
):
    whole = make_script(tmp_path / "whole", RANKS)
    assert whole.attempt(warm) == [EXIT_DONE] * 2, whole.said()
    script = make_script(tmp_path / "p", RANKS)
    (script.folder / "train.py").write_text(slowly(RANKS.script))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def start() -> subprocess.Popen[bytes]:
        with (script.folder / "0.log").open("ab") as log:
            return subprocess.Popen(
                [*words, "train.py"],
                cwd=script.folder,
                env={**os.environ, "TASUKI_SITE": "", "WORKERS": "0"},
                stdout=log,
                stderr=log,
            )

    first = start()
    until(lambda: has_saved(script.run, 1), script.said)
    first.send_signal(signal.SIGTERM)
    assert first.wait() != EXIT_DONE
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and end["ending"] == "handed-over", script.said()
    assert start().wait() == EXIT_DONE, script.said()
    assert script.differences(whole) == [], script.said()


@pytest.mark.long
def test_several_ranks_of_which_one_fails_go_down_together(tmp_path):
    script = (
        "import os, sys, time\n"
        "assert os.environ['WORLD_SIZE'] == '3' and os.environ['MASTER_PORT']\n"
        "rank = os.environ['RANK']\n"
        "open(f'rank.{rank}', 'w').close()\n"
        "while not all(os.path.exists(f'rank.{n}') for n in range(3)): time.sleep(0.01)\n"
        "if rank == '1': sys.exit('no luck')\n"
        "time.sleep(600)\n"
        "open('slept', 'w').close()\n"
    )
    made = make_commands(tmp_path / "p", script=script, stage={"ranks": 3}, cluster={"cpus": 1})
    made.start()
    assert not (made.folder / "slept").exists(), "the others were ended"
    ends = [end for end in read_attempt_ends(made.run).values() if end is not None]
    assert all(
        "rank 1 of the command ended with exit code 1: no luck" in e["message"] for e in ends
    )


def test_every_launcher_tells_which_rank_this_is():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    place = find_place({**slurm, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"})
    assert (place.rank, place.world, place.launch) == (2, 4, "7.0.0")
    assert find_place({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).world == 1
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    place = find_place({**env, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert (place.rank, place.world, place.agent) == (1, 2, ("h", 1))
    assert find_place({}).world == 1 and find_place({}).job is None


# -- the end of the attempt, as a supervisor writes it down ---------------------------------------


@pytest.fixture
def watch(tmp_path) -> LoopWatch:
    job = Job(run=RunFolder(Path("runs/r")), claim=1, stage="s", files=CommandFolder(tmp_path))
    return LoopWatch(FakeClock(), Place(job=job), is_kernel=False)


def test_a_wall_clock_that_is_set_forward_ends_no_attempt_and_a_new_deadline_is_heard(watch):
    clock, deadline = watch._clock, watch._files.deadline
    deadline.write_text(str(clock.wall() + 1000))

    def left() -> float | None:
        watch._look_at = -1.0
        watch._look()
        return watch.remaining_s()

    assert left() == 1000
    clock.jump_wall(3600)
    assert left() == 1000 and watch.notice is Cause.NONE
    deadline.write_text(str(clock.wall() + 500))
    assert left() == 500
    deadline.write_text("never")
    assert left() is None


def test_a_signal_counts_at_the_next_step_boundary_though_the_thread_had_no_turn_yet(watch):
    """On a busy machine that turn comes many steps later."""
    watch.hold_on()
    watch._signals = SignalPipe()
    assert SoloAgreement(watch).begin_step(1) is Decision.GO
    watch._files.notice.write_text("limit")
    watch._signals.has_notice = True
    assert SoloAgreement(watch).begin_step(2) is Decision.STOP
    assert watch.notice is Cause.LIMIT, "the supervisor knows why"
