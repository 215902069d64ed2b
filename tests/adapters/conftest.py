"""Processes that fork scripts with a framework imported already, one per framework and session.
`warm`, of all tests, is the one of a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from tests.adapters.subjects import Script, Servers, Subject, make_script

from tasuki.errors import EXIT_DONE


@pytest.fixture(scope="session")
def servers(tmp_path_factory, warm):
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack, warm)


@pytest.fixture(scope="session")
def undisturbed(servers, tmp_path_factory) -> Callable[[Subject], Script]:
    """Each subject once, to its end in one go."""
    known: dict[str, Script] = {}

    def make(subject: Subject) -> Script:
        if subject.name not in known:
            script = make_script(tmp_path_factory.mktemp("whole") / "p", subject)
            assert script.attempt(servers) == [EXIT_DONE] * subject.ranks, script.said()
            assert script.run.is_complete(), script.said()
            known[subject.name] = script
        return known[subject.name]

    return make
