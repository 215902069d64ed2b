"""How long a rank may be silent, and when the last snapshot is committed instead of the step."""

from __future__ import annotations

import pytest

from tasuki.loop.limits import (
    SILENCE_S,
    should_publish,
    silence_limit_s,
    time_for_saving_s,
)

SAVE_S = 0.1
LAST_S = time_for_saving_s(SAVE_S)

KNOWN = {
    "shortest_s": SILENCE_S,
    "num_steps": 50,
    "knows_every_bucket": True,
    "p99_step_s": 1.0,
    "longest_save_s": 2.0,
}


@pytest.mark.parametrize(
    ("doing", "facts", "limit"),
    [
        ("train", {}, 600.0),
        ("train", {"p99_step_s": 40.0}, 800.0),
        ("train", {"longest_save_s": 50.0}, 1000.0),
        ("train", {"longest_save_s": None}, 600.0),
        ("train", {"shortest_s": 3.0}, 40.0),
        ("train", {"num_steps": 49}, None),  # the first steps say nothing about the others
        ("train", {"knows_every_bucket": False}, None),  # nor do those of small samples
        ("save", {}, 600.0),
        ("save", {"longest_save_s": 50.0}, 1000.0),
        ("save", {"longest_save_s": None}, None),  # a first save takes what the disk wants
        ("finish", {"num_steps": 0, "longest_save_s": 50.0}, 1000.0),
        ("start", {}, None),
        ("validate", {}, None),
        ("evaluate", {}, None),
    ],
)
def test_a_limit_is_set_only_where_something_was_measured(doing, facts, limit):
    assert silence_limit_s(doing, **{**KNOWN, **facts}) == limit


@pytest.mark.parametrize(
    ("remaining_s", "running_s", "is_published"),
    [
        (None, 1.0, False),  # nobody says when the end is
        (30.0, 0.0, False),  # step and save fit
        (5.0, 1.0, False),  # just
        (4.5, 1.0, True),  # the shortest step known would be too long
        (2.0, 1.0, True),
        (4.5, 5.5, False),  # longer than any: it may end any moment, and waiting costs nothing
        (4.5, None, False),  # no step yet
        (LAST_S + 0.01, 5.5, False),
        (LAST_S - 0.01, 5.5, True),  # the last moment at which a save fits
        (LAST_S - 0.01, None, True),
        (-1.0, 0.0, True),
    ],
)
def test_the_snapshot_is_committed_when_hope_is_lost_or_at_the_last_moment(
    remaining_s, running_s, is_published
):
    published = should_publish(
        remaining_s=remaining_s, running_s=running_s, shortest_step_s=5.0, longest_save_s=SAVE_S
    )
    assert published == is_published


def test_without_any_known_step_or_save_only_the_last_moment_counts():
    facts = {"running_s": 0.0, "shortest_step_s": 0.0, "longest_save_s": 0.0}
    assert not should_publish(remaining_s=0.5, **facts)
    assert should_publish(remaining_s=0.3, **facts)
