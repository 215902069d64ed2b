from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Forks scripts with torch and the integrations imported already."""
    from tests.harness.warm import warm_server

    modules = ("tasuki.integrations.open", "tasuki.spec.load", "torch.distributed")
    with warm_server(tmp_path_factory.mktemp("warm"), *modules) as server:
        yield server
