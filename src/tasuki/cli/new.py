"""`tasuki new`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import json_option, print_json


@click.command(epilog="Example:  tasuki new first && cd first && tasuki run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@json_option
def command(folder: Path, dry_run: bool, as_json: bool) -> None:
    """Make a project that runs at once: tasuki.yaml, recipe.py, .gitignore."""
    from tasuki.actions.new import new_project

    made = new_project(folder, is_dry=dry_run)
    if as_json:
        print_json(made)
        return
    for name in made["files"]:
        click.echo(name)
    click.echo(f"next: cd {folder} && tasuki plan && tasuki run", err=True)
