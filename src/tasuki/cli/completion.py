"""`tasuki completion`."""

from __future__ import annotations

import click


@click.command(
    epilog="Example:  echo 'eval \"$(tasuki completion bash)\"' >> ~/.bashrc",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes verbs, options and files in your shell."""
    from click.shell_completion import get_completion_class

    from tasuki.cli.main import cli

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(cli, {}, "tasuki", "_TASUKI_COMPLETE").source())
