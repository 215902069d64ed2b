"""What people write: a spec as YAML says it, or as a Python function builds it.

Every key is optional here; what is left out stays UNSET, so that layers can be told apart. The
values are checked when the spec is loaded (`check.py`), not when they are built: a Python spec then
gets the same messages as a YAML one. Everybody else works with `resolved.py`.

    from tasuki.spec.written import Experiment, Spec, Stage

    def sweep() -> Spec:
        stages = [Stage(name=f"s{size}", data="small.h5", size=size) for size in (512, 1024)]
        return Spec(recipe="recipes.gnn:GNN", experiments={"grow": Experiment(stages=stages)})
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from tasuki.spec import rules
from tasuki.spec.rules import Rule

Unset: TypeAlias = UnsetType | None
"""Not written, or `null`: the default holds, whatever a weaker layer says."""


class Save(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When checkpoints are taken, and how many stay."""

    every: rules.EveryText | Unset = UNSET
    keep: rules.Count | Unset = UNSET


class Validate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides which weights are best."""

    data: rules.Sources | Unset = UNSET
    split: rules.Text | Unset = UNSET
    every: rules.EveryStepsOrEpochs | Unset = UNSET
    metric: rules.Text | Unset = UNSET
    mode: rules.Mode | Unset = UNSET


class Evaluate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured on the finished weights."""

    data: rules.Sources | Unset = UNSET
    split: rules.Text | Unset = UNSET
    after: rules.After | Unset = UNSET
    reserve: rules.DurationText | Unset = UNSET
    command: rules.Command | Unset = UNSET


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user knows better than any prediction; training only."""

    wall: rules.DurationText | Unset = UNSET
    peak: rules.BytesText | Unset = UNSET


class Loader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How samples are fetched; never which."""

    workers: rules.Workers | Unset = UNSET
    prefetch: rules.Count | Unset = UNSET
    pin: rules.FlagOrAuto | Unset = UNSET
    context: rules.Context | Unset = UNSET


class Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of `defaults`, of a config, of an experiment and of a stage; the later one wins."""

    name: rules.Text | Unset = UNSET
    stages: (
        Annotated[
            list[Stage | str] | str, Rule("a list of stages", example="[{name: small, epochs: 3}]")
        ]
        | Unset
    ) = UNSET
    recipe: rules.RecipeName | Unset = UNSET
    command: rules.Command | Unset = UNSET
    ranks: rules.Ranks | Unset = UNSET
    params: rules.Mapping | Unset = UNSET
    data: rules.Sources | Unset = UNSET
    size: rules.SizesText | Unset = UNSET
    split: rules.Text | Unset = UNSET
    epochs: rules.Epochs | Unset = UNSET
    steps: rules.Count | Unset = UNSET
    samples: rules.Count | Unset = UNSET
    effective_batch: rules.Count | Unset = UNSET
    micro_batch: rules.CountOrAuto | Unset = UNSET
    accumulation: rules.Count | Unset = UNSET
    safety_factor: rules.Fraction | Unset = UNSET
    precision: rules.Precision | Unset = UNSET
    gradient_checkpointing: rules.Recompute | Unset = UNSET
    offload: rules.Flag | Unset = UNSET
    compile: rules.Compile | Unset = UNSET
    lr: rules.Positive | Unset = UNSET
    weight_decay: rules.NotNegative | Unset = UNSET
    schedule: rules.Schedule | Unset = UNSET
    warmup: rules.Warmup | Unset = UNSET
    clip: rules.NotNegative | Unset = UNSET
    """0 or null: off."""
    seed: rules.Seed | Unset = UNSET
    save: Save | Unset = UNSET
    validate: Validate | Unset = UNSET
    evaluate: Evaluate | Unset = UNSET
    log_every: rules.EverySteps | Unset = UNSET
    on_nan: rules.OnNan | Unset = UNSET
    loader: Loader | Unset = UNSET
    buckets: rules.Buckets | Unset = UNSET
    order: rules.Order | Unset = UNSET
    gpus: rules.GpusOrAuto | Unset = UNSET
    init_from: rules.Text | Unset = UNSET
    strict: rules.Flag | Unset = UNSET
    exact: rules.Flag | Unset = UNSET
    allocator: rules.Allocator | Unset = UNSET
    expect: Expect | Unset = UNSET
    export: rules.Exports | Unset = UNSET
    each: rules.Each | Unset = UNSET


class Stage(Layer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training on one slice of data."""


class Experiment(Layer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chain of stages that ends in one model."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job may use."""

    backend: rules.Backend | Unset = UNSET
    time_limit: rules.DurationText | Unset = UNSET
    grace: rules.GraceText | Unset = UNSET
    nodes: rules.Count | Unset = UNSET
    gpus: rules.Gpus | Unset = UNSET
    gpu: rules.Text | Unset = UNSET
    cpus: rules.Count | Unset = UNSET
    memory: rules.BytesText | Unset = UNSET
    partition: rules.Text | Unset = UNSET
    account: rules.Text | Unset = UNSET
    qos: rules.Text | Unset = UNSET
    constraint: rules.Text | Unset = UNSET
    requeue: rules.Requeue | Unset = UNSET
    setup: rules.Text | Unset = UNSET
    python: rules.Text | Unset = UNSET
    container: rules.Text | Unset = UNSET
    extra: rules.Options | Unset = UNSET
    mail: rules.Text | Unset = UNSET
    price_per_gpu_hour: rules.NotNegative | Unset = UNSET


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in one file."""

    project: rules.Text | Unset = UNSET
    recipe: rules.RecipeName | Unset = UNSET
    command: rules.Command | Unset = UNSET
    runs: rules.Text | Unset = UNSET
    cluster: Cluster | Unset = UNSET
    defaults: Layer | Unset = UNSET
    configs: (
        Annotated[dict[str, Layer], Rule("a mapping", example="{small: {lr: 1e-3}}")] | Unset
    ) = UNSET
    experiments: (
        Annotated[
            dict[str, Experiment | None] | list[str],
            Rule("a mapping or a list of files", example="{baseline: {epochs: 3}}"),
        ]
        | Unset
    ) = UNSET
    deadline: rules.DeadlineText | Unset = UNSET
    cut: rules.Cut | Unset = UNSET
    on: rules.Alerts | Unset = UNSET
    sinks: rules.Sinks | Unset = UNSET
