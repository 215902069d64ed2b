"""Processes that fork scripts with a framework imported already, one per framework and session."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.harness.warm import Warm, warm_server


class Servers:
    """By the module that is imported beforehand; started when first asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._known: dict[str, Warm] = {}

    def __getitem__(self, framework: str) -> Warm:
        if framework not in self._known:
            folder = self._folder / framework
            folder.mkdir()
            modules = (framework, "tasuki.spec.load", "torch.distributed")
            server = self._stack.enter_context(warm_server(folder, *modules))
            self._known[framework] = server
        return self._known[framework]


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


@pytest.fixture(scope="session")
def warm(servers):
    """The one that has torch and one's own loop."""
    return servers["tasuki.integrations.open"]
