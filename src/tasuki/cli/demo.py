"""`tasuki demo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tasuki.cli.options import json_option, print_json


@click.command(epilog="Example:  tasuki demo my-demo")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("tasuki-demo"))
@json_option
def command(folder: Path, as_json: bool) -> int:
    """Train three small stages in at least three jobs, with a preemption on the way, and prove that
    the result is bit for bit the undisturbed one. About a minute and a half on two cores.

    Writes its project and runs into FOLDER (default: tasuki-demo).
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.demo import EXPERIMENT, DemoWatchers, run_demo
    from tasuki.commands.status import brief_run
    from tasuki.runs.runs import RunFolder
    from tasuki.views.demo_report import show_report
    from tasuki.views.live import LiveView
    from tasuki.views.plan import show_plan

    seen: list[Path] = []

    def look() -> list[dict[str, object]]:
        runs = [RunFolder(path / EXPERIMENT) for path in seen[-1:]]
        return [brief_run(run, now=SystemClock.wall()) for run in runs if run.spec.exists()]

    with LiveView(look, clock=SystemClock()) as view:

        def tick(runs: Path) -> None:
            if seen[-1:] != [runs]:
                seen.append(runs)
            view.tick()

        report = run_demo(
            folder.absolute(),
            clock=SystemClock(),
            python=sys.executable,
            environment=dict(os.environ),
            watchers=DemoWatchers(
                on_step=view.headline,
                on_plan=lambda plan: show_plan(
                    plan.as_json(), python="python", runs=str(folder / "runs"), console=view.console
                ),
                on_tick=tick,
                on_event=view.say,
            ),
        )
    if as_json:
        print_json(report)
    else:
        show_report(report)
    is_shown = report["equal"] and report["preemptions"] >= 1 and len(report["jobs"]) >= 3
    return 0 if is_shown else 1
