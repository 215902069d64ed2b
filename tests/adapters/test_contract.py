"""The contract of every loop that tasuki did not write: preempted as often as one likes, in the
middle of an epoch, by a notice or by a kill, it ends bit for bit as if nothing had happened:
weights, optimizer, random numbers, metrics (promises 1, 2, 4)."""

from __future__ import annotations

import random
import signal
import time

import pytest
from tests.adapters.subjects import (
    ADAPTERS,
    ADAPTERS_OF_RANKS,
    MANUAL,
    SUBJECTS,
    Script,
    Subject,
    make_script,
)

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims

pytestmark = pytest.mark.timeout(300)
EVERY = [*SUBJECTS, *ADAPTERS, *ADAPTERS_OF_RANKS, MANUAL]


def of(*subjects: Subject, is_long: bool = False) -> pytest.MarkDecorator:
    marked = [
        pytest.param(one, marks=[pytest.mark.long] if is_long or one.is_slow else [])
        for one in subjects
    ]
    return pytest.mark.parametrize("subject", marked, ids=str)


@of(*SUBJECTS)
def test_a_notice_commits_the_step_a_kill_costs_some_and_the_end_is_that_of_an_undisturbed_run(
    servers, tmp_path, undisturbed, subject
):
    check_contract(servers, make_script(tmp_path / "p", subject), undisturbed(subject))


def check_contract(servers, script: Script, whole: Script) -> None:
    """A notice, a kill, the end; and then there is nothing left to do."""
    subject = script.subject
    notice = {"at": "step.done", "do": "term", "count": 5, "rank": 0}
    if subject.ranks > 1:  # they agree on a later step; none is begun until rank 0 goes on
        notice["seconds"] = 0.5
    assert script.attempt(servers, notice) == [EXIT_RESUME_ME] * subject.ranks, script.said()
    newest = max(found.step for found in list_checkpoints(script.run))
    # An accumulation of two is seen through; several ranks agree on a step, which takes some.
    assert newest >= 5 if subject.ranks > 1 else newest in (5, 6), script.said()
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and end["ending"] == "handed-over" and end["has_progressed"]
    script.attempt(
        servers, {"at": "step.begin", "do": "kill", "count": 6}, workers=subject.workers[-1]
    )
    assert script.attempt(servers) == [EXIT_DONE] * subject.ranks, script.said()
    assert "Resuming from epoch" in script.said()
    assert script.differences(whole) == [], script.said()
    claims = list_claims(script.run)
    assert script.attempt(servers) == [EXIT_DONE] * subject.ranks, script.said()
    assert list_claims(script.run) == claims and "is complete" in script.said()


def has_all_steps(script: Script) -> bool:
    return max(found.step for found in list_checkpoints(script.run)) >= script.subject.steps


@of(*EVERY, is_long=True)
def test_preempted_and_killed_at_random_steps_it_ends_as_if_undisturbed(
    servers, tmp_path, undisturbed, subject
):
    script, chance, interrupted = make_script(tmp_path / "p", subject), random.Random(7), 0
    while not script.run.is_complete():
        at, do = chance.choice(["step.begin", "step.done"]), chance.choice(["term", "kill"])
        strike = {"at": at, "do": do, "count": chance.randint(1, max(2, subject.steps // 3))}
        if do == "term":  # a kill takes all: who starts ranks ends the others
            strike["rank"] = chance.randrange(subject.ranks)
            strike["seconds"] = 0.2 if subject.ranks > 1 else 0.0
        statuses = script.attempt(servers, strike, workers=chance.choice(subject.workers))
        if all(status == EXIT_DONE for status in statuses):
            break
        interrupted += 1
        # One that comes after the last step may find some ranks gone, with all saved.
        if do == "term" and not has_all_steps(script):
            assert statuses == [EXIT_RESUME_ME] * subject.ranks, script.said()
        assert interrupted < 40, script.said()
    assert script.run.is_complete() and interrupted >= 1, script.said()
    assert script.differences(undisturbed(subject)) == [], script.said()


@of(*ADAPTERS, MANUAL, is_long=True)
def test_notices_at_every_border_of_steps_validations_and_epochs_change_nothing(
    servers, tmp_path, undisturbed, subject
):
    script = make_script(tmp_path / "p", subject)
    strike = {"at": "step.begin", "do": "term", "count": 1}
    for _ in range(subject.steps):
        if script.attempt(servers, strike) == [EXIT_DONE]:
            break
    assert script.run.is_complete(), script.said()
    assert script.differences(undisturbed(subject)) == [], script.said()


@pytest.mark.long
def test_signals_at_random_moments_to_the_whole_group_lose_nothing(servers, tmp_path, undisturbed):
    subject = SUBJECTS[0]
    script, chance, tries = make_script(tmp_path / "p", subject), random.Random(4), 0
    while not script.run.is_complete() and tries < 60:
        (started,) = script.start(servers, workers=2)
        time.sleep(chance.uniform(0.0, 0.25 * 1.05**tries))
        started.kill(chance.choice([signal.SIGTERM, signal.SIGKILL]))
        started.wait()
        tries += 1
    assert script.run.is_complete(), script.said()
    assert script.differences(undisturbed(subject)) == [], script.said()
