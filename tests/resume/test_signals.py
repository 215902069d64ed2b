"""A signal, wherever it comes: the last finished step is committed, nothing is done twice, and the
run ends as if nothing had been (R2, R12, R14)."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.harness.faulty import armed, wait_until
from tests.harness.project import differences
from tests.harness.traced import attempts, make_traced, recomputed

from tasuki.signals import NOTICES

WELL = ("handed-over", "done")
# The first is passed once in a run; between a signal and the exit more of the start may be done.
START = ["start.committed", "worker.hello", "start.prepared", "start.found", "start.restored"]
STEPS = ["step.begin", "step.forward", "step.optimizer", "step.done", "loop.log", "loop.validate"]
SAVES = [
    "save.begin",
    "save.copied",
    "save.draft",
    "save.written",
    "save.manifest",
    "save.rename",
    "save.renamed",
    "save.pruned",
]
DEFAULTS = {"save": {"every": "2 steps"}, "validate": {"every": "4 steps"}}


def finish(warm, project, *, starts: int = 4, **environment) -> None:
    """To the end, without the pauses that gave a test its time."""
    for _ in range(starts):
        status = warm.start(project.job.path, TASUKI_TEST_HURRY="1", **environment).wait()
        if project.run.is_complete():
            return
        assert status == 75, project.logs()
    raise AssertionError(project.logs())


# -- at random instants ------------------------------------------------------------------------


def wait_for_start(project, before: int) -> None:
    """Until the supervisor has its handlers: what comes earlier kills it before it has begun."""
    starts = project.job.path / "starts"
    wait_until(lambda: len(list(starts.glob("*"))) > before, project)


def steps_begun(project) -> int:
    return sum(len(path.read_text()) for path in project.run.path.glob("diary.*"))


def wait_for_steps(project, number: int) -> None:
    """Until so many were begun, over all attempts."""
    wait_until(lambda: steps_begun(project) >= number or project.run.is_complete(), project)


def terminate_at_random(warm, project, chance: random.Random, *, most: int) -> int:
    """SIGTERM to the whole group, again and again: every third in start-up, wherever that is then,
    the others among the steps. (how often it hit)"""
    hits = 0
    while not project.run.is_complete() and hits < most:
        starts, steps = len(list((project.job.path / "starts").glob("*"))), steps_begun(project)
        started = warm.start(project.job.path)
        if chance.random() < 1 / 3:
            wait_for_start(project, starts)
        else:
            wait_for_steps(project, steps + 1)
        time.sleep(chance.uniform(0.0, 0.3))
        started.kill(signal.SIGTERM)
        status = started.wait()
        assert status in (0, 75), project.logs()
        hits += status == 75
    return hits


def random_terms(warm, tmp_path, whole, *, workers: int, most: int, epochs: int) -> int:
    stages = [{"name": "one", "data": "d", "epochs": epochs}]
    seldom = {"save": {"every": "100 steps"}}
    reference = whole(make_traced, stages=stages, defaults=seldom)
    project = make_traced(
        tmp_path / "p",
        stages=stages,
        # With workers, the steps mostly wait for them: that is where their death would show.
        params={"fetch_for": 0.002 * workers} if workers else {"pause": 0.01},
        defaults={"loader": {"workers": workers}, "save": {"every": "20 steps"}},
        cluster={"cpus": 1 + workers},
    )
    hits = terminate_at_random(warm, project, random.Random(workers), most=most)
    finish(warm, project)
    assert "is cut to" not in project.logs()
    assert {attempt.ending for attempt in attempts(project)} <= set(WELL), project.logs()
    assert recomputed(project) == [], project.logs()
    assert sum(attempt.diary for attempt in attempts(project)) == 6 * epochs
    assert differences(reference, project) == []
    return hits


def test_terminated_at_random_instants_every_finished_step_is_committed_and_none_done_twice(
    warm, tmp_path, whole
):
    hits = random_terms(warm, tmp_path, whole, workers=2, most=4, epochs=100)
    assert hits == 4


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_400_terminations_at_random_instants_commit_every_finished_step(warm, tmp_path, whole):
    hits = [
        random_terms(warm, tmp_path / str(w), whole, workers=w, most=most, epochs=900)
        for w, most in ((0, 136), (2, 132), (4, 132))
    ]
    assert hits == [136, 132, 132]
    print(f"R2: {sum(hits)} of 400 committed")


# -- at named places ---------------------------------------------------------------------------


def test_a_signal_to_the_group_at_any_named_place_is_a_handover_and_costs_no_step(
    warm, tmp_path, whole
):
    """One run whose every attempt is ended at another place: in start-up, a step, a save, the
    validation, and when the weights are written."""
    stages = [{"name": "one", "data": "d", "epochs": 12}]
    reference = whole(make_traced, stages=stages, defaults=DEFAULTS)
    params = {"pause": 0.01}
    project = make_traced(tmp_path / "p", stages=stages, params=params, defaults=DEFAULTS)
    places = [*START, *STEPS, *SAVES]
    orders = [
        {"at": place, "do": "term-group", "claim": claim} for claim, place in enumerate(places, 1)
    ]
    for place in places:
        status = warm.start(project.job.path, **armed(*orders)).wait()
        assert status == 75, (place, project.logs())
        last = attempts(project)[-1]
        assert (last.ending, last.cause) == ("handed-over", "interrupted"), (place, project.logs())
        # Before the first step it is out at once, and after it the last step is committed.
        assert (last.handed_over is None) == (place in START), (place, last)
    # Preempted before its first step it starts over, and says so.
    assert "Resuming from epoch 0 step 0 (sample 0) of stage one" in project.logs()
    more = {"at": "finish.weights", "do": "term-group", "claim": len(places) + 1}
    assert warm.start(project.job.path, **armed(more)).wait() == 0, project.logs()
    assert project.run.is_complete()
    assert recomputed(project) == []
    assert differences(reference, project) == []
    print(f"R2: {len(places) + 1} of {len(places) + 1} places")


def test_a_signal_to_the_rank_alone_ends_it_at_its_step_and_in_start_up_counts_as_a_failure(
    warm, tmp_path, whole
):
    stages = [{"name": "one", "data": "d", "epochs": 6}]
    reference = whole(make_traced, stages=stages, defaults=DEFAULTS)
    project = make_traced(tmp_path / "p", stages=stages, defaults=DEFAULTS)
    places = ["step.forward", "start.prepared", "save.written", "start.restored", "loop.validate"]
    orders = [{"at": place, "do": "term", "claim": claim} for claim, place in enumerate(places, 1)]
    orders[-1]["count"] = 2  # the first one may be made up for before the first step
    finish(warm, project, starts=6, **armed(*orders))
    told = [(attempt.ending, attempt.cause) for attempt in attempts(project)]
    by_signal, by_nobody = ("handed-over", "preempted"), ("failed", "none")
    assert told == [by_signal, by_nobody, by_signal, by_nobody, by_signal, ("done", "none")]
    assert recomputed(project) == []
    assert differences(reference, project) == []


def test_a_signal_in_the_evaluation_ends_it_at_once_and_the_next_attempt_evaluates(warm, tmp_path):
    stages = [{"name": "one", "data": "d", "epochs": 1, "evaluate": {"split": "test"}}]
    project = make_traced(tmp_path / "p", recipe="Evaluated", stages=stages)
    assert warm.start(project.job.path).wait() == 75, project.logs()
    assert project.run.stage("one").metrics.exists()
    assert not project.run.stage("one").evaluation.exists()
    finish(warm, project)
    first, second = attempts(project)
    assert first.ending == "handed-over" and second.diary == 0, project.logs()


# -- several ranks -----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_signal_to_any_rank_stops_all_at_the_same_step(warm, tmp_path, whole, ranks):
    """They agree on a later step than the one in which it came: 240 steps leave room for that."""
    stages = [{"name": "one", "data": "d", "epochs": 40}]
    defaults = {**DEFAULTS, "validate": {"every": "40 steps"}, "save": {"every": "10 steps"}}
    more = {"stages": stages, "ranks": ranks, "params": {"norm": "layer"}, "defaults": defaults}
    reference = whole(make_traced, **more)
    project = make_traced(tmp_path / "p", **more)
    places = ["step.begin", "step.optimizer", "save.copied", "step.done"]
    orders = [
        {"at": places[rank], "do": "term", "rank": rank, "claim": 1 + rank, "count": 2}
        for rank in range(ranks)
    ]
    finish(warm, project, starts=ranks + 1, **armed(*orders))
    told = attempts(project)
    assert [(a.ending, a.cause) for a in told[:-1]] == [("handed-over", "preempted")] * ranks
    for before, after in itertools.pairwise(told):
        assert after.restored == before.handed_over, project.logs()
    assert differences(reference, project) == []


@pytest.mark.parametrize(
    ("rank", "place"),
    [
        (0, "worker.hello"),
        *(pytest.param(1, p, marks=pytest.mark.long) for p in ("worker.hello", "start.prepared")),
    ],
)
def test_a_rank_that_is_ended_in_start_up_is_not_waited_for_by_the_other(
    warm, tmp_path, rank, place
):
    """At its first words the others have not met it yet, and would wait for it for minutes."""
    project = make_traced(tmp_path / "p", ranks=2, params={"norm": "layer"})
    order = {"at": place, "do": "term", "rank": rank, "claim": 1}
    assert warm.start(project.job.path, **armed(order)).wait() == 0, project.logs()
    first, second = attempts(project)
    assert (first.ending, second.ending) == ("failed", "done")
    assert "got a signal before its first step" in project.logs() + str(
        (project.run.claims / "1" / "end.json").read_text()
    )


# -- many signals ------------------------------------------------------------------------------


def test_a_thousand_mixed_signals_in_a_second_are_one_notice_and_lose_nothing(
    warm, tmp_path, whole
):
    stages = [{"name": "one", "data": "d", "epochs": 100}]
    seldom = {"save": {"every": "100 steps"}}
    reference = whole(make_traced, stages=stages, defaults=seldom)
    project = make_traced(
        tmp_path / "p",
        stages=stages,
        params={"pause": 0.02},
        defaults={"loader": {"workers": 2}, **seldom},
        cluster={"cpus": 3},
    )
    chance = random.Random("group")
    started = warm.start(project.job.path)
    wait_for_steps(project, 5)
    for _ in range(1000):
        started.kill(chance.choice(NOTICES))
        time.sleep(0.001)  # spread, so that some come while the first ones are being answered
    assert started.wait() == 75, project.logs()
    (attempt,) = attempts(project)
    assert attempt.notices == 1
    assert attempt.ending == "handed-over"
    finish(warm, project)
    assert recomputed(project) == []
    assert differences(reference, project) == []


# -- loaders that a recipe brings --------------------------------------------------------------


@pytest.mark.long
def test_workers_of_a_loader_that_the_recipe_brings_survive_a_signal_to_the_group(
    warm, tmp_path, whole
):
    """Also where they are started with the first batch, not with the pass."""
    stages = [{"name": "one", "data": "d", "epochs": 4}]
    reference = whole(make_traced, stages=stages, params={"loader": "eager"})
    project = make_traced(tmp_path / "p", stages=stages, params={"loader": "lazy"})
    places = ["step.forward", "save.written", "step.done"]
    orders = [
        {"at": place, "do": "term-group", "claim": claim, "count": 2}
        for claim, place in enumerate(places, 1)
    ]
    for _ in places:
        assert warm.start(project.job.path, **armed(*orders)).wait() == 75, project.logs()
    finish(warm, project)
    assert {attempt.ending for attempt in attempts(project)} == set(WELL), project.logs()
    assert recomputed(project) == []
    assert differences(reference, project) == []


# -- a fresh interpreter -----------------------------------------------------------------------


def cold_attempts(tmp_path, delays: list[float]) -> None:
    """Real processes, from `exec` on: the signal may come before there is any handler."""
    project = make_traced(tmp_path / "p")
    for number, delay in enumerate(delays):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasuki.jobs", str(project.job.path)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        wait_for_start(project, number)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() in (0, 75), project.logs()
    assert {attempt.ending for attempt in attempts(project)} <= set(WELL), project.logs()
    assert recomputed(project) == []


def test_a_signal_while_torch_is_imported_is_a_handover(tmp_path):
    cold_attempts(tmp_path, [0.3])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_signal_at_any_of_20_instants_of_a_cold_start_is_a_handover(tmp_path):
    cold_attempts(tmp_path, [0.0 + 0.15 * number for number in range(20)])


# -- clocks ------------------------------------------------------------------------------------


def decisions(project) -> list[tuple]:
    told = [(a.claim, a.ending, a.cause, a.notices) for a in attempts(project)]
    outcomes = sorted(project.job.path.glob("outcome.*.json"))
    return [*told, *((value["verdict"], value["exit_code"]) for value in map(_read, outcomes))]


def _read(path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.long
def test_decisions_are_the_same_when_the_wall_clock_jumps_an_hour_each_second(warm, tmp_path):
    """A preemption, a crash and a kill; and steps enough for several jumps."""
    stages = [{"name": "one", "data": "d", "epochs": 8}]
    orders = [
        {"at": "step.done", "do": "term-group", "claim": 1, "count": 9},
        {"at": "step.forward", "do": "raise", "claim": 2, "count": 5},
        {"at": "save.written", "do": "kill", "claim": 3, "count": 2},
    ]
    made = []
    for name in ("steady", "jumping"):
        project = make_traced(tmp_path / name, stages=stages, params={"pause": 0.03})
        for _ in range(2):
            environment = {**armed(*orders), "TASUKI_TEST_CLOCK": name}
            warm.start(project.job.path, **environment).wait()
        assert project.run.is_complete(), project.logs()
        made.append(project)
    assert len(attempts(made[0])) == 4
    assert decisions(made[0]) == decisions(made[1])
    assert differences(*made) == []
    print("R14: 4 of 4 attempts decided alike")
