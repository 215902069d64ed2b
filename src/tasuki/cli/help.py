"""`tasuki help`."""

from __future__ import annotations

import os
import shutil
import sys

import click

EPILOG = """\b
Example:  tasuki help start
          tasuki help spec
          tasuki help troubleshooting
"""


@click.command(epilog=EPILOG)
@click.argument("topic", required=False)
def command(topic: str | None) -> None:
    """Read the documentation here: TOPIC is a page or a verb; without one, all are listed."""
    from tasuki.cli.main import GROUPS
    from tasuki.commands.pages import find_pages, find_topic, read_page, read_topics, refuse_topic
    from tasuki.views.pages import page_as_text, topics_as_text

    topics = read_topics(find_pages())
    verbs = [verb for group in GROUPS.values() for verb in group]
    if topic is None:
        sections: dict[str, dict[str, str]] = {}
        for one in topics:
            sections.setdefault(one.section, {})[one.name] = one.words
        click.echo(
            topics_as_text(sections, {title: list(group) for title, group in GROUPS.items()})
        )
        return
    found = find_topic(topic, topics)
    if found is None:
        if topic not in verbs:
            raise refuse_topic(topic, topics, verbs)
        _show_help_of(topic)
        return
    is_terminal = sys.stdout.isatty()
    has_colours = is_terminal and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size().columns
    _show(page_as_text(read_page(found, topics), width=width, has_colours=has_colours), is_terminal)


def _show_help_of(verb: str) -> None:
    from tasuki.cli.main import cli

    above = click.Context(cli, info_name="tasuki")
    command = cli.get_command(above, verb)
    assert command is not None
    click.echo(command.get_help(click.Context(command, info_name=verb, parent=above)))


def _show(text: str, is_terminal: bool) -> None:
    if not is_terminal:
        click.echo(text, nl=False)
        return
    # No pager for what fits the screen; colours; wide tables are scrolled sideways, not broken.
    os.environ.setdefault("LESS", "FRSX")
    click.echo_via_pager(text, color=not os.environ.get("NO_COLOR"))
