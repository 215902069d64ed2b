"""`tasuki drill`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import WithCommand, json_option, make_request, print_json, read_work
from tasuki.cli.watching import watch_runs

_EXAMPLES = """\b
Example:
  tasuki drill
  tasuki drill --stage fine --certificate resume.txt
  tasuki drill --scenarios term,border --keep
  tasuki drill -- python train.py
"""


@click.command(cls=WithCommand, epilog=_EXAMPLES)
@click.argument("spec", default="tasuki.yaml", metavar="[SPEC]")
@click.option("--experiment", help="Which one (default: the first).")
@click.option("--stage", help="Which of its stages (default: the first).")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@click.option(
    "--scenarios",
    metavar="NAME,NAME",
    help="Only these of term, kill-in-save, twice, border, full-disk, damaged.",
)
@click.option("--keep", is_flag=True, help="Keep the drill's runs.")
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the certificate to a file, too.",
)
@json_option
def command(
    spec: str,
    experiment: str | None,
    stage: str | None,
    config: str | None,
    settings: tuple[str, ...],
    scenarios: str | None,
    keep: bool,
    certificate: Path | None,
    as_json: bool,
) -> int:
    """Interrupt your own run in the worst places, and compare it bit for bit.

    Your recipe, data and settings, or your own loop (`tasuki.open_run`, an adapter), shortened to a
    few steps, run in a folder of their own below `runs`: once undisturbed, then with TERM in a
    step, KILL in a save, twice in one epoch, on the border of two epochs, with a full disk, and
    with a damaged checkpoint. Prints a certificate (exit code 0), or the first step and entry that
    differ and the likely cause (1). A minute or two for a small model. What a script of your own
    writes beside its run, it writes each time.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.drill import DrillRequest, run_drill
    from tasuki.commands.drill_words import retell
    from tasuki.runs.atomic import write_bytes
    from tasuki.views.drill import certificate_text, show_drill

    chosen = (experiment,) if experiment else ()
    stages = (stage,) if stage else ()
    loaded = read_work(spec, settings, config, name=None, experiments=chosen, stages=stages)
    request = make_request(loaded, chosen, ())
    with watch_runs(retell) as (view, tick):
        report = run_drill(
            DrillRequest(
                plan=request,
                clock=SystemClock(),
                stage=stage,
                scenarios=tuple(scenarios.split(",")) if scenarios else (),
                keep=keep,
                on_step=view.headline,
                on_result=lambda text: view.say("result", text),
                on_tick=tick,
                on_event=lambda kind, text: view.say(kind, text) if kind == "interrupted" else None,
            )
        )
    if certificate is not None and report["equal"]:
        write_bytes(certificate.absolute(), certificate_text(report).encode())
    if as_json:
        print_json(report)
    else:
        show_drill(report)
    return 0 if report["equal"] else 1
