"""Seed samples only where the data really draw, and get the same samples.

Seeding a sample takes 10 µs, of which a step of many small samples may have a hundred. But data
that draw nothing come out the same however they are seeded. So as long as no draw is known, a
micro-batch is fetched with all generators in one fixed state; if one has moved when it is made,
every sample is seeded from then on, and the micro-batch is fetched once more. So each batch is the
one that seeding would have made, whichever process made it and however much it knew.

Only who draws moves a generator. Against data that read its state (`torch.initial_seed()`), or draw
and put it back (`fork_rng`), some samples at fixed places are fetched beforehand, in the fixed
state and with seeds: where they differ, cannot be compared or take so long that seeds cost nothing,
everything is seeded. What is not found: samples so rare that none is among those. They see the
fixed state, which is the same for all of them; and should other samples draw, or take about a
millisecond, what they see hangs on what this process has learnt before. Such data say
`draws_random_numbers = True`, and are always seeded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tasuki.data.fetch import Fetcher, Request, kept_random_states, seed_host
from tasuki.data.fingerprint import digest_of
from tasuki.data.watched import WATCHED

_SLOW_S = 1e-3
"""Of a sample: seeding it takes a hundredth of this."""


class ThriftyFetcher:
    """From a request to a batch; this process's random numbers stand as they stood before."""

    def __init__(self, fetcher: Fetcher, looks: Sequence[Request]) -> None:
        self.fetcher = fetcher
        self._looks = looks
        """Requests of one sample each."""
        self._draws: bool | None = True if fetcher.is_sure else None
        """None: nobody has looked yet."""

    def __call__(self, request: Request) -> Any:
        if request.seeds is None:
            return self.fetcher(request)
        if self._draws is None:
            self._draws = not WATCHED.is_possible or not self._looks_the_same()
        if not self._draws:
            batch, is_good = self._fetch_calmly(request)
            if is_good:
                return batch
            self._draws = True
        return self._fetch_seeded(request)

    def _fetch_calmly(self, request: Request) -> tuple[Any, bool]:
        """(batch, is it good?) Unless somebody drew, it is, and so is an error."""
        kept = WATCHED.keep()
        if not WATCHED.is_possible:  # another bit generator of numpy since then
            return None, False
        WATCHED.calm()
        try:
            batch = self.fetcher(request, seed=None)
            return batch, WATCHED.are_calm()
        except Exception:
            if WATCHED.are_calm():
                raise
            return None, False
        finally:
            WATCHED.put(kept)

    def _looks_the_same(self) -> bool:
        """Samples with seeds and without, and quick enough that seeds are worth sparing."""
        fastest_s = float("inf")
        for number, look in enumerate(self._looks):
            try:
                began = time.perf_counter()
                batch, is_good = self._fetch_calmly(look)
                between = time.perf_counter()
                if not is_good or digest_of(batch) != digest_of(self._fetch_seeded(look)):
                    return False
            except Exception:  # of the user's code, or content that is not known
                return False
            # Both: the first may open files, and a busy machine may stop any of them.
            fastest_s = min(fastest_s, between - began, time.perf_counter() - between)
            if number > 0 and fastest_s > _SLOW_S:
                return False
        return True

    def _fetch_seeded(self, request: Request) -> Any:
        with kept_random_states():
            return self.fetcher(request, seed=seed_host)
