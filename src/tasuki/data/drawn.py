"""Seed only the generators that the data really draw from, and get the same samples.

Seeding a sample takes 10 µs, of which a step of many small samples may have a hundred. But data
that never draw from a generator come out the same however it is seeded. So generators of which no
draw is known are left unseeded and *watched*: they stand in one fixed state while a micro-batch is
fetched (or, where no draw of any is known, which is quicker, as they stood), and if one has moved
when it is made, it is seeded from then on and the micro-batch is fetched once more. So every batch
that is handed out is the one that seeding all would have made, whichever process made it and
however much it knew.

What moves nothing cannot be watched: data that read a state, such as `torch.initial_seed()`, or
that draw and put it back. Whether the code of the data might do that is decided from the code
(readers.py); if it might, everything is seeded. What that search may miss, it says itself; against
it some samples at fixed places are fetched beforehand, with and without seeds: where they differ,
cannot be compared or take so long that seeds cost nothing, everything is seeded, too. Since seeding
all is always right, processes need not come to the same judgement.

Called by the loader, in the training process and in its workers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tasuki.data.fetch import Fetcher, Request, Seed, seed_host
from tasuki.data.fingerprint import digest_of
from tasuki.data.generators import (
    HOST,
    Generator,
    Standing,
    put_all,
    where_all_stand,
    words_of_all,
)
from tasuki.data.readers import may_read_states

_SLOW_S = 1e-3
"""Of a sample: seeding it takes a hundredth of this."""


class ThriftyFetcher:
    """From a request to a batch; this process's random numbers stand as they stood before."""

    def __init__(self, fetcher: Fetcher, looks: Sequence[Request]) -> None:
        self.fetcher = fetcher
        self._looks = looks
        """Requests of one sample each."""
        # Once, in the training process: workers get it with the rest.
        self._is_known = bool(looks) and may_read_states(fetcher)
        """And then everything is seeded; or some samples were looked at."""
        self._watched: tuple[int, ...] = ()
        """Numbers of the generators that are not seeded."""
        self._seed: Seed | None = seed_host

    def __call__(self, request: Request) -> Any:
        if request.seeds is None:
            return self.fetcher(request)
        if self._is_known and self._seed is None:
            before = where_all_stand()
            if before is not None:
                batch, is_good = self._fetch_between_looks(request, before)
                if is_good:
                    return batch
        kept = [generator.keep() for generator in HOST]
        try:
            if not self._is_known:
                self._learn(kept)
            return self._fetch(request, kept)
        finally:
            for generator, state in zip(HOST, kept, strict=True):
                generator.put(state)

    def _fetch_between_looks(self, request: Request, before: Standing) -> tuple[Any, bool]:
        """The ordinary way of data that draw nothing, in few calls: where all generators stand as
        they stood, nothing is to be put back. (batch, is it good?)"""
        try:
            batch = self.fetcher(request, seed=None)
        except Exception:
            if words_of_all() == before:
                raise
        else:
            if words_of_all() == before:
                return batch, True
        pairs = zip(before, words_of_all(), strict=True)
        self._watch([number for number, (then, now) in enumerate(pairs) if then == now])
        put_all(before)
        return None, False

    def _fetch(self, request: Request, kept: list[Any]) -> Any:
        while True:
            for number in self._watched:
                HOST[number].calm(kept[number])
            try:
                batch = self.fetcher(request, seed=self._seed)
            except Exception:
                if not self._has_news():
                    raise
            else:
                if not self._has_news():
                    return batch
            # Once more: what was drawn came from a generator that was not seeded.

    def _has_news(self) -> bool:
        """Was one drawn from that is not seeded? From now on it is."""
        moved = [number for number in self._watched if not HOST[number].is_calm()]
        if moved:
            self._watch([number for number in self._watched if number not in moved])
        return bool(moved)

    def _learn(self, kept: list[Any]) -> None:
        self._is_known = True
        self._watch([n for n, generator in enumerate(HOST) if generator.can_be_watched])
        try:
            if not self._looks_the_same(kept):
                self._watch([])
        except Exception:  # of the user's code, or content that is not known
            self._watch([])

    def _looks_the_same(self, kept: list[Any]) -> bool:
        """Samples with seeds and without, and quick enough that seeds are worth sparing."""
        fastest_s = float("inf")
        for number, look in enumerate(self._looks):
            found = digest_of(self._fetch(look, kept))
            began = time.perf_counter()
            seeded = self.fetcher(look, seed=seed_host)
            fastest_s = min(fastest_s, time.perf_counter() - began)
            is_slow = number > 0 and fastest_s > _SLOW_S
            if found != digest_of(seeded) or is_slow:
                return False
        return True

    def _watch(self, numbers: Sequence[int]) -> None:
        self._watched = tuple(numbers)
        seeded = [g for number, g in enumerate(HOST) if number not in self._watched]
        self._seed = partial(_seed_all, seeded) if seeded else None


def _seed_all(generators: Sequence[Generator], seed: int) -> None:
    for generator in generators:
        generator.seed(seed)
