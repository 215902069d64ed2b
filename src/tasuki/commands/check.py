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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from tasuki import subprocesses
from tasuki.clock import SystemClock
from tasuki.commands.discover import look_with
from tasuki.commands.evaluate import Asked, Evaluation, evaluate_weights, of_run
from tasuki.commands.export import Wanted, export_run
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest, evaluates, request_plan
from tasuki.commands.scratch import make_scratch, newest_manifest, run_in_scratch
from tasuki.commands.sinks import check_sinks
from tasuki.errors import TasukiError
from tasuki.runs.atomic import FORMAT, free_bytes
from tasuki.runs.attempts import read_attempt_ends
from tasuki.runs.events import read_events
from tasuki.runs.find import latest_run
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Ending
from tasuki.slurm.client import Slurm
from tasuki.slurm.fit import check_partition, choose_partition
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage, start_of
from tasuki.spec.values import Every
from tasuki.subprocesses import Progress, ProgressCallback
from tasuki.units import Duration, format_bytes, format_seconds

CHECKS = ("import", "data", "schedule", "model", "step", "save", "load", "validate", "evaluate")
_NOTICE_S = 0.5
_GRACE_S = 5.0  # there is nothing to save when the time budget is over
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}

Key = tuple[str, str]  # experiment and stage


class CheckResult(msgspec.Struct, frozen=True):
    """One check of one stage."""

    status: Literal["ok", "failed", "skipped", "not_reached", "none"]
    message: str = ""
    hint: str = ""


class StageCheck(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    stage: str
    results: dict[str, CheckResult]  # by the names in CHECKS
    steps: int | None  # of the whole stage
    checkpoint_bytes: int | None
    duration_s: float
    notes: list[str]  # what differs from the whole stage


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
    not_checked: list[str]
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
    look = look_with(python=sys.executable, environment=environment)
    resolved = load_spec(
        str(spec), settings=overrides, config=preset, environ=os.environ, look=look
    )
    request = request_plan(
        resolved, experiments, stages, python=sys.executable, environment=environment
    )
    work = _Work(request, micro_batch, progress, began + Duration.parse(time_budget).seconds)
    work.report_progress("logging, notifications and the partition")
    problems = list(_check_project(request))
    path = Path(resolved.runs) / ".check"
    make_scratch(path, command="check")
    try:
        _try_stages(work, path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # unless the user's runs are there
    problems += _check_disk(work)
    problems += _check_time_limit(work)
    is_ok = all(_is_passed(row) for row in work.rows.values())
    return CheckReport(
        ok=is_ok and not problems,
        device=device_for(work.request.spec.cluster, request.machine),
        stages=[row.as_result() for row in work.rows.values()],
        problems=problems,
        not_checked=list(_not_checked(work, allow_network)),
        duration_s=round(clock.monotonic() - began, 1),
    )


# -- outside of the stages ------------------------------------------------------------------------


def _check_project(request: PlanRequest) -> Iterator[ProjectCheck]:
    """Loggers, commands for notifications, files of the cluster, and the partition."""
    spec, cluster = request.spec, request.spec.cluster
    try:
        check_sinks(spec)
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
    except TasukiError as error:
        yield ProjectCheck("logger", error.message, error.hint)
    for outcome, command in spec.on.items():
        if not _is_command(command[0], request):
            message = f"`on: {outcome}` runs `{command[0]}`, which is not there"
            yield ProjectCheck("notify", message, _PATH_HINT)
    if cluster.setup and not (Path(spec.folder) / cluster.setup).is_file():
        message = f"`cluster.setup` names {cluster.setup}, which is not there"
        yield ProjectCheck("setup", message, "it is relative to the spec's folder")
    if cluster.python and shutil.which(cluster.python) is None:
        message = f"`cluster.python` names {cluster.python}, which is not there"
        yield ProjectCheck("setup", message, "name a Python with tasuki and torch")
    if cluster.backend == "slurm" or cluster.partition:
        yield from _check_partition(request)


def _check_partition(request: PlanRequest) -> Iterator[ProjectCheck]:
    cluster, clock = request.spec.cluster, SystemClock()
    slurm = Slurm(environment=request.environment, clock=clock, tries=1, within_s=5.0)
    try:
        partition = choose_partition(cluster, slurm.partitions())
        if partition is not None:
            check_partition(cluster, partition)
    except TasukiError as error:
        yield ProjectCheck("partition", error.message, error.hint)


_PATH_HINT = (
    "a job finds commands by its PATH (`cluster.setup` may extend it) or by a path relative to the "
    "spec's folder"
)


def _is_command(word: str, request: PlanRequest) -> bool:
    path = Path(request.spec.folder, word)
    found = shutil.which(word, path=request.environment.get("PATH"))
    return found is not None or os.access(path, os.X_OK)


# -- the stages -----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Row:
    """A stage, and what is known of it so far."""

    experiment: ResolvedExperiment
    stage: ResolvedStage
    source: Key | None  # the stage whose weights it starts from
    results: dict[str, CheckResult] = field(default_factory=dict)
    weights: Path | None = None
    steps: int | None = None
    start_s: float | None = None
    checkpoint_bytes: int | None = None
    duration_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    is_done: bool = False

    @property
    def run_name(self) -> str:
        return f"{self.experiment.name}.{self.stage.name}"

    def fail(self, check: str, message: str, hint: str = "") -> None:
        self.results[check] = CheckResult("failed", message, hint)
        self.is_done = True

    def as_result(self) -> StageCheck:
        missing = CheckResult("not_reached")
        return StageCheck(
            experiment=self.experiment.name,
            stage=self.stage.name,
            results={name: self.results.get(name, missing) for name in CHECKS},
            steps=self.steps,
            checkpoint_bytes=self.checkpoint_bytes,
            duration_s=round(self.duration_s, 1),
            notes=self.notes,
        )


def _is_passed(row: _Row) -> bool:
    return all(row.results.get(name, _NONE).status in ("ok", "none") for name in CHECKS) and (
        len(row.results) == len(CHECKS)
    )


_OK, _NONE = CheckResult("ok"), CheckResult("none")


class _Work:
    """The stages of a spec that are tried."""

    def __init__(
        self,
        request: PlanRequest,
        micro_batch: int | None,
        progress: ProgressCallback | None,
        until: float,
    ) -> None:
        spec, machine = request.spec, request.machine
        self.is_other_device = device_for(spec.cluster, machine) == "cuda" and machine.gpus == 0
        self.whole, self.micro_batch, self.until = spec, micro_batch, until
        cluster = msgspec.structs.replace(
            spec.cluster,
            gpus=1,
            nodes=1,
            gpu="cpu" if self.is_other_device else spec.cluster.gpu,
            cpus=min(spec.cluster.cpus, machine.cpus) if spec.cluster.cpus else None,
        )
        self.request = replace(request, spec=msgspec.structs.replace(spec, cluster=cluster))
        self.rows = {(r.experiment.name, r.stage.name): r for r in _choose_rows(request)}
        self._progress = progress

    def report_progress(self, what: str) -> None:
        if self._progress is not None:
            done = sum(row.is_done for row in self.rows.values())
            self._progress(Progress(what, done, len(self.rows)))

    def is_late(self) -> bool:
        return SystemClock().monotonic() >= self.until


def _choose_rows(request: PlanRequest) -> list[_Row]:
    """The wanted stages, and those that they start from unless the user's runs have weights."""
    every: dict[Key, _Row] = {}
    for experiment in request.spec.experiments:
        for number, stage in enumerate(experiment.stages):
            source = _source_of(experiment, number)
            every[experiment.name, stage.name] = _Row(
                experiment=experiment, stage=stage, source=source
            )
    names = {experiment.name for experiment in request.experiments}
    wanted = [
        key for key in every if key[0] in names and (not request.stages or key[1] in request.stages)
    ]
    needed: set[Key] = set()
    while wanted:
        row = every.get(key := wanted.pop())
        if row is None or key in needed:
            continue
        needed.add(key)
        if row.source is not None and _trained_weights(request.spec, row.source) is None:
            wanted.append(row.source)
    return [row for key, row in every.items() if key in needed]


def _source_of(experiment: ResolvedExperiment, number: int) -> Key | None:
    stage = experiment.stages[number]
    match start_of(stage.init_from):
        case "previous":
            return experiment.name, experiment.stages[number - 1].name
        case "stage":
            return experiment.name, stage.init_from
        case "experiment":
            name, _, source = stage.init_from.partition("/")
            return name, source
        case _:
            return None


def _trained_weights(spec: ResolvedSpec, key: Key) -> Path | None:
    """Of a stage that is finished in the user's own runs."""
    folder = latest_run(Path(spec.runs), key[0]).stage(key[1])
    return folder.weights if folder.metrics.exists() and folder.weights.is_file() else None


def _try_stages(work: _Work, path: Path) -> None:
    for row in work.rows.values():
        if row.stage.recipe is None:
            _check_command(row, work)
    while not work.is_late():
        ready = [row for row in work.rows.values() if not row.is_done and _has_source(row, work)]
        if not ready:
            return
        work.report_progress("learning rate schedules")
        _walk_schedules(ready, work)
        ready = [row for row in ready if not row.is_done]
        names = ", ".join(row.run_name for row in ready)
        work.report_progress(f"two steps of {names}")
        began = SystemClock().monotonic()
        stages = {row.run_name: _shorten(row, work) for row in ready}
        runs = run_in_scratch(
            work.request,
            path,
            stages,
            is_enough=_is_tried,
            # Each attempt is preempted after its first step.
            failpoints=[
                {"at": "step.optimizer", "do": "term"},
                {"at": "step.optimizer", "do": "pause", "seconds": _NOTICE_S},
            ],
            grace_s=_GRACE_S,
            is_over=work.is_late,
        )
        for row in ready:
            row.duration_s = SystemClock().monotonic() - began
            _read_run(row, runs[row.run_name], is_late=work.is_late())
            if not row.is_done:
                _export_and_evaluate(row, runs[row.run_name], work, path)


def _check_command(row: _Row, work: _Work) -> None:
    """Of a script, only whether it is there: what it does after that is its own."""
    assert row.stage.command is not None
    row.results = dict.fromkeys(CHECKS, _NONE) | {"import": _OK}
    row.notes.append("a command: only whether it is there")
    row.is_done = True
    if not _is_command(row.stage.command[0], work.request):
        row.fail("import", f"there is no command `{row.stage.command[0]}`", _PATH_HINT)


def _has_source(row: _Row, work: _Work) -> bool:
    """Whether the weights are there that it starts from. Skips it if they never will be."""
    source = work.rows.get(row.source) if row.source is not None else None
    if source is None or source.weights is not None or source.stage.recipe is None:
        return True
    if source.is_done:
        name = source.run_name.replace(".", "/", 1)
        skipped = CheckResult("skipped", f"it starts from the weights of {name}, which failed")
        row.results |= {name: skipped for name in CHECKS if name not in row.results}
        row.is_done = True
    return False


def _walk_schedules(rows: Sequence[_Row], work: _Work) -> None:
    cluster = work.whole.cluster
    try:
        found = subprocesses.run(
            "tasuki.train.precheck:walk_schedules",
            [row.stage for row in rows],
            Path(work.whole.folder),
            cluster.gpus * cluster.nodes,
            result=list[tuple[int | None, str]],
            timeout_s=max(1.0, work.until - SystemClock().monotonic()),
            cwd=work.whole.folder,
            environment=work.request.environment,
        )
    except TasukiError:
        return  # two steps of each will tell which one ends the process
    for row, (steps, message) in zip(rows, found, strict=True):
        row.steps = steps
        if message:
            row.results |= {"import": _OK, "data": _OK}
            hint = "build_schedule(self, optimizer, total_steps) must allow `total_steps` steps"
            row.fail("schedule", message, hint)


def _shorten(row: _Row, work: _Work) -> ResolvedStage:
    """Its largest samples, two micro-batches a step. The length stays, as schedules need it."""
    stage, micro_batch = row.stage, work.micro_batch
    if micro_batch is None and isinstance(stage.micro_batch, int):
        micro_batch = stage.micro_batch
    changes: dict[str, Any] = {
        "save": msgspec.structs.replace(stage.save, every=Every(unit="epochs", count=1.0), keep=1),
        "order": stage.order if stage.order == "score" else "largest_first",
        "export": None,
        "gpus": None,
        "chooses_gpus": False,
        "init_from": _start(row, work),
        "validate": None,  # here the whole split; _evaluate_few takes a few samples
    }
    if stage.evaluate is not None and stage.evaluate.command is not None:
        changes["evaluate"] = None  # only whether the command is there
    if work.is_other_device:
        micro_batch = micro_batch or 2
        changes |= {"compile": False, "offload": False}
        changes |= {"precision": "bf16"} if stage.precision == "fp16" else {}
        row.notes.append(f"on the CPU: there is no GPU here ({work.whole.cluster.gpu})")
    effective = stage.effective_batch
    if micro_batch is not None and effective is not None:
        few = min(effective, 2 * micro_batch)
        sizes = {"effective_batch": few, "micro_batch": min(micro_batch, few), "accumulation": None}
        changes |= sizes
        if few < effective:
            row.notes.append(f"{few} of {effective} samples a step, {micro_batch} at once")
    return msgspec.structs.replace(stage, **changes)


def _start(row: _Row, work: _Work) -> str:
    if row.source is None:
        return row.stage.init_from
    source = work.rows.get(row.source)
    weights = source.weights if source is not None else _trained_weights(work.whole, row.source)
    if weights is None:
        row.notes.append("without the weights that a command makes")
    return str(weights) if weights is not None else "none"


def _is_tried(run: RunFolder) -> bool:
    """Two steps are saved, or an attempt failed: it is not tried three times, as a run is."""
    manifest = newest_manifest(run)
    at = manifest.position if manifest is not None else None
    is_done = at is not None and (at.stage_step >= 2 or at.is_end)
    return is_done or _first_failure(run) is not None


def _first_failure(run: RunFolder) -> tuple[int, dict[str, Any]] | None:
    """The attempt that failed, and what it wrote about its end."""
    ends = read_attempt_ends(run) if run.claims.is_dir() else {}
    failed = (Ending.FAILED, Ending.MISTAKE, Ending.STUCK)
    return next(((n, end) for n, end in ends.items() if end and end.get("ending") in failed), None)


def _read_run(row: _Row, run: RunFolder, *, is_late: bool) -> None:
    """From the events of a run: which checks passed, and which one it failed in."""
    events = read_events(run)
    doing = [event["what"] for event in events if event["kind"] == "doing"]
    restored = [event for event in events if event["kind"] == "restored"]
    manifest = newest_manifest(run)
    step = manifest.position.stage_step if manifest is not None else 0
    passed = {
        "import": "opening the data" in doing,
        "data": "building the model" in doing,
        "schedule": row.steps is not None,
        "model": "looking for a checkpoint" in doing,
        "step": step >= 1,
        "save": step >= 1,
        "load": len(restored) >= 2 and step >= 2,
    }
    row.results |= {name: _OK for name, is_passed in passed.items() if is_passed}
    if manifest is not None:
        row.checkpoint_bytes = sum(record.size for record in (*manifest.files, *manifest.frozen))
    if restored:
        started = next(e["t"] for e in events if e["kind"] == "attempt-started")
        row.start_s = restored[0]["t"] - started
    failure = _first_failure(run)
    if failure is not None and not passed["load"]:
        attempt, end = failure
        message = str(end.get("message"))
        if is_late and "kill" in message.lower():  # by us, as the time budget is over
            row.is_done = True
            return
        own = [event for event in events if event["claim"] == attempt]
        name = "save" if "cannot be stored" in message else _failed_check(own)
        row.fail(name, message, str(end.get("hint") or _HINTS[name]))


_HINTS = {
    "import": "run `python -c 'import …'` in the spec's folder",
    "data": "look at `data` and `split` in the spec",
    "model": "look at `build_model` of the recipe",
    "step": "look at `loss` of the recipe at the line that is named",
    "save": "leave out of the state what tasuki cannot store",
    "load": "`load_state_dict` must take back what `state_dict` gave",
    "validate": "look at `evaluate` or `loss` of the recipe, which validates with its `val` split",
    "evaluate": "look at `evaluate` or `loss` of the recipe, which evaluates with its `test` split",
}


def _failed_check(events: Sequence[Mapping[str, Any]]) -> str:
    """What an attempt was doing when it failed."""
    own = [event for event in events if event["kind"] in ("doing", "restored")]
    what = own[-1].get("what", "") if own else "importing the recipe"
    known = {
        "importing the recipe": "import",
        "opening the data": "data",
        "building the model": "model",
        "looking for a checkpoint": "load",
        "loading weights": "load",
        "saving the first checkpoint": "save",
        "restoring": "load",
        "saving": "save",
    }
    return known.get(what, "step")


def _export_and_evaluate(row: _Row, run: RunFolder, work: _Work, path: Path) -> None:
    """Write the weights for later stages. Validate and evaluate with them, on a few samples."""
    request, stage, name = work.request, row.stage, f"{row.run_name}.safetensors"
    check = "validate"
    try:
        export_run(
            str(run.path),
            Wanted(here=path, to=Path(name), source="last"),
            runs=path,
            python=request.python,
            environment=request.environment,
        )
        row.weights = path / name
        asked = Asked(here=path, weights=row.weights, stage=stage.name)
        evaluation = of_run(str(run.path), asked, runs=path)
        row.results["validate"] = _NONE
        if (validate := stage.validate) is not None:
            own = validate.data is not None
            data, sizes = (validate.data, None) if own else (stage.data, stage.size)
            validation = replace(evaluation, data=data, sizes=sizes, split=validate.split)
            row.results["validate"] = _evaluate_few(validation, work)
        check = "evaluate"
        evaluate = stage.evaluate if evaluates(row.experiment, stage) else None
        row.results["evaluate"] = _NONE
        if evaluate is not None and evaluate.command is None:
            row.results["evaluate"] = _evaluate_few(evaluation, work)
        elif evaluate is not None and evaluate.command is not None:
            row.results["evaluate"] = _OK
            if not _is_command(evaluate.command[0], request):
                row.fail(check, f"there is no command `{evaluate.command[0]}`", _PATH_HINT)
    except TasukiError as error:
        row.fail(check, error.message, error.hint or _HINTS[check])
    row.is_done = True


def _evaluate_few(evaluation: Evaluation, work: _Work) -> CheckResult:
    if work.is_late():
        return CheckResult("not_reached")
    work.report_progress(f"evaluating {evaluation.experiment}")
    request = work.request
    evaluate_weights(
        evaluation,
        benchmark=False,
        is_few=True,
        python=request.python,
        environment=request.environment,
    )
    return _OK


# -- what the stages showed -----------------------------------------------------------------------


def _check_disk(work: _Work) -> Iterator[ProjectCheck]:
    """Room for `keep` checkpoints and two more, of the largest stage of each experiment."""
    needs: dict[str, int] = {}
    for row in work.rows.values():
        need = (row.stage.save.keep + 2) * (row.checkpoint_bytes or 0)
        needs[row.experiment.name] = max(need, needs.get(row.experiment.name, 0))
    total, free = sum(needs.values()), free_bytes(_existing(Path(work.whole.runs)))
    if total > free:
        message = f"checkpoints need {format_bytes(total)}, {format_bytes(free)} are free"
        yield ProjectCheck(
            "disk",
            f"{message} in {work.whole.runs}",
            "keep fewer (`save: {keep: 1}`), make room, or set `runs:` to another disk",
        )


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _check_time_limit(work: _Work) -> Iterator[ProjectCheck]:
    limit = work.whole.cluster.time_limit_s
    starts = [row.start_s for row in work.rows.values() if row.start_s is not None]
    if limit is not None and starts and limit <= max(starts):
        message = f"the time limit is {format_seconds(limit)}, a start takes {max(starts):.0f} s"
        yield ProjectCheck("time_limit", message, "write a longer `cluster.time_limit`")


def _not_checked(work: _Work, allow_network: bool) -> Iterator[str]:
    cluster = work.whole.cluster
    if work.is_other_device:
        yield f"`gpu: {cluster.gpu}`: memory, speed and kernels of the GPU"
    if cluster.gpus * cluster.nodes > 1:
        yield f"{cluster.gpus * cluster.nodes} ranks: one was tried"
    if cluster.setup:
        yield "`cluster.setup` is not sourced"
    if allow_network:
        yield "whether the stages work without a network"
    yield "later samples, the queue, and interruptions at other places (`tasuki verify resume`)"
