"""`tasuki export`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tasuki.cli.options import json_option, print_json, runs_folder, runs_option, say_which

if TYPE_CHECKING:
    from tasuki.spec.export import FileFormat


@click.command(epilog="Example:  tasuki export sine/fine -o model.pt")
@click.argument("run")
@click.option(
    "-o", "--output", "to", type=click.Path(path_type=Path), help="The file, or a folder for it."
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["safetensors", "pt"]),
    help="Default: as the file's name says, else safetensors.",
)
@click.option(
    "--from",
    "source",
    type=click.Choice(["best", "last"]),
    default="best",
    help="`best`: the stage's weights (the last ones without `validate`); `last`: its newest "
    "checkpoint, finished or not.",
)
@click.option("--force", is_flag=True, help="Replace a file that holds something else.")
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@runs_option
@json_option
def command(
    run: str,
    to: Path | None,
    file_format: FileFormat | None,
    source: str,
    force: bool,
    dry_run: bool,
    runs: Path | None,
    as_json: bool,
) -> None:
    """Write the weights of RUN or RUN/STAGE (default: its last finished stage) to a file."""
    from tasuki.commands.export import Wanted, export_run

    folder = runs_folder(runs)
    say_which([run], folder)
    told = export_run(
        run,
        Wanted(
            here=Path.cwd(),
            to=to,
            file_format=file_format,
            source=source,
            force=force,
            is_dry=dry_run,
        ),
        runs=folder,
        python=sys.executable,
        environment=dict(os.environ),
    )
    if as_json:
        print_json(told)
        return
    would = "would write" if dry_run else "wrote"
    click.echo(f"{would} the weights of stage {told['stage']} of {told['experiment']}:", err=True)
    click.echo(told["file"])
