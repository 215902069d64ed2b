"""Processes that fork scripts with a framework imported already, one per framework and session."""

from __future__ import annotations

import pytest

from tests.harness.scripts import script_server


@pytest.fixture(scope="session")
def torch_scripts():
    with script_server("tasuki.integrations.open") as server:
        yield server


@pytest.fixture(scope="session")
def lightning_scripts():
    with script_server("tasuki.integrations.lightning", "torchmetrics") as server:
        yield server


@pytest.fixture(scope="session")
def hf_scripts():
    with script_server("tasuki.integrations.hf") as server:
        yield server
