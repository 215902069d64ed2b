"""What a node must hold, and what to ask for after a kill."""

from __future__ import annotations

import pytest

from tasuki.estimation.host import GIB, HostFacts, host_needs, next_memory, to_ask_for

MIB = 1 << 20


def needs(**facts):
    known = {"import_bytes": 300 * MIB, "data_bytes": 0, "batch_bytes": 0, "state_bytes": 0}
    return host_needs(HostFacts(**{**known, **facts}))


def test_the_parts_of_the_hosts_memory_add_up_to_what_is_recommended():
    found = needs(data_bytes=GIB, batch_bytes=10 * MIB, state_bytes=GIB, workers=3, ranks=2)
    assert sum(found.breakdown.values()) == found.total
    assert set(found.breakdown) == set(found.sources)
    assert found.breakdown["save buffers"] == 2 * 2 * GIB, "two buffers of each of two ranks"


def test_each_worker_may_hold_a_copy_of_the_data_and_the_batches_it_is_ahead():
    alone = needs(data_bytes=GIB, batch_bytes=100 * MIB)
    helped = needs(data_bytes=GIB, batch_bytes=100 * MIB, workers=4, prefetch=3)
    assert helped.breakdown["loader"] - alone.breakdown["loader"] >= 4 * (GIB + 300 * MIB)


def test_spawned_workers_import_everything_once_more():
    forked = needs(workers=2).breakdown["loader"]
    spawned = needs(workers=2, is_spawned=True).breakdown["loader"]
    assert spawned - forked == 2 * (300 - 64) * MIB


def test_tensors_of_a_cpu_lie_on_the_host_and_cuda_does_not():
    found = needs(is_gpu=False, device_bytes=GIB)
    assert found.breakdown["tensors"] == GIB and "cuda" not in found.breakdown


def test_what_nobody_could_measure_is_named_and_not_counted_as_nothing():
    assert needs(data_bytes=None, state_bytes=None).unknown == ("data", "save buffers")
    assert needs(import_bytes=None) is None


@pytest.mark.parametrize(("asked", "gib"), [(1, 1), (GIB, 1), (GIB + 1, 2), (int(39.2 * GIB), 40)])
def test_memory_is_asked_for_in_whole_gib(asked, gib):
    assert to_ask_for(asked) == gib * GIB


def test_after_a_kill_the_next_job_asks_for_half_as_much_again():
    asked = next_memory(64 * GIB, [64 * GIB])
    assert asked.bytes == 96 * GIB and "1.5 ×" in asked.reason
    assert next_memory(64 * GIB, [64 * GIB, 64 * GIB, 96 * GIB]).bytes == 144 * GIB


def test_a_run_that_was_not_killed_asks_for_what_is_given():
    assert next_memory(64 * GIB, []) == next_memory(64 * GIB, [None])
    assert next_memory(64 * GIB, []).bytes == 64 * GIB
    assert next_memory(None, []).bytes is None and next_memory(None, []).reason == ""


def test_who_gives_more_than_was_ever_killed_is_obeyed():
    assert next_memory(80 * GIB, [64 * GIB]).bytes == 80 * GIB
    assert next_memory(32 * GIB, [64 * GIB]).bytes == 96 * GIB, "less would be killed again"


def test_where_the_site_decides_a_kill_is_told_but_nothing_can_be_multiplied():
    asked = next_memory(None, [None])
    assert asked.bytes is None and "cluster.memory" in asked.reason
