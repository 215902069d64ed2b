"""However many ask for the queue, the controller is asked once in a while; its silence is said."""

from __future__ import annotations

import pytest

from tasuki.slurm.client import Answer, Slurm, SlurmSilent
from tasuki.slurm.queue import forget_queue, read_queue
from tasuki.testing import FakeClock

LINE = "17|PENDING|Priority|low|N/A|N/A|tasuki p-01\n"


class Counting:
    """A controller that counts how often it is asked, and may be away."""

    def __init__(self) -> None:
        self.asked, self.is_away = 0, False

    def __call__(self, command, environment, within_s):
        self.asked += 1
        if self.is_away:
            return Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller")
        return Answer(0, LINE, "")


@pytest.fixture
def controller():
    return Counting()


@pytest.fixture
def ask(controller, tmp_path):
    clock = FakeClock()

    def ask(user: str = "1000", after_s: float = 0.0):
        clock.sleep(after_s)
        slurm = Slurm(environment={}, clock=clock, run=controller, tries=1)
        return read_queue(slurm, tmp_path, user=user, clock=clock)

    return ask


def test_who_asks_again_within_15_seconds_hears_the_same_without_a_question(ask, controller):
    told = [ask(), *(ask(after_s=0.1) for _ in range(100))]
    assert controller.asked == 1
    assert {queue.jobs[0].number for queue in told} == {"17"}
    ask(after_s=15)
    assert controller.asked == 2


def test_after_a_submission_the_next_who_asks_hears_of_it(ask, controller, tmp_path):
    ask()
    forget_queue(tmp_path, "1000")
    ask()
    assert controller.asked == 2


def test_while_the_controller_is_away_the_last_answer_is_shown_with_its_age(ask, controller):
    first = ask()
    controller.is_away = True
    late = ask(after_s=60)
    assert late.jobs == first.jobs and late.at == first.at
    assert "Unable to contact" in late.problem


def test_where_nothing_was_ever_heard_its_silence_is_an_error(ask, controller):
    controller.is_away = True
    with pytest.raises(SlurmSilent):
        ask()


def test_users_who_share_a_folder_have_queues_of_their_own(ask, controller):
    ask("1000")
    ask("1001")
    assert controller.asked == 2
