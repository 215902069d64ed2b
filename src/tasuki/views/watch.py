"""`tasuki watch`: several runs as a list, one as a page, as lines of text. Pure.

From the values of commands/watch.py to lines that fit a window: nothing is wider or longer,
whatever names and logs hold. What does not fit gives way from the right and from below. The
terminal itself is watch_screen.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from tasuki.runs.series import as_number
from tasuki.units import format_bytes, format_seconds
from tasuki.views.blocks import bar, sparkline
from tasuki.views.text import STATE_COLOURS, in_ascii, local_time, neutral, wrap

_NARROW = 60
_REASON_LINES = 4
HELP = (
    "q, Esc     quit; from the page of one of several runs back to the list (Esc)",
    "arrows     choose a run (also j, k, Tab)",
    "Enter      the page of the chosen run",
    "?          this help, and away with it",
    "",
    "A bar is a stage. The small curve is the training loss, the newest to the right.",
    "left 8m (90%: 9m): half of such runs are done after 8 minutes, nine of ten after 9.",
    "`tasuki why RUN` tells why attempts ended; `tasuki logs RUN -f` follows what it prints.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    width: int
    height: int
    is_ascii: bool = False


def draw_list(
    runs: Sequence[dict[str, Any]], window: Window, *, selected: int | None = None
) -> list[Text]:
    """One line for each; around the selected one where they are more than the window holds."""
    if not runs:
        return [_cut(Text("no runs yet"), window)]
    room = max(1, window.height - 2)
    first = _first_shown(len(runs), room, selected or 0)
    shown = runs[first : first + room]
    name_width = min(max(len(_name(run)) for run in shown), max(8, window.width // 4))
    lines = [_cut(_headline(runs, first, len(shown)), window)]
    for number, run in enumerate(shown, start=first):
        line = _row(run, name_width, window)
        if number == selected:
            line.stylize("reverse")
        lines.append(_cut(line, window))
    if selected is not None:
        lines.append(_cut(Text("q quit  ↑↓ choose  Enter page  ? help", style="dim"), window))
    return lines


def draw_page(
    run: dict[str, Any],
    window: Window,
    *,
    losses: Sequence[float | None] = (),
    keys: str = "q quit  ? help",
) -> list[Text]:
    """All of one run: head, stages, loss, machine, what happened last."""
    lines = [*_head(run, window), *_stages(run, window), *_facts(run, window, losses)]
    room = window.height - len(lines) - (1 if keys else 0)
    events = run.get("events") or []
    if room >= 2 and events:
        lines.append(Text("last events", style="bold"))
        lines += [_event(event) for event in events[: room - 1]]
    lines = lines[: max(1, window.height - (1 if keys else 0))]
    if keys:
        lines.append(Text(keys, style="dim"))
    return [_cut(line, window) for line in lines]


def draw_help(window: Window) -> list[Text]:
    lines = [Text("tasuki watch", style="bold"), Text("")]
    lines += [Text(part) for line in HELP for part in wrap(line, window.width).split("\n")]
    return [_cut(line, window) for line in lines[: window.height]]


# -- the list ---------------------------------------------------------------------------------


def _first_shown(num: int, room: int, selected: int) -> int:
    return max(0, min(selected - room // 2, num - room))


def _headline(runs: Sequence[dict[str, Any]], first: int, num_shown: int) -> Text:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run["state"] or "unknown"] = counts.get(run["state"] or "unknown", 0) + 1
    told = ", ".join(f"{num} {state}" for state, num in sorted(counts.items()))
    part = f" ({first + 1}–{first + num_shown} shown)" if num_shown < len(runs) else ""
    return Text(f"{len(runs)} run{'s' if len(runs) != 1 else ''}: {told}{part}", style="bold")


def _row(run: dict[str, Any], name_width: int, window: Window) -> Text:
    state = run["state"] or "unknown"
    line = Text(f"{_name(run)[:name_width]:<{name_width}} ")
    line.append(f"{state:<11} ", style=STATE_COLOURS.get(state, ""))
    if window.width >= _NARROW:
        line.append(f"{bar(_share(run), 10, is_ascii=window.is_ascii)} ")
    line.append(f"{_share(run):>4.0%} ")
    if state == "running":
        line.append(_doing(run) or f"{_stage(run)} {_steps(run)}  loss {_number(run['loss'])}")
        line.append(_left(run, "  "))
    elif run["reason"]:
        line.append(_plain(run["reason"]), style="dim")
    return line


# -- the page ---------------------------------------------------------------------------------


def _head(run: dict[str, Any], window: Window) -> Iterator[Text]:
    state = run["state"] or "unknown"
    line = Text()
    line.append(f"{_name(run)}  ", style="bold")
    line.append(state, style=STATE_COLOURS.get(state, ""))
    line.append(f"  attempt {run['attempt']}" if run["attempt"] else "")
    line.append(f" ({run['preemptions']} preempted)" if run["preemptions"] else "")
    goodput = as_number(run.get("goodput"))
    line.append(f"  goodput {goodput:.0%}" if goodput is not None else "")
    yield line
    doing = _doing(run)
    for label, text in (("", run["reason"]), ("hint: ", run["hint"])):
        if text:
            words = wrap(f"{label}{_plain(text)}", window.width).split("\n")
            yield from (Text(part) for part in words[:_REASON_LINES])
    if doing:
        yield Text(doing)
    deadline = run.get("deadline")
    if isinstance(deadline, dict) and deadline.get("danger"):
        yield Text(f"deadline {_plain(deadline.get('at'))} is in danger", style="red")


def _stages(run: dict[str, Any], window: Window) -> Iterator[Text]:
    names = [_plain(stage["name"]) for stage in run["stages"]]
    name_width = min(max(map(len, names), default=0), max(8, window.width // 4))
    room = max(0, min(40, window.width - name_width - 28))
    for stage, name in zip(run["stages"], names, strict=True):
        share, steps = _stage_share(run, stage)
        line = Text(f"{name[:name_width]:<{name_width}} ")
        if room >= 4:
            colour = "green" if stage["is_trained"] else "cyan"
            line.append(f"{bar(share, room, is_ascii=window.is_ascii)} ", style=colour)
        line.append(f"{share:>4.0%} {steps}")
        if stage["is_trained"] and stage["is_evaluated"]:
            line.append(f"  {_metrics(stage)}")
        elif stage["is_trained"] and stage["is_evaluated"] is False:
            line.append("  to be evaluated")
        yield line


def _facts(run: dict[str, Any], window: Window, losses: Sequence[float | None]) -> Iterator[Text]:
    if run["loss"] is not None or losses:
        label = f"loss {_number(run['loss'])} "
        curve = sparkline(losses, max(0, window.width - len(label)), is_ascii=window.is_ascii)
        line = Text(label)
        line.append(curve, style="cyan")
        yield line
    if left := _left(run, ""):
        yield Text(left)
    if run["state"] == "running" and (figures := _machine(run.get("machine") or {})):
        yield Text(figures)


def _machine(told: dict[str, Any]) -> str:
    """What the supervisor last read of its processes and GPUs."""
    parts = []
    rate, cpu = as_number(told.get("samples_per_sec")), as_number(told.get("cpu_percent"))
    rss, host = as_number(told.get("rss_bytes")), as_number(told.get("host_bytes"))
    if rate is not None:
        parts.append(f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s")
    if cpu is not None:
        parts.append(f"CPU {cpu:.0f}%")
    if rss is not None:
        parts.append(f"memory {format_bytes(rss)}{f' of {format_bytes(host)}' if host else ''}")
    gpus = told.get("gpus")
    for number, gpu in enumerate(gpus if isinstance(gpus, list) else ()):
        parts.append(_gpu(number, gpu if isinstance(gpu, dict) else {}))
    return "  ".join(parts)


def _gpu(number: int, gpu: dict[str, Any]) -> str:
    util, used = as_number(gpu.get("util")), as_number(gpu.get("used_bytes"))
    total = as_number(gpu.get("total_bytes"))
    words = f"GPU {number}" + (f" {util:.0f}%" if util is not None else "")
    return words + (f" {format_bytes(used)} of {format_bytes(total)}" if used and total else "")


def _event(event: dict[str, Any]) -> Text:
    when = local_time(event["t"], "%H:%M:%S", unknown="--:--:--")
    line = Text(f"{when} ", style="dim")
    line.append(Text(_plain(event["words"]), style="default"))
    return line


# -- pieces of text ---------------------------------------------------------------------------


def _name(run: dict[str, Any]) -> str:
    return _plain(run["experiment"])


def _stage(run: dict[str, Any]) -> str:
    return _plain(run["stage"] or "–")


def _steps(run: dict[str, Any]) -> str:
    return f"{_count(run['step'])}/{_count(run['total_steps'])}"


def _share(run: dict[str, Any]) -> float:
    if run["state"] == "complete":
        return 1.0
    shares = [_stage_share(run, stage)[0] for stage in run["stages"]]
    return sum(shares) / len(shares) if shares else 0.0


def _stage_share(run: dict[str, Any], stage: dict[str, Any]) -> tuple[float, str]:
    """How much of a stage is done, and its steps in words."""
    total = as_number(run["total_steps"]) if stage["name"] == run["stage"] else None
    step = as_number(run["step"]) if total else None
    if stage["is_trained"]:
        return 1.0, f"{_count(stage['steps'])} steps" if stage["steps"] is not None else "done"
    if total and step is not None:
        return max(
            0.0, min(1.0, step / total)
        ), f"{_count(run['step'])}/{_count(run['total_steps'])}"
    known = as_number((run.get("totals") or {}).get(stage["name"]))
    return 0.0, f"{_count(int(known))} steps" if known else ""


def _metrics(stage: dict[str, Any]) -> str:
    metrics = stage.get("metrics") or {}
    return ", ".join(f"{_plain(name)} {_number(value)}" for name, value in metrics.items())


def _left(run: dict[str, Any], before: str) -> str:
    """Of the run; where nobody knows how long later stages take, of the one that runs."""
    eta, slow = as_number(run.get("eta_s")), as_number(run.get("eta_s_p90"))
    stage = as_number(run.get("stage_eta_s"))
    if run["state"] != "running":
        return ""
    if eta is None:
        return "" if stage is None else f"{before}left {format_seconds(round(stage))} of this stage"
    ninety = f" (90%: {format_seconds(round(slow))})" if slow is not None else ""
    return f"{before}left {format_seconds(round(eta))}{ninety}"


def _doing(run: dict[str, Any]) -> str:
    doing = run.get("doing")
    if run["state"] != "running" or not doing:
        return ""
    what, seconds = doing
    prefix = "" if str(what).startswith(("runs ", "evaluating ")) else "starting: "
    return f"{prefix}{_plain(what)}, for {format_seconds(seconds)}"


def _number(value: object) -> str:
    known = as_number(value)
    if known is not None:
        return f"{known:.4g}"
    return "–" if value is None else _plain(value)[:12]


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _plain(text: object) -> str:
    """Harmless, and on one line."""
    return " ".join(neutral(str(text)).split())


def _cut(line: Text, window: Window) -> Text:
    """To the window's width, in signs that its terminal has."""
    if window.is_ascii:
        line = Text(in_ascii(line.plain), style=line.style, spans=line.spans)
    line.no_wrap = True
    line.truncate(max(1, window.width), overflow="crop" if window.is_ascii else "ellipsis")
    return line
