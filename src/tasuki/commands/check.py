"""Try every stage for two real steps before it waits in a queue.

Each stage runs in a scratch folder by the code that `tasuki run` uses: with its largest samples and
its full length, but each attempt is preempted after one step, so a save and a restore come too.
Its weights are exported, the next stage starts from them, and they are evaluated.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from tasuki import subprocesses
from tasuki.clock import SystemClock
from tasuki.commands.commands import check_command
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest, evaluates, request_plan
from tasuki.commands.scratch import make_scratch, newest_manifest, run_in_scratch
from tasuki.errors import TasukiError, UsageError
from tasuki.runs.atomic import FORMAT, free_bytes
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Cause, Ending
from tasuki.slurm.client import Slurm
from tasuki.slurm.fit import check_partition, choose_partition
from tasuki.spec.resolved import (
    ResolvedExperiment,
    ResolvedSpec,
    ResolvedStage,
    StageKey,
    find_source,
)
from tasuki.spec.values import Every
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.units import Duration, format_bytes, format_seconds

CHECKS = ("import", "data", "model", "step", "save", "load", "schedule", "validate", "evaluate")
_CHECK_OF_ACTIVITY = {  # by the events "doing" of an attempt, in their order
    "importing the recipe": "import",
    "opening the data": "data",
    "building the model": "model",
    "looking for a checkpoint": "load",
    "loading weights": "load",
    "saving the first checkpoint": "save",
    "restoring": "load",
    "saving": "save",
}
_HINTS = {
    "import": "run `python -c 'import …'` in the spec's folder",
    "data": "look at `data` and `split` in the spec",
    "schedule": "build_schedule(self, optimizer, total_steps) must allow `total_steps` steps",
    "model": "look at `build_model` of the recipe",
    "step": "look at `loss` of the recipe at the line that is named",
    "save": "leave out of the state what tasuki cannot store",
    "load": "`load_state_dict` must take back what `state_dict` gave",
    "validate": "look at `evaluate` or `loss` of the recipe, which validates with its `val` split",
    "evaluate": "look at `evaluate` or `loss` of the recipe, which evaluates with its `test` split",
}
_FAILED = (Ending.FAILED, Ending.MISTAKE, Ending.STUCK)
_GRACE_S = 5.0  # there is nothing to save when the time budget is over
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
_FAILPOINTS: list[dict[str, Any]] = [  # each attempt is preempted after its first step
    {"at": "step.optimizer", "do": "term"},
    # The rank stays in that step until it has heard the signal.
    {"at": "step.optimizer", "do": "pause", "seconds": 0.5},
]


class CheckResult(msgspec.Struct, frozen=True):
    """One check of one stage."""

    status: Literal["ok", "failed", "skipped", "not_reached", "none"]
    message: str = ""
    hint: str = ""


class StageCheck(msgspec.Struct, kw_only=True):
    """The checks of one stage, which are filled in while it is tried."""

    experiment: str
    stage: str
    results: dict[str, CheckResult]  # by the names in CHECKS
    checkpoint_bytes: int | None = None
    notes: list[str] = []  # what differs from the complete stage


class ProjectCheck(msgspec.Struct, frozen=True):
    """A problem outside of the stages: disk, logger, notify, partition, time_limit."""

    name: str
    message: str
    hint: str


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What would fail in a job of this spec."""

    format: int = FORMAT
    ok: bool
    device: str
    stages: list[StageCheck]
    problems: list[ProjectCheck]
    duration_s: float


def check(
    spec: str | Path = "tasuki.yaml",
    *,
    experiments: Sequence[str] = (),
    stages: Sequence[str] = (),
    overrides: Sequence[str] = (),
    preset: str | None = None,
    micro_batch: int | None = None,
    time_budget: str = "60s",
    allow_network: bool = False,
    progress: ProgressCallback | None = None,
) -> CheckReport:
    """Try every stage for two real steps: save, load, validate and evaluate, in a scratch folder.

    Args:
        spec: A file, a folder, or `file.py:function`.
        experiments: Only these. Empty: all.
        stages: Only these, and those whose weights they start from. Empty: all.
        overrides: `KEY=VALUE`, as `--set`.
        preset: A named set of values of the spec.
        micro_batch: Samples of a micro-batch. None: as the spec says.
        time_budget: What is not done by then is not reached.
        allow_network: Let Hugging Face and W&B use the network.
        progress: Called with what is being done.

    Raises:
        UsageError: The spec, an experiment or a stage does not exist.

    Example:
        >>> tasuki.check("tasuki.yaml").ok
        True
    """
    clock = SystemClock()
    began = clock.monotonic()
    environment = {**os.environ, **({} if allow_network else _OFFLINE)}
    resolved = load_resolved_spec(spec, overrides, preset, environment=environment)
    request = request_plan(
        resolved, experiments, stages, python=sys.executable, environment=environment
    )
    deadline = began + Duration.parse(time_budget).seconds
    checker = _Checker(request, micro_batch, progress, deadline)
    path = Path(resolved.runs) / ".check"
    make_scratch(path, command="check")
    try:
        checker.try_stages(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # unless the user's runs are there
    problems = _find_problems(checker, request)
    reports = [trial.report for trial in checker.trials.values()]
    results = [result for report in reports for result in report.results.values()]
    return CheckReport(
        ok=not problems and all(result.status in ("ok", "none") for result in results),
        device=checker.device,
        stages=reports,
        problems=problems,
        duration_s=round(clock.monotonic() - began, 1),
    )


# -- the stages -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Trial:
    """A stage that is tried, and what is known of it so far."""

    experiment: ResolvedExperiment
    stage: ResolvedStage
    report: StageCheck
    source: StageKey | None  # the stage whose weights it starts from
    weights: Path | None = None  # its own, after two steps
    start_s: float = 0.0  # from the start of its first attempt to its first step
    is_done: bool = False

    @property
    def name(self) -> str:
        return f"{self.experiment.name}.{self.stage.name}"

    def pass_checks(self, *names: str) -> None:
        self.report.results |= dict.fromkeys(names, CheckResult("ok"))

    def fail(self, check: str, message: str, hint: str = "") -> None:
        self.report.results[check] = CheckResult("failed", message, hint or _HINTS[check])
        self.is_done = True


class _Checker:
    """Tries the requested stages, each after the stage whose weights it needs."""

    def __init__(
        self,
        request: PlanRequest,
        micro_batch: int | None,
        progress: ProgressCallback | None,
        deadline: float,
    ) -> None:
        spec, machine = request.spec, request.machine
        self.spec, self.micro_batch, self.deadline = spec, micro_batch, deadline
        self.is_without_gpu = device_for(spec.cluster, machine) == "cuda" and machine.gpus == 0
        cluster = msgspec.structs.replace(
            spec.cluster,
            gpus=1,
            nodes=1,
            gpu="cpu" if self.is_without_gpu else spec.cluster.gpu,
            cpus=min(spec.cluster.cpus, machine.cpus) if spec.cluster.cpus else None,
            grace_s=_GRACE_S,
        )
        self.request = replace(request, spec=msgspec.structs.replace(spec, cluster=cluster))
        self.device = device_for(cluster, machine)
        self.trials = _choose_trials(request)
        self._progress = progress

    def try_stages(self, path: Path) -> None:
        """Try them in rounds: in each one those whose weights are there."""
        for trial in self.trials.values():
            if trial.stage.command is not None:
                trial.report.results = dict.fromkeys(CHECKS, CheckResult("none"))
                trial.report.notes.append("a command: only whether its program exists")
                self._check_program(trial, "import", trial.stage.command)
                trial.is_done = True
        while not self._is_late() and (ready := self._find_ready()):
            self._report_progress(f"two steps of {', '.join(trial.name for trial in ready)}")
            stages = {trial.name: self._shorten(trial) for trial in ready}
            runs = run_in_scratch(
                self.request,
                path,
                stages,
                failpoints=_FAILPOINTS,
                is_enough=_is_tried,
                is_over=self._is_late,
            )
            for trial in ready:
                _read_run(trial, runs[trial.name])
                if not trial.is_done and not self._is_late():
                    self._finish(trial, stages[trial.name], runs[trial.name])
                trial.is_done = True

    def _report_progress(self, what: str) -> None:
        if self._progress is not None:
            done = sum(trial.is_done for trial in self.trials.values())
            self._progress(Progress(what, done, len(self.trials)))

    def _is_late(self) -> bool:
        return SystemClock().monotonic() >= self.deadline

    def _check_program(self, trial: _Trial, check: str, command: Sequence[str]) -> None:
        try:
            _require_program(command, f"stage `{trial.stage.name}`", self.request)
            trial.pass_checks(check)
        except TasukiError as error:
            trial.fail(check, error.message, error.hint)

    def _find_ready(self) -> list[_Trial]:
        """Find the stages whose weights are there, and skip those whose weights failed."""
        ready = []
        for trial in self.trials.values():
            source = self.trials[trial.source] if trial.source is not None else None
            if trial.is_done:
                continue
            if source is None or source.weights is not None:
                ready.append(trial)
            elif source.is_done:
                name = source.name.replace(".", "/", 1)
                skipped = CheckResult("skipped", f"it starts from the weights of {name}")
                trial.report.results = dict.fromkeys(CHECKS, skipped)
                trial.is_done = True
        return ready

    def _shorten(self, trial: _Trial) -> ResolvedStage:
        """Take its largest samples and two micro-batches a step. Schedules need its length."""
        stage, notes = trial.stage, trial.report.notes
        changes: dict[str, Any] = {
            "save": msgspec.structs.replace(
                stage.save, every=Every(unit="epochs", count=1.0), keep=1
            ),
            "order": stage.order if stage.order == "score" else "largest_first",
            "export": None,
            "gpus": None,
            "chooses_gpus": False,
            "validate": None,  # `_finish` takes a few samples instead of the complete split
            "evaluate": None,
        }
        if trial.source is not None:
            changes["init_from"] = str(self.trials[trial.source].weights)
        micro_batch = self.micro_batch
        if micro_batch is None and isinstance(stage.micro_batch, int):
            micro_batch = stage.micro_batch
        if self.is_without_gpu:
            micro_batch = micro_batch or 2
            changes |= {"compile": False, "offload": False}
            changes |= {"precision": "bf16"} if stage.precision == "fp16" else {}
            notes.append(f"on the CPU: there is no GPU here ({self.spec.cluster.gpu})")
        if (num_ranks := self.spec.cluster.gpus * self.spec.cluster.nodes) > 1:
            notes.append(f"on one rank, not {num_ranks}")
        effective = stage.effective_batch
        if micro_batch is not None and effective is not None:
            few = min(effective, 2 * micro_batch)
            changes |= {"effective_batch": few, "micro_batch": min(micro_batch, few)}
            changes["accumulation"] = None
            if few < effective:
                notes.append(f"{few} of {effective} samples a step, {micro_batch} at once")
        return msgspec.structs.replace(stage, **changes)

    def _finish(self, trial: _Trial, tried: ResolvedStage, run: RunFolder) -> None:
        """Export the weights, take all steps of the schedule, validate and evaluate."""
        stage, cluster = trial.stage, self.spec.cluster
        evaluate = stage.evaluate if evaluates(trial.experiment, stage) else None
        command = evaluate.command if evaluate is not None else None
        weights = run.path.with_name(f"{run.name}.safetensors")  # names have dots
        self._report_progress(f"evaluating {trial.name}")
        try:
            failures = subprocesses.run(
                "tasuki.train.precheck:finish_checks",
                msgspec.structs.replace(stage, evaluate=None if command else evaluate),
                tried,
                run.path,
                weights,
                Path(self.spec.folder),
                cluster.gpus * cluster.nodes,
                self.device,
                result=dict[str, tuple[str, str]],
                timeout_s=max(1.0, self.deadline - SystemClock().monotonic()),
                cwd=self.spec.folder,
                environment=self.request.environment,
            )
        except subprocesses.SubprocessTimeoutError:
            return
        except TasukiError as error:
            trial.fail("evaluate", error.message, error.hint)
            return
        trial.weights = weights
        parts = {"schedule": True, "validate": stage.validate, "evaluate": evaluate}
        for check, part in parts.items():
            trial.report.results[check] = CheckResult("ok" if part else "none")
            if check in failures:
                trial.fail(check, *failures[check])
        if command is not None:
            self._check_program(trial, "evaluate", command)


def _choose_trials(request: PlanRequest) -> dict[StageKey, _Trial]:
    """Choose the requested stages, and all whose weights they need."""
    known: dict[StageKey, _Trial] = {}
    for experiment in request.spec.experiments:
        for stage in experiment.stages:
            results = dict.fromkeys(CHECKS, CheckResult("not_reached"))
            report = StageCheck(experiment=experiment.name, stage=stage.name, results=results)
            source = find_source(experiment, stage)
            known[experiment.name, stage.name] = _Trial(experiment, stage, report, source)
    names = {experiment.name for experiment in request.experiments}
    chosen: set[StageKey] = set()
    for name, stage_name in known:
        if name in names and (not request.stages or stage_name in request.stages):
            key: StageKey | None = (name, stage_name)
            while key is not None and key not in chosen:
                chosen.add(key)
                key = known[key].source
    return {key: trial for key, trial in known.items() if key in chosen}


# -- what a run in the scratch folder shows -------------------------------------------------------


def _is_tried(run: RunFolder) -> bool:
    """Two steps are saved, or an attempt failed: it is not tried three times, as a run is."""
    manifest = newest_manifest(run)
    at = manifest.position if manifest is not None else None
    is_done = at is not None and (at.stage_step >= 2 or at.is_end)
    return is_done or _find_failure(run) is not None


def _find_failure(run: RunFolder) -> tuple[int, dict[str, Any]] | None:
    """Find the attempt that failed, and what it wrote about its end."""
    for attempt, end in (read_attempt_ends(run) if run.claims.is_dir() else {}).items():
        # The check itself interrupts and kills attempts when its time budget is over.
        if end and end.get("ending") in _FAILED and end.get("cause") != Cause.INTERRUPTED:
            return attempt, end
    return None


def _read_run(trial: _Trial, run: RunFolder) -> None:
    """Read from the events of a run which checks passed, and which one failed."""
    events = read_events(run)
    doing = {_CHECK_OF_ACTIVITY.get(event["what"]) for event in events if event["kind"] == "doing"}
    restored = [event for event in events if event["kind"] == "restored"]
    manifest = newest_manifest(run)
    step = manifest.position.stage_step if manifest is not None else 0
    passed = {
        "import": "data" in doing,
        "data": "model" in doing,
        "model": "load" in doing,
        "step": step >= 1,
        "save": step >= 1,
        "load": len(restored) >= 2 and step >= 2,
    }
    trial.pass_checks(*(name for name, is_passed in passed.items() if is_passed))
    if manifest is not None:
        size = sum(record.size for record in (*manifest.files, *manifest.frozen))
        trial.report.checkpoint_bytes = size
    if restored:
        started = next(event["t"] for event in events if event["kind"] == "attempt-started")
        trial.start_s = restored[0]["t"] - started
    failure = _find_failure(run)
    if failure is not None and not passed["load"]:
        attempt, end = failure
        message = str(end.get("message"))
        last = [e for e in events if e["claim"] == attempt and e["kind"] in ("doing", "restored")]
        what = last[-1].get("what", "") if last else "importing the recipe"
        check = "save" if "cannot be stored" in message else _CHECK_OF_ACTIVITY.get(what, "step")
        trial.fail(check, message, str(end.get("hint") or ""))


# -- outside of the stages ------------------------------------------------------------------------


def _find_problems(checker: _Checker, request: PlanRequest) -> list[ProjectCheck]:
    """Check loggers, notifications, files and partition of the cluster, disk and time limit."""
    spec, trials = request.spec, list(checker.trials.values())
    checks: list[tuple[str, Callable[[], None]]] = [
        ("logger", partial(_require_loggers, request)),
        *(
            ("notify", partial(_require_program, command, f"`on: {outcome}`", request))
            for outcome, command in spec.on.items()
        ),
        ("partition", partial(_require_partition, request)),
        ("disk", partial(_require_disk, spec, trials)),
        ("time_limit", partial(_require_time, spec, max(trial.start_s for trial in trials))),
    ]
    problems = []
    for name, require in checks:
        try:
            require()
        except TasukiError as error:
            problems.append(ProjectCheck(name, error.message, error.hint))
    return problems


def _require_loggers(request: PlanRequest) -> None:
    spec = request.spec
    if spec.sinks:
        subprocesses.run(
            "tasuki.loggers.__main__:start_and_close",
            spec.sinks,
            spec.project,
            Path(spec.folder),
            result=list[str],
            timeout_s=60.0,
            environment=request.environment,
        )


def _require_program(command: Sequence[str], owner: str, request: PlanRequest) -> None:
    # A plan only warns of a program that a node may have. Here the user asked whether it is there.
    for doubt in check_command(command, owner, request):
        raise UsageError(doubt, hint="`cluster.setup` may extend the PATH of a job")


def _require_partition(request: PlanRequest) -> None:
    cluster, clock = request.spec.cluster, SystemClock()
    if cluster.backend == "slurm" or cluster.partition:
        slurm = Slurm(environment=request.environment, clock=clock, tries=1, within_s=5.0)
        partition = choose_partition(cluster, slurm.partitions())
        if partition is not None:
            check_partition(cluster, partition)


def _require_disk(spec: ResolvedSpec, trials: Sequence[_Trial]) -> None:
    """Require space for `keep` + 2 checkpoints of the largest stage of each experiment."""
    needs: dict[str, int] = {}
    for trial in trials:
        need = (trial.stage.save.keep + 2) * (trial.report.checkpoint_bytes or 0)
        needs[trial.experiment.name] = max(need, needs.get(trial.experiment.name, 0))
    runs = Path(spec.runs)
    free = free_bytes(next(path for path in (runs, *runs.parents) if path.exists()))
    if (total := sum(needs.values())) > free:
        raise UsageError(
            f"checkpoints need {format_bytes(total)}, {format_bytes(free)} are free in {runs}",
            hint="keep fewer (`save: {keep: 1}`), make room, or set `runs:` to another disk",
        )


def _require_time(spec: ResolvedSpec, start_s: float) -> None:
    limit_s = spec.cluster.time_limit_s
    if limit_s is not None and limit_s <= start_s:
        message = f"the time limit is {format_seconds(limit_s)}, a start takes {start_s:.0f} s"
        raise UsageError(message, hint="write a longer `cluster.time_limit`")
