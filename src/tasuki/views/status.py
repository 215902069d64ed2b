"""Runs as a table, one line each; and what became of them."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasuki.units import format_seconds
from tasuki.views.text import count, money, number, say, warn

_NARROW = 78
_ANY_WIDTH = 1000
_COLUMNS = (
    *("run", "state", "stage", "progress", "step", "left", "loss", "attempts", "goodput", "cost"),
)
_MIN_WIDTHS = {"run": 8, "state": 11}
"""What must not be squeezed away."""
_COLOURS = {
    "complete": "green",
    "running": "cyan",
    "failed": "red",
    "held": "red",
    "cancelled": "yellow",
    "handed-over": "yellow",
}


def bar(share: float, width: int = 12) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled)


def show_status(status: dict[str, Any], *, folder: str, console: Console | None = None) -> None:
    console = console or Console()
    _print_doubt(status.get("slurm"), console)
    if not status["runs"]:
        console.print(f"no runs in {escape(folder)}", highlight=False)
        return
    if console.width < _NARROW:
        for run in status["runs"]:
            console.print(_brief(run), highlight=False)
            _print_reason(run, console, label="  ")
        return
    table, below = _fit(status["runs"], console)
    console.print(table)
    for line in below:
        console.print(line, highlight=False)
    for run in status["runs"]:
        _print_reason(run, console, label=f"{run['experiment']}: ")


def _fit(runs: list[dict[str, Any]], console: Console) -> tuple[Table, list[str]]:
    """The table with all there is; in a narrower window without bars, and then with what came of
    attempts below it. Nothing is left out."""
    rows = [_row(run) for run in runs]
    short = [[_without_bar(row, cell) for cell in range(len(row))] for row in rows]
    has_cost = any(run["cost"] is not None for run in runs)
    columns = _COLUMNS if has_cost else _COLUMNS[:-1]
    wide = console.options.update(max_width=_ANY_WIDTH)
    for cells in (rows, short):
        table = _table(columns, cells)
        if table.__rich_measure__(console, wide).maximum <= console.width:
            return table, []
    below = []
    for name, *_, attempts, goodput, cost in rows:
        told = f"{name}: attempts {attempts}, goodput {goodput}"
        below.append(told + (f", cost {cost}" if has_cost else ""))
    return _table(_COLUMNS[:-3], short), below


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True, min_width=_MIN_WIDTHS.get(name))
    for row in rows:
        table.add_row(*row[: len(columns)])
    return table


def _without_bar(row: list[str], cell: int) -> str:
    return row[cell].rpartition(" ")[2] if _COLUMNS[cell] == "progress" else row[cell]


def _print_doubt(slurm: dict[str, Any] | None, console: Console) -> None:
    if slurm is None or not slurm["problem"]:
        return
    since = f"; what is shown of jobs is of {slurm['at']}" if slurm["at"] else ""
    warn(console, f"{slurm['problem']}{since}")


def _brief(run: dict[str, Any]) -> str:
    """For a narrow window."""
    name, state, stage, share, *_ = _row(run)
    return f"{name}  {state}\n  {stage}  {share}"


def _row(run: dict[str, Any]) -> list[str]:
    colour = _COLOURS.get(run["state"], "default")
    trained = [stage for stage in run["stages"] if stage["is_trained"]]
    inside = run["step"] / run["total_steps"] if run["step"] and run["total_steps"] else 0.0
    if run["state"] == "complete" or any(s["name"] == run["stage"] for s in trained):
        inside = 0.0
    share = (len(trained) + inside) / max(1, len(run["stages"]))
    goodput = f"{run['goodput']:.0%}" if run["goodput"] is not None else "–"
    return [
        escape(run["experiment"]),
        f"[{colour}]{run['state'] or 'unknown'}[/]",
        escape(run["stage"] or "–"),
        f"{bar(share, 6)} {share:.0%}",
        f"{count(run['step'])}/{count(run['total_steps'])}",
        format_seconds(run["eta_s"]) if run["eta_s"] is not None else "–",
        number(run["loss"]),
        f"{run['attempts']}" + (f" ({run['preemptions']} preempted)" if run["preemptions"] else ""),
        goodput,
        money(run["cost"]),
    ]


def show_results(result: dict[str, Any], *, runs: str = "", console: Console | None = None) -> None:
    """The end of `tasuki run`: what each run came to; and where, if `runs` is given."""
    console = console or Console()
    for run in result["runs"]:
        colour = _COLOURS.get(run["state"], "default")
        words = f" after {run['attempts']} attempts" if run["attempts"] > 1 else ""
        words += f", cost {money(run['cost'])}" if run["cost"] is not None else ""
        console.print(
            f"{escape(run['experiment'])}: [{colour}]{run['state'] or 'unknown'}[/]{words}",
            highlight=False,
        )
        if run["state"] != "complete":
            _print_reason(run, console, label="  ")
        for stage in run["stages"]:
            if stage["is_trained"]:
                console.print(f"  {_stage_line(stage)}", highlight=False)
        if runs:
            say(console, f"  in {runs}/{run['experiment']}")


def _print_reason(run: dict[str, Any], console: Console, *, label: str) -> None:
    if run["reason"]:
        say(console, f"{label}{run['reason']}")
    if run["hint"]:
        say(console, run["hint"], label="  hint:", label_style="cyan")


def _stage_line(stage: dict[str, Any]) -> str:
    metrics = stage["metrics"] or {}
    told = ", ".join(f"{escape(name)} {number(value)}" for name, value in metrics.items())
    evaluated = f"; evaluated: {told}" if told else ""
    steps, loss = count(stage["steps"]), number(stage["loss"])
    if stage.get("command") and stage["steps"] is None:
        took = format_seconds(stage["wall_s"]) if stage["wall_s"] is not None else "–"
        told = f", loss {loss}" if stage["loss"] is not None else ""
        return f"{escape(stage['name'])}: its command took {took}{told}{evaluated}"
    return f"{escape(stage['name'])}: {steps} steps, loss {loss}{evaluated}{_scaled(stage)}"


def _scaled(stage: dict[str, Any]) -> str:
    """What several ranks brought, where that is known."""
    found = stage.get("scaling") or {}
    words = f"; {found.get('ranks')} ranks: {number(found.get('samples_per_sec'))} samples/s"
    if found.get("speedup") is not None:
        fewer = f"{found['baseline_ranks']} rank{'s' if found['baseline_ranks'] > 1 else ''}"
        times, share = found["speedup"], found["efficiency"]
        return f"{words}, {times:.2f} × of {fewer} ({share:.0%}), by history"
    if found.get("exchange") is not None:
        return f"{words}, about {found['exchange']:.0%} of a step exchanges gradients"
    return words if found else ""
