"""`tasuki tune`: what each switch buys on the user's own recipe, measured by a child process.

Chooses the stage, asks (tasuki.train.tune), and writes the winners into the spec if that is wanted.
What is tried and what is kept is decided in estimation/tuning.py. With `--batch`: the largest
micro-batch that fits this device (tasuki.memory.batch_size), as a run's first start looks for it.
"""

from __future__ import annotations

import difflib
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tasuki.answers import OnProgress, ask
from tasuki.commands.machine import Machine, cpus_for, device_for
from tasuki.commands.plan import gpus_of
from tasuki.commands.plan_request import choose_with_recipe
from tasuki.errors import SpecError, UsageError
from tasuki.estimation.factor import TunedBucket
from tasuki.estimation.tuning import SWITCHES, WORKERS, most_s, never_tried, nothing_to_try
from tasuki.runs.atomic import FORMAT, write_bytes
from tasuki.spec.edit import edit_stage, refuse_unwritten
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage, to_plain
from tasuki.train.kernels import keep_kernels
from tasuki.units import format_seconds

DEFAULT_BUDGET = "2m"
_CAP = "TASUKI_MEMORY_CAP"
_SHORT_NAMES = {"workers": WORKERS, "checkpointing": "gradient_checkpointing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    spec: ResolvedSpec
    machine: Machine
    python: str
    environment: Mapping[str, str]
    budget_s: float
    experiment: str | None = None
    stage: str | None = None
    only: tuple[str, ...] = ()
    """Switches; empty: all."""
    write: tuple[str, ...] | None = None
    """Switches; empty: all winners that give up nothing; None: nothing is written."""
    is_dry: bool = False
    """Tell what would be tried."""
    on_progress: OnProgress = lambda _: None
    on_begin: Callable[[str], None] = lambda _: None
    """Told how long it will take, when nothing is wrong with the request."""


def tune_stage(request: TuneRequest) -> dict[str, Any]:
    """The values of `tasuki tune --json`."""
    spec = request.spec
    if request.budget_s <= 0:
        raise UsageError("a budget must be longer than 0", hint="write for example --budget 2m")
    experiment, stage = _chosen(request)
    if request.write is not None:
        refuse_unwritten(Path(spec.file), experiment=experiment.name, stage=stage.name)
    found = _measure(stage, request)
    answer = {
        "format": FORMAT,
        "source": spec.file,
        "experiment": experiment.name,
        "stage": stage.name,
        "ranks": gpus_of(stage, spec.cluster),
        "budget_s": request.budget_s,
        "dry_run": request.is_dry,
        **found,
        "written": None,
        "warnings": list(spec.warnings),
    }
    if request.write is not None and not request.is_dry:
        answer["written"] = _write(answer, request)
    return answer


def tune_batch(request: TuneRequest) -> dict[str, Any]:
    """The values of `tasuki tune --batch --json`."""
    spec = request.spec
    experiment, stage = _chosen(request)
    if request.write is not None:
        if stage.buckets.kind == "cost":
            raise UsageError(
                f"stage `{stage.name}` bounds its micro-batches by cost: a budget is not written",
                hint="leave --write out, and write `budget` into `buckets` by hand",
            )
        refuse_unwritten(Path(spec.file), experiment=experiment.name, stage=stage.name)
    found = _ask_for_batch(stage, request)
    if found["capacity_bytes"] is None:
        raise _no_batch(found["reason"])
    rows = [{**row, "micro_batch": _safe(row, stage)} for row in found["buckets"]]
    answer = {
        "format": FORMAT,
        "source": spec.file,
        "experiment": experiment.name,
        "stage": stage.name,
        "ranks": gpus_of(stage, spec.cluster),
        "safety_factor": stage.safety_factor,
        **{key: value for key, value in found.items() if key != "source"},
        "found_by": found["source"],
        "buckets": rows,
        "keep": _kept(rows, stage),
        "together": None,
        "written": None,
        "warnings": list(spec.warnings),
    }
    if request.write is not None:
        answer["written"] = _write(answer, request)
    return answer


def _no_batch(reason: str) -> UsageError:
    return UsageError(
        f"no largest batch can be found: {reason}",
        hint="run `tasuki tune --batch` where there is a GPU; on a CPU the variable "
        f"{_CAP}=2G puts an end to its memory, for a try",
    )


def _kept(rows: Sequence[Mapping[str, Any]], stage: ResolvedStage) -> dict[str, Any]:
    """One for all sizes: that of the largest."""
    micro_batch = min(row["micro_batch"] for row in rows)
    if stage.buckets.cost is not None:
        return {"buckets": {"cost": stage.buckets.cost, "budget": micro_batch}}
    if stage.accumulation is None:
        return {"micro_batch": micro_batch}
    share = max(row["share"] for row in rows)
    return {"micro_batch": micro_batch, "accumulation": -(-share // micro_batch)}


def _safe(row: Mapping[str, Any], stage: ResolvedStage) -> int:
    """Of what was found for a bucket: as a run takes it."""
    bucket = TunedBucket(
        bucket=row["bucket"], size=row["size"], share=row["share"], found=row["found"], curve=()
    )
    return bucket.safe(stage.safety_factor)


def _chosen(request: TuneRequest) -> tuple[ResolvedExperiment, ResolvedStage]:
    return choose_with_recipe(
        request.spec,
        request.experiment,
        request.stage,
        why_not="there is nothing to measure",
        hint="`tasuki tune` measures stages with a `recipe`; name one with --stage",
    )


def _ask_for_batch(stage: ResolvedStage, request: TuneRequest) -> dict[str, Any]:
    spec, device = request.spec, _device(request)
    if device == "cpu" and not request.environment.get(_CAP):
        raise _no_batch("the memory of a CPU has no end of its own")
    open_stage = msgspec.structs.replace(stage, micro_batch="auto", accumulation=None)
    if stage.buckets.kind == "cost":
        buckets = msgspec.structs.replace(stage.buckets, budget="auto")
        open_stage = msgspec.structs.replace(open_stage, buckets=buckets)
    answer: dict[str, Any] = ask(
        "tasuki.memory.batch_size",
        {
            "stage": to_plain(open_stage),
            "paths": [spec.folder],
            "device": "cuda:0" if device == "cuda" else "cpu",
            "ranks": gpus_of(stage, spec.cluster),
            "threads": min(cpus_for(spec.cluster, request.machine), request.machine.cpus),
            "is_bounded": False,
            "parent": None,
        },
        python=request.python,
        environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **request.environment},
        folder=spec.folder,
        on_progress=request.on_progress,
    )
    return answer


def read_switches(text: str) -> tuple[str, ...]:
    """`precision,workers` as the spec calls them."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return tuple(dict.fromkeys(_read_switch(word) for word in words))


def _read_switch(word: str) -> str:
    name = _SHORT_NAMES.get(word, word)
    if name in SWITCHES:
        return name
    near = difflib.get_close_matches(word, [*SWITCHES, *_SHORT_NAMES], n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(SWITCHES)}"
    raise UsageError(f"there is no switch `{word}` to tune", hint=hint)


def _measure(stage: ResolvedStage, request: TuneRequest) -> dict[str, Any]:
    spec, device = request.spec, _device(request)
    why = never_tried(stage, request.only, is_gpu=device == "cuda")
    if why and not request.is_dry:
        raise nothing_to_try(why)
    if not request.is_dry:
        longest = format_seconds(most_s(request.budget_s))
        request.on_begin(
            f"measuring for about {format_seconds(request.budget_s)}, {longest} at the most; "
            "starts and compilers come on top"
        )
    order: dict[str, Any] = {
        "stage": to_plain(stage),
        "folder": spec.folder,
        "ranks": gpus_of(stage, spec.cluster),
        "cpus": min(cpus_for(spec.cluster, request.machine), request.machine.cpus),
        "device": device,
        "budget_s": request.budget_s,
        "only": list(request.only),
        "asked": list(request.write or ()),
        "is_dry": request.is_dry,
    }
    # As a run has it.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **request.environment}
    with tempfile.TemporaryDirectory(prefix="tasuki-tune-") as kernels:
        keep_kernels(Path(kernels), environment, cpus=order["cpus"])
        answer: dict[str, Any] = ask(
            "tasuki.train.tune",
            order,
            python=request.python,
            environment=environment,
            folder=spec.folder,
            on_progress=request.on_progress,
        )
    return answer


def _device(request: TuneRequest) -> str:
    device = device_for(request.spec.cluster, request.machine)
    if device == "cuda" and request.machine.gpus == 0:
        raise UsageError(
            "there is no GPU here to measure on",
            hint="run `tasuki tune` where there is one, as `srun --gres=gpu:1 tasuki tune`; or "
            "measure on the CPU: --set cluster.gpu=cpu",
        )
    return device


def _write(answer: Mapping[str, Any], request: TuneRequest) -> dict[str, Any]:
    """What was written where, or why nothing was."""
    changes, together = answer["keep"], answer["together"]
    if not changes:
        return _unwritten("no switch is worth keeping")
    if together is not None and not together["keep"]:
        return _unwritten(f"the winners together: {together['verdict']}")
    try:
        edited = edit_stage(
            Path(request.spec.file),
            experiment=answer["experiment"],
            stage=answer["stage"],
            changes=changes,
        )
    except SpecError as error:  # minutes of measuring are not thrown away for it
        return _unwritten(f"{error.message}; {error.hint}")
    replace_text(edited.file, edited.text)
    return {
        "file": str(edited.file),
        "changes": changes,
        "lines": [list(pair) for pair in edited.lines],
        "stays": list(edited.stays),
        "reason": None,
    }


def _unwritten(reason: str) -> dict[str, Any]:
    return {"file": None, "changes": {}, "lines": [], "stays": [], "reason": reason}


def replace_text(file: Path, text: str) -> None:
    """A file of the user's keeps its mode, and a link stays one."""
    target = file.resolve()
    mode = stat.S_IMODE(target.stat().st_mode)
    write_bytes(target, text.encode())
    target.chmod(mode)
