"""`tasuki audit`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tasuki.cli.options import json_option, print_json, runs_folder, runs_option, say_which
from tasuki.errors import EXIT_DONE, EXIT_FAILED


@click.command(epilog="Example:  tasuki audit sine")
@click.argument("run")
@click.option("--stage", help="Only this stage (default: all that were begun).")
@runs_option
@json_option
def command(run: str, stage: str | None, runs: Path | None, as_json: bool) -> int:
    """Prove that each sample of RUN was used exactly once per epoch, over all its attempts.

    Goes through the order of samples anew, and compares it with what every attempt wrote down when
    it committed. Changes nothing; the run may be unfinished.

    Exit codes: 0 proven, 1 not proven: other samples, or records that are missing.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.audit import audit_run
    from tasuki.views.waiting import Waiting

    folder = runs_folder(runs)
    say_which([run], folder)
    with Waiting(clock=SystemClock()) as waiting:
        found = audit_run(
            run,
            stage=stage,
            runs=folder,
            python=sys.executable,
            environment=dict(os.environ),
            on_progress=waiting,
        )
    if as_json:
        print_json(found)
    else:
        from tasuki.views.audit import show_audit

        show_audit(found)
    return EXIT_DONE if found["is_proven"] else EXIT_FAILED
