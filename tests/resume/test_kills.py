"""An interrupted run equals an uninterrupted one, bit for bit, and what was acknowledged before a
kill is never lost (promises 1, 2, 4; R1), in bounded room (R17)."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from tests.harness.faulty import (
    acknowledged,
    armed,
    check_acknowledged,
    check_went_on,
    finish,
    leftovers,
    make_faulty,
    used,
)
from tests.harness.project import Project, differences, make_project

from tasuki.commands.status import ledger_of
from tasuki.runs.claims import list_claims
from tasuki.runs.events import read_events

STAGES = [
    {"name": "one", "data": "d", "epochs": 5},
    {"name": "two", "data": "d", "epochs": 3, "lr": 0.003},
]
KEEP = 2
KINDS = {
    "plain": {"recipe": "Diary", "params": {"diary": False, "pause": 0.004}},
    "workers": {
        "recipe": "Diary",
        "params": {"diary": False, "pause": 0.004},
        "defaults": {"loader": {"workers": 1}},
        "cluster": {"cpus": 2},
    },
    "best": {
        "recipe": "Diary",
        "params": {"diary": False, "pause": 0.004},
        "stages": [{**stage, "validate": {"every": "5 steps"}} for stage in STAGES],
    },
    "frozen": {"recipe": "Adapted", "params": {"pause": 0.004}},
    "four": {
        "recipe": "Diary",
        "params": {"diary": False, "pause": 0.004, "norm": "layer"},
        "ranks": 4,
        "defaults": {"effective_batch": 11, "micro_batch": 2},
    },
}


def make_kind(folder: Path, kind: str) -> Project:
    more = {"stages": STAGES, **KINDS[kind]}
    defaults = {"save": {"every": "3 steps", "keep": KEEP}, **more.pop("defaults", {})}
    return make_faulty(folder, defaults=defaults, **more)


def finish_in_a_hurry(warm, project: Project) -> None:
    """A start that was killed is not an attempt that failed: this one must go through."""
    status = warm.start(project.job.path, TASUKI_TEST_HURRY="1").wait()
    assert status == 0 and project.run.is_complete(), project.logs()


def wait_for(project: Project, started, before: int, saves: int) -> None:
    """Until the attempt that was just started has restored its state and then committed so often,
    or is over. By what it says and not by time, so that a busy machine gets there too."""
    while Path(f"/proc/{started.pid}").exists():
        claims = list_claims(project.run)[before:]
        files = [project.run.events / f"{claim}.0.rank0.jsonl" for claim in claims]
        told = "".join(path.read_text() for path in files if path.exists())
        _, _, since = told.partition('"restored"')
        if since and since.count('"committed"') >= saves:
            return
        time.sleep(0.002)


SAVES = (1, -1, 0, 1, 2)
"""Of an attempt before it is killed, in turn; -1: it may not even have restored its state."""


def kill_until_done(warm, project: Project, chance: random.Random, *, most: int) -> tuple[int, int]:
    """SIGKILL to the whole group again and again; (kills that hit, checkpoints acknowledged by
    attempts that were killed)."""
    kills = 0
    while kills < most and not project.run.is_complete():
        before = len(list_claims(project.run))
        started = warm.start(project.job.path)
        if (saves := SAVES[kills % len(SAVES)]) >= 0:
            wait_for(project, started, before, saves)
        time.sleep(chance.uniform(0.0, 0.05 if saves >= 0 else 0.4))  # at any instant from there on
        started.kill(signal.SIGKILL)
        kills += started.wait() != 0
        check_acknowledged(project.run)
        # R17: room for those that are kept, one that is written and one that is removed.
        assert len(list(project.run.checkpoints.glob("*step-*"))) <= KEEP + 2
    told = len(acknowledged(project.run))
    # Also of a run that was complete when the last kill hit: that start ends at once, and sweeps.
    finish_in_a_hurry(warm, project)
    check_went_on(project.run)
    check_ledger(project)
    assert leftovers(project.run) == []
    return kills, told


def check_ledger(project: Project) -> None:
    """However a run was killed, the parts of its time add up to the wall clock."""
    ledger, times = ledger_of(project.run), [event["t"] for event in read_events(project.run)]
    assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert ledger.wall_s == pytest.approx(max(times) - min(times), abs=0.01)
    assert all(seconds >= -1e-9 for seconds in ledger.parts.values()), ledger.parts


def kill_many(warm, folder: Path, whole, *, wanted: dict[str, int]) -> None:
    """Runs of each kind, until each kind has had its number of kills."""
    kills = told = runs = 0
    for kind, number in wanted.items():
        chance, left = random.Random(kind), number
        while left > 0:
            project = make_kind(folder / f"{kind}{runs}", kind)
            hit, committed = kill_until_done(warm, project, chance, most=left)
            assert differences(whole(make_kind, kind), project) == [], project.logs()
            # Saves are at the same steps; those whose event a kill cut off are not told.
            assert used(project.run).items() <= used(whole(make_kind, kind).run).items()
            kills, told, runs, left = kills + hit, told + committed, runs + 1, left - hit
    four = wanted.get("four", 0)
    print(
        f"R1: {kills} SIGKILLs ({four} on 4 ranks) in {runs} runs: {told} acknowledged before "
        "them, 0 lost, all ends bitwise equal"
    )
    assert kills == sum(wanted.values())
    assert told > kills / 8, "the kills came too early to say anything"


@pytest.mark.parametrize(
    "wanted",
    [
        {"workers": 5},
        {"best": 4},
        pytest.param({"frozen": 6}, marks=pytest.mark.long),
        pytest.param({"four": 3}, marks=pytest.mark.long),
    ],
    ids=lambda wanted: next(iter(wanted)),
)
def test_killed_again_and_again_nothing_acknowledged_is_lost_and_the_end_is_bit_for_bit_the_same(
    warm, tmp_path, whole, wanted
):
    kill_many(warm, tmp_path, whole, wanted=wanted)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_1000_kills_200_of_them_on_four_ranks_lose_nothing_acknowledged(warm, tmp_path, whole):
    wanted = {"plain": 300, "workers": 150, "best": 150, "frozen": 200, "four": 200}
    kill_many(warm, tmp_path, whole, wanted=wanted)


def test_what_a_kill_leaves_half_written_as_a_run_is_finished_goes_with_the_next_start(
    warm, tmp_path
):
    project = make_project(tmp_path / "p", stages=[{"name": "one", "data": "d", "epochs": 1}])
    finish(warm, project)
    half = project.run.path / ".metrics_history.jsonl.1-a.tmp"
    for is_marked in (False, True):
        half.write_text("half")
        if not is_marked:  # all is trained; only the marker is to be set
            project.run.marker.unlink()
        finish(warm, project)
        assert leftovers(project.run) == []
    before = {p: p.stat().st_mtime_ns for p in project.run.path.rglob("*") if p.is_file()}
    finish(warm, project)
    after = {p: p.stat().st_mtime_ns for p in project.run.path.rglob("*") if p.is_file()}
    assert before == after, "a start of a run that is complete changes nothing"


def test_a_requeue_onto_other_cpus_keeps_threads_and_deterministic_algorithms(warm, tmp_path):
    project = make_faulty(tmp_path / "p", recipe="Settled", params={"pause": 0.02})
    for claim, cpus in ((1, 2), (2, 1), (3, 3)):
        lanes = json.loads(project.job.lanes.read_text())
        project.job.lanes.write_text(json.dumps({**lanes, "cpus": cpus}))
        order = {"at": "step.done", "do": "term-group", "count": 5, "claim": claim}
        assert warm.start(project.job.path, **armed(order)).wait() == 75, project.logs()
        assert (project.run.path / f"settings.{claim}").read_text() == "2 True", project.logs()
