"""`tasuki inspect`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import ManyValues, json_option, print_json, read_spec
from tasuki.errors import EXIT_DONE, EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from tasuki.subprocesses import ProgressCallback


@click.command(
    cls=ManyValues,
    epilog="""\b
Example:  tasuki inspect data/small.h5
          tasuki inspect data/train data/more.h5 --check
          tasuki inspect tasuki.yaml --stages small_512 --gpu a100-40gb
""",
)
@click.argument("sources", nargs=-1, metavar="[SOURCE…|SPEC]")
@click.option("--check", is_flag=True, help="Look for duplicates, NaN, Inf and damage (HDF5).")
@click.option("--gpu", metavar="NAME", help="Micro-batches that fit this card, by a spec's recipe.")
@click.option("--experiment", "experiments", multiple=True, help="Only these experiments.")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--stages", multiple=True, help="Only these stages.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@json_option
def command(
    sources: tuple[str, ...],
    check: bool,
    gpu: str | None,
    experiments: tuple[str, ...],
    config: str | None,
    stages: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """What data hold: samples and bytes by size, padding, and stages to begin with.

    SOURCE is an HDF5 file, a folder or a pattern; several are looked at together. With a SPEC
    (default ./tasuki.yaml) its recipes open the data of its stages. Nothing is changed.

    Exit code 1 if `--check` finds something.
    """
    from tasuki.clock import SystemClock
    from tasuki.views.data import Hearing

    chosen = {
        "experiments": experiments,
        "stages": stages,
        "settings": settings,
        "config": config,
        "gpu": gpu,
    }
    with Hearing(clock=SystemClock()) as hearing:
        found = _inspect(sources, chosen, check=check, on_progress=hearing)
    if as_json:
        print_json(found)
    else:
        from tasuki.views.inspect import show_inspection

        show_inspection(found)
    is_clean = "check" not in found or found["check"]["clean"]
    return EXIT_DONE if is_clean else EXIT_FAILED


def _inspect(
    sources: tuple[str, ...], chosen: dict[str, Any], *, check: bool, on_progress: ProgressCallback
) -> dict[str, Any]:
    from tasuki.commands.asking import Asking
    from tasuki.commands.inspect import inspect_files, inspect_spec, which_spec

    asking = Asking(python=sys.executable, environment=dict(os.environ), on_progress=on_progress)
    source = which_spec(sources)
    if source is None:
        _refuse_spec_options(chosen)
        return inspect_files(sources, check=check, asking=asking)
    spec = read_spec(source, chosen["settings"], chosen["config"])
    return inspect_spec(
        spec,
        chosen["experiments"],
        chosen["stages"],
        check=check,
        asking=asking,
        gpu=chosen["gpu"],
    )


def _refuse_spec_options(chosen: dict[str, Any]) -> None:
    names = {"experiments": "--experiment", "settings": "--set"}
    for name, value in chosen.items():
        if value:
            raise UsageError(
                f"`{names.get(name, f'--{name}')}` chooses in a spec, but data are named",
                hint="leave it out, or name a spec instead of data",
            )
