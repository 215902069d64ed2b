"""`workers: auto`: workers are raised while that helps, and never beyond the CPUs."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.tempo import GONE, MOST_PREFETCH, LoaderSettings, Tempo, Window, share_cpus

quick = settings(max_examples=100, deadline=None, database=None)
shares = st.floats(0, 1)


def window(wait: float, *, fetch_s: float = 5.0) -> Window:
    """Ten seconds of which a share was spent waiting."""
    return Window(wall_s=10.0, wait_s=10.0 * wait, fetch_s=fetch_s)


def begin(*, spare: int, workers: int = 0, prefetch: int = 2) -> Tempo:
    return Tempo(LoaderSettings(workers=workers, prefetch=prefetch), spare_cpus=spare)


def test_without_a_wait_nothing_is_changed() -> None:
    verdict = begin(spare=8).judge(window(GONE))
    assert verdict.settings == LoaderSettings()
    assert verdict.is_final and verdict.reason == "no wait to speak of"


def test_as_many_workers_as_the_fetching_needs_are_started_at_once() -> None:
    # 8 s of fetching beside 2 s of computing keep four workers busy.
    verdict = begin(spare=9).judge(window(0.8, fetch_s=8.0))
    assert verdict.settings.workers == 4
    assert not verdict.is_final


def test_workers_are_raised_until_the_wait_is_gone() -> None:
    tempo = begin(spare=16)
    measured = [(0.8, 6.0), (0.6, 20.0), (0.3, 60.0), (0.04, 60.0)]
    seen = [tempo.judge(window(wait, fetch_s=fetch_s)) for wait, fetch_s in measured]
    assert [verdict.settings.workers for verdict in seen] == [3, 5, 9, 9]
    assert [verdict.is_final for verdict in seen] == [False, False, False, True]
    assert seen[-1].reason == "the wait is gone"


def test_workers_that_are_fast_enough_but_late_read_further_ahead_first() -> None:
    tempo = begin(spare=8, workers=2)
    first = tempo.judge(window(0.3, fetch_s=7.0))
    assert (first.settings.workers, first.settings.prefetch) == (2, 4)
    second = tempo.judge(window(0.2, fetch_s=30.0))
    assert second.settings.workers == 4  # ⌈30 / 8⌉: not fast enough any more


def test_without_a_spare_cpu_there_are_no_workers_and_the_reason_says_so() -> None:
    verdict = begin(spare=0).judge(window(0.9))
    assert verdict.settings.workers == 0
    assert verdict.is_final and verdict.reason == "no CPU is left for loader workers"


def test_when_all_cpus_are_in_use_it_ends_there_and_says_so() -> None:
    tempo = begin(spare=3)
    verdicts = [tempo.judge(window(wait, fetch_s=90.0)) for wait in (0.9, 0.6)]
    assert [verdict.settings.workers for verdict in verdicts] == [3, 3]
    assert verdicts[-1].is_final and verdicts[-1].reason.startswith("all 3 CPUs")


def test_what_does_not_help_is_taken_back() -> None:
    tempo = begin(spare=8)
    tried = tempo.judge(window(0.5, fetch_s=20.0))
    assert tried.settings.workers == 4
    verdict = tempo.judge(window(0.49, fetch_s=20.0))
    assert verdict.settings == LoaderSettings()
    assert verdict.is_final and verdict.reason == "4 workers × 2 ahead did not help"
    assert tempo.settings == verdict.settings


def test_twice_the_speed_counts_as_help_even_where_nearly_all_time_is_wait() -> None:
    tempo = begin(spare=2)
    # 1 ms of computing and 40 ms of fetching a step: 41 ms, then 21 ms with two workers.
    first = tempo.judge(Window(wall_s=4.1, wait_s=4.0, fetch_s=4.0))
    assert first.settings.workers == 2
    second = tempo.judge(Window(wall_s=2.1, wait_s=2.0, fetch_s=4.0))
    assert second.settings.workers == 2 and second.reason.startswith("all 2 CPUs")


def test_the_best_of_all_tries_is_what_it_goes_back_to() -> None:
    tempo = begin(spare=8)
    first = tempo.judge(window(0.8, fetch_s=6.0))
    second = tempo.judge(window(0.4, fetch_s=30.0))
    assert (first.settings.workers, second.settings.workers) == (3, 5)
    assert tempo.judge(window(0.7, fetch_s=30.0)).settings == first.settings


@quick
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, 8),
    st.lists(st.tuples(shares, st.floats(0, 1e6)), min_size=60, max_size=60),
)
def test_it_ends_after_few_changes_and_never_exceeds_the_cpus(
    spare: int, workers: int, prefetch: int, windows: list[tuple[float, float]]
) -> None:
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


def test_only_what_was_waited_for_counts_not_what_was_fetched_meanwhile() -> None:
    verdict = begin(spare=8, workers=2).judge(window(0.01, fetch_s=19.0))
    assert verdict.is_final and verdict.settings.workers == 2


def test_an_empty_window_is_no_wait() -> None:
    assert Window(wall_s=0.0, wait_s=0.0, fetch_s=0.0).share == 0.0
    assert begin(spare=2).judge(Window(wall_s=1.0, wait_s=1.0, fetch_s=1.0)).settings.workers == 2


# -- how CPUs are shared ------------------------------------------------------------------------


@quick
@given(st.integers(-3, 300), st.booleans(), st.none() | st.integers(0, 1024))
def test_threads_and_workers_together_never_exceed_the_cpus(
    cpus: int, is_gpu: bool, workers: int | None
) -> None:
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
def test_a_gpu_needs_few_threads_and_a_cpu_keeps_a_quarter_for_the_loader(
    cpus: int, is_gpu: bool, expected: tuple[int, int]
) -> None:
    assert share_cpus(cpus, is_gpu=is_gpu, workers=None) == expected


def test_nothing_that_is_measured_decides_the_number_of_threads() -> None:
    # More threads add in another order: two runs of one spec must agree on them.
    assert list(inspect.signature(share_cpus).parameters) == ["cpus", "is_gpu", "workers"]


@pytest.mark.parametrize(
    ("workers", "label"),
    [(0, "no workers"), (1, "1 worker × 2 ahead"), (3, "3 workers × 2 ahead")],
)
def test_settings_are_said_in_words(workers: int, label: str) -> None:
    assert LoaderSettings(workers=workers).label() == label
