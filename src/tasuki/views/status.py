"""Runs as a table, one line each; and what became of them.

The table is laid out here, not by rich: of a thousand runs that takes a tenth of the time.
"""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from tasuki.runs.standing import number_in
from tasuki.units import format_seconds
from tasuki.views.text import STATE_COLOURS, count, line_of, money, number, plain_number, say, warn

_NARROW = 78
_COLUMNS = (
    *("run", "state", "stage", "progress", "step", "left", "loss", "attempts", "goodput"),
    *("deadline", "cost"),
)
_BELOW = ("attempts", "goodput", "deadline", "cost")
"""Told below the table where a window is too narrow for them in it."""
_GAP = "   "
_DANGER = "in danger"


def bar(share: float, width: int = 12) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled)


def show_status(status: dict[str, Any], *, folder: str, console: Console | None = None) -> None:
    console = console or Console()
    _print_doubt(status.get("slurm"), console)
    runs = status["runs"]
    if not runs:
        console.print(f"no runs in {escape(folder)}", highlight=False)
        return
    rows = [_row(run) for run in runs]
    if console.width < _NARROW:
        for run, row in zip(runs, rows, strict=True):
            _print_brief(row, console)
            _print_reason(run, console, label="  ")
        return
    _print_table(rows, console)
    for run in runs:
        _print_reason(run, console, label=f"{run['experiment']}: ")


_Row = dict[str, str]
"""By column; what has nothing to tell is empty, and what is not known a dash."""


def _print_table(rows: list[_Row], console: Console) -> None:
    """With all there is; in a narrower window without bars, and then with what came of attempts
    below it. Nothing is left out."""
    columns = [name for name in _COLUMNS if any(row[name] for row in rows)]
    if _width(rows, columns) > console.width:
        rows = [{**row, "progress": row["progress"].rpartition(" ")[2]} for row in rows]
    shown, below = columns, []
    if _width(rows, columns) > console.width:
        shown = [name for name in columns if name not in _BELOW]
        below = [name for name in columns if name in _BELOW]
    widths = _fit({name: _column(rows, name) for name in shown}, console.width)
    lines = [Text(_GAP.join(_padded(name, width) for name, width in widths.items()).rstrip())]
    lines.append(Text("─" * (sum(widths.values()) + len(_GAP) * (len(widths) - 1))))
    for row in rows:
        lines.append(_line(row, widths))
    console.print(Text("\n").join(lines), highlight=False, no_wrap=True, crop=False, soft_wrap=True)
    for row in rows if below else ():
        told = ", ".join(f"{name} {row[name]}" for name in below if row[name])
        say(console, f"{row['run']}: {told}")


def _width(rows: list[_Row], columns: list[str]) -> int:
    return sum(_column(rows, name) for name in columns) + len(_GAP) * (len(columns) - 1)


def _column(rows: list[_Row], name: str) -> int:
    return max(cell_len(name), *(cell_len(row[name]) for row in rows))


def _fit(widths: dict[str, int], room: int) -> dict[str, int]:
    """Long names give way first, and no more than they must."""
    over = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - room
    fitted = dict(widths)
    for name in ("stage", "run", "loss", "step"):
        cut = max(0, min(over, fitted.get(name, 0) - 8))
        fitted[name] = fitted.get(name, 0) - cut
        over -= cut
    return {name: fitted[name] for name in widths}


def _padded(text: str, width: int) -> str:
    if cell_len(text) > width:
        return f"{set_cell_size(text, width - 1)}…"
    return set_cell_size(text, width)


def _line(row: _Row, widths: dict[str, int]) -> Text:
    line = Text()
    for name, width in widths.items():
        line.append(_padded(row[name], width), _style(name, row[name]))
        line.append(_GAP)
    line.rstrip()
    return line


def _style(column: str, text: str) -> str:
    if column == "state":
        return STATE_COLOURS.get(text, "")
    return "red" if column == "deadline" and text.startswith(_DANGER) else ""


def _print_doubt(slurm: dict[str, Any] | None, console: Console) -> None:
    if slurm is None or not slurm["problem"]:
        return
    since = f"; what is shown of jobs is of {slurm['at']}" if slurm["at"] else ""
    warn(console, f"{slurm['problem']}{since}")


def _print_brief(row: _Row, console: Console) -> None:
    """For a narrow window: a run in some short lines, none of them wider."""
    lines = [f"{row['run']}  {row['state']}", f"  {row['stage']}  {row['progress']}"]
    lines.append(f"  step {row['step']}  loss {row['loss']}")
    if row["left"] != _NOTHING:
        lines.append(f"  left {row['left']}")
    if row["deadline"]:
        lines.append(f"  deadline {row['deadline']}")
    for words in lines:
        line = Text(words if cell_len(words) <= console.width else _padded(words, console.width))
        if words is lines[0]:
            line.highlight_words([row["state"]], STATE_COLOURS.get(row["state"], ""))
        elif words.startswith(f"  deadline {_DANGER}"):
            line.stylize("red")
        console.print(line, highlight=False, soft_wrap=True)


_NOTHING = "–"


def _row(run: dict[str, Any]) -> _Row:
    share = _share(run)
    goodput = number_in(run, "goodput")
    attempts = count(run["attempts"])
    return {
        "run": line_of(run["experiment"]),
        "state": line_of(run["state"] or "unknown"),
        "stage": line_of(run["stage"] or _NOTHING),
        "progress": f"{bar(share, 6)} {share:.0%}",
        "step": f"{count(run['step'])}/{count(run['total_steps'])}",
        "left": _left(run),
        "loss": plain_number(run["loss"]),
        "attempts": attempts + (f" ({run['preemptions']} preempted)" if run["preemptions"] else ""),
        "goodput": f"{goodput:.0%}" if goodput is not None else _NOTHING,
        "deadline": _deadline(run),
        "cost": money(run["cost"]) if run["cost"] is not None else "",
    }


def _share(run: dict[str, Any]) -> float:
    """Of the stages that are trained, each counting alike, and of the one in work its steps."""
    if run["state"] == "complete":
        return 1.0
    trained = [stage for stage in run["stages"] if stage["is_trained"]]
    step, total = number_in(run, "step"), number_in(run, "total_steps")
    inside = min(1.0, max(0.0, step / total)) if step and total else 0.0
    if any(s["name"] == run["stage"] for s in trained):
        inside = 0.0
    return min(1.0, (len(trained) + inside) / max(1, len(run["stages"])))


def _left(run: dict[str, Any]) -> str:
    """Of the whole run; where that is not known, at least that of the stage."""
    half, most, stage = (number_in(run, key) for key in ("eta_s", "eta_s_p90", "stage_eta_s"))
    if half is not None:
        return format_seconds(half) + ("" if most is None else f"/{format_seconds(most)}")
    return _NOTHING if stage is None else f"> {format_seconds(stage)}"


def _deadline(run: dict[str, Any]) -> str:
    told = run.get("deadline")
    if not told:
        return ""
    late = number_in(told, "late_s")
    off = "" if late is None else format_seconds(abs(late))
    if run["state"] == "complete":
        word = "met" if late is None or late <= 0 else "missed"
        return f"{word}, {off} {'early' if word == 'met' else 'late'}" if off else word
    if told["danger"] is None:
        return "not known"
    if told["danger"]:
        return f"{_DANGER}: {off} late" if off else _DANGER
    return f"kept, {off} to spare"


def show_results(result: dict[str, Any], *, runs: str = "", console: Console | None = None) -> None:
    """The end of `tasuki run`: what each run came to; and where, if `runs` is given."""
    console = console or Console()
    for run in result["runs"]:
        colour = STATE_COLOURS.get(run["state"], "default")
        words = f" after {run['attempts']} attempts" if run["attempts"] > 1 else ""
        words += f", cost {money(run['cost'])}" if run["cost"] is not None else ""
        console.print(
            f"{_name(run['experiment'])}: [{colour}]{run['state'] or 'unknown'}[/]{words}",
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
    told = ", ".join(f"{_name(name)} {number(value)}" for name, value in metrics.items())
    word = "results" if stage.get("is_evaluated") is None else "evaluated"
    evaluated = f"; {word}: {told}" if told else ""
    steps, loss = count(stage["steps"]), number(stage["loss"])
    if stage.get("command") and stage["steps"] is None:
        took = format_seconds(stage["wall_s"]) if stage["wall_s"] is not None else "–"
        told = f", loss {loss}" if stage["loss"] is not None else ""
        return f"{_name(stage['name'])}: its command took {took}{told}{evaluated}"
    return f"{_name(stage['name'])}: {steps} steps, loss {loss}{evaluated}{_scaled(stage)}"


def _name(text: object) -> str:
    """Of a stage or a metric, within markup."""
    return escape(line_of(text))


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
