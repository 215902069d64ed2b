"""All ranks stop, or save, at the same step, wherever each of them is when the wish comes."""

from __future__ import annotations

import random
import threading
import time

import pytest
from torch.distributed import HashStore

from tasuki.clock import SystemClock
from tasuki.loop.agreement import Decision, SoloAgreement, StoreAgreement
from tasuki.loop.watch import Watch
from tasuki.runs.values import Cause


class Ranks:
    """Threads that step together: a step begins for all or for none, as in an all-reduce."""

    def __init__(self, world: int, seed: int) -> None:
        self.world = world
        self.chance = [random.Random(f"{seed}/{rank}") for rank in range(world)]
        self.together = threading.Barrier(world)
        self.watches = [Watch(None, SystemClock()) for _ in range(world)]
        store = HashStore()
        self.agreements = [
            StoreAgreement(
                lambda: store, name="s", rank=rank, world=world, watch=watch, steps_done=0
            )
            for rank, watch in enumerate(self.watches)
        ]
        self.seen: list[list[tuple[Decision, int]]] = [[] for _ in range(world)]
        self.errors: list[BaseException] = []

    def run(self, rank: int, *, save_at: int | None) -> None:
        step = 0
        try:
            while True:
                time.sleep(self.chance[rank].uniform(0, 0.002))
                decision = self.agreements[rank].begin_step(step)
                if decision is not Decision.GO:
                    self.seen[rank].append((decision, step))
                    if decision is Decision.STOP:
                        return
                    continue
                self.together.wait(timeout=5)
                step += 1
                if step == save_at and rank == 0:
                    self.agreements[0].want_save()
        except BaseException as error:
            self.errors.append(error)

    def give_notice(self, rank: int) -> None:
        self.watches[rank].notice = Cause.PREEMPTED
        self.watches[rank].on_notice()


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_every_rank_stops_at_the_same_step_whoever_got_the_notice(world, seed):
    ranks = Ranks(world, seed)
    threads = [
        threading.Thread(target=ranks.run, args=(rank,), kwargs={"save_at": None}, daemon=True)
        for rank in range(world)
    ]
    for thread in threads:
        thread.start()
    time.sleep(random.Random(seed).uniform(0, 0.02))
    ranks.give_notice(seed % world)
    for thread in threads:
        thread.join(timeout=20)
    assert ranks.errors == []
    assert {tuple(seen) for seen in ranks.seen} == {tuple(ranks.seen[0])}
    assert [decision for decision, _ in ranks.seen[0]] == [Decision.STOP]


@pytest.mark.parametrize("seed", range(6))
def test_a_save_by_the_clock_happens_at_one_step_and_a_later_notice_still_stops_all(seed):
    ranks = Ranks(3, seed)
    threads = [
        threading.Thread(target=ranks.run, args=(rank,), kwargs={"save_at": 2}, daemon=True)
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while not all(ranks.seen) and time.monotonic() < until:
        time.sleep(0.001)
    ranks.give_notice(2)
    for thread in threads:
        thread.join(timeout=20)
    assert ranks.errors == []
    assert {tuple(seen) for seen in ranks.seen} == {tuple(ranks.seen[0])}
    assert [decision for decision, _ in ranks.seen[0]] == [Decision.SAVE, Decision.STOP]


def test_one_rank_agrees_with_itself_at_the_next_boundary():
    watch = Watch(None, SystemClock())
    agreement = SoloAgreement(watch)
    assert agreement.begin_step(0) is Decision.GO
    agreement.want_save()
    assert agreement.begin_step(1) is Decision.SAVE
    assert agreement.begin_step(1) is Decision.GO
    watch.notice = Cause.LIMIT
    assert agreement.begin_step(2) is Decision.STOP
