"""Where a rehearsal runs: a scratch folder beside the user's runs, and real jobs in it.

Rounds of short runs with the user's recipe, data and settings; supervisors and ranks are started by
the local backend as `tasuki run` does it. The folder goes when it is over, however it ends; what a
killed rehearsal left is removed by the next. Runs of the user are never touched.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tasuki.clock import Clock
from tasuki.commands.freeze import freeze_run
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest, make_plan
from tasuki.commands.run import RunRequest, local_jobs
from tasuki.errors import EXIT_RESUME_ME, RunError
from tasuki.jobs.local import LocalBackend
from tasuki.runs.atomic import make_folder
from tasuki.runs.attempts import live_runner, write_runner
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec

FOLDER = ".rehearse"
REHEARSAL = "TASUKI_REHEARSAL"
"""What a rehearsal asks of ranks, as JSON (train/rehearsed.py)."""
STEPS = 2
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
_GRACE_S = 5.0
"""After Ctrl-C, or when the budget is used up: there is nothing to save."""
_SIDE_BY_SIDE = 2
"""On CPUs: half of a short attempt is the start of Python and torch, which uses one core."""


def offline_environment(environment: Mapping[str, str], *, is_online: bool) -> dict[str, str]:
    """Libraries that can be told so do not ask the network."""
    return {**environment, **({} if is_online else _OFFLINE)}


class Interrupted(RunError):
    """Ctrl-C."""

    exit_code = EXIT_RESUME_ME


@dataclass(slots=True, kw_only=True)
class Ground:
    """The scratch folder and what is run in it."""

    path: Path
    request: PlanRequest
    """With the cluster as it is here."""
    clock: Clock
    until: float
    """On the monotonic clock: what is not done by then is left."""
    budget: str
    """How long that is, in words."""
    ranks: int
    is_online: bool
    effective_batches: Mapping[str, Mapping[str, int]]
    """By experiment and stage: of the whole stage."""
    on_tick: Callable[[Sequence[RunFolder]], None] = lambda _: None
    on_event: Callable[[str, str], None] = lambda _kind, _text: None
    is_over: bool = False
    """The budget is used up."""
    num_rounds: int = field(default=0)

    def run(
        self, experiments: Sequence[ResolvedExperiment], *, smallest: Mapping[str, Sequence[str]]
    ) -> dict[str, RunFolder]:
        """A round, to its end or that of the budget: the runs by experiment."""
        self.num_rounds += 1
        spec = self._spec(self.path / str(self.num_rounds), experiments)
        folders = {e.name: RunFolder(Path(spec.runs) / e.name) for e in experiments}
        # As the spec says: the user's `runs` must stay out of the copy of the code; and nobody
        # is told: no sinks, no alerts.
        asked = msgspec.structs.replace(self.request.spec, sinks=None, on={})
        for experiment in experiments:
            freeze_run(folders[experiment.name], experiment, asked, self.clock)
        request = replace(
            self.request,
            spec=spec,
            experiments=tuple(experiments),
            stages=(),
            folders=folders,
            measure=False,
        )
        jobs = local_jobs(make_plan(request), folders, RunRequest(plan=request, clock=self.clock))
        own = [
            replace(job, environment=self._environment(job.runs[0].name, smallest)) for job in jobs
        ]
        backend = self._backend(request, folders)
        backend.run(own)
        if backend.is_interrupted and not self.is_over:
            raise Interrupted("the rehearsal was interrupted", hint="nothing is left of it")
        return folders

    def _backend(self, request: PlanRequest, folders: Mapping[str, RunFolder]) -> LocalBackend:
        on_gpus = device_for(request.spec.cluster, request.machine) == "cuda"
        machine = request.machine
        slots = machine.gpus if on_gpus else min(_SIDE_BY_SIDE, machine.cpus) * self.ranks

        def tick() -> None:
            self.on_tick(list(folders.values()))
            if self.clock.monotonic() >= self.until and not self.is_over:
                self.is_over = True
                self.on_event("interrupted", f"{self.budget} are over: what still runs is ended")
                backend.interrupt()

        backend = LocalBackend(
            clock=self.clock,
            python=request.spec.cluster.python or request.python,
            slots=max(1, slots),
            environment=request.environment,
            devices=machine.devices if on_gpus else (),
            on_tick=tick,
            on_event=self._hand_on,
        )
        return backend

    def _hand_on(self, kind: str, text: str) -> None:
        """Nobody has typed Ctrl-C when the budget is used up; and nothing is handed over."""
        if kind == "interrupted":
            text = "stopping (Ctrl-C again to kill)"
        if not self.is_over:
            self.on_event(kind, text)

    def _spec(self, runs: Path, experiments: Sequence[ResolvedExperiment]) -> ResolvedSpec:
        cluster = msgspec.structs.replace(
            self.request.spec.cluster,
            time_limit_s=None,
            requeue=False,
            grace_s=_GRACE_S,
            gpus=self.ranks,
            nodes=1,
        )
        return msgspec.structs.replace(
            self.request.spec,
            cluster=cluster,
            runs=str(runs),
            experiments=tuple(experiments),
            only_stages=(),
        )

    def _environment(self, run: str, smallest: Mapping[str, Sequence[str]]) -> dict[str, str]:
        left_s = self.until - self.clock.monotonic()
        rehearsal = {
            "steps": STEPS,
            "trace": str(self.trace(run)),
            "until": self.clock.wall() + left_s,
            "is_offline": not self.is_online,
            "smallest": list(smallest.get(run, ())),
            "effective_batches": dict(self.effective_batches.get(run, {})),
        }
        return offline_environment({REHEARSAL: json.dumps(rehearsal)}, is_online=self.is_online)

    def trace(self, run: str) -> Path:
        """Where the places of this round are written down."""
        return self.path / str(self.num_rounds) / ".traces" / run


@contextlib.contextmanager
def scratch_folder(runs: Path) -> Iterator[Path]:
    """Gone afterwards, with the folders above it that it needed."""
    above = [path for path in (runs / FOLDER, runs, *runs.parents) if not path.exists()]
    host = socket.gethostname()  # of another one nobody can say whether it lives
    path = runs / FOLDER / f"{host}.{os.getpid()}"
    for left in (runs / FOLDER).glob(f"{glob.escape(host)}.*"):
        if live_runner(RunFolder(left)) is None:
            shutil.rmtree(left, ignore_errors=True)
    make_folder(path)
    write_runner(RunFolder(path))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        for folder in [runs / FOLDER, *above]:
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless somebody else uses it
