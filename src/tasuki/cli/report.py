"""`tasuki report`."""

from __future__ import annotations

from pathlib import Path

import click

from tasuki.cli.options import json_option, print_json, runs_folder, runs_in, runs_option
from tasuki.errors import UsageError

_ENDINGS = {"md": ".md", "csv": ".csv", "html": ".html"}


@click.command(
    epilog="""\b
Example:  tasuki report progressive -o report.html
          tasuki report baseline wide --md -o results.md
          tasuki report --csv -o -
"""
)
@click.argument("run", nargs=-1)
@click.option("-o", "--output", "to", metavar="FILE", help="Where to; `-` is stdout.")
@click.option("--md", "is_md", is_flag=True, help="Markdown, for a wiki or a paper.")
@click.option("--csv", "is_csv", is_flag=True, help="The table of results alone.")
@runs_option
@json_option
def command(
    run: tuple[str, ...],
    to: str | None,
    is_md: bool,
    is_csv: bool,
    runs: Path | None,
    as_json: bool,
) -> None:
    """Write one page about runs, to keep or to mail: results, curves over all attempts with
    preemptions marked, plan and reality, where the time went, attempts, environment and spec.

    It needs no script and nothing from elsewhere, and names no path of this machine. Without RUN:
    all of them. Without -o: report.html; Markdown and CSV go to stdout.
    """
    from tasuki.clock import SystemClock
    from tasuki.commands.report import gather_report
    from tasuki.runs.find import list_shown
    from tasuki.views.report import num_drawn, render

    if is_md and is_csv:
        raise UsageError("`--md` and `--csv` are two files", hint="write one after the other")
    form, place = _form_and_place("md" if is_md else "csv" if is_csv else None, to)
    folder = runs_folder(runs)
    names = list(dict.fromkeys(run))
    chosen = runs_in(folder, names, only_shows=True) or list_shown(folder)
    if not chosen:
        raise UsageError(f"there are no runs in {folder}", hint="`--runs FOLDER` names another")
    drawn = None if as_json else num_drawn(form)
    report = gather_report(folder, chosen, now=SystemClock.wall(), drawn=drawn)
    if as_json:
        print_json(report)
        return
    _write(render(report, form), place)


def _form_and_place(form: str | None, to: str | None) -> tuple[str, Path | None]:
    """(what, where); None: stdout. Before anything is read."""
    if form is None:
        ending = Path(to).suffix.lower() if to else ""
        form = next((one for one, known in _ENDINGS.items() if known == ending), "html")
    if to == "-" or (to is None and form != "html"):
        return form, None
    place = Path(to or "report.html")
    if form == "html":
        from tasuki.cli.pages import refuse_place

        refuse_place(place)
    elif not place.parent.is_dir() or place.is_dir():
        raise UsageError(f"{place} cannot be written", hint="name a file in a folder that is there")
    elif place.exists() and place.suffix != _ENDINGS[form]:
        raise UsageError(
            f"{place} is there and is no {_ENDINGS[form]} file: it is not replaced",
            hint="give another name",
        )
    return form, place


def _write(text: str, place: Path | None) -> None:
    if place is None:
        click.echo(text, nl=False)
        return
    from tasuki.cli.pages import write_page

    write_page(place, text)
