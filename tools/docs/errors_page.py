"""`docs/errors.md`: every message of ours, by the part of tasuki that says it."""

from __future__ import annotations

from itertools import groupby

from tools.docs.messages import SOURCE, Message, collect, read_module

AREAS: dict[str, str] = {
    "spec": "The spec, the site file, `--set`",
    "cli": "The command line",
    "actions": "The verbs",
    "api": "The Python functions",
    "views": "What is shown",
    "plan": "Plans and packing",
    "estimate": "Estimates",
    "data": "Data",
    "train": "Recipes and training",
    "runtime": "A worker's life",
    "checkpoint": "Checkpoints and weights",
    "store": "Files and folders",
    "relay": "Decisions about runs",
    "supervisor": "Jobs and commands",
    "scheduler": "Slurm's answers",
    "backends": "Submitting, and jobs here",
    "sinks": "Metrics elsewhere",
    "telemetry": "Events and metrics",
    "integrations": "One's own loop, Lightning, HF Trainer",
    "testing": "The test tools",
    "": "Everything else",
}
"""Packages in plain words, in the order of the page."""

HEAD = """\
# All error messages

Every message that tasuki itself can end with, and what it tells to do. `…` stands for a name, a number or a file.
Generated from the code; where something is not right, the page by symptom is [troubleshooting](troubleshooting.md).
In a terminal: `tasuki help errors`, then `/` and a word of the message.

Exit code 2 for those that say *usage*, else 1 ([exit codes](reference/exit-codes.md)).
"""


def errors_page() -> str:
    shown = [message for message in collect() if not message.kind.startswith("_")]
    parts = [HEAD]
    for area, title in AREAS.items():
        own = [message for message in shown if _area_of(message) == area]
        if own:
            parts.append(f"## {title}\n")
            parts += [_of_file(file, list(group)) for file, group in groupby(own, lambda m: m.file)]
    return "\n".join(parts)


def _area_of(message: Message) -> str:
    package = message.file.partition("/")[0]
    return package if package in AREAS else ""


def _of_file(file: str, messages: list[Message]) -> str:
    words = read_module(SOURCE / file).words
    lines = [f"### {file}\n", f"{safe(words)}.\n"]
    told: dict[tuple[str, str], None] = {}
    for message in messages:
        told.setdefault((message.text, message.hint))
    usage = {m.text for m in messages if m.kind in ("UsageError", "SpecError", "PlanError")}
    for text, hint in told:
        mark = " *usage*" if text in usage else ""
        lines.append(f"- **{safe(text)}**{mark}" + (f"\\\n  {safe(hint)}" if hint else ""))
    return "\n".join(lines) + "\n"


def safe(text: str) -> str:
    """As it reads on the terminal: backticks stay, since messages use them as Markdown does."""
    one_line = " ".join(text.split())
    parts = one_line.split("`")
    if len(parts) % 2 == 0:  # a backtick that has no other
        return _plain(one_line.replace("`", "'"))
    return "`".join(part if n % 2 else _plain(part) for n, part in enumerate(parts))


def _plain(text: str) -> str:
    for sign in "\\*_<>[]|~#":
        text = text.replace(sign, f"\\{sign}")
    return text
