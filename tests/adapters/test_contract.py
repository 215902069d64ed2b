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
    SUBJECTS,
    Script,
    Subject,
    make_script,
)

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.claims import list_claims

pytestmark = pytest.mark.timeout(180)
EVERY = [pytest.param(s, marks=[pytest.mark.long] if s.is_slow else []) for s in SUBJECTS]
LONG = [pytest.param(one, marks=pytest.mark.long) for one in [*ADAPTERS, *ADAPTERS_OF_RANKS]]


@pytest.fixture(scope="module")
def warm(servers):
    """Processes that fork scripts, with the subject's framework imported already."""
    return servers


@pytest.fixture(scope="module")
def undisturbed(warm, tmp_path_factory):
    """Each subject once, to its end in one go."""
    known: dict[str, Script] = {}

    def make(subject: Subject) -> Script:
        if subject.name not in known:
            script = make_script(tmp_path_factory.mktemp("whole") / "p", subject)
            assert script.attempt(warm) == [EXIT_DONE] * subject.ranks, script.said()
            assert script.run.is_complete(), script.said()
            known[subject.name] = script
        return known[subject.name]

    return make


def has_all_steps(script: Script) -> bool:
    return max(found.step for found in list_checkpoints(script.run)) >= script.subject.steps


def disturb(warm, script: Script, chance: random.Random, *, kinds: tuple[str, ...]) -> int:
    """Start it until it is done, and interrupt it at random steps; how often that was."""
    interrupted, subject = 0, script.subject
    while not script.run.is_complete():
        most = max(2, subject.steps // 3)
        at = chance.choice(["step.begin", "step.done"])
        strike = {"at": at, "do": chance.choice(kinds), "count": chance.randint(1, most)}
        if strike["do"] == "term":  # a kill takes all: who starts ranks ends the others
            strike["rank"] = chance.randrange(subject.ranks)
            strike["seconds"] = 0.2 if subject.ranks > 1 else 0.0  # steps wait until all have heard
        statuses = script.attempt(warm, strike, workers=chance.choice(subject.workers))
        if all(status == EXIT_DONE for status in statuses):
            break
        interrupted += 1
        # One that comes after the last step may find some ranks gone, with all saved.
        if strike["do"] == "term" and not has_all_steps(script):
            assert statuses == [EXIT_RESUME_ME] * subject.ranks, script.said()
        assert interrupted < 40, script.said()
    assert script.run.is_complete(), script.said()
    return interrupted


@pytest.mark.parametrize("subject", [*EVERY, *LONG], ids=str)
def test_preempted_again_and_again_it_ends_bit_for_bit_as_if_undisturbed(
    warm, tmp_path, undisturbed, subject
):
    script = make_script(tmp_path / "p", subject)
    assert disturb(warm, script, random.Random(subject.name), kinds=("term",)) >= 2
    assert script.differences(undisturbed(subject)) == [], script.said()


@pytest.mark.parametrize(
    "subject",
    [pytest.param(s, marks=() if s is SUBJECTS[0] else pytest.mark.long) for s in SUBJECTS] + LONG,
    ids=str,
)
def test_killed_and_preempted_by_turns_it_ends_bit_for_bit_as_if_undisturbed(
    warm, tmp_path, undisturbed, subject
):
    script = make_script(tmp_path / "p", subject)
    assert disturb(warm, script, random.Random(subject.name), kinds=("term", "kill")) >= 2
    assert script.differences(undisturbed(subject)) == [], script.said()


@pytest.mark.parametrize("subject", [*EVERY, *ADAPTERS], ids=str)
def test_a_notice_commits_the_step_that_was_done_and_exits_75(warm, tmp_path, subject):
    script = make_script(tmp_path / "p", subject)
    strike = {"at": "step.done", "do": "term", "count": 5, "rank": 0, "seconds": 0.5}
    assert script.attempt(warm, strike) == [EXIT_RESUME_ME] * subject.ranks, script.said()
    newest = max(found.step for found in list_checkpoints(script.run))
    assert newest >= 5, script.said()
    if subject.ranks == 1:  # several agree on a step, which takes some
        assert newest <= 6, script.said()
    (end,) = read_attempt_ends(script.run).values()
    assert end is not None and end["ending"] == "handed-over" and end["has_progressed"]


@pytest.mark.parametrize("subject", [*EVERY, *LONG], ids=str)
def test_typed_again_when_it_is_complete_it_ends_at_once(warm, undisturbed, subject):
    script = undisturbed(subject)
    claims = list_claims(script.run)
    assert script.attempt(warm) == [EXIT_DONE] * subject.ranks, script.said()
    assert list_claims(script.run) == claims
    assert "is complete" in script.said()


@pytest.mark.long
def test_signals_at_random_moments_to_the_whole_group_lose_nothing(warm, tmp_path, undisturbed):
    subject = SUBJECTS[0]
    script, chance, tries = make_script(tmp_path / "p", subject), random.Random(4), 0
    while not script.run.is_complete() and tries < 60:
        (started,) = script.start(warm, workers=2)
        time.sleep(chance.uniform(0.0, 0.25 * 1.05**tries))
        started.kill(chance.choice([signal.SIGTERM, signal.SIGKILL]))
        started.wait()
        tries += 1
    assert script.run.is_complete(), script.said()
    assert script.differences(undisturbed(subject)) == [], script.said()
