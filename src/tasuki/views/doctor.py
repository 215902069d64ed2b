"""What `tasuki doctor` found, for a person: facts first, what to do last. Fed with the values of
`--json`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from tasuki.units import format_bytes, format_seconds
from tasuki.views.text import neutral, wrap

_WIDTH = 100
_NAME = 14
_STYLES = {"problem": "red bold", "advice": "yellow", "hint": "cyan"}


def show_doctor(report: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for line in doctor_lines(report):
        text = Text(wrap(line, console.width if console.is_terminal else None))
        for mark, style in _STYLES.items():
            text.highlight_regex(rf"^{mark}:", style)
            text.highlight_regex(rf"^  {mark}:", style)
        if line and not line.startswith(" ") and ":" not in line.partition(" ")[0]:
            text.stylize("bold")
        console.print(text, highlight=False, soft_wrap=True)


def doctor_lines(report: dict[str, Any]) -> list[str]:
    parts = (
        _machine(report),
        _spec(report),
        _slurm(report),
        _live(report),
        _findings(report),
    )
    lines: list[str] = []
    for part in parts:
        own = list(part)
        lines += ["", *own] if lines and own else own
    return [neutral(line) for line in lines]


def _machine(report: dict[str, Any]) -> Iterator[str]:
    machine, runs = report["machine"], report["runs"]
    yield f"This machine, {machine['host']}"
    gpus = str(machine["gpus"]) if machine["gpus"] else "no"
    memory = format_bytes(machine["memory_bytes"])
    yield from _field("has", f"{machine['cpus']} CPUs, {gpus} GPUs, {memory} of memory")
    if machine["shm_bytes"] is not None:
        yield from _field("/dev/shm", format_bytes(machine["shm_bytes"]))
    yield from _field("Python", f"{machine['python_version']}, {machine['python']}")
    free, total = format_bytes(runs["free_bytes"]), format_bytes(runs["total_bytes"])
    where = f"{runs['folder']} on {runs['file_system']} ({runs['mount']}): {free} of {total} free"
    yield from _field("runs", where)


def _spec(report: dict[str, Any]) -> Iterator[str]:
    spec, site = report["spec"], report["site"]
    if spec is not None:
        yield f"Spec {spec['file']}"
        limit = spec["time_limit_s"]
        yield from _field("partition", spec["partition"] or "Slurm's default")
        yield from _field("time limit", format_seconds(limit) if limit is not None else "none")
        yield from _field("grace", format_seconds(spec["grace_s"]))
        yield from _field("Python of jobs", spec["python"])
    for file in site["files"]:
        yield from _field("site file", file) if spec is not None else [f"Site file {file}"]


def _slurm(report: dict[str, Any]) -> Iterator[str]:
    slurm = report["slurm"]
    if slurm is None:
        yield "No Slurm here: jobs run on this machine (`tasuki run`)"
        return
    name = slurm["settings"].get("ClusterName")
    head = f"Slurm {slurm['version']}" if slurm["version"] else "Slurm is here"
    if not slurm["answers"]:
        yield f"{head}, but it does not answer: see below"
    else:
        yield head + (f", cluster {name}" if name else "")
    missing = [command for command, path in slurm["commands"].items() if path is None]
    if missing:
        yield from _field("not here", ", ".join(missing))
    told = [f"{k} {v}" for k, v in slurm["settings"].items() if k != "ClusterName"]
    if told:
        yield from _field("settings", "; ".join(told))
    for one in slurm["partitions"]:
        yield from _field(one["name"], _partition(one))


def _partition(one: dict[str, Any]) -> str:
    longest = one["longest_s"]
    facts = [f"up to {format_seconds(longest)}" if longest is not None else "without time limit"]
    facts += ["default"] if one["is_default"] else []
    facts += [] if one["is_up"] else ["NOT UP"]
    facts.append(f"{one['nodes']} {'node' if one['nodes'] == 1 else 'nodes'}")
    for kind, number in one["gpus"].items():
        facts.append(f"{number} GPUs{f' ({kind})' if kind else ''} each")
    return f"{', '.join(facts)}; {one['words']}"


def _live(report: dict[str, Any]) -> Iterator[str]:
    live = report["live"]
    if live is None:
        return
    where = f", node {live['node']}" if live["node"] else ""
    yield f"Tried with job {live['job']} on {live['partition'] or 'the default partition'}{where}"
    if live["node"] is None:
        return
    yield from _field("runs folder", live["runs"]["words"] or "seen and written there")
    version = f"{live['python_version']}, {live['python']}"
    yield from _field("Python", version)
    if (recipe := live["recipe"]) is not None:
        took = format_seconds(recipe["seconds"])
        words = f"imported in {took}" if recipe["ok"] else f"NOT imported: {recipe['words']}"
        yield from _field("recipe", f"{recipe['name']} {words}")
    scontrol = live["scontrol"]
    yield from _field("scontrol", "works" if scontrol["ok"] else scontrol["words"])
    yield from _field("requeue", _requeue(live["requeue"]))
    for one in live["signals"]:
        who = "batch process" if one["who"] == "batch" else "srun step"
        yield from _field(f"+{one['after_s']:.2f}s", f"{one['signal']} to the {who}")
    for who, seconds in live["kill_after_s"].items():
        if seconds is not None:
            what = "batch process" if who == "batch" else "srun step"
            yield from _field("killed", f"{what} {seconds:.2f}s after its TERM")


def _requeue(requeue: dict[str, Any]) -> str:
    if requeue["has_returned"]:
        return "a job may requeue itself; it came back"
    if requeue["is_allowed"]:
        return "a job may requeue itself; it had not come back in time"
    return f"refused: {requeue['words']}" if requeue["is_allowed"] is False else "not tried"


def _findings(report: dict[str, Any]) -> Iterator[str]:
    for one in report["findings"]:
        yield from _wrapped(f"{one['level']}: ", one["what"])
        if one["hint"]:
            yield from _wrapped("  hint: ", one["hint"])
    if report["ok"]:
        yield "Nothing here stops a job."
    if report["site"]["written"] is not None:
        yield f"Written: {report['site']['written']}"


def _field(name: str, text: str) -> Iterator[str]:
    yield from _wrapped(f"  {name:<{_NAME}} ", text)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns),
        initial_indent=head,
        subsequent_indent=" " * min(len(head), _NAME + 3),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
