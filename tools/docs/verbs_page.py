"""`docs/reference/verbs.md`: every verb as click knows it."""

from __future__ import annotations

import inspect
import re

import click

from tasuki.cli.main import GROUPS, cli

HEAD = """\
# Verbs

Generated from the command line itself: `tasuki VERB --help` says the same. SPEC is `tasuki.yaml` unless told;
RUN is an experiment (its newest run) or a run's folder. What verbs mean in more words: [running](../running.md),
[data](../data.md), [estimating](../estimating.md), [proofs](../proofs.md), [checkpoints](../checkpoints.md).
What they give scripts: [JSON](json.md). The same as [Python functions](python.md).
"""


def verbs_page() -> str:
    parts = [HEAD]
    context = click.Context(cli, info_name="tasuki")
    for group, verbs in GROUPS.items():
        parts.append(f"## {group}\n")
        for verb in verbs:
            command = cli.get_command(context, verb)
            assert command is not None
            parts.append(_describe(command, f"tasuki {verb}", level=3))
    return "\n".join(parts)


def _describe(command: click.Command, path: str, *, level: int) -> str:
    context = click.Context(command, info_name=path)
    usage = f"{path} {' '.join(command.collect_usage_pieces(context))}"
    parts = [f"{'#' * level} {path.removeprefix('tasuki ')}\n", f"```text\n{usage}\n```\n"]
    parts.append(_prose(command.help or "") + "\n")
    if options := [row for row in map(_row, command.params) if row]:
        parts.append("| option | |\n| --- | --- |\n" + "\n".join(options) + "\n")
    if examples := _examples(command):
        parts.append("Examples:\n\n```text\n" + "\n".join(examples) + "\n```\n")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            parts.append(_describe(inner, f"{path} {name}", level=level + 1))
    return "\n".join(parts)


def _prose(text: str) -> str:
    """Lines of a docstring as paragraphs; what click must not wrap stays in its lines."""
    shown = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("\b"):
            shown.append("```text\n" + part.removeprefix("\b").strip("\n") + "\n```")
        else:
            shown.append(escape(" ".join(part.split())))
    return "\n\n".join(shown)


def escape(text: str) -> str:
    parts = text.split("`")
    return "`".join(
        p if n % 2 else p.replace("<", "\\<").replace("[", "\\[").replace("*", "\\*")
        for n, p in enumerate(parts)
    )


def _row(parameter: click.Parameter) -> str:
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return ""
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    value = ""
    if not parameter.is_flag and not parameter.count:
        value = " " + (parameter.metavar or _kind(parameter.type))
    words = " ".join((parameter.help or "").split())
    more = " May be given several times." if parameter.multiple else ""
    return f"| `{_in_table(names + value)}` | {_in_table(words)}{more} |"


def _in_table(text: str) -> str:
    return text.replace("|", "\\|")


def _kind(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(str(choice) for choice in kind.choices)
    return kind.name.upper()


def _examples(command: click.Command) -> list[str]:
    text = (command.epilog or "").replace("\b", "")
    lines = [re.sub(r"^\s*Examples?:", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]
