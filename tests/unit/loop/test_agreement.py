"""All ranks stop, or save, at the same step, wherever each of them is when the wish comes."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from tasuki.clock import SystemClock
from tasuki.loop.agreement import Decision, SoloAgreement, StoreAgreement
from tasuki.loop.watch import Watch
from tasuki.runs.values import Cause

WITHIN_S = 60.0


class Ranks:
    """Threads that step together: a step begins for all or for none, as in an all-reduce."""

    def __init__(self, world: int, *, save_at: int | None = None) -> None:
        self.save_at = save_at
        self.together = threading.Barrier(world)
        self.steps = [threading.Semaphore(0) for _ in range(world)]
        self.watches = [Watch(None, SystemClock()) for _ in range(world)]
        store = HashStore()
        self.agreements = [
            StoreAgreement(
                lambda: store, name="s", rank=rank, world=world, watch=watch, steps_done=0
            )
            for rank, watch in enumerate(self.watches)
        ]
        self.seen: list[list[tuple[Decision, int]]] = [[] for _ in range(world)]
        self.has_saved = [threading.Event() for _ in range(world)]
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._train, args=(rank,), daemon=True) for rank in range(world)
        ]
        for thread in self.threads:
            thread.start()

    def _train(self, rank: int) -> None:
        step = 0
        try:
            while True:
                decision = self.agreements[rank].begin_step(step)
                if decision is not Decision.GO:
                    self.seen[rank].append((decision, step))
                    if decision is Decision.STOP:
                        return
                    self.has_saved[rank].set()
                    continue
                self.together.wait(WITHIN_S)
                step += 1
                self.steps[rank].release()
                if step == self.save_at and rank == 0:
                    self.agreements[0].want_save()
        except BaseException as error:
            self.errors.append(error)
            self.together.abort()

    def wait_for_steps(self, rank: int, num: int) -> None:
        for _ in range(num):
            assert self.steps[rank].acquire(timeout=WITHIN_S), self.errors

    def give_notice(self, rank: int) -> None:
        self.watches[rank].notice = Cause.PREEMPTED
        self.watches[rank].on_notice()

    def decisions(self) -> list[Decision]:
        """The same of all ranks, at the same steps."""
        for thread in self.threads:
            thread.join(WITHIN_S)
        assert self.errors == []
        assert {tuple(seen) for seen in self.seen} == {tuple(self.seen[0])}
        return [decision for decision, _ in self.seen[0]]


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("num_steps", [0, 1, 20])
def test_every_rank_stops_at_the_same_step_whoever_got_the_notice(world, num_steps):
    ranks = Ranks(world)
    rank = (num_steps + 1) % world
    ranks.wait_for_steps(rank, num_steps)
    ranks.give_notice(rank)
    assert ranks.decisions() == [Decision.STOP]


def test_a_save_by_the_clock_happens_at_one_step_and_a_later_notice_still_stops_all():
    ranks = Ranks(3, save_at=2)
    assert all(saved.wait(WITHIN_S) for saved in ranks.has_saved), ranks.errors
    ranks.give_notice(2)
    assert ranks.decisions() == [Decision.SAVE, Decision.STOP]


def test_one_rank_agrees_with_itself_at_the_next_boundary():
    watch = Watch(None, SystemClock())
    agreement = SoloAgreement(watch)
    assert agreement.begin_step(0) is Decision.GO
    agreement.want_save()
    assert agreement.begin_step(1) is Decision.SAVE
    assert agreement.begin_step(1) is Decision.GO
    watch.notice = Cause.LIMIT
    assert agreement.begin_step(2) is Decision.STOP
