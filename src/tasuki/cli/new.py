"""`tasuki new`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tasuki.cli.options import ManyValues, json_option, print_json
from tasuki.errors import UsageError


class _ManyFiles(ManyValues):
    several = ("--from-yaml",)
    takes_files = True


@click.command(
    cls=_ManyFiles,
    epilog="\b\nExample:  tasuki new first && cd first && tasuki run\n"
    "          tasuki new five --from-yaml exp1.yaml exp2_stage1.yaml exp2_stage2.yaml\n"
    "          tasuki new . --from-slurm old.slurm",
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
@click.option(
    "--from-slurm",
    "batch",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run a script's command inside what its #SBATCH lines ask for.",
)
@click.option(
    "--from-script", "script", type=click.Path(path_type=Path), metavar="FILE", help="Run a script."
)
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@json_option
def command(
    folder: Path,
    files: tuple[Path, ...],
    batch: Path | None,
    script: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a project that runs at once: tasuki.yaml, recipe.py, .gitignore; or one out of what you
    have: configuration files of experiments, a script for sbatch, a training script."""
    if sum(map(bool, (files, batch, script))) > 1:
        raise UsageError("a project is made from one thing", hint="give one --from-… option")
    made = _make(folder, files, batch, script, is_dry=dry_run)
    if as_json:
        print_json(made)
        return
    for name in made["files"]:
        click.echo(name)
    following = f"cd {folder} && tasuki plan && tasuki run"
    if "keys" in made:
        from tasuki.views.new import show_translation

        show_translation(made)
    if files:
        following = f"put your model into {folder / 'recipe.py'}; tasuki plan"
    click.echo(f"next: {following}", err=True)


def _make(
    folder: Path, files: tuple[Path, ...], batch: Path | None, script: Path | None, *, is_dry: bool
) -> dict[str, Any]:
    if files:
        from tasuki.commands.new_from_yaml import new_from_yaml

        return new_from_yaml(folder, files, is_dry=is_dry)
    if batch or script:
        from tasuki.commands.new_from_slurm import new_from_script, new_from_slurm

        if batch:
            return new_from_slurm(folder, batch, is_dry=is_dry)
        assert script is not None
        return new_from_script(folder, script, is_dry=is_dry)
    from tasuki.commands.new import new_project

    return new_project(folder, is_dry=is_dry)
