"""A real cluster for all tests of a process; without Slurm they skip and say how to get it."""

from __future__ import annotations

import pytest

from tasuki.testing.slurm import Cluster, missing_programs


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if missing := missing_programs():
        pytest.skip(f"no {missing[0]} here: `make system` installs Slurm on Debian and Ubuntu")
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running
