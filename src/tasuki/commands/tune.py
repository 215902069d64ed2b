"""Measure settings on your own recipe: the function behind `tasuki tune`."""

from __future__ import annotations

import math
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from tasuki import subprocesses
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.machine import cpus_for, device_for, look_around
from tasuki.commands.plan_request import choose_with_recipe, gpus_of
from tasuki.errors import UsageError
from tasuki.estimation.factor import describe_batch_sizes, find_safe_batch
from tasuki.runs.atomic import FORMAT, write_bytes
from tasuki.spec.check import nearest
from tasuki.spec.edit import change_stage, find_written_stage
from tasuki.spec.resolved import ResolvedSpec, ResolvedStage, apply_changes, to_plain
from tasuki.train.kernels import keep_kernels
from tasuki.units import Duration, format_seconds

SETTINGS = (
    *("precision", "compile", "gradient_checkpointing", "offload", "exact"),
    *("micro_batch", "loader.workers"),
)
_MIN_GAIN = 1.03
_MAX_LOSS_DIFFERENCE = 0.02
_LONG_START_S = 10.0

Changes = dict[str, bool | int | str]


class TuneRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stage with one setting changed, or with all winners, against the stage as it is."""

    changes: Changes
    status: Literal[
        "gain", "no_gain", "slower", "unclear", "changes_loss", "slow_start", "not_measured"
    ]
    reason: str = ""
    speedup: float | None = None  # median of the rounds: 1.2 is 1.2 steps in the time of one
    speedup_min: float | None = None  # the true median is between these two
    speedup_max: float | None = None
    step_s: float | None = None
    peak_memory_bytes: int | None = None  # of a GPU
    loss_difference: float | None = None  # relative, in the first steps
    start_s: float | None = None  # until the first steps are done, with compilation


class DefaultSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The stage as it is."""

    step_s: float
    peak_memory_bytes: int | None  # of a GPU
    start_s: float


class BatchSize(msgspec.Struct, frozen=True, kw_only=True):
    """The largest micro-batch for samples of one size."""

    size: int | None
    unit: str  # samples, or cost with `buckets: cost`
    found: int
    micro_batch: int  # after the safety factor, and at most a rank's part of a step
    measured_bytes: int | None  # peak with `found`


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    stage: str
    device: str
    default: DefaultSettings | None = None  # null with `batch_size`
    rows: list[TuneRow] = []
    together: TuneRow | None = None  # all winners at once
    batch_sizes: list[BatchSize] = []
    winners: Changes = {}
    written_to: str | None = None
    notes: list[str] = []
    format: int = FORMAT


def tune(
    spec: str | Path = "tasuki.yaml",
    *,
    experiment: str | None = None,
    stage: str | None = None,
    only: Sequence[str] = (),
    batch_size: bool = False,
    write: bool = False,
    time_budget: str = "2m",
    overrides: Sequence[str] = (),
    preset: str | None = None,
    progress: subprocesses.ProgressCallback | None = None,
) -> TuneReport:
    """Measure which settings make the steps of a stage faster, on this machine.

    Args:
        spec: The spec file.
        experiment: Its name. None: the first.
        stage: Its name. None: the first with a recipe.
        only: Settings to measure. Empty: all. `exact` is a winner only if it is named here.
        batch_size: Find the largest micro-batch that fits the device instead.
        write: Put the winners into the spec file. Its comments stay.
        time_budget: Time to measure. Starts and compilation take their time on top.
        overrides: Settings as `micro_batch=2`, which replace those of the spec.
        preset: Name of an overlay of the spec.
        progress: Called with what the measurement does, as it does it.

    Raises:
        UsageError: The stage has no recipe, or a setting is not known.
        SpecError: The stage is not written out in the file, so `write` cannot change it.
        TasukiError: The stage as it is cannot be trained here.

    Example:
        >>> tasuki.tune(only=["precision"]).winners
        {'precision': 'bf16'}
    """
    for name in only:
        if name not in SETTINGS:
            near = nearest(name, SETTINGS)
            hint = f"did you mean '{near}'?" if near else f"settings: {', '.join(SETTINGS)}"
            raise UsageError(f"'{name}' is not a setting that can be measured", hint=hint)
    if batch_size and only:
        raise UsageError("--batch-size measures no settings", hint="leave the other option out")
    budget_s = Duration.parse(time_budget).seconds
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}  # as in a run
    resolved = load_resolved_spec(spec, overrides, preset, environment=env)
    chosen, of_stage = choose_with_recipe(
        resolved,
        experiment,
        stage,
        why_not="its steps cannot be measured",
        hint="`tasuki tune` needs a stage with a `recipe`; choose one with --stage",
    )
    place = (Path(resolved.file), chosen.name, of_stage.name)
    if write:
        find_written_stage(*place)  # an error now, not after minutes
    if batch_size:
        fields = _find_batch_sizes(resolved, of_stage, env, progress)
    else:
        fields = _measure(resolved, of_stage, env, progress, only, budget_s)
    report = TuneReport(experiment=chosen.name, stage=of_stage.name, **fields)
    if not write or not report.winners:
        return report
    written = find_written_stage(*place)  # read again: the user may have changed it meanwhile
    file = written.file.resolve()  # a link stays a link
    mode = stat.S_IMODE(file.stat().st_mode)
    write_bytes(file, change_stage(written, report.winners).encode())
    file.chmod(mode)
    return msgspec.structs.replace(report, written_to=str(written.file))


def _measure(
    spec: ResolvedSpec,
    stage: ResolvedStage,
    environment: dict[str, str],
    progress: subprocesses.ProgressCallback | None,
    only: Sequence[str],
    budget_s: float,
) -> dict[str, Any]:
    """Measure each setting, then the winners together, and return fields of the report."""
    device, cpus = _find_device(spec, environment)

    def measure(winners: Changes, time_s: float) -> dict[str, Any]:
        return subprocesses.run(
            "tasuki.train.tune:measure",
            *(stage, spec.folder, gpus_of(stage, spec.cluster), cpus, device),
            *(list(only), winners, time_s),
            result=dict[str, Any],
            progress=progress,
            cwd=spec.folder,
            environment=environment,
        )

    with tempfile.TemporaryDirectory(prefix="tasuki-tune-") as kernels:
        keep_kernels(Path(kernels), environment, cpus=cpus)
        measured = measure({}, budget_s)
        rows = [judge(row, measured["default"]) for row in measured["rows"]]
        winners, together = choose_winners(rows, only), None
        if winners:
            # In a new process, with models at other addresses, a gain by chance is gone.
            num_measured = sum(row.speedup is not None for row in rows)
            again = measure(winners, budget_s / (num_measured + 1))
            together = judge(again["rows"][0], again["default"])
    return {
        "device": measured["device"],
        "default": msgspec.convert(measured["default"], DefaultSettings),
        "rows": rows,
        "together": together,
        "winners": winners if together is not None and together.status == "gain" else {},
    }


def _find_device(spec: ResolvedSpec, environment: dict[str, str]) -> tuple[str, int]:
    """Return `cuda` or `cpu`, and the number of CPUs."""
    machine = look_around(environment)
    device = device_for(spec.cluster, machine)
    if device == "cuda" and not machine.gpus:
        hint = "use `srun --gres=gpu:1 tasuki tune`, or measure the CPU: --set cluster.gpu=cpu"
        raise UsageError("this machine has no GPU to measure on", hint=hint)
    return device, min(cpus_for(spec.cluster, machine), machine.cpus)


def judge(row: dict[str, Any], default: dict[str, Any]) -> TuneRow:
    """Return what the rounds of a variant show. A gain that may be smaller than 3 % is none."""
    ratios = row.pop("ratios", None)
    if not ratios:
        return TuneRow(**row, status="not_measured")
    low, high = find_interval(ratios)
    speedup = median(ratios)
    later_s = row["start_s"] - default["start_s"]
    saved_s = default["total_steps"] * row["step_s"] * (speedup - 1)
    reason = ""
    if high < 1 / _MIN_GAIN:
        status = "slower"
    elif high <= _MIN_GAIN:
        status = "no_gain"
    elif low <= _MIN_GAIN:
        status, reason = "unclear", "too noisy to tell: try a longer --time-budget"
    elif abs(row["loss_difference"]) > _MAX_LOSS_DIFFERENCE:
        status, reason = "changes_loss", f"the loss differs by {row['loss_difference']:+.1%}"
    elif later_s > max(_LONG_START_S, saved_s):
        status = "slow_start"
        reason = f"starts {format_seconds(later_s)} later, to save {format_seconds(saved_s)}"
    else:
        status = "gain"
    speedups = {"speedup": speedup, "speedup_min": low, "speedup_max": high}
    return TuneRow(**{**row, **speedups, "status": status, "reason": reason})


def find_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return two of the ratios, between which the true median is with 95 % confidence.

    Ranks need no assumption about the noise: disturbed rounds count, but not how much they are off.
    """
    ordered = sorted(ratios)
    num_cut = max(0, int((len(ordered) - 2 * math.sqrt(len(ordered))) / 2))
    return ordered[num_cut], ordered[-1 - num_cut]


def choose_winners(rows: Sequence[TuneRow], only: Sequence[str]) -> Changes:
    """Return the changes of the fastest row of each setting that has a gain."""
    best: dict[str, Changes] = {}
    for row in sorted(rows, key=lambda row: row.speedup or 0.0):
        setting = next(iter(row.changes))
        # Without `exact` a resumed run is not bitwise identical: the user must ask for that.
        if row.status == "gain" and (setting != "exact" or "exact" in only):
            best[setting] = row.changes
    return {key: value for changes in best.values() for key, value in changes.items()}


def _find_batch_sizes(
    spec: ResolvedSpec,
    stage: ResolvedStage,
    environment: dict[str, str],
    progress: subprocesses.ProgressCallback | None,
) -> dict[str, Any]:
    """Find the largest micro-batch of each size by real steps, as the first start of a run does."""
    device, cpus = _find_device(spec, environment)
    changes: dict[str, Any] = {"micro_batch": "auto", "accumulation": None}
    if stage.buckets.kind == "cost":
        changes["buckets.budget"] = "auto"
    request = {
        "stage": to_plain(apply_changes(stage, changes)),
        "paths": [spec.folder],
        "device": "cuda:0" if device == "cuda" else "cpu",
        "ranks": gpus_of(stage, spec.cluster),
        "threads": cpus,
        "is_bounded": False,
    }
    found = subprocesses.run(
        "tasuki.memory.batch_size:work",
        request,
        environment=environment,
        cwd=spec.folder,
        progress=progress,
        result=dict[str, Any],
    )
    capacity, factor = found["capacity_bytes"], stage.safety_factor
    if capacity is None:
        hint = "use a machine with a GPU; for a trial on a CPU, set TASUKI_MEMORY_CAP=2G"
        raise UsageError(f"no largest batch size: {found['reason']}", hint=hint)
    rows = [{**row, "micro_batch": find_safe_batch(row, factor)} for row in found["buckets"]]
    cost = stage.buckets.cost
    log = describe_batch_sizes(rows, factor, capacity_bytes=capacity, cost=cost)
    safe = min(row["micro_batch"] for row in rows)  # one value for all sizes
    winners: Changes = {"micro_batch" if cost is None else "buckets.budget": safe}
    if stage.accumulation is not None:
        winners["accumulation"] = -(-max(row["share"] for row in rows) // safe)
    return {
        "device": found["device"],
        "batch_sizes": msgspec.convert(rows, list[BatchSize]),
        "winners": winners,
        "notes": list(log),
    }
