"""Interrupt the user's own training and compare it with an uninterrupted run.

A stage or script runs twice in a scratch folder, by the code that `tasuki run` uses. The first run
is not interrupted. The second is preempted and killed at several places and resumed each time. Only
checkpoints and metric lines are compared: the training code has no hooks for this. If they differ,
a second uninterrupted run tells a bad resume from a script that is never twice the same.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tasuki import subprocesses
from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.manifest import Manifest, parse_name
from tasuki.checkpoint.verify import read_manifest
from tasuki.clock import SystemClock
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.finished import open_run, stage_named
from tasuki.commands.plan import PlanRequest, request_plan
from tasuki.commands.scratch import failure_of, make_scratch, newest_manifest, run_in_scratch
from tasuki.errors import RunError, UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.runs.claims import highest_claim
from tasuki.runs.events import read_events
from tasuki.runs.metrics import TIMING_KEYS, read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_command
from tasuki.spec.resolved import (
    ResolvedSave,
    ResolvedSpec,
    ResolvedStage,
    start_of,
)
from tasuki.spec.values import Every
from tasuki.subprocesses import Progress, ProgressCallback

_SAVE_EVERY = 3
_SAVE = ResolvedSave(every=Every(unit="steps", count=float(_SAVE_EVERY)), keep=10)
# Not at each save: losses that are not logged yet are part of a checkpoint too.
_LOG_EVERY = Every(unit="steps", count=2.0)
_EPOCHS = 1.5
_REFERENCE_S = 60.0
_MIN_STEPS = 12
_MIN_STEPS_OF_STAGE = 4
_ATTEMPTS = 5
_NOTICE_S = 1.0  # a rank needs milliseconds to hear a signal, on a busy machine longer
_PACE_S = 0.2


class Interruption(msgspec.Struct, frozen=True):
    """How one attempt of the interrupted run ended, and where the next one resumed."""

    attempt: int
    kind: Literal["preempted", "killed", "killed_in_save"]
    step: int
    is_epoch_end: bool
    resumed_from: int


class Difference(msgspec.Struct, frozen=True):
    """The first checkpoint entry or metric that differs."""

    step: int
    entry: str
    message: str


class Cause(msgspec.Struct, frozen=True):
    """A likely cause of the difference."""

    name: str
    message: str
    hint: str
    lines: list[str]  # of the user's code that look like it, as "file.py:12"


class ResumeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an interrupted run has the bits of an uninterrupted one."""

    format: int = FORMAT
    status: Literal["equal", "state_lost", "never_equal", "resume_failed"]
    equal: bool
    message: str
    experiment: str
    stage: str
    steps: int
    steps_per_epoch: int | None
    interruptions: list[Interruption]
    compared_checkpoints: list[int]  # their steps
    compared_metric_lines: int
    first_difference: Difference | None
    causes: list[Cause]
    notes: list[str]
    duration_s: float = 0.0
    folder: str | None = None  # where the runs are kept; None: they are removed


def verify_resume(
    target: str | Path = "tasuki.yaml",
    *,
    command: Sequence[str] = (),
    experiment: str | None = None,
    stage: str | None = None,
    overrides: Sequence[str] = (),
    preset: str | None = None,
    runs_dir: str | Path = "runs",
    keep: bool = False,
    progress: ProgressCallback | None = None,
) -> ResumeReport:
    """Interrupt a stage or a script several times and compare it with an uninterrupted run.

    It trains for one and a half epochs, or about a minute, in a scratch folder next to the runs.

    Args:
        target: A spec (a file, a folder, `file.py:function`), or the name or folder of a run.
        command: A script and its arguments. It replaces `target`.
        experiment: None: the first one.
        stage: None: the first one.
        overrides: `KEY=VALUE`, as `--set`.
        preset: A named set of values of the spec.
        runs_dir: The folder of a run that `target` names.
        keep: Keep the scratch folder also if the runs are equal.
        progress: Called with what is being done.

    Raises:
        UsageError: The spec, run, experiment or stage does not exist, or saves no checkpoints.
        RunError: The uninterrupted run failed, or the run was not interrupted as planned.

    Example:
        >>> tasuki.verify_resume("tasuki.yaml").status
        'equal'
    """
    clock = SystemClock()
    began = clock.monotonic()
    if command:
        spec = load_command(command, settings=overrides, environ=os.environ)
    elif _is_spec(str(target)):
        spec = load_resolved_spec(target, overrides, preset)
    else:
        if overrides or preset:
            raise UsageError(f"`{target}` is a run: its settings are fixed", hint="name a spec")
        spec, stage = _load_run(str(target), Path(runs_dir).absolute(), stage)
    names = [experiment] if experiment else []
    request = request_plan(spec, names, python=sys.executable, environment=dict(os.environ))
    chosen = request.experiments[0]
    stages = chosen.stages
    scratch = _prepare(
        request, chosen.name, stage_named(stages, stage) if stage else stages[0], progress
    )
    try:
        report = _interrupt_and_compare(scratch, chosen.name)
    except KeyboardInterrupt:
        shutil.rmtree(scratch.path, ignore_errors=True)
        raise
    report = msgspec.structs.replace(report, duration_s=round(clock.monotonic() - began, 1))
    if keep or not report.equal:
        return msgspec.structs.replace(report, folder=str(scratch.path))
    shutil.rmtree(scratch.path, ignore_errors=True)
    return report


def _is_spec(target: str) -> bool:
    is_project = Path(target).is_dir() and not (Path(target) / "spec.json").is_file()
    return target.endswith((".yaml", ".yml")) or ".py:" in target or is_project


def _load_run(name: str, runs: Path, stage: str | None) -> tuple[ResolvedSpec, str | None]:
    """The spec with which a run was begun, and the stage if `name` is RUN/STAGE."""
    run, stage = open_run(name, runs, stage=stage)
    spec = ResolvedSpec(
        project=run.project.name,
        file=str(run.folder.spec),
        folder=str(run.project),
        runs=str(run.folder.path.parent),
        cluster=run.cluster,
        experiments=(run.experiment,),
    )
    return spec, stage


# -- running --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scratch:
    """A scratch folder, and the shortened stage that runs in it under several names."""

    path: Path
    request: PlanRequest
    stage: ResolvedStage
    progress: ProgressCallback | None

    def report(self, name: str, step: int, total: int) -> None:
        if self.progress is not None:
            self.progress(Progress(f"{name} run: step", min(step, total), total))


def _prepare(
    request: PlanRequest, experiment: str, stage: ResolvedStage, progress: ProgressCallback | None
) -> _Scratch:
    """Create the folder. What an earlier call left there is replaced."""
    folder = Path(request.spec.folder)
    scripts = [folder / word for word in stage.command or () if word.endswith(".py")]
    texts = [script.read_text(errors="replace") for script in scripts if script.is_file()]
    if texts and not any("tasuki" in text for text in texts):
        # It would train to its end, however long that takes.
        raise UsageError(
            f"`{scripts[0].name}` saves no checkpoints with tasuki, so there is nothing to compare",
            hint="use `tasuki.open_run`, or the adapter for Lightning or Transformers, in its loop",
        )
    path = Path(request.spec.runs) / ".verify" / f"{experiment}.{stage.name}"
    make_scratch(path, command="verify resume")
    shortened = msgspec.structs.replace(
        stage,
        save=_SAVE,
        log_every=_LOG_EVERY,
        # Nothing is written outside the scratch folder, and no weights of other stages are there.
        evaluate=None,
        export=None,
        init_from=stage.init_from if start_of(stage.init_from) == "file" else "none",
    )
    return _Scratch(path, request, shortened, progress)


@dataclass(frozen=True, slots=True)
class _Places:
    """After which steps the second run is interrupted, and where both end."""

    middle: int
    killed: int
    border: int
    last: int
    steps_per_epoch: int | None
    num_ranks: int

    def failpoints(self) -> list[dict[str, Any]]:
        """As failpoints.py reads them. Passes count from the step at which an attempt starts."""
        step = {"at": "step.optimizer"}
        armed: list[dict[str, Any]] = []
        for claim, count in ((1, self.middle), (3, self.border - self.middle)):
            place = {**step, "claim": claim, "count": count}
            armed.append({**place, "do": "term", "rank": self.num_ranks - 1})
            # All ranks stay in that step until the signal is heard, so they agree on this step.
            armed.append({**place, "do": "pause", "seconds": _NOTICE_S})
        # Until the last attempt is stopped, later checkpoints must not replace the last one.
        pace = {**step, "do": "pause", "seconds": _PACE_S, "times": 1_000_000}
        return [
            *armed,
            {**step, "do": "kill", "rank": 0, "claim": 2, "count": self.killed - self.middle},
            {"at": "save.rename", "do": "kill", "rank": 0, "claim": 4},
            {**pace, "claim": _ATTEMPTS, "count": self.last - self.border + 1},
        ]

    def describe(self, starts: Mapping[int, int]) -> list[Interruption]:
        """What was done; `starts` has the step from which each attempt started."""
        done: list[tuple[Any, int]] = [
            ("preempted", self.middle),
            ("killed", self.killed),
            ("preempted", self.border),
            ("killed_in_save", (self.border // _SAVE_EVERY + 1) * _SAVE_EVERY),
        ]
        per_epoch = self.steps_per_epoch
        return [
            Interruption(
                number, kind, step, bool(per_epoch and step % per_epoch == 0), starts[number + 1]
            )
            for number, (kind, step) in enumerate(done, start=1)
            if number + 1 in starts
        ]


def _choose_places(num_steps: int, steps_per_epoch: int | None, num_ranks: int) -> _Places:
    """A preemption in mid-epoch, a kill before the next save, a preemption at an epoch's end."""
    last = num_steps if num_steps < _MIN_STEPS else num_steps // _SAVE_EVERY * _SAVE_EVERY
    middle = max(1, min((steps_per_epoch or num_steps) // 2, num_steps // 3))
    killed = (middle // _SAVE_EVERY + 1) * _SAVE_EVERY
    border = middle + 1
    if steps_per_epoch:
        epoch_end = (middle // steps_per_epoch + 1) * steps_per_epoch
        # A save must follow, in which the fourth attempt is killed.
        border = epoch_end if epoch_end <= last - _SAVE_EVERY else border
    return _Places(middle, killed, border, last, steps_per_epoch, num_ranks)


def _run_uninterrupted(scratch: _Scratch, name: str, *, until: int | None = None) -> RunFolder:
    """Run until step `until`, or for one and a half epochs, or a minute."""
    run = RunFolder(scratch.path / name)
    clock = SystemClock()
    began: list[float] = []

    def is_enough(manifest: Manifest) -> bool:
        began.append(clock.monotonic())
        step, per_epoch = manifest.position.step, manifest.facts.get("steps_per_epoch")
        wanted = until or max(_MIN_STEPS, int(_EPOCHS * (per_epoch or 0)))
        scratch.report(name, step, wanted)
        is_slow = until is None and clock.monotonic() - began[0] > _REFERENCE_S
        return step >= (_MIN_STEPS if is_slow else wanted)

    _run(scratch, run, is_enough)
    if failure := failure_of(run):
        raise RunError(f"the uninterrupted run failed: {failure[0]}", hint=f"its logs: {run.logs}")
    if newest_manifest(run) is None:
        raise RunError(
            "the uninterrupted run saved no checkpoint",
            hint=f"does its loop use `tasuki.open_run` or an adapter? Its logs: {run.logs}",
        )
    return run


def _run_interrupted(scratch: _Scratch, name: str, places: _Places) -> RunFolder:
    run = RunFolder(scratch.path / name)

    def is_enough(manifest: Manifest) -> bool:
        step = manifest.position.step
        scratch.report(f"{name}, attempt {highest_claim(run)}", step, places.last)
        return step >= places.last

    _run(scratch, run, is_enough, places.failpoints())
    return run


def _run(
    scratch: _Scratch,
    run: RunFolder,
    is_enough: Callable[[Manifest], bool],
    failpoints: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Run until the newest checkpoint is enough, then save and stop."""

    def is_over() -> bool:
        manifest = newest_manifest(run)
        return manifest is not None and is_enough(manifest)

    run_in_scratch(
        scratch.request,
        scratch.path,
        {run.name: scratch.stage},
        # A script's own `save` and `log_every` win over a spec, but not here.
        failpoints=[{"at": "open.settings", "do": "spec"}, *failpoints],
        is_over=is_over,
    )


# -- comparing ------------------------------------------------------------------------------------


def _interrupt_and_compare(scratch: _Scratch, experiment: str) -> ResumeReport:
    reference = _run_uninterrupted(scratch, "uninterrupted")
    manifest = newest_manifest(reference)
    assert manifest is not None
    num_steps = manifest.position.step
    if num_steps < _MIN_STEPS_OF_STAGE:
        raise UsageError(
            f"the stage has only {num_steps} steps",
            hint=f"a resume can be verified from {_MIN_STEPS_OF_STAGE} steps on",
        )
    places = _choose_places(num_steps, manifest.facts.get("steps_per_epoch"), manifest.world)
    interrupted = _run_interrupted(scratch, "interrupted", places)
    restored = [event for event in read_events(interrupted) if event["kind"] == "restored"]
    starts = {int(event["claim"]): int(event["step"]) for event in restored}
    found = _compare(reference, interrupted, places.last)
    status: Any = "equal"
    message = "the interrupted run has the same bits as the uninterrupted run"
    if failure := failure_of(interrupted):
        status = "resume_failed"
        message = f"attempt {highest_claim(interrupted)} failed: {failure[0]}"
    elif len(starts) < _ATTEMPTS or not found.steps:
        raise RunError(
            f"the run was interrupted {len(starts) - 1} times instead of {_ATTEMPTS - 1}",
            hint=f"try again when less runs on this machine; its logs: {interrupted.logs}",
        )
    elif found.first is not None:
        status, message = "state_lost", "the interrupted run differs after a resume"
        second = _run_uninterrupted(scratch, "second uninterrupted", until=places.last)
        again = _compare(reference, second, places.last)
        if again.first is not None:
            status, found = "never_equal", again
            message = "two uninterrupted runs differ, so a resume cannot be compared"
    return ResumeReport(
        status=status,
        equal=status == "equal",
        message=message,
        experiment=experiment,
        stage=scratch.stage.name,
        steps=places.last,
        steps_per_epoch=places.steps_per_epoch,
        interruptions=places.describe(starts),
        compared_checkpoints=found.steps,
        compared_metric_lines=found.num_lines,
        first_difference=found.first,
        causes=_find_causes(found, scratch, is_resume=status == "state_lost"),
        notes=[_UNSEEDED] if status == "equal" and found.has_unseeded else [],
    )


Entry = tuple[str, str, str]  # name, group and message of a checkpoint entry that differs


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What two runs have in common, and what differs first."""

    steps: list[int]
    num_lines: int
    first: Difference | None
    entries: list[Entry]
    metric: str
    has_other_samples: bool
    has_unseeded: bool


def _compare(one: RunFolder, other: RunFolder, last: int) -> _Comparison:
    """Checkpoints of the same step byte by byte, entry by entry if bytes differ; then metrics."""
    folders = [_checkpoints_by_step(run) for run in (one, other)]
    steps = sorted(step for step in folders[0].keys() & folders[1].keys() if step <= last)
    first: Difference | None = None
    entries: list[Entry] = []
    has_other_samples = has_unseeded = False
    for step in steps:
        pair = [by_step[step] for by_step in folders]
        used = [read_manifest(path).facts.get("used") for path in pair]
        has_other_samples = used[0] != used[1]
        different = _different_entries(*pair)
        # Many scripts seed torch alone. If numbers depend on the others, something else differs.
        entries = [entry for entry in different if not _is_unseeded(entry)]
        has_unseeded |= len(entries) < len(different)
        if entries or has_other_samples:
            name, message = (entries[0][0], entries[0][2]) if entries else ("samples", "others")
            first = Difference(step, name, message)
            break
    num_lines, line, metric = _compare_metrics(one, other, last)
    # The step is the first place that differs. A line names it more closely than a checkpoint.
    first = line if line is not None and (first is None or line.step < first.step) else first
    return _Comparison(steps, num_lines, first, entries, metric, has_other_samples, has_unseeded)


def _checkpoints_by_step(run: RunFolder) -> dict[int, Path]:
    """Those of the lineage: of two attempts at a step, the one that counts."""
    parsed = [(name, parse_name(name)) for name in reversed(lineage(run))]
    return {one.step: run.checkpoints / name for name, one in parsed if one is not None}


def _different_entries(one: Path, other: Path) -> list[Entry]:
    a, b = read_manifest(one), read_manifest(other)
    names = [record.name for record in a.files]
    # Frozen parameters are in files that are named by their content.
    if (a.parts, a.frozen) == (b.parts, b.frozen) and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names
    ):
        return []
    return subprocesses.run(  # a child process, because reading states needs torch
        "tasuki.checkpoint.compare:find_different_entries",
        str(one),
        str(other),
        result=list[Entry],
    )


def _is_unseeded(entry: Entry) -> bool:
    name, group, _ = entry
    return group == "random" and name.rpartition("random.")[2].startswith(("python", "numpy"))


def _compare_metrics(
    one: RunFolder, other: RunFolder, last: int
) -> tuple[int, Difference | None, str]:
    """(lines that both runs have, the first difference, its metric)."""
    lines = [_metrics_by_step(run, last) for run in (one, other)]
    common = [key for key in lines[0] if key in lines[1]]
    for step, split in common:
        values, others = (by_step[step, split] for by_step in lines)
        for name in dict.fromkeys([*values, *others]):
            if values.get(name) != others.get(name):  # NaN is text in these lines
                message = f"{values.get(name)} and {others.get(name)}"
                entry = name if split == "train" else f"{name} ({split})"
                return len(common), Difference(step, entry, message), name
    return len(common), None, ""


def _metrics_by_step(run: RunFolder, last: int) -> dict[tuple[int, str], dict[str, Any]]:
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in read_metrics(run):
        if row["step"] <= last:
            values = {key: value for key, value in row.items() if key not in TIMING_KEYS}
            found.setdefault((row["step"], row["split"]), {}).update(values)
    return found


# -- causes ---------------------------------------------------------------------------------------

_UNSEEDED = (
    "the script does not seed Python's or numpy's random numbers; nothing that was compared "
    "depends on them"
)
_CAUSES = {
    "data_order": (
        "the resumed run used other samples",
        "list files in a fixed order (`sorted`), and track the loader or sampler",
    ),
    "lr_schedule": (
        "the learning rate or its schedule depends on the attempt",
        "compute it from the step, and track the scheduler",
    ),
    "random_source": (
        "random numbers are drawn differently: something seeds them again, or does not seed them",
        "seed once, before the model is built; do not seed in the loop",
    ),
    "own_generator": (
        "a random generator of your own is not in the checkpoints",
        "track it, or draw from torch's global generator",
    ),
    "untracked_state": (
        "state that is not in the checkpoints changes the loss: a counter, a cache, an average",
        "make it a buffer of the model, or track an object with a state_dict",
    ),
    "logged_value": (
        "the weights are equal, but a logged value depends on state that is not in checkpoints",
        "compute it from the model and the data alone",
    ),
    "address_order": (
        "an order depends on memory addresses: a set() of objects, id() or hash()",
        "sort before you iterate, or use a list or dict",
    ),
    "process_or_clock": (
        "a number comes from the process ID, the clock or the operating system",
        "use the step or a fixed seed",
    ),
}
# What in the user's code points to a cause. It decides which of several is named first.
_SIGNS = {
    "own_generator": r"\bGenerator\(|\bdefault_rng\(|\bRandomState\(|\brandom\.Random\(",
    "address_order": r"\bset\(|\bfrozenset\(|\bid\(|\bhash\(",
    "process_or_clock": r"getpid|\btime\.|\btime\(|perf_counter|monotonic|datetime|uuid|urandom",
    "lr_schedule": r"TASUKI_ATTEMPT|\.attempt\b",
}
_MAX_LINES = 3


def _find_causes(found: _Comparison, scratch: _Scratch, *, is_resume: bool) -> list[Cause]:
    """By what differs first. Without `is_resume`, two uninterrupted runs differ."""
    if found.first is None:
        return []
    names = [name for name, _, _ in found.entries]
    groups = {group for _, group, _ in found.entries}
    causes: list[str] = []
    if found.has_other_samples or any(name.startswith("progress.loader") for name in names):
        causes = ["data_order"]
    elif found.metric == "lr" or "schedule" in groups or any(n.endswith(".lr") for n in names):
        causes = ["lr_schedule"]
    elif groups <= {"progress"}:
        causes = ["logged_value"]
    elif "random" in groups:
        causes = ["random_source"]
    elif is_resume:
        causes = ["untracked_state", "own_generator"]
    if not is_resume:
        causes += ["address_order", "process_or_clock", "own_generator"]
    lines = {name: _find_lines(scratch, _SIGNS[name]) for name in causes if name in _SIGNS}
    causes.sort(key=lambda name: not lines.get(name))
    return [Cause(name, *_CAUSES[name], lines.get(name, [])) for name in causes]


def _find_lines(scratch: _Scratch, sign: str) -> list[str]:
    """The first lines of the script, or of the project's own Python files, that match."""
    folder = Path(scratch.request.spec.folder)
    scripts = [folder / word for word in scratch.stage.command or () if word.endswith(".py")]
    found = [
        f"{file.name}:{number}"
        for file in scripts or sorted(folder.glob("*.py"))
        if file.is_file()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if re.search(sign, line.partition("#")[0])
    ]
    return found[:_MAX_LINES]
