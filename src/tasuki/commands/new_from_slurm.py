"""`tasuki new DIR --from-slurm old.slurm`, `--from-script train.py`: a script becomes a project.

The script stays where it is and is run as a `command`; what `#SBATCH` lines ask for becomes
`cluster`. Each option is told with its line; no file is overwritten.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.commands.new import GITIGNORE, make_files, name_project, read_template, refuse_taken
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.slurm.batch_script import Option, read_batch_script
from tasuki.slurm.text import parse_duration
from tasuki.spec.spelling import spell, spell_text
from tasuki.units import Duration, format_seconds

_MOST = 1 << 20
_SETUP = "setup.sh"
_AS_IT_IS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "mail-user": "mail",
}
_OURS = {
    "output": "logs lie in the run's folder",
    "error": "logs lie in the run's folder",
    "array": "each experiment of a spec is a run of its own: `each`",
    "dependency": "`init_from` and the order of stages say what waits for what",
    "signal": "tasuki gives notice itself",
    "mail-type": "`mail` tells of the end and of failures",
    "ntasks": "tasuki starts one process per GPU, a command once",
    "ntasks-per-node": "tasuki starts one process per GPU, a command once",
    "chdir": "a command runs in the spec's folder",
    "comment": "tasuki's own",
    "open-mode": "tasuki's own",
    "export": "jobs get the environment of `tasuki submit`",
    "parsable": "tasuki's own",
    "wait": "tasuki's own",
    "test-only": "tasuki's own",
    "wrap": "write it as `command`",
}
_FLAG_OF = {"requeue": True, "no-requeue": False}


@dataclass(slots=True)
class _Made:
    """The cluster while options are read, and what became of each."""

    file: str
    cluster: dict[str, Any] = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=list)
    name: str = ""

    def tell(self, option: Option, fate: str, words: str) -> None:
        told = {"file": self.file, "line": option.line, "key": f"--{option.name}"}
        self.keys.append({**told, "value": option.value, "fate": fate, "words": words})

    def put(self, option: Option, key: str, value: object) -> None:
        self.cluster[key] = value
        self.tell(option, "translated", f"cluster.{key}: {spell(value)}")


def new_from_slurm(folder: Path, script: Path, *, is_dry: bool = False) -> dict[str, Any]:
    """One experiment that runs the script's command inside what the script asked for."""
    read = read_batch_script(_read(script))
    made = _Made(str(script))
    for option in read.options:
        _translate(option, made)
    _translate_sums(read.options, made)
    for option in read.late:
        made.tell(option, "none", "sbatch does not read it below the first command")
    notes = [_where(folder, script)]
    command = [*read.command] or ["bash", _beside(folder, script)]
    if read.why_whole:
        notes.append(f"bash runs the whole script, for {read.why_whole}")
    texts = {}
    if read.setup:
        made.cluster["setup"] = _SETUP
        texts[_SETUP] = "\n".join(read.setup) + "\n"
        notes.append(f"{_SETUP} is sourced in Slurm's jobs alone, not by `tasuki run` here")
    name = _name(made.name or script.stem)
    spec = _spec(name_project(folder), name, made.cluster, command, f"sbatch script {script.name}")
    return _write(folder, {"tasuki.yaml": spec, **texts}, made.keys, notes, is_dry=is_dry)


def new_from_script(folder: Path, script: Path, *, is_dry: bool = False) -> dict[str, Any]:
    """One experiment that runs a script."""
    _read(script)
    runner = ["python"] if script.suffix == ".py" else ["bash"] if script.suffix == ".sh" else []
    if not runner and not os.access(script, os.X_OK):
        raise UsageError(
            f"{script} is neither Python nor bash, and cannot be executed",
            hint="name a .py or .sh file, or write `command:` into a spec",
        )
    path = _beside(folder, script)
    command = [*runner, path if runner or "/" in path else f"./{path}"]
    spec = _spec(name_project(folder), _name(script.stem), {}, command, script.name)
    return _write(folder, {"tasuki.yaml": spec}, [], [_where(folder, script)], is_dry=is_dry)


def _read(script: Path) -> str:
    if not script.is_file():
        raise UsageError(f"there is no file {script}", hint="name the script that you have")
    data = script.read_bytes()[: _MOST + 1]
    if len(data) > _MOST or b"\0" in data:
        raise UsageError(f"{script} is no script", hint="is this the file you meant?")
    return data.decode(errors="replace")


def _beside(folder: Path, script: Path) -> str:
    return os.path.relpath(script.absolute(), folder.absolute())


def _where(folder: Path, script: Path) -> str:
    here = "" if folder.absolute() == script.absolute().parent else ", not in the script's own"
    return f"the command runs in {folder}{here}: relative paths are meant from there"


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text, flags=re.ASCII).strip("_.-")[:100] or "train"


# -- options --------------------------------------------------------------------------------------


def _translate(option: Option, made: _Made) -> None:
    """Those that mean something by themselves."""
    name, value = option.name, option.value
    if name in _SUMMED:
        return
    if name in _AS_IT_IS and value:
        made.put(option, _AS_IT_IS[name], value)
    elif name in _FLAG_OF:
        made.put(option, "requeue", _FLAG_OF[name])
    elif name == "time":
        _translate_time(option, made)
    elif name == "nodes" and value.isdecimal() and int(value) > 0:
        made.put(option, "nodes", int(value))
    elif name == "job-name":
        made.name = value
        made.tell(option, "translated", f"the experiment's name: {_name(value)}")
    elif name in _OURS or not re.fullmatch(r"[a-z][a-z-]*", name):
        made.tell(option, "none", _OURS.get(name, "not understood"))
    else:
        extra = made.cluster.setdefault("extra", {})
        extra[name] = value or True
        made.tell(option, "translated", f"cluster.extra.{name}: {spell(extra[name])}")


def _translate_time(option: Option, made: _Made) -> None:
    try:
        seconds = parse_duration(option.value)
    except ValueError:
        made.tell(option, "none", "no time that Slurm knows; write `time_limit: 8h`")
        return
    if seconds:
        text = format_seconds(seconds)  # which leaves the seconds of days out
        is_exact = Duration.parse(text).seconds == seconds
        made.put(option, "time_limit", text if is_exact else f"{seconds:.0f}s")
    else:
        made.tell(option, "none", "without a limit there is none")


_SUMMED = (
    *("gres", "gpus", "gpus-per-node", "gpus-per-task", "cpus-per-task", "cpus-per-gpu"),
    *("mem", "mem-per-cpu", "mem-per-gpu"),
)


def _translate_sums(options: Iterable[Option], made: _Made) -> None:
    """GPUs, CPUs and memory of a node, which people ask for in many ways."""
    given = {option.name: option for option in options}
    nodes = made.cluster.get("nodes", 1)
    tasks = _number(given.get("ntasks-per-node")) or max(1, _number(given.get("ntasks")) // nodes)
    ways: tuple[tuple[str, str, Callable[[int], object]], ...] = (
        ("gres", "gpus", lambda n: n),
        ("gpus-per-node", "gpus", lambda n: n),
        ("gpus", "gpus", lambda n: max(1, n // nodes)),
        ("gpus-per-task", "gpus", lambda n: n * tasks),
        ("cpus-per-task", "cpus", lambda n: n * tasks),
        ("cpus-per-gpu", "cpus", lambda n: n * made.cluster.get("gpus", 1)),
        ("mem", "memory", lambda n: f"{n}M"),
        ("mem-per-cpu", "memory", lambda n: f"{n * made.cluster.get('cpus', 1)}M"),
        ("mem-per-gpu", "memory", lambda n: f"{n * made.cluster.get('gpus', 1)}M"),
    )
    for name, key, count in ways:
        option = given.get(name)
        if option is None:
            continue
        number = _megabytes(option.value) if name.startswith("mem") else _number(option)
        if not number:
            made.tell(option, "none", f"not understood; write `{key}` into `cluster`")
        elif key in made.cluster:
            made.tell(option, "none", f"`{key}` is told already")
        else:
            made.put(option, key, count(number))
            named = option.value.removeprefix("gpu")
            kind = re.search(r"(?:^|:)([A-Za-z][\w.-]*)(?::\d+)?$", named)
            if key == "gpus" and kind:
                made.keys[-1]["words"] += f"; of {kind[1]}: name it as `cluster.gpu`"


def _number(option: Option | None) -> int:
    """`4`, `gpu:4`, `gpu:a100:4`, `a100:4`; a kind of GPU alone is one. 0: not understood."""
    if option is None or "," in option.value:
        return 0
    if option.name == "gres" and option.value.split(":")[0] != "gpu":
        return 0
    last = option.value.rpartition(":")[2]
    if last.isdecimal() and last.isascii():
        return int(last)
    return 1 if option.name in ("gres", "gpus", "gpus-per-node") and last else 0


def _megabytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", text.upper(), re.ASCII)
    if match is None:
        return 0
    unit = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[match[2]]
    return int(int(match[1]) * unit)


# -- what is written ------------------------------------------------------------------------------


def _spec(project: str, name: str, cluster: dict[str, Any], command: list[str], source: str) -> str:
    told = " ".join(part for part in source.split() if part.isprintable())
    lines = [
        f"# Made by `tasuki new` from {told}. `tasuki plan` shows what would be done.",
        f"project: {spell_text(project)}",
        "runs: runs",
        *(["", "cluster:"] if cluster else []),
        *(f"  {key}: {spell(value)}" for key, value in cluster.items()),
        "",
        "experiments:",
        f"  {spell_text(name)}:",
        f"    command: [{', '.join(spell_text(word) for word in command)}]",
        "    ranks: own # the command starts its ranks itself",
        "    # expect: { wall: 4h } # for plans; else it is learnt from the first run",
    ]
    return "\n".join(lines) + "\n"


def _write(
    folder: Path,
    texts: dict[str, str],
    keys: list[dict[str, Any]],
    notes: list[str],
    *,
    is_dry: bool,
) -> dict[str, Any]:
    refuse_taken(folder, texts)
    if not (folder / GITIGNORE).exists():
        texts[GITIGNORE] = read_template(GITIGNORE)
    if not is_dry:
        make_files(folder, texts)
    return {
        "format": FORMAT,
        "folder": str(folder),
        "files": [str(folder / name) for name in texts],
        "keys": keys,
        "notes": notes,
        "warnings": [],
    }
