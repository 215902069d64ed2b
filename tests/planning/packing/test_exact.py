"""CP-SAT, where it is installed: proofs beyond what is searched through otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tasuki.planning.packing.pack import pack
from tasuki.planning.packing.values import Item, Pool
from tests.planning.packing.drawn import problems
from tests.planning.packing.test_pack import chain, check

pytest.importorskip("ortools", reason='pip install "tasuki[exact]"')


@settings(max_examples=15, deadline=None)
@given(problems(most=8))
def test_it_agrees_with_the_search_through_all_orders(problem: tuple[list[Item], Pool]) -> None:
    items, pool = problem
    solved = pack(items, pool, effort=1, exact=2.0)
    check(solved, items)
    assert solved.is_optimal
    known = pack(items, pool)
    assert known.makespan_s >= solved.makespan_s
    if known.is_optimal:
        assert known.makespan_s == solved.makespan_s


def test_the_same_effort_gives_the_same_schedule() -> None:
    items = [i for n in range(9) for i in chain(f"e{n}", 7 + n, 11 + 3 * n, 17 + n, gpus=1 + n % 3)]
    pool = Pool(gpus_per_node=4, num_nodes=2)
    first = pack(items, pool, effort=1, exact=0.5)
    assert first == pack(items, pool, effort=1, exact=0.5)
    assert first.makespan_s <= pack(items, pool, effort=1).makespan_s
