"""Who hangs is found and ended; who may take its time, or was stopped with us, is left alone."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tasuki.jobs.phase import Phase, Rank, make_wires
from tasuki.jobs.pulse import Pulse, awake_s, find_culprit, is_hung, state_of
from tasuki.runs.values import Cause, Ending


def pulse(rank: int = 0, *, silent_s: float, limit_s: float | None = 600.0, state="S") -> Pulse:
    return Pulse(rank=rank, silent_s=silent_s, limit_s=limit_s, step=7, state=state, doing="train")


@pytest.mark.parametrize(
    ("silences", "expected"),
    [
        ([(10.0, 600.0)], False),
        ([(600.0, 600.0)], False),
        ([(600.1, 600.0)], True),
        ([(1e9, None)], False),
        ([(10.0, 600.0), (601.0, 600.0)], True),
        ([(0.0, None), (601.0, 600.0)], False),  # it waits for one that validates
        ([(601.0, 600.0), (601.0, 3600.0)], True),
        ([], False),
    ],
)
def test_a_phase_hangs_when_one_is_silent_for_too_long_and_all_have_a_limit(silences, expected):
    pulses = [pulse(n, silent_s=s, limit_s=limit) for n, (s, limit) in enumerate(silences)]
    assert is_hung(pulses) == expected


def test_the_culprit_is_the_one_that_is_stopped_else_the_one_that_is_silent_for_longest():
    waiting, longest = pulse(0, silent_s=601.0), pulse(1, silent_s=602.0)
    stopped = pulse(2, silent_s=600.5, state="T")
    assert find_culprit([waiting, longest, stopped]) is stopped
    assert find_culprit([waiting, longest]) is longest


def test_a_hang_is_told_with_rank_time_step_and_state():
    told = pulse(2, silent_s=612.3, state="T").describe()
    assert "rank 2 said nothing for 612 s at step 7" in told
    assert "stopped by a signal" in told and "the limit was 600 s" in told


@pytest.mark.parametrize(
    ("before", "now", "passed"),
    [
        (10.0, 10.25, 0.25),
        (10.0, 3610.0, 2.0),  # we were stopped, or a clock jumped
        (10.0, -3590.0, 0.0),
    ],
)
def test_time_counts_as_silence_only_while_the_supervisor_itself_was_awake(before, now, passed):
    assert awake_s(before, now) == passed


class Sleeper:
    """A process that does nothing, in the place of a rank."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["sleep", "600"],
            # Whoever starts the tests in the background may have SIGQUIT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGQUIT, signal.SIG_DFL),  # noqa: PLW1509
        )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()


@pytest.fixture
def phase():
    made = []

    def make(ranks: int) -> Phase:
        wires = [make_wires() for _ in range(ranks)]
        sleepers = [Rank(n, Sleeper(), wire) for n, (wire, _) in enumerate(wires)]
        made.append((Phase("train", "one", sleepers, grace_s=9.0), [theirs for _, theirs in wires]))
        return made[-1][0]

    yield make
    for one, others in made:
        one.kill()
        for rank in one.ranks:
            rank.process.wait()
        one.close()
        for theirs in others:
            theirs.close()


def pass_time(phase: Phase, seconds: float, *, since: float) -> tuple[float, Pulse | None]:
    """In turns of a second, as the loop does in quarters. (now, who hangs)"""
    now = since
    while now < since + seconds:
        now += 1.0
        if (hung := phase.tick(now)) is not None:
            return now, hung
    return now, None


def step(phase: Phase, rank: int, *, limit_s: float | None = 600.0) -> None:
    message = {"kind": "step", "step": 70, "total": 99, "limit_s": limit_s}
    phase.on_message(message, phase.ranks[rank])


def test_silent_ranks_write_their_stacks_are_killed_and_the_phase_has_failed(phase):
    made = phase(2)
    step(made, 0)
    step(made, 1)
    now, hung = pass_time(made, 300.0, since=0.0)
    assert hung is None
    step(made, 1)
    now, hung = pass_time(made, 400.0, since=now)
    assert hung is not None and (hung.rank, hung.step) == (0, 70)
    assert now == 602.0  # counted from the second turn
    # SIGQUIT is what lets a rank write its stacks; these have no handler for it and die.
    assert [rank.process.wait() for rank in made.ranks] == [-signal.SIGQUIT] * 2
    made.reap(now)
    end = made.ending()
    assert (end.ending, end.cause) == (Ending.FAILED, Cause.NONE)
    assert "rank 0 said nothing for 601 s at step 70" in end.message
    assert "stacks of all ranks are in their .err logs" in end.message
    assert pass_time(made, 5.0, since=now)[1] is None  # told once


def test_a_stopped_rank_is_killed_though_it_cannot_write_its_stacks(phase):
    made = phase(2)
    stopped = made.ranks[1].process
    subprocess.run(["kill", "-STOP", str(stopped.pid)], check=True)
    until = time.monotonic() + 60
    while state_of(stopped.pid) != "T":
        assert time.monotonic() < until
    step(made, 0)
    step(made, 1)
    now, hung = pass_time(made, 700.0, since=0.0)
    assert hung is not None and (hung.rank, hung.state) == (1, "T")
    pass_time(made, 2.0, since=now)
    assert stopped.wait() == -signal.SIGKILL


def test_nobody_hangs_before_all_have_said_a_limit_nor_while_one_validates(phase):
    made = phase(2)
    now, hung = pass_time(made, 5000.0, since=0.0)  # start-up
    step(made, 0)
    step(made, 1)
    made.on_message({"kind": "phase", "phase": "validate", "limit_s": None}, made.ranks[0])
    now, hung = pass_time(made, 5000.0, since=now)
    assert hung is None
    made.on_message({"kind": "phase", "phase": "train", "limit_s": 600.0}, made.ranks[0])
    now, hung = pass_time(made, 590.0, since=now)
    assert hung is None  # rank 1 waited all the time: that is not its silence


def test_a_jump_of_an_hour_at_every_look_ends_nobody(phase):
    made = phase(1)
    step(made, 0)
    for turn in range(50):
        assert made.tick(turn + (3600.0 if turn % 2 else -3600.0)) is None
    step(made, 0)


def test_a_signal_that_came_to_one_rank_is_passed_on_to_the_others_once_nobody_else_told_them(
    phase,
):
    made = phase(3)
    heard = []
    for rank in made.ranks:
        rank.wire.send = lambda kind, number=rank.number, **facts: heard.append((number, facts))
    made.on_message({"kind": "signalled"}, made.ranks[1])
    assert [number for number, _ in heard] == [0, 2]
    assert {facts["remaining_s"] for _, facts in heard} == {9.0}
    made.notice = Cause.LIMIT
    made.on_message({"kind": "signalled"}, made.ranks[2])
    assert len(heard) == 2
    made.on_message({"kind": "publishing"}, made.ranks[2])
    assert [number for number, _ in heard[2:]] == [0, 1]


class Gone:
    pid = 1 << 30  # nobody

    def __init__(self, status: int) -> None:
        self.status = status

    def poll(self) -> int:
        return self.status


def test_a_rank_that_stays_when_another_has_handed_over_is_killed_in_the_end(phase):
    made = phase(2)
    left = made.ranks[0].process
    made.ranks[0].process = Gone(75)
    left_wire = made.ranks[0].wire
    assert left_wire is not None
    made.reap(0.0)
    made.tick(59.0)
    assert made.ranks[1].process.poll() is None
    made.tick(60.0)
    assert made.ranks[1].process.wait() == -signal.SIGKILL
    made.ranks[0].process = left  # for the fixture to end
    made.ranks[0].status = None
