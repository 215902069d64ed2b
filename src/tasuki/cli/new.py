"""`tasuki new`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import ManyValues, json_option, print_json


class _ManyFiles(ManyValues):
    several = ("--from-yaml",)
    takes_files = True


@click.command(
    cls=_ManyFiles,
    epilog="\b\nExample:  tasuki new first && cd first && tasuki run\n"
    "          tasuki new five --from-yaml exp1.yaml exp2_stage1.yaml exp2_stage2.yaml",
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--from-yaml",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILES…",
    help="Translate files with keys of transformers' Trainer, one per experiment or stage.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@json_option
def command(folder: Path, files: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Make a project that runs at once: tasuki.yaml, recipe.py, .gitignore; or one out of the
    configuration files of experiments that exist already."""
    if files:
        from tasuki.actions.new_from_yaml import new_from_yaml

        made = new_from_yaml(folder, files, is_dry=dry_run)
    else:
        from tasuki.actions.new import new_project

        made = new_project(folder, is_dry=dry_run)
    if as_json:
        print_json(made)
        return
    for name in made["files"]:
        click.echo(name)
    if files:
        from tasuki.views.new import show_translation

        show_translation(made)
        click.echo(f"next: put your model into {folder / 'recipe.py'}; tasuki plan", err=True)
        return
    click.echo(f"next: cd {folder} && tasuki plan && tasuki run", err=True)
