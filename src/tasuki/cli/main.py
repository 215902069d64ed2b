"""The group of verbs: found by name, imported when called; errors become `error:` and `hint:`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from tasuki.errors import EXIT_FAILED, EXIT_RESUME_ME, StoreError, TasukiError, UsageError

GROUPS: dict[str, dict[str, str]] = {
    "Every day": {
        "new": "Make a project that runs at once.",
        "run": "Train here: plan, start, survive, evaluate; run again to go on.",
        "submit": "Give the work to Slurm; come back to a finished model.",
        "status": "Where every run stands.",
        "watch": "Runs as they go: bars, losses, machine figures, events; live.",
        "logs": "What a run printed, over all attempts.",
        "why": "Why every attempt ended, and where the time went.",
        "cancel": "End a run, saved.",
        "extend": "Give a running job more time.",
        "resume": "Go on with a run that is held or was stopped.",
    },
    "Before": {
        "inspect": "What data hold: sizes, bytes, padding, and stages to begin with.",
        "estimate": "Batch, memory and time of every stage, without a GPU; what to ask for.",
        "plan": "Show jobs, times and commands; begin nothing.",
        "check": "Run two real steps of every stage, save, load and evaluate. About a minute.",
        "tune": "Measure settings (precision, compile, workers, …) on your own recipe.",
        "doctor": "Check this machine, Slurm and the site file.",
    },
    "After": {
        "evaluate": "Evaluate any weights on any data; benchmark the model.",
        "export": "Write a stage's weights to a file.",
        "report": "One file to mail: results, curves, plan and reality, where the time went.",
        "board": "A web page of all runs, live, on this machine alone.",
        "history": "What past stages took: steps, memory, waits; estimates learn from it.",
    },
    "Proof": {
        "verify": "Prove that a resume changes nothing, samples are used once, gradients agree.",
        "checkpoint": "Show, verify, compare and prune checkpoints.",
    },
    "Data": {
        "data": "Check, merge and split HDF5 files, tokenise text: `data check`, `data tokenize` …",
    },
    "Learn": {
        "help": "Read the documentation here: `tasuki help`, `tasuki help start` …",
        "demo": "Watch three stages go through time limits and a preemption, bit for bit.",
        "completion": "Print the shell completion script.",
    },
}


_ONLY_LOOK = (
    "check", "doctor", "estimate", "history", "inspect", "logs", "plan", "status", "tune",
)  # fmt: skip
_ONLY_LOOK_TOO = (
    *(("data", "check"), ("checkpoint", "show"), ("checkpoint", "verify"), ("checkpoint", "diff")),
    *(("verify", "resume"), ("verify", "samples"), ("verify", "gradients")),
)
_STOPPED = {
    "data": "stopped; no output is there yet: the same command goes on from here",
    "run": "stopped; the same command goes on from here",
    "resume": "stopped; the same command goes on from here",
    "submit": "stopped; the same command submits what is not submitted yet",
}


class Verbs(click.Group):
    """Lists verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [verb for verbs in GROUPS.values() for verb in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"tasuki.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        import difflib

        name = args[0]
        if name not in self.list_commands(ctx):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"did you mean `{near[0]}`?" if near else "`tasuki --help` lists all"
            raise UsageError(f"there is no verb `{name}`", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


EPILOG = """\b
Examples:
  tasuki new first && cd first
  tasuki plan
  tasuki run
  tasuki status
  tasuki help start
"""


@click.command(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tasuki", prog_name="tasuki")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def cli() -> None:
    """PyTorch training that finishes inside the clock of a cluster.

    You describe experiments and limits once; tasuki plans jobs that fit, runs them, and hands the
    training on from job to job until it is done: nothing lost, bit for bit as if undisturbed.
    """


def run() -> int:
    """The process's exit code. A user's mistake never shows a traceback."""
    try:
        result = cli.main(standalone_mode=False, prog_name="tasuki")
        return result if isinstance(result, int) else 0
    except TasukiError as error:
        return _report(error)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.NoSuchOption as error:
        words = f"there is no option `{error.option_name}`"
        return _report(UsageError(words, hint=_near_options(error)))
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "tasuki"
        message = error.format_message().rstrip(".")
        return _report(UsageError(message, hint=f"`{path} --help` tells more"))
    except click.ClickException as error:
        return _report(UsageError(error.format_message()))
    except (click.Abort, KeyboardInterrupt) as error:
        if words := _words_of(error):
            _say("interrupted:", words, "yellow")
        click.echo(stopped_in_words(sys.argv[1:]), err=True)
        return EXIT_RESUME_ME
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except PermissionError as error:
        words = f"{error.filename or 'a file'}: {error.strerror}"
        hint = "it is somebody else's, or closed: `ls -ld` shows whose"
        return _report(StoreError(words, hint=hint))


def _near_options(error: click.NoSuchOption) -> str:
    """Those that begin so come first: people leave the end of a word out."""
    options = [] if error.ctx is None else [one.opts for one in error.ctx.command.params]
    known = [name for names in options for name in names if name.startswith("--")]
    near = [name for name in known if name.startswith(error.option_name)]
    if near := near or sorted({*(error.possibilities or ())} - {"--help"}):
        return f"did you mean {' or '.join(f'`{name}`' for name in near[:3])}?"
    return f"`{error.ctx.command_path if error.ctx else 'tasuki'} --help` tells more"


def _words_of(error: BaseException) -> str:
    """Say where a child process was; click makes an Abort of the interrupt."""
    source = error.__cause__ or error
    return str(source) if isinstance(source, KeyboardInterrupt) else ""


def stopped_in_words(words: Sequence[str]) -> str:
    """After Ctrl-C, true to the verb. Those that know more have caught it, and said so."""
    verbs = [word for word in words if not word.startswith("-")]
    verb, of_data = [*verbs, "", ""][:2]
    if verb in _ONLY_LOOK or (verb, of_data) in _ONLY_LOOK_TOO:
        return "stopped; nothing was changed"
    return _STOPPED.get(verb, "stopped")


def _report(error: TasukiError) -> int:
    if "--debug" in sys.argv:  # wherever it stands, also when the arguments themselves are wrong
        import traceback

        traceback.print_exception(error)
    _say("error:", str(error), "red")
    if error.hint:
        click.echo("", err=True)
        _say("hint:", error.hint, "cyan")
    return error.exit_code


def _say(label: str, text: str, colour: str) -> None:
    from tasuki.views.text import width_of, wrap

    words = wrap(f"{label} {text}", width_of(sys.stderr)).removeprefix(label)
    shows_colour = False if os.environ.get("NO_COLOR") else None
    styled = click.style(label, fg=colour, bold=True)
    click.echo(f"{styled}{words}", err=True, color=shows_colour)
