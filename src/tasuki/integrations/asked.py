"""Which run a script means: by a name, by a folder, or by what the script itself is called.

Free of torch: a script that only asks whether a run is complete should not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec

from tasuki.errors import UsageError
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_command
from tasuki.spec.names import check_name
from tasuki.spec.resolved import ResolvedSpec

PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What open_run was asked for."""

    words: tuple[str, ...]
    """The command that this process is."""
    name: str | None
    path: Path | None
    """The run's folder, where that was given."""
    world: int
    environ: Mapping[str, str]

    def read_spec(self) -> ResolvedSpec:
        """As `tasuki run -- python train.py` here would have it, so that either goes on with the
        other's run."""
        spec = load_command(self.words, environ=self.environ)
        (experiment,) = spec.experiments
        name = self.path.name if self.path is not None else self.name
        if name is not None:
            check_name(name, what="the run")
            # As TASUKI_NAME does: the stage's name goes into the order of samples, and stays.
            experiment = msgspec.structs.replace(experiment, name=name)
        if self.world > 1:
            stages = tuple(msgspec.structs.replace(s, ranks=self.world) for s in experiment.stages)
            experiment = msgspec.structs.replace(experiment, stages=stages)
        runs = str(self.path.parent) if self.path is not None else spec.runs
        return msgspec.structs.replace(spec, experiments=(experiment,), runs=runs)

    def folder(self, spec: ResolvedSpec) -> RunFolder:
        (experiment,) = spec.experiments
        return RunFolder(self.path or Path(spec.runs) / experiment.name)


def ask(
    name: str | Path | None, *, world: int, environ: Mapping[str, str], orig_argv: Sequence[str]
) -> Asked:
    """`name`: a run's name, or its folder."""
    is_path = isinstance(name, Path) or (name is not None and "/" in name)
    words = command_of(orig_argv)
    if words is None and name is None:
        raise UsageError(
            "open_run does not know how to call this run: there is no script",
            hint='give it a name: tasuki.open_run("my-run")',
        )
    return Asked(
        words=words or (PYTHON, f"{Path(str(name)).name}.py"),
        name=None if is_path or name is None else str(name),
        path=Path(name).expanduser().absolute() if is_path and name is not None else None,
        world=world,
        environ=environ,
    )


def command_of(orig_argv: Sequence[str]) -> tuple[str, ...] | None:
    """The words with which this process could be started again; None: no script was."""
    words = list(orig_argv[1:])
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        takes_value = words[0] in ("-X", "-W")
        del words[: 2 if takes_value else 1]
    if not words or words[0] == "-c" or is_kernel():
        return None
    if words[0] != "-m":
        words[0] = str(PurePath(words[0]))
    return (PYTHON, *words)


def is_kernel() -> bool:
    """An interactive interpreter: it lives on when the loop is over."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules or bool(sys.flags.interactive)
