"""Where a drill runs: a scratch folder beside the user's runs, and real jobs in it.

Each scenario is a run of its own there, with the user's recipe, data and settings, shortened;
supervisors and ranks are started by the local backend as `tasuki run` does it. Runs of the user are
never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tasuki.answers import ask
from tasuki.checkpoint.damage import damage_newest
from tasuki.clock import Clock
from tasuki.commands.drill_scenarios import SAVE_EVERY, STEPS, STEPS_PER_EPOCH, Order
from tasuki.commands.drill_trace import AttemptTrace, read_traces
from tasuki.commands.freeze import freeze_run
from tasuki.commands.machine import cpus_for, device_for
from tasuki.commands.plan import PlanRequest, make_plan
from tasuki.commands.run import RunRequest, local_jobs
from tasuki.errors import EXIT_RESUME_ME, RunError, TasukiError
from tasuki.failpoints import DRILL
from tasuki.failpoints import VARIABLE as FAILPOINTS
from tasuki.jobs.local import LocalBackend
from tasuki.runs.atomic import make_folder
from tasuki.runs.attempts import live_runner, write_runner
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import (
    ResolvedExperiment,
    ResolvedSave,
    ResolvedSpec,
    ResolvedStage,
    start_of,
)
from tasuki.spec.values import Every, Length

FOLDER = ".drill"
_GRACE_S = 60.0
_SIDE_BY_SIDE = 2
"""On CPUs: half of a short attempt is the start of Python and torch, which uses one core."""


_SAVE = ResolvedSave(every=Every(unit="steps", count=float(SAVE_EVERY)), keep=2)
_LOG_EVERY = Every(unit="steps", count=3.0)
"""Not at every save: losses that were not logged yet are part of a checkpoint."""


class Interrupted(RunError):
    """Ctrl-C, or the end of whoever started the drill."""

    exit_code = EXIT_RESUME_ME


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One run of the drill: its name, and what happens to it."""

    name: str
    failpoints: tuple[Order, ...] = ()
    is_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The scratch folder and what is run in it."""

    path: Path
    request: PlanRequest
    stage: ResolvedStage
    clock: Clock
    on_tick: Callable[[Sequence[RunFolder]], None] = lambda _: None
    on_event: Callable[[str, str], None] = lambda _kind, _text: None
    damaged: dict[str, str] = field(default_factory=dict)
    """By run: the checkpoint in which a bit was turned over."""

    def run_folder(self, name: str) -> RunFolder:
        return RunFolder(self.path / name)

    def traces(self, name: str) -> list[AttemptTrace]:
        return read_traces(self._trace_folder(name))

    def _trace_folder(self, name: str) -> Path:
        return self.path / ".traces" / name

    def run(
        self,
        disturbances: Sequence[Disturbance],
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        """All of them, to their ends, side by side where the machine allows it."""
        spec = self._spec()
        experiments = tuple(
            ResolvedExperiment(name=one.name, stages=(self.stage,)) for one in disturbances
        )
        folders = {one.name: self.run_folder(one.name) for one in disturbances}
        for experiment in experiments:
            # As the spec says: the user's `runs` must stay out of the copy of the code. But nobody
            # wants to see drills among their runs in TensorBoard, or to be told of them.
            asked = msgspec.structs.replace(self.request.spec, sinks=None, on={})
            freeze_run(folders[experiment.name], experiment, asked, self.clock)
        request = replace(
            self.request,
            spec=spec,
            experiments=experiments,
            stages=(),
            folders=folders,
            measure=False,
        )
        jobs = local_jobs(make_plan(request), folders, RunRequest(plan=request, clock=self.clock))
        of_run = {one.name: one for one in disturbances}
        named = {job.folder.name: of_run[job.runs[0].name] for job in jobs}
        backend = LocalBackend(
            clock=self.clock,
            python=spec.cluster.python or request.python,
            slots=self._slots(),
            environment=request.environment,
            devices=request.machine.devices if self._is_on_gpus() else (),
            on_tick=lambda: self.on_tick(list(folders.values())),
            on_event=lambda kind, text: self._between(kind, text, named, on_end, backend),
        )
        own = [replace(job, environment=self._environment(named[job.folder.name])) for job in jobs]
        if backend.run(own) == EXIT_RESUME_ME:
            raise Interrupted(
                "the drill was interrupted", hint="nothing is left of it; drill again"
            )

    def _spec(self) -> ResolvedSpec:
        """The same machine, without limits: interruptions come from the drill alone."""
        cluster = msgspec.structs.replace(
            self.request.spec.cluster, time_limit_s=None, requeue=True, grace_s=_GRACE_S
        )
        return msgspec.structs.replace(
            self.request.spec, cluster=cluster, runs=str(self.path), only_stages=()
        )

    def _environment(self, one: Disturbance) -> dict[str, str]:
        trace = str(self._trace_folder(one.name))
        order: Order = {"steps": STEPS, "steps_per_epoch": STEPS_PER_EPOCH, "trace": trace}
        if one.is_damaged and self.stage.command is not None:
            # A command that leaves by itself is begun again at once: nobody comes in between.
            order["damages"] = 2
        return {DRILL: json.dumps(order), FAILPOINTS: json.dumps(one.failpoints)}

    def _is_on_gpus(self) -> bool:
        return device_for(self.request.spec.cluster, self.request.machine) == "cuda"

    def _slots(self) -> int:
        cluster, machine = self.request.spec.cluster, self.request.machine
        if self._is_on_gpus():
            return max(1, machine.gpus)
        room = machine.cpus // cpus_for(cluster, machine)
        return max(room, min(_SIDE_BY_SIDE, machine.cpus)) * (self.stage.gpus or cluster.gpus)

    def _between(
        self,
        kind: str,
        text: str,
        named: dict[str, Disturbance],
        on_end: Callable[[str], None],
        backend: LocalBackend,
    ) -> None:
        """Between two starts of a job nobody looks at its checkpoints: the time to damage one."""
        self.on_event(kind, text)
        one = next((named[word] for word in text.split() if word in named), None)
        if one is None:
            return
        if kind == "job-ended" and not backend.is_interrupted:
            on_end(one.name)
        is_ours = self.stage.command is None
        if kind == "job-requeued" and is_ours and one.is_damaged and one.name not in self.damaged:
            self.damaged[one.name] = damage_newest(self.run_folder(one.name))

    def is_same_state(self, one: Path, other: Path) -> bool:
        """Of two checkpoints: asked of a child process, which reads them."""
        try:
            told = ask(
                "tasuki.checkpoint.compare",
                {"a": str(one), "b": str(other)},
                python=self.request.spec.cluster.python or self.request.python,
                environment=self.request.environment,
            )
        except TasukiError:  # damaged, or too large to be compared: not known to be equal
            return False
        return bool(told["equal"])

    def remove(self, name: str) -> None:
        """A run that was found equal: large checkpoints must not pile up."""
        for path in (self.run_folder(name).path, self._trace_folder(name)):
            shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def open_ground(
    request: PlanRequest,
    experiment: ResolvedExperiment,
    stage: ResolvedStage,
    *,
    clock: Clock,
    on_tick: Callable[[Sequence[RunFolder]], None],
    on_event: Callable[[str, str], None],
) -> Ground:
    """Make the scratch folder; what an earlier drill of this stage left there is replaced."""
    path = Path(request.spec.runs) / FOLDER / f"{experiment.name}.{stage.name}"
    pid = live_runner(RunFolder(path))
    if pid is not None:
        raise RunError(
            f"another drill of stage `{stage.name}` of `{experiment.name}` is running "
            f"(process {pid})",
            hint="wait for it, or drill another stage",
        )
    shutil.rmtree(path, ignore_errors=True)
    make_folder(path)
    write_runner(RunFolder(path))
    return Ground(
        path=path,
        request=request,
        stage=shorten(stage),
        clock=clock,
        on_tick=on_tick,
        on_event=on_event,
    )


def shorten(stage: ResolvedStage) -> ResolvedStage:
    """A few steps with saves among them; nothing outside the drill's folder is written."""
    if stage.command is not None:  # how many steps it does, its loop finds out (drilled.py)
        return msgspec.structs.replace(
            stage, save=_SAVE, log_every=_LOG_EVERY, evaluate=None, export=None, init_from="none"
        )
    validate = stage.validate
    if validate is not None:
        validate = msgspec.structs.replace(validate, every=Every(unit="epochs", count=1.0))
    loader = stage.loader
    if loader.workers == "auto":
        # Who fetches changes no number; in the process itself the drill sees the data's own state.
        loader = msgspec.structs.replace(loader, workers=0)
    return msgspec.structs.replace(
        stage,
        length=Length(unit="steps", count=STEPS),
        save=_SAVE,
        log_every=_LOG_EVERY,
        validate=validate,
        evaluate=None,
        export=None,
        loader=loader,
        init_from=stage.init_from if start_of(stage.init_from) == "file" else "none",
    )
