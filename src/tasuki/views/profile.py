"""Where a step's time went, as a picture, and what to do about it."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasuki.units import format_bytes, format_step
from tasuki.views.status import bar
from tasuki.views.text import count, neutral, say

_SHOWN = 0.0005
_UNDISTURBED = 0.9


def show_profiles(
    profiles: list[dict[str, Any]], *, runs: str, console: Console | None = None
) -> None:
    console = console or Console()
    for profile in profiles:
        _show(profile, runs, console)


def _show(profile: dict[str, Any], runs: str, console: Console) -> None:
    steps = f"{count(profile['from_step'])} – {count(profile['to_step'])}"
    console.print(
        f"\nprofile of {escape(profile['experiment'])}/{escape(profile['stage'])}, attempt "
        f"{profile['attempt']}: steps {steps}, {format_step(profile['step_s'])} each",
        highlight=False,
    )
    console.print(_table(profile))
    for line in _beside(profile):
        console.print(line, highlight=False)
    for sentence in profile["advice"]:
        say(console, sentence, label="→", label_style="yellow")
    if not profile["advice"]:
        console.print("nothing to change", highlight=False)
    if profile["trace"]:
        path = f"{runs}/{profile['experiment']}/profile/{profile['trace']}"
        words = f"trace, for https://ui.perfetto.dev: {escape(neutral(path))}"
        console.print(words, highlight=False, soft_wrap=True)


def _table(profile: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("where a step's time goes")
    table.add_column("")
    table.add_column("share", justify="right")
    table.add_column("time", justify="right")
    window, steps = profile["window_s"] or 1.0, profile["to_step"] - profile["from_step"]
    for part, seconds in profile["parts"].items():
        share = seconds / window
        if share >= _SHOWN:
            each = format_step(seconds / steps)
            table.add_row(escape(part), bar(min(1.0, share), 24), f"{share:.0%}", each)
    return table


def _beside(profile: dict[str, Any]) -> list[str]:
    """What the window does not show."""
    lines = []
    shares = [f"{name} {share:.1%}" for name, share in profile["stage_shares"].items() if share]
    if shares:
        lines.append(f"of the attempt's time in the stage: {', '.join(shares)}")
    turns = profile.get("cpu") or {}  # profiles of older releases have none
    is_told = any(sentence.startswith("this process got ") for sentence in profile["advice"])
    if not is_told and turns.get("share") is not None and turns["share"] < _UNDISTURBED:
        lines.append(f"of the CPU time it could use the process got {turns['share']:.0%}")
    if profile["busy"] is not None:
        lines.append(f"the GPU computes or copies {profile['busy']:.0%} of the time")
    peak, total = profile["memory"]["peak_bytes"], profile["memory"]["total_bytes"]
    if peak and total:
        told = f"{format_bytes(peak)} of {format_bytes(total)}"
        lines.append(f"the GPU's memory at the peak: {told} ({peak / total:.0%})")
    return lines
