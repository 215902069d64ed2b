"""A real cluster for all tests of a process; without Slurm they skip and say how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.testing.slurm import Cluster, Shape, missing_programs

_LONGEST = ("test_runs", "test_commands", "test_faults", "test_doctor")
"""Begun first, so that no worker waits at the end for another one's."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = [n for n, item in enumerate(items) if item.path.parent == here]
    longest = {name: n for n, name in enumerate(_LONGEST)}
    own = [items[n] for n in places]
    own.sort(key=lambda item: longest.get(item.path.stem, len(_LONGEST)))
    for place, item in zip(places, own, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if missing := missing_programs():
        pytest.skip(f"no {missing[0]} here: `make system` installs Slurm on Debian and Ubuntu")
    # What is preempted without a grace has so long to save: a busy machine needs more than 2 s.
    shape = Shape(settings=(("KillWait", "10"),))
    with Cluster(tmp_path_factory.mktemp("slurm"), shape) as running:
        yield running
