"""`tasuki doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tasuki.cli.options import json_option, print_json
from tasuki.errors import EXIT_DONE, EXIT_FAILED

_EXAMPLES = """\b
Example:
  tasuki doctor
  tasuki doctor --live --partition preempt --write-site
  tasuki doctor --json | jq '.findings[].what'
"""
_USERS_FILE = ""
"""What `--write-site` holds without a name."""


@click.command(epilog=_EXAMPLES)
@click.argument("spec", required=False, metavar="[SPEC]")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@click.option(
    "--runs", type=click.Path(path_type=Path), help="The folder of runs (default: as the spec)."
)
@click.option("--live", is_flag=True, help="Send a small job through requeue and cancel.")
@click.option("--partition", help="Which one to look at (default: as the spec, else Slurm's).")
@click.option("--within", default="10m", metavar="10m", help="Give up on the job after this long.")
@click.option(
    "--write-site",
    is_flag=False,
    flag_value=_USERS_FILE,
    metavar="[FILE]",
    help="Write what was found (default: ~/.config/tasuki/site.yaml).",
)
@click.option("--force", is_flag=True, help="Replace a site file that exists.")
@json_option
def command(
    spec: str | None,
    config: str | None,
    settings: tuple[str, ...],
    runs: Path | None,
    live: bool,
    partition: str | None,
    within: str,
    write_site: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """What this machine and its Slurm give a job, and what to change before you submit.

    Says for each partition what happens to a preempted job and how long it has to save, and looks
    at the spec (default ./tasuki.yaml, if there is one), the runs folder and Python. Changes
    nothing without `--write-site`. With `--live` a job of one core looks around on a node,
    requeues itself once and is cancelled, so that the seconds until the KILL are measured.

    Exit code 1 if something would stop a job from working.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.doctor import DoctorRequest, examine
    from tasuki.units import Duration

    report = examine(
        DoctorRequest(
            source=spec or ("tasuki.yaml" if Path("tasuki.yaml").exists() else None),
            here=Path.cwd(),
            python=sys.executable,
            environment=dict(os.environ),
            clock=SystemClock(),
            settings=settings,
            config=config,
            runs=runs.absolute() if runs is not None else None,
            is_live=live,
            partition=partition,
            within_s=Duration.parse(within).seconds,
            writes_site=write_site is not None,
            site_file=Path(write_site) if write_site else None,
            is_forced=force,
            on_progress=lambda text: click.echo(f"{text} …", err=True),
        )
    )
    if as_json:
        print_json(report)
    else:
        from tasuki.views.doctor import show_doctor

        show_doctor(report)
    return EXIT_DONE if report["ok"] else EXIT_FAILED
