"""What several verbs begin with: a spec, a request for a plan, the queue, the clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tasuki.clock import SystemClock
from tasuki.commands.cancel import Controller
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.plan import PlanRequest, request_plan
from tasuki.slurm.client import Slurm
from tasuki.spec.load import load_command
from tasuki.spec.resolved import ResolvedSpec

CLOCK = SystemClock()


def read_work(
    spec: str | Path,
    settings: Sequence[str],
    config: str | None,
    command: Sequence[str],
    name: str | None,
) -> ResolvedSpec:
    """Load a spec, or a command as a run of this name."""
    if not command:
        return load_resolved_spec(spec, settings, config)
    environ = {**os.environ, **({"TASUKI_NAME": name} if name else {})}
    return load_command(command, settings=settings, environ=environ)


def make_request(
    spec: ResolvedSpec,
    experiments: Sequence[str],
    stages: Sequence[str],
    *,
    deadline: str | None = None,
) -> PlanRequest:
    return request_plan(
        spec,
        experiments,
        stages,
        python=sys.executable,
        environment=dict(os.environ),
        deadline=deadline,
    )


def ask_slurm() -> Controller:
    return Controller(slurm=Slurm(environment=os.environ, clock=CLOCK), user=str(os.getuid()))
