"""Seed only the generators that the data really draw from, and get the same samples.

Seeding a sample takes 10 µs, of which a step of many small samples may have a hundred. But data
that never draw from a generator come out the same however it is seeded. So generators of which no
draw is known are left unseeded and *watched*: they stand in one fixed state while a micro-batch is
fetched, and if one has moved when it is made, it is seeded from then on and the micro-batch is
fetched once more. So every batch that is handed out is the one that seeding all would have made,
whichever process made it and however much it knew.

What moves nothing cannot be watched: data that read a state, such as `torch.initial_seed()`, to
seed a generator of their own. Two samples at fixed places are therefore fetched beforehand, with
and without seeds; where they differ, or cannot be compared, everything is seeded. The places hang
on the order alone, so that every process comes to the same judgement.

Called by the loader, in the training process and in its workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tasuki.data.fetch import Fetcher, Request, Seed, seed_host
from tasuki.data.fingerprint import digest_of
from tasuki.data.generators import HOST, Generator


class ThriftyFetcher:
    """From a request to a batch; this process's random numbers stand as they stood before."""

    def __init__(self, fetcher: Fetcher, looks: Sequence[Request]) -> None:
        self.fetcher = fetcher
        self._looks = looks
        """Requests of one sample each."""
        self._is_known = False
        self._watched: tuple[int, ...] = ()
        """Numbers of the generators that are not seeded."""
        self._seed: Seed | None = seed_host

    def __call__(self, request: Request) -> Any:
        if request.seeds is None:
            return self.fetcher(request)
        kept = [generator.keep() for generator in HOST]
        try:
            if not self._is_known:
                self._learn(kept)
            return self._fetch(request, kept)
        finally:
            for generator, state in zip(HOST, kept, strict=True):
                generator.put(state)

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
            for look in self._looks:
                found = digest_of(self._fetch(look, kept))
                if found != digest_of(self.fetcher(look, seed=seed_host)):
                    self._watch([])
        except Exception:  # of the user's code, or content that is not known
            self._watch([])

    def _watch(self, numbers: Sequence[int]) -> None:
        self._watched = tuple(numbers)
        seeded = [g for number, g in enumerate(HOST) if number not in self._watched]
        self._seed = partial(_seed_all, seeded) if seeded else None


def _seed_all(generators: Sequence[Generator], seed: int) -> None:
    for generator in generators:
        generator.seed(seed)
