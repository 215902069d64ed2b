"""Shared fixtures. Tests never inherit settings meant for a person's run."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes on a busy machine says nothing of what is tested. And each run draws the
# same examples: a failure is about the change, not about luck.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

for _name in list(os.environ):
    if _name.startswith(("TASUKI_", "SLURM_")):
        del os.environ[_name]
# Virtual machines may name AMX among their CPU's features and then refuse it: there a product of
# two bf16 matrices ends any torch with SIGILL. Read when torch is imported, here and in children.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["TASUKI_SITE"] = ""  # nor what holds at a site
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would everything that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_signal_mask():
    """A supervisor that a test runs in this process holds signals back; whatever later tests start
    would inherit that: daemons and scripts that do not end when they are told to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture(autouse=True)
def _same_torch_settings():
    """What a run sets for its process must not change what a later test in this process sees."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Forks supervisors and workers with torch imported already."""
    from tests.harness.warm import warm_server

    with warm_server(tmp_path_factory.mktemp("warm")) as server:
        yield server
