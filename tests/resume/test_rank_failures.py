"""One rank of four is killed or stopped, wherever it stands: all go down, the next attempt goes on,
and the end is bit for bit the same (R8). How soon is a rule of `unit/jobs/test_phase.py`; NaN on
one rank is in `test_nan.py`."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from tests.harness.faulty import (
    armed,
    check_acknowledged,
    check_went_on,
    events,
    finish,
    leftovers,
    make_faulty,
    stopped_ranks,
    wait_until,
)
from tests.harness.project import Project, differences

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tasuki"

EVERYWHERE = [
    "worker.hello",
    "start.prepared",
    "start.found",
    "start.committed",
    "start.restored",
    "step.begin",
    "step.forward",
    "step.loss",
    "step.optimizer",
    "step.done",
    "loop.log",
    "save.begin",
    "save.copied",
    "save.written",
]
"""Passed by every rank."""
FIRST_ONLY = [
    "loop.validate",
    "loop.best",
    "save.draft",
    "save.manifest",
    "save.rename",
    "save.renamed",
    "save.trash",
    "save.trash",
    "save.pruned",
    "loop.best",
    "finish.weights",
]
"""Passed by rank 0 alone."""
PLACES = EVERYWHERE + FIRST_ONLY
ELSEWHERE = {
    "save.frozen": "test_frozen_parameters.py",
    "loop.roll-back": "test_nan.py",
    "memory.decided": "test_out_of_memory.py",
    "batch.decided": "test_batch_tuning.py",
    "border.decided": "test_batch_tuning.py",
    "finish.begin": "../adapters/test_ends.py",
    "finish.swept": "../adapters/test_ends.py",
    "finish.marker": "../adapters/test_ends.py",
    "open.settings": "../commands/test_verify_resume.py",
}
"""Passed only where parameters are frozen, steps are not finite, memory runs out, or a script is by
itself: killed there."""
ONCE = ("start.committed", "loop.best")
"""Passed for certain by a run's first attempt, and perhaps never again."""
STEP_LIMIT = {"TASUKI_STEP_LIMIT_S": "2"}


def test_every_failpoint_in_the_source_is_one_that_this_suite_covers():
    found = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"failpoint\(\"([a-z.-]+)\"\)", path.read_text())
    }
    assert found == {*PLACES, *ELSEWHERE}, "cover it here, or say here who does"
    for name, suite in ELSEWHERE.items():
        assert f'"{name}"' in (Path(__file__).parent / suite).read_text()


def four(folder: Path, **more) -> Project:
    stages = more.pop("stages", [{"name": "one", "data": "d", "epochs": 32}])
    return make_faulty(
        folder,
        ranks=more.pop("ranks", 4),
        stages=[{**stage, "validate": {"every": "16 steps"}} for stage in stages],
        params={"norm": "layer", "diary": False, "pause": more.pop("pause", 0.0)},
        defaults={"effective_batch": 11, "micro_batch": 2, "save": {"every": "4 steps"}},
        cluster={"grace": "4s"},
        **more,
    )


# -- killed ------------------------------------------------------------------------------------

COUNTS = dict.fromkeys(PLACES, 1) | {
    # By then a checkpoint of this attempt is durable: saves are 4 steps apart, and the second waits
    # for the first. A step has two micro-batches on each rank.
    **dict.fromkeys(("step.begin", "step.optimizer", "step.done"), 9),
    **dict.fromkeys(("step.forward", "step.loss"), 17),
    **dict.fromkeys([place for place in PLACES if place.startswith("save.")], 3),
    "save.trash": 1,
    "loop.log": 4,
}


def is_early(place: str) -> bool:
    """Before a new checkpoint of the attempt, and before there is any limit for silence."""
    return place.startswith(("worker", "start")) or place == "loop.best"


def kill_at(warm, folder: Path, whole: Project, places: list[tuple[str, int]]) -> None:
    """One run whose attempts are each killed at another place, between saves that give progress:
    three in a row without would be held."""
    project = four(folder)
    orders, claim = [], 0
    for place, rank in places:
        claim += 1
        order = {"at": place, "do": "kill", "rank": rank, "claim": claim, "count": COUNTS[place]}
        orders.append(order)
        if is_early(place):
            claim += 1
            # Committed at least once, so that the next failure is a first one again.
            orders.append({"at": "save.begin", "do": "kill", "count": 3, "rank": 1, "claim": claim})
    finish(warm, project, starts=1, **armed(*orders))
    ended = events(project, "attempt-ended")
    assert len(ended) == claim + 1, [(e["claim"], e["message"]) for e in ended]
    assert [e["ending"] for e in ended] == ["failed"] * claim + ["done"], project.logs()
    check_acknowledged(project.run)
    check_went_on(project.run)
    assert leftovers(project.run) == []
    assert differences(whole, project) == []


def test_when_the_rank_that_hosts_the_store_is_killed_the_attempt_says_so(warm, tmp_path):
    """What the others say then is a consequence, whatever torch's words for it are."""
    project = four(tmp_path / "p", ranks=2, stages=[{"name": "one", "data": "d", "epochs": 4}])
    order = {"at": "save.rename", "do": "kill", "count": 3, "rank": 0, "claim": 1}
    finish(warm, project, **armed(order))
    first = events(project, "attempt-ended")[0]
    assert "rank 0 was killed by SIGKILL" in first["message"], first["message"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_one_rank_of_four_killed_at_every_place_brings_all_down_and_the_end_is_the_same(
    warm, tmp_path, whole
):
    others = [(place, 1 + number % 3) for number, place in enumerate(EVERYWHERE)]
    places = others + [(place, 0) for place in EVERYWHERE + FIRST_ONLY]
    first = [pair for pair in places if pair[0] in ONCE]
    rest = [pair for pair in places if pair[0] not in ONCE]
    chunks = [rest[start : start + 6] for start in range(0, len(rest), 6)]
    chunks = [first[n : n + 1] + chunk for n, chunk in enumerate(chunks)]
    assert sum(map(len, chunks)) == len(places)
    for number, part in enumerate(chunks):
        kill_at(warm, tmp_path / f"{number}", whole(four), part)
    print(f"R8 (kill): {len(places)} places, ends bitwise equal")


# -- stopped -----------------------------------------------------------------------------------

LATE = 260
"""Steps of which the supervisor has heard, with a limit: more than a second at this pause."""
LONG = [{"name": "one", "data": "d", "epochs": 90}]


def stop_late(warm, folder: Path, whole: Project, place: str, rank: int) -> None:
    """Far into the training, where a limit for silence is known."""
    project = four(folder, stages=LONG, pause=0.005)
    kind = place.partition(".")[0]
    count = {"step": LATE, "save": LATE // 4, "loop": LATE // 16, "finish": 1}[kind]
    if place in ("step.forward", "step.loss"):
        count *= 2  # two micro-batches a step
    if place == "loop.log":
        count = LATE // 3  # a line every three steps
    order = {"at": place, "do": "stop", "rank": rank, "count": count, "claim": 1}
    status = warm.start(project.job.path, **armed(order), **STEP_LIMIT).wait()
    assert status == 0, project.logs()
    ended = events(project, "attempt-ended")
    assert [e["ending"] for e in ended] == ["failed", "done"], project.logs()
    (hung,) = events(project, "hung")
    assert (hung["rank"], hung["state"]) == (rank, "T"), hung
    check_went_on(project.run)
    assert leftovers(project.run) == []
    assert differences(whole, project) == []


def stop_early(warm, folder: Path, whole: Project, place: str, rank: int) -> None:
    """Before there is any limit (nobody knows how long a start may take) the job's own end is the
    bound: after the notice's grace all are down, whoever is stopped."""
    project = four(folder)
    order = {"at": place, "do": "stop", "rank": rank, "claim": 1}
    started = warm.start(project.job.path, **armed(order))
    wait_until(lambda: stopped_ranks(started.pid), project)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    finish(warm, project)
    check_went_on(project.run)
    assert leftovers(project.run) == []
    assert differences(whole, project) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("place", PLACES)
def test_a_rank_of_four_that_is_stopped_at_any_place_goes_down_and_the_end_is_the_same(
    warm, tmp_path, whole, place
):
    rank = 0 if place in FIRST_ONLY else 1 + PLACES.index(place) % 3
    if is_early(place):
        stop_early(warm, tmp_path / "p", whole(four), place, rank)
    else:
        stop_late(warm, tmp_path / "p", whole(four, stages=LONG), place, rank)
    print(f"R8 (stop, {place}, rank {rank}): down, end bitwise equal")
