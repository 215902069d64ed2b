"""`tasuki doctor --live`: send a small job through its life, and measure what it is given.

It looks around on its node, requeues itself once, comes back, and is cancelled by us; by its signs
of life we know when which process was told, and when it was killed. Nobody else's job is touched.
The job is ours alone: it is cancelled however this ends, also by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.errors import UsageError
from tasuki.runs.atomic import make_folder, read_plain, remove_tree, write_bytes, write_json
from tasuki.slurm.client import Slurm, SlurmError, SlurmSilent
from tasuki.slurm.script import SCRIPT, SETUP, SlurmJob, sbatch_options
from tasuki.slurm.text import ShownJob
from tasuki.spec.resolved import ResolvedCluster
from tasuki.units import format_seconds

_LIMIT_S = 600.0
"""Of the probe job; a partition may allow less."""
_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 5.0
_ASK_OFTEN_S = 1.0
"""While it dies, which takes seconds."""
_LONGEST_LOG = 1 << 20
_OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY",
         "DEADLINE", "PREEMPTED")  # fmt: skip
_ROLES = ("batch", "step")
_BODY = """\
#!/bin/bash
# The probe of `tasuki doctor --live`. Arguments: its folder, the Python of the jobs.
if [ -f "$1/setup.sh" ]; then
  source "$1/setup.sh"
fi
exec "$2" "$1/probe.py" batch "$1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is to be found out, and where."""

    cluster: ResolvedCluster
    partition: str | None
    longest_s: float | None
    """Of the partition; None: without limit."""
    runs: Path
    python: str
    setup: Path | None
    recipe: str | None
    folder: str
    """The spec's, on the recipe's import path."""
    within_s: float


@dataclass(slots=True)
class _Watch:
    """The probe job as it is seen from here."""

    probe: Probe
    folder: Path
    job: str
    slurm: Slurm
    clock: Clock
    until: float
    say: Callable[[str], None]
    shown: ShownJob | None = None
    said: str = ""
    asked: float = float("-inf")
    ask_every_s: float = _ASK_EVERY_S

    @property
    def is_over(self) -> bool:
        if self.asked == float("-inf"):
            return False
        return self.shown is None or self.shown.state.startswith(_OVER)

    @property
    def is_late(self) -> bool:
        return self.clock.monotonic() >= self.until

    def look(self) -> None:
        if self.clock.monotonic() - self.asked >= self.ask_every_s:
            with contextlib.suppress(SlurmSilent):  # it may answer the next time
                self.shown = self.slurm.show(self.job)
                self.asked = self.clock.monotonic()

    def tell(self, text: str) -> None:
        if text != self.said:
            self.said = text
            self.say(text)

    def words(self) -> str:
        state = self.shown.state if self.shown is not None else "gone"
        if (self.folder / "requeue.json").exists() and state == "PENDING":
            return f"job {self.job} has requeued itself and waits to come back"
        if state == "PENDING":
            reason = self.shown.reason if self.shown is not None else ""
            return f"job {self.job} waits in the queue{f' ({reason})' if reason else ''}"
        if state == "RUNNING" and not (self.folder / "facts.json").exists():
            return f"job {self.job} runs and looks around"
        return self.said


def run_probe(
    probe: Probe,
    *,
    slurm: Slurm,
    clock: Clock,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """What was found, as values of `--json`; `problem` where it came to no end."""
    had_runs = probe.runs.is_dir()
    folder = make_folder(probe.runs / ".doctor" / secrets.token_hex(4))
    is_kept = False
    try:
        _write(probe, folder)
        job = slurm.submit(_arguments(probe, folder))
        until = clock.monotonic() + probe.within_s
        problem = _see_through(_Watch(probe, folder, job, slurm, clock, until, on_progress))
        is_kept = problem is not None
        kept = str(folder) if is_kept else None
        return {"job": job, "partition": probe.partition, **_read(probe, folder),
                "problem": problem, "folder": kept}  # fmt: skip
    finally:
        if not is_kept:
            remove_tree(folder)
        with contextlib.suppress(OSError):  # not empty
            folder.parent.rmdir()
            if not had_runs:
                probe.runs.rmdir()


def _see_through(watch: _Watch) -> dict[str, str] | None:
    """However this ends, also by Ctrl-C, no job is left behind."""
    try:
        watch.tell(f"job {watch.job} is submitted to {_name(watch.probe)}")
        return _follow(watch)
    finally:
        if not watch.is_over:
            with contextlib.suppress(SlurmError):
                watch.slurm.cancel(watch.job)


def _write(probe: Probe, folder: Path) -> None:
    source = resources.files("tasuki.commands") / "doctor_probe.py"
    write_bytes(folder / "probe.py", source.read_bytes())
    write_bytes(folder / SCRIPT, _BODY.encode())
    order = {"runs": str(probe.runs), "recipe": probe.recipe, "folder": probe.folder}
    write_json(folder / "order.json", order)
    if probe.setup is not None:
        try:
            write_bytes(folder / SETUP, probe.setup.read_bytes())
        except OSError as error:
            raise UsageError(
                f"`cluster.setup`: {probe.setup} cannot be read: {error.strerror}",
                hint="correct it in the spec or the site file",
            ) from error


def _arguments(probe: Probe, folder: Path) -> list[str]:
    job = SlurmJob(
        name="tasuki-doctor",
        folder=folder,
        command=(),
        limit_s=min(_LIMIT_S, probe.longest_s or _LIMIT_S),
        cpus=1,
        partition=probe.partition,
        account=probe.cluster.account,
        qos=probe.cluster.qos,
        constraint=probe.cluster.constraint,
        is_requeued=probe.cluster.requeue is not False,
        extra=probe.cluster.extra,
    )
    return [*sbatch_options(job), str(folder / SCRIPT), str(folder), probe.python]


def _name(probe: Probe) -> str:
    return f"`{probe.partition}`" if probe.partition else "the default partition"


def _follow(watch: _Watch) -> dict[str, str] | None:
    """Until it has come back, or cannot; then cancel it and see it die. None: all was seen."""
    folder = watch.folder
    while not (folder / "ready.1.json").exists():
        watch.look()
        watch.tell(watch.words())
        if (folder / "ready.0.json").exists():
            break  # it was not allowed to requeue itself
        if watch.is_over:
            return _ended_early(watch)
        if watch.is_late:
            return _gave_up(watch)
        watch.clock.sleep(_LOOK_EVERY_S)
    watch.slurm.cancel(watch.job)
    watch.tell(f"job {watch.job} is cancelled; how long does it live?")
    watch.ask_every_s = _ASK_OFTEN_S
    while True:
        watch.look()
        if watch.is_over:
            return None
        if watch.is_late:
            return _gave_up(watch)
        watch.clock.sleep(_LOOK_EVERY_S)


def _gave_up(watch: _Watch) -> dict[str, str]:
    within = format_seconds(watch.probe.within_s)
    return {
        "what": f"the probe did not come to its end within {within}: {watch.said}",
        "hint": "`--within 1h` waits longer; `--partition` tries another one",
    }


def _ended_early(watch: _Watch) -> dict[str, str]:
    log = watch.folder / f"slurm-{watch.job}.log"
    state = watch.shown.state if watch.shown is not None else "gone"
    if not log.exists():
        return {
            "what": f"job {watch.job} ended ({state}) and left nothing in {watch.folder}: its node "
            "does not see the runs folder, or may not write to it",
            "hint": "set `runs:` to a folder on a file system that all nodes share",
        }
    lines = read_plain(log, limit=_LONGEST_LOG).decode(errors="replace").strip().splitlines()
    told = "; ".join(lines[-3:]) or "it said nothing"
    return {
        "what": f"job {watch.job} ended too early ({state}): {told}",
        "hint": f"look into {watch.folder}; are `cluster.python` and `cluster.setup` right there?",
    }


# -- what it wrote ------------------------------------------------------------------------------


def _read(probe: Probe, folder: Path) -> dict[str, Any]:
    facts = _load(folder / "facts.json")
    requeue = _load(folder / "requeue.json")
    has_returned = (folder / "ready.1.json").exists()
    last = 1 if has_returned else 0
    lives = {role: _life(folder, last, role) for role in _ROLES}
    is_allowed = True if has_returned else requeue.get("ok")
    return {
        "node": facts.get("node"),
        "python": facts.get("python"),
        "python_version": facts.get("python_version"),
        "runs": facts.get("runs"),
        "scontrol": facts.get("scontrol"),
        "shm_bytes": facts.get("shm_bytes"),
        "recipe": facts.get("recipe"),
        "requeue": {
            "is_wanted": probe.cluster.requeue is not False,
            "is_allowed": is_allowed,
            "has_returned": has_returned,
            "words": requeue.get("words", ""),
        },
        "signals": _signals(lives),
        "kill_after_s": {role: life.killed_after_s for role, life in lives.items()},
    }


@dataclass(frozen=True, slots=True)
class Life:
    """One process's, by its own clock."""

    signals: tuple[tuple[float, str], ...] = ()
    last_beat: float | None = None

    @property
    def killed_after_s(self) -> float | None:
        """From its first TERM to its last sign of life; None where it got none."""
        first = next((at for at, name in self.signals if name == "TERM"), None)
        if first is None or self.last_beat is None:
            return None
        return round(max(0.0, self.last_beat - first), 2)


def read_life(signals: str, beat: str) -> Life:
    lines = (line.split() for line in signals.splitlines())
    heard = tuple((float(words[0]), words[1]) for words in lines if len(words) == 2)
    return Life(heard, float(beat) if beat.strip() else None)


def _life(folder: Path, start: int, role: str) -> Life:
    try:
        signals = (folder / f"signals.{start}.{role}").read_text()
        return read_life(signals, (folder / f"beat.{start}.{role}").read_text())
    except (OSError, ValueError):
        return Life()


def _signals(lives: Mapping[str, Life]) -> list[dict[str, Any]]:
    """In their order, counted from the first one that anybody got."""
    heard = sorted((at, role, name) for role, life in lives.items() for at, name in life.signals)
    return [
        {"who": role, "signal": name, "after_s": round(at - heard[0][0], 2)}
        for at, role, name in heard
    ]


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
