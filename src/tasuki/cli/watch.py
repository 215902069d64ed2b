"""`tasuki watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import (
    json_option,
    look_at_queue,
    print_json,
    runs_folder,
    runs_in,
    runs_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasuki.commands.watch import Watch


@click.command(epilog="Example:  tasuki watch sine")
@click.argument("run", nargs=-1)
@click.option("--once", is_flag=True, help="Show it once and end, as without a terminal.")
@click.option("--every", default="1s", show_default=True, help="How often to look.")
@runs_option
@json_option
def command(run: tuple[str, ...], once: bool, every: str, runs: Path | None, as_json: bool) -> None:
    """Runs as they go: stages, losses, machine figures, time left, last events. `?` shows keys."""
    from tasuki.clock import SystemClock
    from tasuki.commands.watch import Watch, snapshot
    from tasuki.units import Duration

    folder = runs_folder(runs)
    chosen = runs_in(folder, run, only_shows=True)
    every_s = max(0.1, Duration.parse(every).seconds)
    if as_json:
        known = look_at_queue(folder)
        print_json(snapshot(chosen, folder, clock=SystemClock(), known=known))
        return
    from rich.console import Console

    console = Console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        from tasuki.views.watch_once import show_once

        known = look_at_queue(folder)
        show_once(snapshot(chosen, folder, clock=SystemClock(), known=known), console)
        return
    from tasuki.views.watch_screen import watch_screen

    clock = SystemClock()
    watch = Watch(chosen, folder, clock=clock, ask_queue=lambda: look_at_queue(folder))
    watch_screen(_Source(watch), console, every_s=every_s)


class _Source:
    """The runs that are watched, as the screen wants them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def look(self, *, first: Sequence[str]) -> bool:
        return self._watch.look(first=first)

    @property
    def is_settled(self) -> bool:
        return self._watch.is_settled

    def runs(self) -> Sequence[dict[str, Any]]:
        return [one.value for one in self._watch.watched]

    def losses(self, number: int) -> Sequence[float | None]:
        return self._watch.watched[number].losses()
