"""What a run costs: what its attempts held, at the price of their jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tasuki.runs.cost import Spent, add_up_spent, price_of


def attempt(
    claim: int, begin: float, end: float | None, *, gpus: int | None = 4, price: float | None = 2.0
) -> list[dict[str, Any]]:
    """One attempt, in hours."""
    own: dict[str, Any] = {"claim": claim, "who": "supervisor"}
    facts = {"gpus": gpus, "price_per_gpu_hour": price}
    events = [{"t": begin * 3600, "kind": "attempt-started", **own, **facts}]
    if end is not None:
        events.append({"t": end * 3600, "kind": "attempt-ended", **own})
    return events


def test_each_attempt_costs_its_gpus_for_as_long_as_it_held_them_and_the_queue_costs_nothing():
    queued = [{"t": 0.0, "claim": 0, "who": "run-x", "kind": "submitted"}]
    events = [*queued, *attempt(1, 5, 7), *attempt(2, 20, 21, gpus=8)]
    assert add_up_spent(events, now=None, price=2.0) == Spent(16.0, 32.0)


def test_a_running_attempt_costs_up_to_now():
    assert add_up_spent(attempt(1, 0, None), now=1.5 * 3600, price=2.0) == Spent(6.0, 12.0)


def test_an_attempt_that_died_without_a_word_costs_up_to_its_last_one():
    events = attempt(1, 0, None)
    events.append({"t": 3600.0, "claim": 1, "who": "rank0", "kind": "progress", "parts": {}})
    events += attempt(2, 3, 4)
    assert add_up_spent(events, now=None, price=2.0) == Spent(8.0, 16.0)


def test_a_complete_run_costs_nothing_more():
    events = attempt(1, 0, 2)
    events.insert(1, {"t": 7200.0, "claim": 1, "who": "supervisor", "kind": "complete"})
    assert add_up_spent(events, now=1e9, price=2.0) == Spent(8.0, 16.0)


def test_each_attempt_has_the_price_of_its_own_job_and_a_price_written_later_counts_for_the_rest():
    events = [*attempt(1, 0, 1, price=None), *attempt(2, 1, 2, price=1.0)]
    assert add_up_spent(events, now=None, price=3.0) == Spent(8.0, 16.0)


@pytest.mark.parametrize(
    ("events", "price", "spent"),
    [
        ([], None, Spent(0.0, None)),
        ([], 2.0, Spent(0.0, 0.0)),
        (attempt(1, 0, 1, price=None), None, Spent(4.0, None)),
        (attempt(1, 0, 1, price=0.0), 0.0, Spent(4.0, 0.0)),
        (attempt(1, 0, 1, gpus=None), 2.0, Spent(None, None)),
        ([*attempt(1, 0, 1), *attempt(2, 1, 2, price=None)], None, Spent(8.0, None)),
    ],
)
def test_what_is_not_known_is_null_and_nothing_is_guessed(events, price, spent):
    assert add_up_spent(events, now=None, price=price) == spent


def test_a_run_frozen_without_a_cluster_has_no_price():
    assert price_of({}) is None
    assert price_of({"cluster": {"price_per_gpu_hour": None}}) is None
    assert price_of({"cluster": {"price_per_gpu_hour": 2}}) == 2.0
