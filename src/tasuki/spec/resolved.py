"""A spec in which nothing is left open: what every other package works with.

Frozen values with all defaults in place, durations in seconds and memory in bytes. They survive
JSON exactly (`to_plain`, `experiment_from_plain`), have a fingerprint, and can be compared key by
key. Built by `resolve.py` only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from tasuki.spec.buckets import Buckets
from tasuki.spec.values import Every, Length, Sizes

Plain: TypeAlias = str | list[Any] | dict[str, Any] | None


class ResolvedSave(msgspec.Struct, frozen=True, kw_only=True):
    """When checkpoints are taken, and how many stay."""

    every: Every = Every(unit="auto", count=0.0)
    keep: int = 3


class ResolvedValidate(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which weights are best."""

    data: str | list[str] | None = None
    """None: the stage's own data."""
    split: str = "val"
    every: Every = Every(unit="epochs", count=1.0)
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"


class ResolvedEvaluate(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured on finished weights."""

    data: str | list[str] | None = None
    """None: the stage's own data."""
    split: str = "test"
    after: Literal["end", "each_stage"] = "end"
    reserve_s: float | None = None
    command: tuple[str, ...] | None = None


class ResolvedLoader(msgspec.Struct, frozen=True, kw_only=True):
    """How samples are fetched; never which."""

    workers: int | Literal["auto"] = "auto"
    prefetch: int = 2
    pin: bool | Literal["auto"] = "auto"
    context: Literal["fork", "spawn", "auto"] = "auto"


class ResolvedStage(msgspec.Struct, frozen=True, kw_only=True):
    """Training on one slice of data."""

    name: str
    recipe: str | None = None
    command: tuple[str, ...] | None = None
    ranks: int | Literal["tasuki", "own"] = "tasuki"
    """Of a command: a number that the supervisor starts; `own`: the script starts them itself."""
    params: dict[str, Any] = {}
    data: str | list[str] | None = None
    size: Sizes | None = None
    split: str = "train"
    length: Length = Length(unit="epochs", count=1)
    effective_batch: int | None = 8
    """None: micro_batch × accumulation × ranks."""
    micro_batch: int | Literal["auto"] = "auto"
    accumulation: int | None = None
    safety_factor: float = 0.5
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    gradient_checkpointing: bool | int | Literal["auto"] | list[str] = False
    """A number: every so many blocks; texts: names of modules."""
    offload: bool = False
    compile: bool | str = False
    lr: float = 1e-3
    weight_decay: float = 0.01
    schedule: Literal["onecycle", "cosine", "linear", "constant", "wsd"] = "onecycle"
    warmup: float | int | None = None
    """A float is a fraction of all steps, an int a number of steps, None the schedule's own."""
    clip: float | None = 1.0
    """None: off."""
    seed: int = 0
    save: ResolvedSave = ResolvedSave()
    validate: ResolvedValidate | None = None
    evaluate: ResolvedEvaluate | None = None
    log_every: Every = Every(unit="steps", count=10.0)
    on_nan: Literal["stop", "skip", "roll_back"] = "stop"
    loader: ResolvedLoader = ResolvedLoader()
    buckets: Buckets = Buckets()
    order: Literal["shuffle", "smallest_first", "largest_first", "score"] = "shuffle"
    gpus: int | None = None
    """Of its job's: its ranks. None: all of them."""
    chooses_gpus: bool = False
    """`gpus: auto`: batch fitting chooses them; `gpus` is None until it has."""
    init_from: str = "none"
    """`none`, `previous`, STAGE, EXPERIMENT/STAGE, or a file; see `start_of`."""
    strict: bool = True
    exact: bool = True
    allocator: str | None = None
    expect_wall_s: float | None = None
    expect_peak_bytes: int | None = None
    export: Plain = None


class ResolvedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of stages that ends in one model."""

    name: str
    stages: tuple[ResolvedStage, ...]


class ResolvedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may use."""

    backend: Literal["auto", "local", "slurm"] = "auto"
    time_limit_s: float | None = None
    grace_s: float = 60.0
    nodes: int = 1
    gpus: int = 1
    gpu: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    requeue: bool | int = True
    setup: str | None = None
    python: str | None = None
    container: str | None = None
    extra: dict[str, str | int | float | bool] = {}
    mail: str | None = None
    price_per_gpu_hour: float | None = None


class ResolvedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was asked for."""

    project: str
    file: str
    folder: str
    runs: str
    cluster: ResolvedCluster
    experiments: tuple[ResolvedExperiment, ...]
    cut: Literal["stage", "fill"] = "stage"
    deadline: str | None = None
    on: dict[str, tuple[str, ...]] = {}
    """By outcome: the command that is told (alerts.py)."""
    sinks: Plain = None
    only_stages: tuple[str, ...] = ()
    varied: dict[str, tuple[str, ...]] = {}
    """By experiment: the keys that `each` made it with. For comparisons."""
    warnings: tuple[str, ...] = ()


Start: TypeAlias = Literal["none", "previous", "stage", "experiment", "file"]


def start_of(init_from: str) -> Start:
    """What kind of start a resolved `init_from` is. Files begin with `/`, `./` or `../`."""
    if init_from == "none":
        return "none"
    if init_from == "previous":
        return "previous"
    if init_from.startswith(("/", "./", "../")):
        return "file"
    return "experiment" if "/" in init_from else "stage"


StageKey: TypeAlias = tuple[str, str]  # experiment and stage


def find_source(experiment: ResolvedExperiment, stage: ResolvedStage) -> StageKey | None:
    """Find the stage whose weights another starts from. None: a file, or no weights."""
    match start_of(stage.init_from):
        case "previous":
            names = [one.name for one in experiment.stages]
            return experiment.name, names[names.index(stage.name) - 1]
        case "stage":
            return experiment.name, stage.init_from
        case "experiment":
            name, _, source = stage.init_from.partition("/")
            return name, source
        case _:
            return None


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """Dicts, lists, text and numbers: what JSON can hold, with nothing lost."""
    plain = msgspec.to_builtins(value)
    assert isinstance(plain, dict)
    return plain


def experiment_from_plain(plain: Mapping[str, object]) -> ResolvedExperiment:
    """The experiment that `to_plain` was given."""
    return msgspec.convert(plain, ResolvedExperiment)


def stage_from_plain(plain: Mapping[str, object]) -> ResolvedStage:
    """The stage that `to_plain` was given."""
    return msgspec.convert(plain, ResolvedStage)


def apply_changes(stage: ResolvedStage, changes: Mapping[str, Any]) -> ResolvedStage:
    """Return the stage with other values, by key as in the spec: `{"loader.workers": 2}`."""
    plain = to_plain(stage)
    for key, value in changes.items():
        *parents, last = key.split(".")
        target = plain
        for parent in parents:
            target = target[parent]
        target[last] = value
    return stage_from_plain(plain)


_HARMLESS_OF_STAGE = ("save", "expect", "evaluate.reserve", "loader", "export", "gpus")
_HARMLESS_OF_SPEC = ("cluster", "sinks")
"""What may change between attempts of one run: it decides when and where, never what is learnt."""

_WRITTEN = {"expect_wall_s": "expect.wall", "expect_peak_bytes": "expect.peak"}
_WRITTEN_EVALUATE = {"reserve_s": "reserve"}


def fingerprint(experiment: ResolvedExperiment) -> str:
    """A hash of what the result depends on: everything but the harmless keys."""
    plain = to_plain(experiment)
    plain["stages"] = [_without_harmless(stage) for stage in plain["stages"]]
    return hashlib.sha256(_canonical(plain).encode()).hexdigest()


def _without_harmless(stage: dict[str, Any]) -> dict[str, Any]:
    harmless = {"save", "loader", "export", "gpus", "chooses_gpus", *_WRITTEN}
    kept = {key: value for key, value in stage.items() if key not in harmless}
    if kept["evaluate"] is not None:
        kept["evaluate"] = {k: v for k, v in kept["evaluate"].items() if k != "reserve_s"}
    return kept


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key that two specs hold differently; None where one does not have it."""

    key: str
    """As people write it: `stages.small_512.lr`."""
    old: object
    new: object
    harmless: bool
    """May change between attempts of one run."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """What changed between two experiments (or specs) as `to_plain` gives them.

    Stages are compared by name; `stages` itself is a difference when their names or order change.
    """
    found = _compare(_top_leaves(old), _top_leaves(new), prefix="", harmless=_HARMLESS_OF_SPEC)
    after = {stage["name"]: stage for stage in new.get("stages", ())}
    for stage in old.get("stages", ()):
        if stage["name"] in after:
            found += _compare(
                dict(stage_leaves(stage)),
                dict(stage_leaves(after[stage["name"]])),
                prefix=f"stages.{stage['name']}.",
                harmless=_HARMLESS_OF_STAGE,
            )
    return found


def _compare(
    old: dict[str, object], new: dict[str, object], *, prefix: str, harmless: tuple[str, ...]
) -> list[Difference]:
    return [
        Difference(
            key=prefix + key,
            old=old.get(key),
            new=new.get(key),
            harmless=any(key == word or key.startswith(f"{word}.") for word in harmless),
        )
        for key in dict.fromkeys([*old, *new])
        if _canonical(old.get(key)) != _canonical(new.get(key))
        # A parameter that is None is given; any other key that is None is not.
        or (key.startswith("params.") and (key in old) != (key in new))
    ]


def _top_leaves(plain: Mapping[str, Any]) -> dict[str, object]:
    names: dict[str, object] = {"stages": [stage["name"] for stage in plain.get("stages", ())]}
    rest = {key: value for key, value in plain.items() if key != "stages"}
    return {**dict(_leaves(rest)), **names}


def stage_leaves(stage: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The keys of a stage in the user's words, with the values as people write them."""
    for key, value in stage.items():
        if key == "length":
            yield value["unit"], value["count"]
        elif key == "size":
            yield key, None if value is None else msgspec.convert(value, Sizes).label()
        elif key == "buckets":
            yield key, msgspec.convert(value, Buckets).label()
        elif key == "gpus":
            yield key, "auto" if stage.get("chooses_gpus") else value
        elif key == "chooses_gpus":
            continue
        elif key == "log_every":
            yield key, Every(**value).label()
        elif key == "params":
            yield from _leaves(value, "params.", with_empty=True)
        elif key in ("save", "validate") and value is not None:
            yield from _leaves({**value, "every": Every(**value["every"]).label()}, f"{key}.")
        elif key == "evaluate" and value is not None:
            renamed = {_WRITTEN_EVALUATE.get(k, k): v for k, v in value.items()}
            yield from _leaves(renamed, "evaluate.")
        else:
            yield from _leaves({_WRITTEN.get(key, key): value})


def _leaves(
    plain: Mapping[str, Any], prefix: str = "", *, with_empty: bool = False
) -> Iterator[tuple[str, object]]:
    """`with_empty`: a recipe may tell a parameter that is `{}` from one that is not there."""
    for key, value in plain.items():
        if isinstance(value, Mapping) and (value or not with_empty):
            yield from _leaves(value, f"{prefix}{key}.", with_empty=with_empty)
        else:
            yield prefix + key, value
