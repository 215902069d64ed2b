"""The fake clock keeps the contract of the real one; and what only the fake can do."""

from __future__ import annotations

import pytest

from tasuki.clock import Clock, SystemClock, utc
from tasuki.testing import FakeClock

# -- the contract: both clocks ----------------------------------------------------------------


@pytest.fixture(params=[SystemClock, FakeClock])
def any_clock(request: pytest.FixtureRequest) -> Clock:
    clock: Clock = request.param()
    return clock


def test_monotonic_time_never_goes_back(any_clock):
    times = [any_clock.monotonic() for _ in range(100)]
    assert times == sorted(times)


def test_a_sleep_takes_at_least_as_long_as_it_was_asked_for(any_clock):
    before, wall = any_clock.monotonic(), any_clock.wall()
    any_clock.sleep(0)
    any_clock.sleep(0.002)
    assert any_clock.monotonic() - before >= 0.002 - 1e-9
    assert any_clock.wall() > wall


def test_a_negative_sleep_is_refused(any_clock):
    with pytest.raises(ValueError, match="non-negative"):
        any_clock.sleep(-1)


def test_the_wall_clock_shows_a_time_of_this_century(any_clock):
    assert utc(any_clock.wall()).startswith("20")
    assert utc(1_700_000_000.9) == "2023-11-14T22:13:20Z"


# -- the fake only ------------------------------------------------------------------------------


def test_a_fake_clock_stands_still_until_it_is_moved():
    clock = FakeClock(wall=50.0, monotonic=7.0)
    assert [clock.wall(), clock.monotonic(), clock.wall(), clock.monotonic()] == [50, 7, 50, 7]


def test_a_sleep_moves_both_times_of_a_fake_clock_by_the_same_span():
    clock = FakeClock(wall=50.0, monotonic=7.0)
    clock.sleep(3600)
    assert (clock.wall(), clock.monotonic()) == (3650, 3607)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_jump_moves_the_wall_clock_only(jump):
    clock = FakeClock(wall=50.0, monotonic=7.0)
    clock.jump_wall(jump)
    assert (clock.wall(), clock.monotonic()) == (50 + jump, 7)
