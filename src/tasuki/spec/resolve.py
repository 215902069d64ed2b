"""From merged layers to complete values: defaults filled in, units counted, paths expanded.

Pure. Everything was checked key by key before (`check.py`); here are only the rules that look at
several keys at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import UnsetType

from tasuki.errors import SpecError, UsageError
from tasuki.spec import written
from tasuki.spec.buckets import Buckets, parse_buckets
from tasuki.spec.commands import parse_command
from tasuki.spec.layers import expand_path
from tasuki.spec.positions import Node
from tasuki.spec.resolved import (
    ResolvedCluster,
    ResolvedEvaluate,
    ResolvedLoader,
    ResolvedSave,
    ResolvedStage,
    ResolvedValidate,
)
from tasuki.spec.starts import Names, resolve_start
from tasuki.spec.values import (
    Length,
    Sizes,
    parse_epochs,
    parse_every,
    parse_every_steps,
    parse_every_steps_or_epochs,
    parse_sizes,
    read_bytes,
    read_duration,
    read_positive_duration,
)
from tasuki.units import format_seconds

T = TypeVar("T")

_AS_WRITTEN = (
    *("recipe", "ranks", "params", "split", "micro_batch", "accumulation", "safety_factor"),
    *("precision", "gradient_checkpointing", "offload", "compile", "lr", "weight_decay"),
    *("schedule", "warmup", "seed", "on_nan", "order", "gpus", "strict", "exact"),
    *("allocator", "export"),
)
"""Keys of a stage that mean what they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a stage must know beyond its own keys."""

    names: Names
    index: int
    cluster: ResolvedCluster
    environ: Mapping[str, str]


def resolve_cluster(node: Node | None, *, environ: Mapping[str, str]) -> ResolvedCluster:
    """The cluster with every default in place."""
    entries = node.entries() if node is not None else {}
    cluster = msgspec.convert({k: v.plain() for k, v in entries.items()}, written.Cluster)
    values = _copy(cluster, *(f for f in ResolvedCluster.__struct_fields__ if f in entries))
    for key in ("setup", "python"):
        if key in values:
            values[key] = expand_path(entries[key], values[key], environ=environ)
    if (limit := given(cluster.time_limit)) is not None:
        values["time_limit_s"] = read_positive_duration(limit)
    if (grace := given(cluster.grace)) is not None:
        values["grace_s"] = read_duration(grace)
    if (memory := given(cluster.memory)) is not None:
        values["memory_bytes"] = read_bytes(memory)
    return ResolvedCluster(**values)


def resolve_stage(node: Node, *, name: str, around: Surroundings) -> ResolvedStage:
    """One stage out of its merged layers."""
    entries = {key: child for key, child in node.entries().items() if key not in ("stages", "each")}
    stage = msgspec.convert({k: v.plain() for k, v in entries.items()}, written.Stage)
    values = _copy(stage, *_AS_WRITTEN)
    if values.get("gpus") == "auto":
        _refuse_open_step(stage, entries["gpus"])
        del values["gpus"]
        values["chooses_gpus"] = True
    elif "gpus" in values:
        _refuse_gpus(values["gpus"], entries["gpus"], name, around.cluster)
    if (command := given(stage.command)) is not None:
        values["command"] = parse_command(command)
    if (size := given(stage.size)) is not None:
        values["size"] = parse_sizes(size)
    if (buckets := given(stage.buckets)) is not None:
        values["buckets"] = _buckets(buckets, entries)
    if (log_every := given(stage.log_every)) is not None:
        values["log_every"] = parse_every_steps(log_every)
    if not isinstance(stage.clip, UnsetType):
        values["clip"] = stage.clip or None
    if (expect := given(stage.expect)) is not None:
        values.update(_expect(expect))
    return ResolvedStage(
        name=name,
        data=_expand_data(entries.get("data"), environ=around.environ),
        length=_length(stage, values.get("size"), entries),
        effective_batch=_effective_batch(stage),
        save=_save(given(stage.save)),
        loader=_loader(given(stage.loader)),
        validate=_validate(entries.get("validate"), given(stage.validate), around),
        evaluate=_evaluate(entries.get("evaluate"), given(stage.evaluate), around),
        init_from=resolve_start(
            entries.get("init_from"), index=around.index, names=around.names, environ=around.environ
        ),
        **values,
    )


def _refuse_gpus(gpus: int, node: Node, stage: str, cluster: ResolvedCluster) -> None:
    """A stage lies inside one node, or is the whole job."""
    if gpus > cluster.gpus:
        raise SpecError(
            f"{node.mark}: stage `{stage}` asks for `gpus: {gpus}`, but a job has {cluster.gpus} "
            "on a node (`cluster.gpus`)",
            hint=f"write at most `gpus: {cluster.gpus}`, or ask for more: `cluster.gpus: {gpus}`",
        )
    if cluster.nodes > 1 and gpus < cluster.gpus:
        raise SpecError(
            f"{node.mark}: stage `{stage}` asks for `gpus: {gpus}`, but with `cluster.nodes: "
            f"{cluster.nodes}` a stage uses the whole job",
            hint="leave the stage's `gpus` out, or write `cluster.nodes: 1`: jobs of one node hold "
            "several stages side by side",
        )


def given(value: T | UnsetType | None) -> T | None:
    """The value if it was written, and not as `null`."""
    return None if isinstance(value, UnsetType) else value


def _copy(struct: msgspec.Struct, *keys: str) -> dict[str, Any]:
    values = {key: given(getattr(struct, key)) for key in keys}
    return {key: value for key, value in values.items() if value is not None}


def _expand_data(node: Node | None, *, environ: Mapping[str, str]) -> str | list[str] | None:
    if node is None or node.content is None:
        return None
    if isinstance(node.content, tuple):
        return [expand_path(item, str(item.content), environ=environ) for item in node.content]
    return expand_path(node, str(node.content), environ=environ)


def _length(stage: written.Stage, size: Sizes | None, entries: Mapping[str, Node]) -> Length:
    if (steps := given(stage.steps)) is not None:
        return Length(unit="steps", count=steps)
    if (samples := given(stage.samples)) is not None:
        return Length(unit="samples", count=samples)
    epochs = parse_epochs(given(stage.epochs) or 1)
    if isinstance(epochs, int):
        return Length(unit="epochs", count=epochs)
    return Length(unit="epochs", count=_epochs_of(epochs, size, entries["epochs"]))


def _epochs_of(epochs: dict[int, int], size: Sizes | None, node: Node) -> int:
    """Of a stage with one size: `epochs: {512: 30, 1024: 20}` says how many."""
    if size is None or len(size.values) != 1:
        raise SpecError(
            f"{node.mark}: `epochs` by size needs stages of one `size` each",
            hint="write `stages: auto`, give the stage a `size`, or write one number of epochs",
        )
    if size.values[0] not in epochs:
        raise SpecError(
            f"{node.mark}: `epochs` says nothing about size {size.values[0]}, which the data have",
            hint=f"it names {', '.join(map(str, epochs))}: add {size.values[0]}, or leave that "
            "size out with `size:`",
        )
    return epochs[size.values[0]]


def _buckets(buckets: object, entries: Mapping[str, Node]) -> Buckets:
    try:
        found = parse_buckets(buckets)
    except UsageError as error:
        # Two layers that are right by themselves may merge into something that is not.
        raise SpecError(f"{entries['buckets'].mark}: {error.message}", hint=error.hint) from None
    if found.kind == "cost":
        for key in ("micro_batch", "accumulation"):
            node = entries.get(key)
            if node is not None and node.content not in (None, "auto"):
                raise SpecError(
                    f"{node.mark}: `{key}` and a cost budget cannot both decide the micro-batches",
                    hint=f"leave `{key}` out, or `buckets`",
                )
    return found


def _effective_batch(stage: written.Stage) -> int | None:
    if (batch := given(stage.effective_batch)) is not None:
        return batch
    follows = given(stage.micro_batch) not in (None, "auto")
    return None if follows and given(stage.accumulation) is not None else 8


def _refuse_open_step(stage: written.Stage, node: Node) -> None:
    """`gpus: auto`, and how many samples a step has would hang on it."""
    if _effective_batch(stage) is None:
        raise SpecError(
            f"{node.mark}: `gpus: auto` with a `micro_batch` and an `accumulation` leaves open how "
            "many samples a step has",
            hint="write `effective_batch`, which stays the same on any number of GPUs",
        )


def _expect(expect: written.Expect) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if (wall := given(expect.wall)) is not None:
        values["expect_wall_s"] = read_positive_duration(wall)
    if (peak := given(expect.peak)) is not None:
        values["expect_peak_bytes"] = read_bytes(peak)
    return values


def _save(save: written.Save | None) -> ResolvedSave:
    if save is None:
        return ResolvedSave()
    values = _copy(save, "keep")
    if (every := given(save.every)) is not None:
        values["every"] = parse_every(every)
    return ResolvedSave(**values)


def _loader(loader: written.Loader | None) -> ResolvedLoader:
    if loader is None:
        return ResolvedLoader()
    return ResolvedLoader(**_copy(loader, *ResolvedLoader.__struct_fields__))


def _validate(
    node: Node | None, validate: written.Validate | None, around: Surroundings
) -> ResolvedValidate | None:
    if node is None or validate is None:
        return None
    values = _copy(validate, "split", "metric", "mode")
    if (every := given(validate.every)) is not None:
        values["every"] = parse_every_steps_or_epochs(every)
    data = _expand_data(node.entries().get("data"), environ=around.environ)
    return ResolvedValidate(data=data, **values)


def _evaluate(
    node: Node | None, evaluate: written.Evaluate | None, around: Surroundings
) -> ResolvedEvaluate | None:
    if node is None or evaluate is None:
        return None
    values = _copy(evaluate, "split", "after")
    if (command := given(evaluate.command)) is not None:
        values["command"] = parse_command(command)
    if (reserve := given(evaluate.reserve)) is not None:
        values["reserve_s"] = read_positive_duration(reserve)
        _refuse_reserve_beyond_limit(values["reserve_s"], node.entries()["reserve"], around)
    data = _expand_data(node.entries().get("data"), environ=around.environ)
    return ResolvedEvaluate(data=data, **values)


def _refuse_reserve_beyond_limit(reserve_s: float, node: Node, around: Surroundings) -> None:
    limit_s = around.cluster.time_limit_s
    if limit_s is not None and reserve_s >= limit_s:
        raise SpecError(
            f"{node.mark}: a job of {format_seconds(limit_s)} cannot keep "
            f"{format_seconds(reserve_s)} free for the evaluation",
            hint="make `evaluate.reserve` shorter, or `cluster.time_limit` longer",
        )
