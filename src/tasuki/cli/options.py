"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tasuki.commands.plan import PlanRequest
    from tasuki.commands.queued import Known
    from tasuki.runs.runs import RunFolder
    from tasuki.slurm.client import Slurm
    from tasuki.spec.resolved import ResolvedSpec

F = TypeVar("F", bound=Callable[..., Any])
_CAP = "TASUKI_MEMORY_CAP"


class ManyValues(click.Command):
    """Lets `--stages a b` and `--experiment a b` take several words."""

    several: tuple[str, ...] = ("--stages", "--experiment")
    takes_files = False
    """Else a file is the spec that comes after them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self._spread(args)))

    def _spread(self, args: list[str]) -> list[str]:
        spread: list[str] = []
        option, has_value = None, True
        for arg in [*args, "--"]:
            is_spec = option is not None and not self.takes_files and _looks_like_spec(arg)
            if arg.startswith("-") or is_spec:
                if option is not None and not has_value:
                    raise click.UsageError(f"`{option}` needs at least one name.")
                option, has_value = (arg, False) if arg in self.several else (None, True)
                spread += [] if option else [arg]
            elif option is not None:
                spread += [option, arg]
                has_value = True
            else:
                spread.append(arg)
        return spread[:-1]


class WithCommand(ManyValues):
    """Lets a command of one's own follow after `--`: `tasuki run -- python train.py --lr 3e-4`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, words = args, None
        if "--" in args:
            end = args.index("--")
            own, words = args[:end], args[end + 1 :]
            if not words:
                raise click.UsageError("`--` is followed by no command.", ctx=ctx)
        else:
            self._refuse_forgotten(ctx, args)
        ctx.meta[_TYPED] = words
        return super().parse_args(ctx, own)

    def _refuse_forgotten(self, ctx: click.Context, args: list[str]) -> None:
        """`tasuki run python train.py`: what would be taken for a spec is a command."""
        words = self._from_first_word(ctx, args)
        if not _looks_like_command(words):
            return
        import shlex

        from tasuki.errors import UsageError

        is_bare = words[0].endswith(".py") and not os.access(words[0], os.X_OK)
        command = ["python", *words] if is_bare else words
        whole = shlex.join([*args[: len(args) - len(words)], "--", *command])
        spec = f"; a spec in Python is named as {words[0]}:FUNCTION" if words[1:] == [] else ""
        raise UsageError(
            f"`{words[0]}` is no spec: a command of one's own comes after `--`",
            hint=f"`{ctx.command_path} {whole}`{spec}",
        )

    def _from_first_word(self, ctx: click.Context, args: list[str]) -> list[str]:
        """All from the first word on that is neither an option nor its value."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            values, rest, _ = parser.parse_args(list(args))
        except click.UsageError:
            return []  # it is told of where the options are read
        first = values.get("spec")
        return [first, *rest] if isinstance(first, str) else []


_TYPED = "tasuki.command"


def typed_command() -> list[str]:
    """The words after `--`; empty without it."""
    return list(click.get_current_context().meta.get(_TYPED) or ())


def name_option(function: F) -> F:
    return click.option("--name", metavar="NAME", help="What the run is called.")(function)


def _looks_like_command(words: list[str]) -> bool:
    """A script, or a program with arguments; a word alone may be the name of anything."""
    import shutil

    if not words or _is_spec(words[0]):
        return False
    if words[0].endswith((".py", ".sh")):
        return True
    runs_script = any(word.endswith(".py") for word in words[1:])
    return runs_script or (len(words) > 1 and shutil.which(words[0]) is not None)


def _is_spec(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or ".py:" in word or Path(word).is_dir()


def _looks_like_spec(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or ".py:" in word or os.sep in word


def spec_options(function: F) -> F:
    """SPEC, --experiment, --config, --stages, --set."""
    for decorate in reversed(
        [
            click.argument("spec", default="tasuki.yaml", metavar="[SPEC]"),
            click.option(
                "--experiment", "experiments", multiple=True, help="Only these experiments."
            ),
            click.option("--config", help="A named overlay of the spec's `configs`."),
            click.option("--stages", multiple=True, help="Only these stages (and what they need)."),
            click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override."),
        ]
    ):
        function = decorate(function)
    return function


def deadline_option(function: F) -> F:
    return click.option("--deadline", metavar="6h", help="By when all must be done, or refuse.")(
        function
    )


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Values for scripts.")(function)


def runs_option(function: F) -> F:
    return click.option(
        "--runs",
        type=click.Path(path_type=Path),
        help="The folder of runs (default: as the spec).",
    )(function)


def read_spec(
    source: str,
    settings: tuple[str, ...],
    config: str | None,
    *,
    environ: Mapping[str, str] | None = None,
) -> ResolvedSpec:
    from tasuki.commands.discover import load_resolved_spec

    _check_memory_cap()
    return load_resolved_spec(source, settings, config, environment=environ)


def read_work(
    source: str,
    settings: tuple[str, ...],
    config: str | None,
    *,
    name: str | None,
    experiments: tuple[str, ...] = (),
    stages: tuple[str, ...] = (),
) -> ResolvedSpec:
    """The spec, or the command that was typed after `--` as a spec of its own."""
    context = click.get_current_context()
    words = context.meta.get(_TYPED)
    environ = {**os.environ, **({"TASUKI_NAME": name} if name else {})}
    if words is None:
        return read_spec(source, settings, config, environ=environ)
    from tasuki.errors import UsageError
    from tasuki.spec.load import load_command

    typed = context.get_parameter_source("spec")
    is_named = typed is not None and typed.name == "COMMANDLINE"
    wrong = {"SPEC": is_named, "--config": config, "--experiment": experiments, "--stages": stages}
    for option, value in wrong.items():
        if value:
            raise UsageError(
                f"`{option}` and a command after `--` cannot both say what is run",
                hint="leave one of them out; `cluster`, `runs` and `project` are taken from "
                "./tasuki.yaml where it is there",
            )
    return load_command(words, settings=settings, environ=environ)


def _check_memory_cap() -> None:
    """Before anything is started that would stumble over it."""
    from tasuki.errors import UsageError
    from tasuki.units import parse_bytes

    try:
        parse_bytes(os.environ.get(_CAP) or 0)
    except UsageError as error:
        raise UsageError(f"the variable {_CAP}: {error.message}", hint=error.hint) from None


def make_request(
    spec: ResolvedSpec,
    experiments: tuple[str, ...],
    stages: tuple[str, ...],
    *,
    is_new: bool = False,
    measure: bool = True,
    fresh: bool = False,
    deadline: str | None = None,
) -> PlanRequest:
    from dataclasses import replace

    from tasuki.commands.measure import Measurer
    from tasuki.commands.plan import request_plan

    request = request_plan(
        spec,
        experiments,
        stages,
        python=sys.executable,
        environment=dict(os.environ),
        deadline=deadline,
    )
    return replace(
        request,
        measure=measure,
        measurer=Measurer(is_fresh=fresh),
        is_new=is_new,
        on_progress=lambda text: click.echo(f"{text} …", err=True),
    )


def unit_of(request: PlanRequest) -> str:
    """What `cluster.gpus` counts here."""
    from tasuki.commands.machine import device_for

    return "slot" if device_for(request.spec.cluster, request.machine) == "cpu" else "GPU"


def runs_folder(runs: Path | None) -> Path:
    """--runs, else as the spec here says, else ./runs; without reading the spec where it can be."""
    if runs is not None:
        if not runs.is_dir():  # else a slip would look like no runs at all
            from tasuki.errors import UsageError

            raise UsageError(f"there is no folder {runs.absolute()}", hint="look at `--runs`")
        return runs.absolute()
    if not Path("tasuki.yaml").exists():
        return Path("runs").absolute()
    from tasuki.spec.load import load_runs_folder

    return Path(load_runs_folder("tasuki.yaml", environ=os.environ))


def choose_runs(
    names: Sequence[str], runs: Path | None, *, only_shows: bool = False
) -> list[RunFolder]:
    """What a person means by RUN …; aloud where a name could mean two."""
    return runs_in(runs_folder(runs), names, only_shows=only_shows)


def runs_in(folder: Path, names: Sequence[str], *, only_shows: bool = False) -> list[RunFolder]:
    """The same, where the folder is known."""
    from tasuki.commands.runs import find_run

    say_which(names, folder)
    return [find_run(name, folder, only_shows=only_shows) for name in names]


def say_which(names: Iterable[str | None], folder: Path) -> None:
    from tasuki.commands.runs import which_is_meant

    for name in dict.fromkeys(name for name in names if name):
        if words := which_is_meant(name.partition("@")[0], folder):
            click.echo(words, err=True)


def make_slurm(*, is_patient: bool = True) -> Slurm:
    """A patient one asks again while the controller is busy."""
    from tasuki.clock import SystemClock
    from tasuki.slurm.client import Slurm

    return Slurm(
        environment=os.environ,
        clock=SystemClock(),
        tries=3 if is_patient else 1,
        within_s=10.0 if is_patient else 5.0,
        on_wait=lambda words: click.echo(f"{words} …", err=True),
    )


def look_at_queue(runs: Path) -> Known:
    """What Slurm says of the jobs of a folder of runs; nothing, where it was never asked."""
    from tasuki.clock import SystemClock
    from tasuki.commands.queued import NOTHING, look_or_say, uses_slurm

    if not uses_slurm(runs):
        return NOTHING
    from tasuki.spec.site import load_site

    slurm = make_slurm(is_patient=False)  # what was heard last is shown meanwhile
    fresh_s = load_site(environ=os.environ).poll_s
    return look_or_say(slurm, runs, user=user(), clock=SystemClock(), fresh_s=fresh_s)


def user() -> str:
    return str(os.getuid())


def print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))
