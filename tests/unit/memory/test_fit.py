"""Events of small batches tell those of large ones, exactly; or it is said that they do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.memory.batches import choose_points
from tasuki.memory.fit import BATCH_TERMS, SIZE_TERMS, fit, fit_line, through_peaks
from tasuki.memory.trace import Event, Trace, sort_frees


def trace_at(point, events, *, begin=1):
    """`events`: a number, with its bytes at (batch, size) where it comes."""
    sizes, found = {}, []
    for number, polynomial in events:
        if number > 0:
            sizes[number] = polynomial(*point)
        found.append(Event(number, sizes[abs(number)]))
    return Trace(
        batch=point[0],
        size=point[1],
        begin=begin,
        events=tuple(found),
        kinds=("weights", *["activations"] * (len(sizes) - 1)),
        flops=point[0] * 10,
    )


def fit_at(points, events, held_back):
    traces = [trace_at(point, events) for point in points]
    return fit(traces, held_back=trace_at(held_back, events))


def polynomial(coefficients, terms):
    return lambda b, n: sum(c * b**p * n**q for c, (p, q) in zip(coefficients, terms, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 10**9), min_size=6, max_size=6), min_size=1, max_size=4))
def test_bytes_that_are_polynomials_are_found_to_the_byte(coefficients):
    events = [(i, polynomial(c, SIZE_TERMS)) for i, c in enumerate(coefficients, 1)]
    points = choose_points([16, 32, 64])
    found = fit_at(points.used, events, points.held_back)
    assert found.is_exact
    assert found.peak(4096, 8192) == trace_at((4096, 8192), events).peak


def test_a_line_through_peaks_would_be_too_low():
    """Small batches peak at one place, large ones at another."""
    events = [
        (1, lambda b, n: 1000),
        (2, lambda b, n: 500),
        (-2, None),
        (3, lambda b, n: 10 * b),
    ]
    found = fit_at([(2, 0), (3, 0), (5, 0)], events, (7, 0))
    assert found.terms == BATCH_TERMS
    assert found.peak(2) == found.peak(7) == 1500
    assert found.peak(1000) == 11000
    assert found.checked == ((7, 0, 1500, 1500),)


def test_batches_against_each_other_grow_with_the_square():
    found = fit_at([(2, 0), (3, 0), (5, 0)], [(1, lambda b, n: 3 * b * b + 7)], (7, 0))
    assert found.peak(1000) == 3_000_007


def test_steps_that_differ_are_said_to():
    events = [(1, lambda b, n: 1000 * b)]
    traces = [trace_at((b, 0), events) for b in (2, 3, 5)]
    other = trace_at((7, 0), [*events, (2, lambda b, n: 10)])
    found = fit(traces, held_back=other)
    assert not found.is_exact
    assert "events" in found.reason
    assert 7010 <= found.peak(7) <= 7030
    assert found.peak(10) >= 10_000


def test_a_curve_through_peaks_lies_below_none_of_them_and_never_bends_down():
    peaks = {2: 900, 3: 1000, 5: 3000, 56: 20_000}
    secant = through_peaks(peaks)
    assert secant[2] == 0
    for batch, peak in peaks.items():
        assert secant[0] + secant[1] * batch >= peak
    assert secant[1] == pytest.approx(17_000 / 51)
    rounded = through_peaks({56: 56_000, 112: 112_000, 224: 224_300})
    assert rounded[2] == 0, "a row more or less is no square"
    squares = through_peaks({b: b * b for b in (2, 3, 5, 56)})
    assert squares == (0, 0, 1)


def test_bytes_that_jump_are_not_taken_for_a_polynomial():
    rounded = [(1, lambda b, n: 2 ** (b - 1).bit_length() * 1000)]
    found = fit_at([(2, 0), (3, 0), (5, 0)], rounded, (7, 0))
    assert not found.is_exact
    assert "polynomial" in found.reason


def test_storages_of_no_bytes_are_left_out():
    events = [(1, lambda b, n: 8), (2, lambda b, n: 0), (-2, None), (3, lambda b, n: b), (-3, None)]
    found = fit_at([(2, 0), (3, 0), (5, 0)], events, (7, 0))
    plain = found.to_plain()
    assert plain["events"] == [[1, 0, 8, 0, 0], [3, 3, 0, 1, 0], [-3]]
    assert plain["begin"] == 1
    assert plain["flops"] == [0, 10, 0]


def test_frees_between_two_allocations_have_one_order():
    comes = [Event(1, 4), Event(2, 4), Event(3, 4)]
    one = sort_frees([*comes, Event(-3, 4), Event(-1, 4), Event(4, 8), Event(-4, 8)])
    other = sort_frees([*comes, Event(-1, 4), Event(-3, 4), Event(4, 8), Event(-4, 8)])
    assert one == other


@pytest.mark.parametrize(
    ("sizes", "num_points", "held_back"),
    [([], 3, (56, 0)), ([64], 3, (56, 64)), ([8, 16], 4, (32, 16)), ([8, 12, 16, 24], 6, (32, 12))],
)
def test_a_batch_of_one_is_never_traced_and_the_largest_size_always_is(
    sizes, num_points, held_back
):
    points = choose_points(sizes)
    assert len(points.used) == num_points
    assert points.held_back == held_back
    assert min(batch for batch, _ in points.used) > 1
    assert points.used[-1][1] == max(sizes, default=0)


BY_COST = [(1, lambda c, _: 1000), (2, lambda c, _: 30 * c), (-2, None)]


def test_a_line_by_cost_is_exact_at_two_traces_and_is_checked_far_beyond():
    low, high, *others = (trace_at((cost, 0), BY_COST) for cost in (10, 40, 25, 320))
    found = fit_line(low, high, held_back=others)
    assert found.is_exact and found.peak(100) == 4000
    assert [(cost, predicted - traced) for cost, _, predicted, traced in found.checked] == [
        (25, 0),
        (320, 0),
    ]


def test_where_memory_does_not_go_by_cost_alone_the_line_lies_below_no_trace():
    rates = {10: 50, 40: 30, 25: 45, 320: 31}
    bent = [(1, lambda c, _: 1000), (2, lambda c, _: rates[c] * c), (-2, None)]
    low, high, *others = (trace_at((cost, 0), bent) for cost in rates)
    found = fit_line(low, high, held_back=others)
    assert not found.is_exact and "at cost" in found.reason
    assert all(found.peak(cost) >= 1000 + rate * cost for cost, rate in rates.items())
