"""What free GPUs take next, and what can never begin; whatever happens, in any order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.errors import StoreError
from tasuki.jobs.items import BLOCKED, Items, is_worth_it
from tasuki.jobs.job import JobOrder, LaneItem, LaneOrder
from tasuki.runs.jobs import JobFolder
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Cause, HandOver, Hold, Leave

DONE, HELD = Leave("done"), Hold("reason", "hint")
AGAIN = HandOver(Cause.PREEMPTED, is_resumed=True)


def job(*lanes: LaneOrder, gpus: int = 4, cpus: int | None = None, **more) -> JobOrder:
    return JobOrder(
        folder=JobFolder(Path("/runs/.jobs/j-01")),
        python="python",
        cwd=Path("/"),
        backend="local",
        limit_s=more.pop("limit_s", None),
        grace_s=60.0,
        requeue=True,
        lanes=lanes,
        gpus=gpus,
        cpus=cpus,
        **more,
    )


def item(number: int, run: str = "", **more) -> LaneItem:
    folder = RunFolder(Path("/runs") / (run or f"r{number}"))
    return LaneItem(folder, None, is_continued=False, number=number, **more)


def lane(*items: LaneItem, gpus: int = 1) -> LaneOrder:
    return LaneOrder(tuple(range(gpus)), items)


def numbers(chosen) -> list[int]:
    return sorted(one.number for one, _ in chosen)


def test_at_the_beginning_as_much_starts_as_there_are_gpus_each_on_its_own():
    items = Items(job(*(lane(item(n, seconds=60)) for n in range(6))))
    chosen = items.to_start(0.0)
    assert len(chosen) == 4
    assert sorted(gpu for _, gpus in chosen for gpu in gpus) == [0, 1, 2, 3]


def test_the_longest_chain_is_not_left_for_the_end():
    chain = [item(n, "long", start_s=100.0 * n, seconds=100) for n in range(3)]
    short = [item(n, seconds=10, start_s=0.0) for n in range(3, 9)]
    items = Items(job(lane(*chain), *(lane(one) for one in short), gpus=2))
    assert 0 in numbers(items.to_start(0.0))


def test_an_item_waits_for_what_it_comes_after_and_for_its_own_run():
    items = Items(
        job(lane(item(0, "a", start_s=0)), lane(item(1, "a", start_s=9)), lane(item(2, after=(1,))))
    )
    assert numbers(items.to_start(0.0)) == [0]
    items.begin(0, (2,), 0.0)
    assert items.to_start(1.0) == []
    items.end(0, DONE)
    assert numbers(items.to_start(2.0)) == [1]
    items.begin(1, (0,), 2.0)
    items.end(1, DONE)
    assert numbers(items.to_start(3.0)) == [2]


@pytest.mark.parametrize("action", [HELD, Leave("cancelled"), Leave("superseded")])
def test_what_comes_after_a_run_that_did_not_end_well_never_begins(action):
    items = Items(job(lane(item(0), item(1, after=(0,)), item(2, after=(1,)), item(3))))
    items.begin(0, (0,), 0.0)
    items.end(0, action)
    assert items.blocked() == {1, 2}
    assert numbers(items.to_start(1.0)) == [3]
    ends = {end.number: end.action for end in items.ends({3: AGAIN})}
    assert ends == {0: action, 1: BLOCKED, 2: BLOCKED, 3: AGAIN}
    items.wait_again(0)  # a person has looked at it, and lets it go on
    assert items.blocked() == set()


def test_what_comes_after_a_handover_waits_and_is_not_blocked():
    items = Items(job(lane(item(0), item(1, after=(0,)))))
    items.begin(0, (0,), 0.0)
    items.end(0, AGAIN)
    assert items.blocked() == set() and items.to_start(1.0) == []


def test_cpus_of_lanes_side_by_side_never_exceed_those_of_the_job():
    items = Items(job(*(lane(item(n, cpus=3)) for n in range(4)), cpus=8))
    assert len(items.to_start(0.0)) == 2


def test_where_there_are_more_slots_than_cpus_all_slots_are_used_all_the_same():
    items = Items(job(*(lane(item(n, cpus=1)) for n in range(4)), cpus=2))
    assert len(items.to_start(0.0)) == 4


def test_a_plan_that_cannot_be_asked_costs_no_more_than_its_advice(monkeypatch):
    items = Items(job(lane(item(0, start_s=5)), lane(item(1, start_s=0)), lane(item(2)), gpus=2))
    monkeypatch.setattr(Items, "_ask_plan", lambda *_: 1 / 0)
    assert numbers(items.to_start(0.0)) == [0, 1]
    assert "ZeroDivisionError" in items.problem


@pytest.mark.parametrize(
    "lanes",
    [
        [lane(item(0)), lane(item(0))],
        [lane(item(0, after=(7,)))],
        [lane(item(0, after=(1,))), lane(item(1, after=(0,)))],
    ],
)
def test_items_that_make_no_sense_are_refused_by_the_name_of_their_file(lanes):
    with pytest.raises(StoreError, match=r"lanes\.json is damaged"):
        Items(job(*lanes))


def test_a_smaller_job_has_cpus_in_proportion_and_enough_for_the_item_that_is_left():
    items = Items(job(lane(item(0, cpus=6)), *(lane(item(n)) for n in (1, 2, 3)), cpus=16))
    ends = items.ends({0: AGAIN, 1: DONE, 2: DONE, 3: DONE})
    assert items.cpus_for(1, ends) == 6
    assert items.cpus_for(2, items.ends({n: AGAIN if n else DONE for n in range(4)})) == 8


@pytest.mark.parametrize(
    ("remaining_s", "seconds", "is_worth"),
    [(None, None, True), (60, None, True), (24, None, False), (24, 10, True), (24, 30, False)],
)
def test_near_the_limit_only_what_can_still_be_done_is_begun(remaining_s, seconds, is_worth):
    order = job(lane(item(0)), limit_s=3600.0, reserve_s=10.0)
    assert is_worth_it(item(0, seconds=seconds), remaining_s=remaining_s, job=order) is is_worth


@st.composite
def jobs(draw):
    """Items of all widths, some of the same run, each after some of those before it."""
    gpus, found = draw(st.integers(1, 5)), []
    for number in range(draw(st.integers(1, 10))):
        before = st.lists(st.integers(0, number - 1), unique=True, max_size=2)
        made = item(
            number,
            draw(st.sampled_from("abcdef")),
            after=tuple(draw(before)) if number else (),
            seconds=draw(st.none() | st.floats(0.1, 1e5)),
            start_s=draw(st.none() | st.floats(0, 1e5)),
            cpus=draw(st.none() | st.integers(1, 9)),
        )
        found.append(lane(made, gpus=draw(st.integers(1, gpus))))
    return job(*found, gpus=gpus, cpus=draw(st.none() | st.integers(1, 12)))


@settings(max_examples=40)
@given(jobs(), st.data())
def test_however_items_end_none_shares_a_gpu_or_comes_too_early_and_none_is_forgotten(order, data):
    items, now, running = Items(order), 0.0, {}
    while True:
        for one, gpus in items.to_start(now):
            assert one.is_waiting and all(items[before].is_done for before in one.after)
            assert len(gpus) == one.width and set(gpus) <= set(items.free_gpus())
            runs = {other.order.run for other in running.values()}
            assert one.order.run not in runs, "two lanes work on one run"
            items.begin(one.number, gpus, now)
            running[one.number] = one
        assert items.problem == ""
        used = sum(one.cpus for one in running.values())
        assert order.cpus is None or used <= max(order.cpus, order.gpus)
        if not running:
            break
        number = data.draw(st.sampled_from(sorted(running)))
        items.end(number, data.draw(st.sampled_from([DONE, DONE, DONE, HELD])))
        del running[number]
        now += data.draw(st.floats(0.01, 1e4))
    left = {one.number for one in items if one.is_waiting}
    assert left == items.blocked(), "it could have begun"


def test_a_job_starts_without_what_only_some_jobs_or_later_moments_need():
    code = (
        "import sys, tasuki.jobs.__main__, tasuki.jobs.loop\n"
        "assert not [m for m in sys.modules if m.startswith('tasuki.planning')]\n"
        "assert not {'psutil', 'pynvml', 'tasuki.runs.machine'} & set(sys.modules)\n"
        "import tasuki.jobs.packed, tasuki.planning.packing.repack\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0
