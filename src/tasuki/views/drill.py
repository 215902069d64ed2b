"""The certificate of a drill, or what it found: as plain text, the same on a terminal and in a
file. Fed with the values of `--json`."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from tasuki.units import format_seconds
from tasuki.views.text import count, neutral, wrap

_WIDTH = 100
_NAME = 14
_STYLES = {"equal": "green", "DIFFERS": "red bold", "not here": "yellow"}


def show_drill(report: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    for line in drill_lines(report):
        text = Text(wrap(line, console.width if console.is_terminal else None))
        for mark, style in _STYLES.items():
            text.highlight_regex(rf"^  {mark}\b", style)
        if line and not line.startswith(" "):
            text.stylize("bold")
        console.print(text, highlight=False, soft_wrap=True)


def certificate_text(report: dict[str, Any]) -> str:
    return "\n".join(drill_lines(report)) + "\n"


def drill_lines(report: dict[str, Any]) -> list[str]:
    title = "Certificate: an interrupted run equals an undisturbed one, bit for bit"
    if not report["equal"]:
        title = "No certificate: an interrupted run is not the undisturbed one"
    return [
        neutral(line)
        for line in (
            title,
            "",
            *_what(report),
            "",
            *_scenarios(report),
            *_findings(report),
            *_proof(report),
            *_limits(report),
        )
    ]


def _what(report: dict[str, Any]) -> Iterator[str]:
    short, machine = report["shortened"], report["machine"]
    yield _field("run", f"experiment {report['experiment']}, stage {report['stage']}")
    if report["recipe"] is not None:
        yield _field("of", f"recipe {report['recipe']}, data {report['data']}, {report['spec']}")
    else:
        yield _field("of", f"the loop of `{shlex.join(report['command'])}`")
    epochs = short["steps"] / short["steps_per_epoch"]
    words = f"{short['steps']} steps, {epochs:.3g} epochs of {short['steps_per_epoch']}"
    if short["samples"] is not None:
        buckets = short["buckets"]
        words += f"; {count(short['samples'])} samples in {_many(buckets, 'bucket')}"
        words += f", effective batch {short['effective_batch']}"
    else:
        words += f"; a loader of the {'recipe' if report['recipe'] is not None else 'script'}'s own"
    yield _field("shortened to", words + ("; validated" if report["validates"] else ""))
    yield _field(
        "on",
        f"{machine['device']} ({machine['device_model']}), {_many(machine['world'], 'rank')}, "
        f"{_many(machine['threads'], 'thread')} each",
    )
    versions = ", ".join(
        f"{name} {machine[key]}"
        for name, key in (
            ("tasuki", "tasuki"),
            ("torch", "torch"),
            ("numpy", "numpy"),
            ("Python", "python"),
        )
    )
    took = f", in {format_seconds(report['seconds'])}" if report.get("seconds") else ""
    yield _field("with", versions)
    yield _field("drilled", report["drilled_at"] + took)


def _scenarios(report: dict[str, Any]) -> Iterator[str]:
    for one in report["scenarios"]:
        mark = "not here" if one["equal"] is None else "equal" if one["equal"] else "DIFFERS"
        told = one["not_here"]
        if one["equal"] is not None:
            again = _many(one["replayed_steps"], "step")
            done = f"{_many(one['attempts'], 'attempt')}, {again} done again"
            told = "; ".join([*one["struck"], done])
        yield from _wrapped(mark, told, f"{one['name']:<{_NAME}}")


def _findings(report: dict[str, Any]) -> Iterator[str]:
    """What several scenarios found alike is said once."""
    said: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in report["scenarios"]:
        found = one["finding"]
        if found is not None:
            own_words = found["words"] if found["step"] is None else ""
            key = (found["cause"], found["suspect"] or found["entry"], own_words)
            said.setdefault(key, []).append(one)
    for alike in said.values():
        yield ""
        yield from _finding(alike)
    if report["folder"] and said:
        yield ""
        yield from _wrapped("kept", f"{report['folder']} (the next drill of it replaces it)")


def _finding(alike: list[dict[str, Any]]) -> Iterator[str]:
    first, found = alike[0], alike[0]["finding"]
    where = first["name"]
    if found["step"] is not None:
        where = f"from step {found['step']} on, first in `{found['entry']}` ({first['name']}"
        if found["resumed_at"]:
            where += f", attempt {found['attempt']}, which went on from step {found['resumed_at']}"
        where += f", rank {found['rank']})" if found["rank"] else ")"
    if len(alike) > 1:
        where += f"; likewise {', '.join(one['name'] for one in alike[1:])}"
    yield from _wrapped("differs", where)
    yield from _wrapped("likely cause", found["words"])
    if found["advice"]:
        yield from _wrapped("what to do", found["advice"])
    if found["others"]:
        yield from _wrapped("not restored", "also " + "; ".join(found["others"]))


def _proof(report: dict[str, Any]) -> Iterator[str]:
    done = [one for one in report["scenarios"] if one["equal"] is not None]
    if not report["equal"]:
        return
    yield ""
    checks = "; ".join(check["what"] for check in done[0]["checks"])
    yield from _wrapped("compared", f"byte for byte with the undisturbed twin: {checks}")
    once = {one["each_sample_once"] for one in done}
    if once == {True}:
        yield from _wrapped("samples", "each exactly once per epoch, over all attempts and ranks")
    elif None in once:
        yield from _wrapped("samples", "not counted: the loader does not tell which they are")
    else:
        yield from _wrapped("samples", "NOT each exactly once per epoch")
    if report["notes"]:
        told = "; ".join(report["notes"])
        yield from _wrapped("not restored", f"{told}: changed nothing here")


def _limits(report: dict[str, Any]) -> Iterator[str]:
    if not report["equal"]:
        return
    is_cpu = report["machine"]["device"] == "cpu"
    limits = [
        f"{report['shortened']['steps']} steps on a few samples stand for the whole run",
        "other machines and versions than these" + ("; GPUs were not tried" if is_cpu else ""),
        "evaluation and the way from stage to stage are left out",
    ]
    if report["other_stages"]:
        others = ", ".join(report["other_stages"])
        limits.append(f"other stages ({others}): `--stage` drills them")
    if not report["exact"]:
        limits.append("with `exact: false` runs may differ at any time")
    yield ""
    yield from _wrapped("not proved", "; ".join(limits))


def _field(name: str, text: str) -> str:
    return f"  {name:<{_NAME}}{text}"


def _wrapped(name: str, text: str, second: str = "") -> list[str]:
    head = f"  {name:<{_NAME}}{second}"
    return textwrap.wrap(
        text,
        min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
