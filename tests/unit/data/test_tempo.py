"""`workers: auto`: workers are raised while that helps, and never beyond the CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.tempo import GONE, MOST_PREFETCH, LoaderSettings, Tempo, Window, share_cpus

quick = settings(max_examples=40, deadline=None, database=None)
shares = st.floats(0, 1)


def window(wait, *, fetch_s=5.0):
    """Ten seconds of which a share was spent waiting."""
    return Window(wall_s=10.0, wait_s=10.0 * wait, fetch_s=fetch_s)


def begin(*, spare, workers=0, prefetch=2):
    return Tempo(LoaderSettings(workers=workers, prefetch=prefetch), spare_cpus=spare)


@pytest.mark.parametrize(
    ("spare", "workers", "wait", "fetch_s", "settled", "reason"),
    [
        (8, 0, GONE, 5.0, 0, "no wait to speak of"),
        (8, 2, 0.01, 19.0, 2, "the wait is gone"),  # whatever was fetched meanwhile
        (0, 0, 0.9, 5.0, 0, "no CPU is left for loader workers"),
        (3, 3, 0.9, 90.0, 3, "all 3 CPUs"),
    ],
)
def test_where_nothing_helps_it_ends_and_says_why(spare, workers, wait, fetch_s, settled, reason):
    tempo = begin(spare=spare, workers=workers)
    verdict = tempo.judge(window(wait, fetch_s=fetch_s))
    assert verdict.is_final and verdict.settings.workers == settled
    assert reason in verdict.reason


def test_workers_are_raised_until_the_wait_is_gone():
    tempo = begin(spare=16)
    measured = [(0.8, 6.0), (0.6, 20.0), (0.3, 60.0), (0.04, 60.0)]
    seen = [tempo.judge(window(wait, fetch_s=fetch_s)) for wait, fetch_s in measured]
    assert [verdict.settings.workers for verdict in seen] == [3, 5, 9, 9]
    assert [verdict.is_final for verdict in seen] == [False, False, False, True]
    assert seen[-1].reason == "the wait is gone"


def test_workers_that_are_fast_enough_but_late_read_further_ahead_first():
    tempo = begin(spare=8, workers=2)
    first = tempo.judge(window(0.3, fetch_s=7.0))
    assert (first.settings.workers, first.settings.prefetch) == (2, 4)
    second = tempo.judge(window(0.2, fetch_s=30.0))
    assert second.settings.workers == 4  # ⌈30 / 8⌉: not fast enough any more


def test_what_does_not_help_is_taken_back():
    tempo = begin(spare=8)
    tried = tempo.judge(window(0.5, fetch_s=20.0))
    assert tried.settings.workers == 4
    verdict = tempo.judge(window(0.49, fetch_s=20.0))
    assert verdict.settings == LoaderSettings()
    assert verdict.is_final and verdict.reason == "4 workers × 2 ahead did not help"
    assert tempo.settings == verdict.settings


def test_twice_the_speed_counts_as_help_even_where_nearly_all_time_is_wait():
    tempo = begin(spare=2)
    # 1 ms of computing and 40 ms of fetching a step: 41 ms, then 21 ms with two workers.
    first = tempo.judge(Window(wall_s=4.1, wait_s=4.0, fetch_s=4.0))
    assert first.settings.workers == 2
    second = tempo.judge(Window(wall_s=2.1, wait_s=2.0, fetch_s=4.0))
    assert second.settings.workers == 2 and second.reason.startswith("all 2 CPUs")


@quick
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, 8),
    st.lists(st.tuples(shares, st.floats(0, 1e6)), min_size=60, max_size=60),
)
def test_it_ends_after_few_changes_and_never_exceeds_the_cpus(spare, workers, prefetch, windows):
    tempo = begin(spare=spare, workers=min(workers, spare), prefetch=prefetch)
    tried = 0
    for wait, fetch_s in windows:
        verdict = tempo.judge(window(wait, fetch_s=fetch_s))
        tried += 1
        assert 0 <= verdict.settings.workers <= spare
        assert verdict.settings.prefetch <= max(prefetch, MOST_PREFETCH)
        assert verdict.reason
        if verdict.is_final:
            break
    assert verdict.is_final and tried <= spare + 6


# -- how CPUs are shared ------------------------------------------------------------------------


@quick
@given(st.integers(-3, 300), st.booleans(), st.none() | st.integers(0, 1024))
def test_threads_and_workers_together_never_exceed_the_cpus(cpus, is_gpu, workers):
    threads, spare = share_cpus(cpus, is_gpu=is_gpu, workers=workers)
    assert threads >= 1 and spare >= 0
    assert threads + spare == max(1, cpus)
    if workers is not None:
        assert spare == min(workers, max(0, cpus - 1))


@pytest.mark.parametrize(
    ("cpus", "is_gpu", "expected"),
    [
        (1, False, (1, 0)),
        (3, False, (3, 0)),
        (4, False, (3, 1)),
        (16, False, (12, 4)),
        (1, True, (1, 0)),
        (2, True, (1, 1)),
        (8, True, (2, 6)),
        (64, True, (16, 48)),
    ],
)
def test_a_gpu_needs_few_threads_and_a_cpu_keeps_a_quarter_for_the_loader(cpus, is_gpu, expected):
    assert share_cpus(cpus, is_gpu=is_gpu, workers=None) == expected
