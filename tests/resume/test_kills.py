"""An interrupted run equals an uninterrupted one, bit for bit, and what was acknowledged before a
kill is never lost (promises 1, 2, 4; R1)."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from tests.harness.faulty import (
    acknowledged,
    check_acknowledged,
    check_went_on,
    leftovers,
    make_faulty,
    used,
)
from tests.harness.project import Project, differences, make_project

from tasuki.runs.claims import list_claims

STAGES = [
    {"name": "one", "data": "d", "epochs": 5},
    {"name": "two", "data": "d", "epochs": 3, "lr": 0.003},
]


def finish(warm, project, *, starts: int = 3) -> None:
    for _ in range(starts):
        warm.start(project.job.path).wait()
        if project.run.is_complete():
            return
    raise AssertionError(project.logs())


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    project = make_project(
        tmp_path_factory.mktemp("ref") / "p", stages=STAGES, params={"pause": 0.01}
    )
    finish(warm, project)
    return project


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGTERM, 0),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.long),
    ],
)
def test_killed_at_random_moments_and_run_again_it_ends_bit_for_bit_the_same(
    warm, tmp_path, undisturbed, number, workers
):
    chance = random.Random(f"{number}{workers}")
    project = make_project(
        tmp_path / "p",
        stages=STAGES,
        params={"pause": 0.01},
        defaults={"loader": {"workers": workers}},
        cluster={"cpus": 1 + workers},  # workers never exceed the CPUs
    )
    kills = 0
    while not project.run.is_complete():
        started = warm.start(project.job.path)
        # Longer and longer, so that a busy machine gets through too.
        time.sleep(chance.uniform(0.02, 0.35 * 1.1**kills))
        started.kill(number)
        status = started.wait()
        kills += status != 0
        assert kills < 50, project.logs()
    assert kills >= 2
    assert "is cut to" not in project.logs()
    assert differences(undisturbed, project) == []


def test_a_requeue_onto_other_cpus_keeps_threads_and_deterministic_algorithms(warm, tmp_path):
    project = make_faulty(tmp_path / "p", recipe="Settled", params={"pause": 0.02})
    for claim, cpus in ((1, 2), (2, 1), (3, 3)):
        lanes = json.loads(project.job.lanes.read_text())
        project.job.lanes.write_text(json.dumps({**lanes, "cpus": cpus}))
        orders = [{"at": "step.done", "do": "term-group", "count": 5, "claim": claim}]
        warm.start(project.job.path, TASUKI_FAILPOINTS=json.dumps(orders)).wait()
        assert (project.run.path / f"settings.{claim}").read_text() == "2 True", project.logs()


# -- R1: how often one likes, and nothing that was acknowledged is lost ------------------------

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
    defaults = {"save": {"every": "3 steps"}, **more.pop("defaults", {})}
    return make_faulty(folder, defaults=defaults, **more)


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory):
    """The same, not disturbed; each kind once."""
    known: dict[str, Project] = {}

    def make(kind: str) -> Project:
        if kind not in known:
            known[kind] = make_kind(tmp_path_factory.mktemp("whole") / "p", kind)
            finish_in_a_hurry(warm, known[kind])
        return known[kind]

    return make


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


def kill_until_done(warm, project: Project, chance: random.Random, *, most: int) -> tuple[int, int]:
    """SIGKILL to the whole group again and again; (kills that hit, checkpoints acknowledged by
    attempts that were killed)."""
    kills = 0
    while kills < most and not project.run.is_complete():
        before = len(list_claims(project.run))
        started = warm.start(project.job.path)
        saves = chance.choice([-1, 0, 0, 1, 1, 2])
        if saves >= 0:
            wait_for(project, started, before, saves)
        time.sleep(chance.uniform(0.0, 0.05 if saves >= 0 else 0.4))
        started.kill(signal.SIGKILL)
        kills += started.wait() != 0
        check_acknowledged(project.run)
    told = len(acknowledged(project.run))
    # Also of a run that was complete when the last kill hit: that start ends at once, and sweeps.
    finish_in_a_hurry(warm, project)
    check_went_on(project.run)
    assert leftovers(project.run) == []
    return kills, told


def kill_many(warm, folder: Path, whole, *, wanted: dict[str, int]) -> None:
    """Runs of each kind, until each kind has had its number of kills."""
    kills = told = runs = 0
    for kind, number in wanted.items():
        chance, left = random.Random(kind), number
        while left > 0:
            project = make_kind(folder / f"{kind}{runs}", kind)
            hit, committed = kill_until_done(warm, project, chance, most=left)
            assert differences(whole(kind), project) == [], project.logs()
            # Saves are at the same steps; those whose event a kill cut off are not told.
            assert used(project.run).items() <= used(whole(kind).run).items()
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
    [{"plain": 9, "workers": 6}, {"best": 7, "frozen": 6}, {"four": 3}],
    ids=["one rank", "best and frozen", "four ranks"],
)
def test_killed_again_and_again_nothing_acknowledged_is_lost(warm, tmp_path, whole, wanted):
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
