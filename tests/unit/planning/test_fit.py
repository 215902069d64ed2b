"""Which way to do a step of fixed size is taken, and what the others are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasuki.planning.fit import LEAST_EFFICIENCY, Candidate, choose, efficiency

GB = 10**9


def way(micro: int, times: int, *, again: Any = False, gpus: int = 1, **more: Any) -> Candidate:
    """Of a step of 16 samples: each takes 1 GB and 10 ms, each micro-batch 5 ms; computing anew
    takes a fifth of the memory and a third more time."""
    seconds = times * (micro * 0.01 + 0.005) * (4 / 3 if again else 1)
    needs = 2 * GB + micro * GB // (5 if again else 1)
    values = {"peak_bytes": needs, "step_s": seconds, "wall_s": 100 * seconds, **more}
    return Candidate(
        gpus=gpus, gradient_checkpointing=again, micro_batch=micro, accumulation=times, **values
    )


def ways(gpus: int = 1) -> list[Candidate]:
    share = 16 // gpus
    micros = [m for m in (16, 8, 4, 2, 1) if m <= share]
    return [way(m, share // m, again=a, gpus=gpus) for a in (False, True) for m in micros]


def reasons(choice) -> dict[tuple[int, bool], str]:
    return {
        (one.candidate.micro_batch, one.candidate.gradient_checkpointing): one.reason
        for one in choice.lost
    }


def test_the_fastest_that_fits_is_taken_and_each_other_says_why_it_lost():
    found = choose(ways(), capacity=7 * GB)
    assert found.chosen == way(4, 4) and found.does_fit
    assert found.reason == "the fastest of 8 that fit"
    told = reasons(found)
    assert told[16, False] == "does not fit: needs 18 GB of 7 GB"
    assert told[2, False] == "1.1 × as slow: more micro-batches"
    assert told[8, True] == "1.3 × as slow: recomputes activations"
    assert told[1, True] == "1.8 × as slow: recomputes activations and more micro-batches"
    assert len(told) == len(ways()) - 1


def test_checkpointing_is_taken_where_nothing_else_fits():
    found = choose(ways(), capacity=2 * GB + GB // 2)
    assert found.chosen == way(2, 8, again=True)


def test_where_nothing_fits_the_one_that_needs_least_is_told_as_such():
    found = choose(ways(), capacity=GB)
    assert found.chosen == way(1, 16, again=True) and not found.does_fit
    assert found.reason == "needs least: nothing fits: needs 2.2 GB of 1 GB"


def test_room_that_the_safety_factor_keeps_is_not_used():
    large = replace(way(8, 2), is_within=False)
    found = choose([large, way(4, 4)], capacity=40 * GB)
    assert found.chosen == way(4, 4)
    assert found.lost[0].reason == "`safety_factor` keeps more free: needs 10 GB of 40 GB"


def test_equal_times_go_to_fewer_micro_batches_then_to_no_checkpointing():
    same = [replace(one, step_s=1.0) for one in ways()]
    found = choose(same, capacity=None)
    assert (found.chosen.micro_batch, found.chosen.gradient_checkpointing) == (16, False)
    told = reasons(found)
    assert told[16, True] == "same speed, recomputes activations"
    assert told[4, False] == "same speed, more micro-batches"
    alike = [way(4, 4, peak_bytes=2 * GB), way(4, 4, peak_bytes=GB)]
    found = choose(alike, capacity=None)
    assert found.chosen.peak_bytes == GB and found.lost[0].reason == "same speed, more memory"


def test_what_the_spec_gives_stays_and_a_gain_is_pointed_out():
    given_way = way(1, 16, again=True)
    others = [
        replace(one, against="`gradient_checkpointing: true`") for one in ways() if one != given_way
    ]
    found = choose([given_way, *others], capacity=7 * GB)
    assert found.chosen == given_way and found.reason == "as the spec gives it"
    assert found.better is not None and found.better.micro_batch == 4
    told = found.as_json(capacity=7 * GB)["gain"]
    assert told["words"] == (
        "1 × 16 with checkpointing → 4 × 4 without checkpointing: 1.8 × as fast"
    )
    assert reasons(found)[4, False] == (
        "1.8 × as fast, but the spec gives `gradient_checkpointing: true`"
    )


def test_more_gpus_are_taken_while_each_is_worth_it():
    """Each further number of ranks costs 20 ms: of 2, 4 and 8 GPUs each does 91, 73 and 50 %."""
    slow = {1: 0.16, 2: 0.088, 4: 0.055, 8: 0.04}
    found = choose(
        [way(16 // n, 1, gpus=n, step_s=slow[n]) for n in slow], capacity=None, is_open=True
    )
    assert found.chosen.gpus == 4
    assert found.reason == "the most GPUs that are worth it: each does 73% of what one would"
    told = {one.candidate.gpus: one.reason for one in found.lost}
    assert told[8] == "each GPU does 50% of what one would, less than 70%"
    assert told[1] == "2.9 × as slow: fewer GPUs"


def test_gpus_are_worth_it_against_the_fewest_on_which_it_fits():
    found = choose([*ways(1), *ways(2), *ways(4)], capacity=2 * GB + GB // 4, is_open=True)
    assert found.chosen.gpus == 4 and found.chosen.recomputes and found.does_fit


def test_without_times_nothing_is_recomputed_that_fits_without():
    unknown = [replace(one, step_s=None, wall_s=None) for one in ways()]
    found = choose(unknown, capacity=7 * GB)
    assert (found.chosen.micro_batch, found.chosen.gradient_checkpointing) == (4, False)
    many = [replace(one, step_s=None) for one in [*ways(1), *ways(4)]]
    assert choose(many, capacity=7 * GB, is_open=True).chosen.gpus == 1


def candidates(gpus: st.SearchStrategy[int]) -> st.SearchStrategy[list[Candidate]]:
    one = st.builds(
        Candidate,
        gpus=gpus,
        gradient_checkpointing=st.sampled_from([False, True, 2, ("encoder",)]),
        micro_batch=st.integers(1, 64),
        accumulation=st.integers(1, 64),
        peak_bytes=st.integers(1, 100),
        step_s=st.floats(1e-3, 1e3),
        is_within=st.booleans(),
        against=st.sampled_from(["", "`micro_batch: 4`"]),
    )
    own = st.builds(
        Candidate,
        gpus=gpus,
        gradient_checkpointing=st.just(False),
        micro_batch=st.just(1),
        accumulation=st.just(1),
        peak_bytes=st.integers(1, 100),
        step_s=st.floats(1e-3, 1e3),
    )
    return st.builds(lambda first, more: [first, *more], own, st.lists(one, max_size=6))


@given(candidates(st.just(2)), st.integers(0, 100), st.integers(0, 100))
def test_more_memory_never_gives_a_slower_choice(every, capacity, more):
    small = choose(every, capacity=capacity)
    large = choose(every, capacity=capacity + more)
    assert small.does_fit <= large.does_fit
    if small.does_fit:
        assert large.chosen.step_s <= small.chosen.step_s


@given(candidates(st.sampled_from([1, 2, 4, 8])), st.integers(0, 100), st.booleans())
def test_what_is_chosen_fits_where_anything_does_and_every_other_has_a_reason(
    every, capacity, is_open
):
    found = choose(every, capacity=capacity, is_open=is_open)
    allowed = [one for one in every if not one.against]
    assert found.chosen in allowed
    assert found.does_fit == any(one.fits(capacity) for one in allowed)
    assert found.chosen.fits(capacity) == found.does_fit
    assert len(found.lost) == len(every) - 1 and all(one.reason for one in found.lost)
    rows = found.as_json(capacity=capacity)
    assert rows["chosen"]["fits"] == found.does_fit
    assert choose(every, capacity=capacity, is_open=is_open) == found


@given(candidates(st.sampled_from([1, 2, 4, 8])), st.integers(0, 100))
def test_every_gpu_that_is_chosen_is_worth_it(every, capacity):
    found = choose(every, capacity=capacity, is_open=True)
    fitting = [one for one in every if not one.against and one.fits(capacity)]
    if not fitting:
        return
    few = min(one.gpus for one in fitting)
    best = min((one for one in fitting if one.gpus == few), key=lambda one: one.step_s)
    worth = efficiency(best, found.chosen)
    assert worth is not None and worth >= LEAST_EFFICIENCY
