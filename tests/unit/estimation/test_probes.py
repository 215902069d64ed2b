"""A probe file tells what is alive in a step of any batch and size; a torn one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.errors import NewerFormat, StoreError
from tasuki.estimation.probes import read_probe
from tests.unit.estimation.probe_values import probe_value, probe_values, small_value

points = {"batch": st.integers(0, 300), "size": st.integers(0, 300)}


def test_the_live_bytes_of_a_step_follow_for_any_batch_and_size():
    probe = read_probe(small_value())
    at = {"batch": 10, "size": 5}
    assert probe.curve(**at) == [1000, 1100, 2150, 3150, 2100, 2800, 2100, 1100]
    assert probe.peak(**at) == 3150
    parts = {"weights": 1000, "gradients": 1000, "activations": 1050, "batch": 100}
    assert probe.breakdown(**at) == parts
    assert probe.trace(**at)[2:5] == [(3, 1050), (4, 1000), (-3, 1050)]


def test_the_peak_moves_to_another_moment_as_the_batch_grows():
    """Why a line through two peaks is wrong, on the unsafe side."""
    probe = read_probe(small_value())
    assert [probe.peak(batch=batch, size=0) for batch in (1, 7, 8)] == [2710, 2770, 2880]
    assert "optimizer" in probe.breakdown(batch=1, size=0)
    assert "optimizer" not in probe.breakdown(batch=8, size=0)


def test_bytes_are_exact_to_the_last_one():
    events = [[1, 3, 3, 1_234_567_891, 0, 0.5, 0, 1.5]]
    probe = read_probe(probe_value(events))
    batch, size = 7_001, 99
    exact = 3 + 1_234_567_891 * batch + (batch * size + 3 * batch * size**2) // 2
    assert probe.peak(batch=batch, size=size) == exact
    thirds = read_probe(probe_value([[1, 3, 0, 1 / 3]]))
    assert thirds.peak(batch=3 * 10**13, size=0) == 10**13


def test_the_most_of_one_kind_counts_what_lives_together():
    events = [[1, 1, 100], [2, 1, 50], [-1], [3, 1, 70], [-2], [-3], [4, 0, 999]]
    probe = read_probe(probe_value(events))
    assert probe.most_of("gradients", batch=1, size=0) == 150
    assert probe.most_of("messages", batch=1, size=0) == 0


def test_a_step_is_closed_if_it_leaves_what_it_found():
    assert read_probe(small_value()).is_closed
    kept = probe_value([[1, 0, 5], [2, 3, 5]], begin=1)
    taken = probe_value([[1, 0, 5], [2, 3, 5], [-1], [-2]], begin=1)
    assert not read_probe(kept).is_closed and not read_probe(taken).is_closed


def test_where_traces_do_not_align_the_largest_one_is_scaled_to_the_curve_of_peaks():
    events = [[1, 0, 1000], [2, 3, 400], [3, 1, 1000], [-2], [-3]]
    value = probe_value(events, begin=1, is_exact=False, secant=[2000, 100, 0, 0, 0, 0])
    probe = read_probe(value)
    assert not probe.is_exact
    assert probe.peak(batch=4, size=0) == 2400
    assert probe.peak(batch=40, size=0) == 6000
    parts = {"weights": 1000, "gradients": 1000, "activations": 4000}
    assert probe.breakdown(batch=40, size=0) == parts


@given(probe_values(), points["batch"], points["size"])
@settings(max_examples=30)
def test_peak_and_breakdown_are_what_walking_through_the_file_gives(value, batch, size):
    probe = read_probe(json.loads(json.dumps(value)))
    live: dict[int, tuple[int, int]] = {}
    peak, parts = 0, {}
    for number, *row in value["events"]:
        if number < 0:
            del live[-number]
            continue
        kind, *coefficients = row
        powers = zip(coefficients, value["terms"], strict=True)
        live[number] = (kind, sum(c * batch**p * size**q for c, (p, q) in powers))
        total = sum(count for _, count in live.values())
        if total > peak:
            peak, parts = total, {}
            for one, count in live.values():
                parts[value["kinds"][one]] = parts.get(value["kinds"][one], 0) + count
    assert probe.peak(batch=batch, size=size) == peak
    found = probe.breakdown(batch=batch, size=size)
    assert sum(found.values()) == peak
    assert found == {kind: count for kind, count in parts.items() if count}


@given(probe_values(), points["batch"], points["size"], st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=30)
def test_more_samples_or_larger_ones_never_need_less(value, batch, size, more, larger):
    probe = read_probe(value)
    peak = probe.peak(batch=batch, size=size)
    assert peak <= probe.peak(batch=batch + more, size=size + larger)


def test_a_file_without_one_of_its_keys_is_refused_by_name():
    for key in set(small_value()) - {"notes"}:
        value = small_value()
        del value[key]
        message = f"p.json is not a whole probe file: `{key}` is missing"
        with pytest.raises(StoreError, match=message):
            read_probe(value, source="p.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "1"}, "`format` is no count"),
        ({"terms": [[0]]}, "`terms` holds 1 numbers instead of 2"),
        ({"kinds": "weights"}, "`kinds` is no list"),
        ({"events": [[1, 0, 1]]}, r"event 0 is not \[id, kind, 6 coefficients\]"),
        ({"events": [[1, 9, *[0] * 6]]}, "event 0 is not"),
        ({"events": [[]]}, "event 0 has no id"),
        ({"events": [[-1]]}, "event 0 frees 1, which is not alive"),
        ({"events": [[1, 0, *[0] * 6], [1, 0, *[0] * 6]]}, "allocates 1 a second time"),
        ({"events": [[1, 0, *[0] * 6], [-1], [1, 0, *[0] * 6]]}, "allocates 1 a second time"),
        ({"events": [[1, 0, float("nan"), *[0] * 5]]}, "`nan`, which is no number"),
        ({"begin": 9}, "`begin` is 9, but there are 8 events"),
        ({"flops": [1]}, "`flops` has 1 coefficients, but there are 6 terms"),
        ({"is_exact": 1}, "neither true nor false"),
        ({"is_exact": False}, "`secant` is missing"),
        ({"checked": [[1, 2, 3]]}, "`checked` holds 3 numbers instead of 4"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_with_what_is_wrong(change, words):
    with pytest.raises(StoreError, match=words) as caught:
        read_probe({**small_value(), **change})
    assert "delete it" in caught.value.hint


def test_a_file_of_a_newer_tasuki_is_refused_by_name():
    with pytest.raises(NewerFormat, match=r"p\.json has format 2; this tasuki knows up to 1"):
        read_probe({"format": 2}, source="p.json")


@pytest.mark.parametrize("value", [None, [], "x", 3, {}])
def test_anything_else_is_no_probe_file(value):
    with pytest.raises(StoreError, match="not a whole probe file"):
        read_probe(value)


JUNK = [None, True, -1, 2, 10**40, 0.5, float("nan"), 1e300, "x", [], {}, [[]], [-3], {"a": 1}]


@given(st.data())
@settings(max_examples=60)
def test_whatever_is_broken_in_a_file_it_is_read_or_refused_in_our_words(data):
    value: Any = json.loads(json.dumps(small_value()))
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(st.sampled_from(JUNK))
            break
        place = place[key]
    try:
        probe = read_probe(value)
    except StoreError as error:
        assert error.hint
    else:
        probe.peak(batch=3, size=3)
