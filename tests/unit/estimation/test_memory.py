"""What a card must hold, each part with its source, and the largest batch that fits it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.estimation.allocator import MIB
from tasuki.estimation.gpus import find_gpu
from tasuki.estimation.memory import (
    Beside,
    Figure,
    beside_on,
    cost_budget,
    largest_batch,
    largest_by,
    needs_of,
)
from tasuki.estimation.probes import read_probe
from tests.unit.estimation.probe_values import probe_value, probe_values, small_value

NOTHING = Figure(0, "none")
BARE = Beside(context=NOTHING, workspaces=NOTHING, communication=NOTHING, margin=0.0)
"""Nothing but the allocator."""
SMALL = read_probe(small_value(scale=MIB // 100))
"""Weights and gradients 10 MiB each, activations 1 MiB per sample."""


def test_a_card_holds_what_is_reserved_and_what_lies_beside_it_and_a_margin():
    needs = needs_of(SMALL, batch=32, size=0, beside=Beside())
    assert needs.tensors.bytes == SMALL.peak(batch=32, size=0)
    # Pages of 20 MiB under 10 + 3.2 + 32 + 10 MiB.
    assert needs.reserved.bytes == 60 * MIB
    beside = 512 * MIB + 64 * MIB
    assert (needs.exchange.bytes, needs.context.bytes) == (0, 512 * MIB)
    assert needs.margin.bytes == -(-(60 * MIB + beside) // 10)
    assert needs.peak_bytes == 60 * MIB + beside + needs.margin.bytes
    assert needs.headroom(needs.peak_bytes - 7) == -7


def test_every_figure_says_where_it_comes_from():
    sources = needs_of(SMALL, batch=8, beside=replace(Beside(), ranks=2)).sources
    assert sources == {
        "tensors": "traced, fitted allocation by allocation (checked at batch 5: +0.00%)",
        "reserved": "simulated allocator, growing segments, 2 steps",
        "context": "assumed",
        "workspaces": "assumed",
        "exchange": "DDP's copy of the gradients, traced; buffers, assumed",
        "margin": "10%, assumed",
    }


def test_several_ranks_hold_a_copy_of_the_gradients():
    alone = needs_of(SMALL, batch=8, beside=BARE)
    together = needs_of(SMALL, batch=8, beside=replace(BARE, ranks=4))
    assert alone.exchange.bytes == 0
    assert together.exchange.bytes == SMALL.most_of("gradients", batch=8, size=0)
    assert together.peak_bytes - alone.peak_bytes == together.exchange.bytes


def test_a_copy_of_the_gradients_that_was_traced_is_not_counted_twice():
    events = [[1, 0, 30 * MIB], [2, 1, 30 * MIB], [3, 3, 0, MIB], [4, 1, 30 * MIB], [-3], [-4]]
    probe = read_probe(probe_value(events, begin=2))
    needs = needs_of(probe, batch=8, beside=replace(Beside(), ranks=4))
    assert needs.exchange == replace(
        Beside().communication,
        source="buffers, assumed; DDP's copy of the gradients is among the tensors",
    )
    given_back = read_probe(probe_value([*events[:2], [-2], *events[2:]], begin=2))
    assert given_back.kept_of("gradients", batch=8, size=0) == 0, "of the step before"


def test_the_second_step_finds_what_the_first_one_left_lying_about():
    """A step that begins with its largest tensor takes a hole that its second one needs."""
    mib = MIB
    step = [[2, 3, 30 * mib], [-2], [3, 3, 50 * mib], [4, 3, 25 * mib], [-3], [-4]]
    probe = read_probe(probe_value([[1, 0, 10 * mib], *step], begin=1))
    needs = needs_of(probe, batch=1, beside=replace(BARE, grows=False))
    assert needs.sources["reserved"] == "simulated allocator, fixed segments, 2 steps"
    assert needs.reserved.bytes == (10 + 30 + 50) * mib
    kept = read_probe(probe_value([[1, 0, 10 * mib], *step[:-1]], begin=1))
    assert needs_of(kept, batch=1, beside=BARE).sources["reserved"].endswith("1 step")


def test_traces_that_did_not_align_get_a_wider_margin_and_say_so():
    value = small_value(scale=MIB // 100, is_exact=False, secant=[30 * MIB, MIB, 0, 0, 0, 0])
    needs = needs_of(read_probe(value), batch=8, beside=Beside())
    assert needs.sources["margin"] == "25%, assumed, as the traces did not align"
    assert "may be too low beyond" in needs.sources["tensors"]
    learnt = replace(Beside(), margin=0.3, margin_source="learnt")
    assert needs_of(read_probe(value), batch=8, beside=learnt).sources["margin"] == "30%, learnt"


def test_a_cpu_has_no_context_no_cache_and_only_the_margin():
    needs = needs_of(SMALL, batch=8, beside=beside_on(find_gpu("cpu").gpu))
    assert needs.reserved.bytes == needs.tensors.bytes
    assert needs.peak_bytes == needs.tensors.bytes + needs.margin.bytes
    assert not beside_on(find_gpu("a100-40gb").gpu, ranks=2).is_cpu


def test_where_not_even_one_sample_fits_it_is_said_by_how_much():
    events = [[1, 0, 1000 * MIB], [2, 3, 0, 100 * MIB], [-2]]
    probe = read_probe(probe_value(events, begin=1))
    found = largest_batch(probe, capacity=100 * MIB, beside=Beside())
    assert (found.batch, found.needs.batch) == (0, 1)
    exactly = found.needs.peak_bytes
    assert found.missing_bytes == exactly - 100 * MIB > 0
    assert largest_batch(probe, capacity=exactly, beside=Beside()).batch == 1
    missing = largest_batch(probe, capacity=exactly - 1, beside=Beside())
    assert (missing.batch, missing.missing_bytes) == (0, 1)


def test_the_largest_batch_by_hand():
    """10 MiB weights, 1.1 MiB per sample, 10 MiB gradients, on pages of 20 MiB."""
    found = largest_batch(SMALL, capacity=100 * MIB, beside=BARE)
    # 72 samples: 10 + 7.2 + 72 + 10 = 99.2 MiB; the 73rd would need a sixth page.
    assert (found.batch, found.missing_bytes) == (72, 0)
    assert found.needs.reserved.bytes == 100 * MIB


def test_memory_that_does_not_grow_gives_the_most_that_is_asked_for():
    probe = read_probe(probe_value([[1, 0, 5 * MIB]], begin=1))
    assert largest_batch(probe, capacity=2**40, beside=BARE, most=77).batch == 77


@given(probe_values(), st.integers(0, 30_000), st.integers(0, 12))
@settings(max_examples=30)
def test_the_largest_batch_of_tensors_is_the_one_that_trying_all_finds(value, capacity, size):
    probe = read_probe(value)
    tried = [b for b in range(1, 101) if probe.peak(batch=b, size=size) <= capacity]
    found = largest_by(lambda b: probe.peak(batch=b, size=size) <= capacity, most=100)
    assert found == max(tried, default=0) == len(tried)


@given(
    probe_values(scale=2000),
    st.integers(1, 400),
    st.integers(0, 8),
    st.sampled_from([BARE, replace(BARE, grows=False), replace(BARE, margin=0.1, ranks=2)]),
)
@settings(max_examples=20)
def test_the_largest_batch_fits_and_the_next_one_does_not(value, capacity, size, beside):
    probe, capacity = read_probe(value), capacity * MIB
    found = largest_batch(probe, capacity=capacity, size=size, beside=beside, most=4000)

    def peak(batch: int) -> int:
        return needs_of(probe, batch=batch, size=size, beside=beside).peak_bytes

    assert found.needs.peak_bytes == peak(max(1, found.batch))
    if found.batch:
        assert peak(found.batch) <= capacity and found.missing_bytes == 0
    else:
        assert found.missing_bytes == peak(1) - capacity
    assert found.batch == 4000 or peak(found.batch + 1) > capacity


@given(probe_values(scale=1000), st.integers(1, 40), st.integers(0, 20), st.integers(1, 4))
@settings(max_examples=20)
def test_the_parts_add_up_to_what_the_card_must_hold(value, batch, size, ranks):
    probe = read_probe(value)
    needs = needs_of(probe, batch=batch, size=size, beside=replace(Beside(), ranks=ranks))
    assert sum(needs.breakdown.values()) == needs.peak_bytes
    assert sum(needs.kinds.values()) == needs.tensors.bytes <= needs.reserved.bytes
    assert all(count > 0 for count in needs.breakdown.values())


@pytest.mark.parametrize("power", [1, 2])
def test_a_micro_batch_within_the_cost_budget_fits_at_every_size(power):
    # 0.01 MiB times n for each sample beside its 1.1 MiB.
    sizes, capacity = (50, 200, 800), 200 * MIB
    budget = cost_budget(SMALL, capacity=capacity, sizes=sizes, beside=BARE, power=power)
    per_size = {
        size: largest_batch(SMALL, capacity=capacity, size=size, beside=BARE).batch
        for size in sizes
    }
    assert all(budget // size**power <= per_size[size] for size in sizes)
    assert budget == min(per_size[size] * size**power for size in sizes)
    too_large = cost_budget(SMALL, capacity=capacity, sizes=(10**6,), beside=BARE)
    assert too_large == 0
    assert cost_budget(SMALL, capacity=capacity, sizes=(50, 10**6), beside=BARE) == (
        per_size[50] * 50
    )
