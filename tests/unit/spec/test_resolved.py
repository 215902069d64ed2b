"""Resolved values survive JSON, have a fingerprint, and can be compared key by key."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from tasuki.errors import UsageError
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import (
    Difference,
    ResolvedCluster,
    ResolvedEvaluate,
    ResolvedExperiment,
    ResolvedLoader,
    ResolvedSave,
    ResolvedStage,
    ResolvedValidate,
    differences,
    experiment_from_plain,
    fingerprint,
    stage_from_plain,
    to_plain,
)
from tasuki.spec.values import Every, Length, Sizes, parse_every, parse_sizes

BASE = ResolvedStage(name="a.1", evaluate=ResolvedEvaluate(reserve_s=60.0), params={"d": 1})
OTHER = ResolvedStage(
    name="b",
    recipe="a.b:C",
    command=("x", ""),
    ranks="own",
    params={"d": {"x": [None, 0.1, -0.0, 2**60, "é\u2028\n"], "": {}}},
    data=["$a", "b"],
    size=Sizes(low=1, high=2**53),
    split="fit",
    length=Length(unit="samples", count=2**53),
    effective_batch=None,
    micro_batch=3,
    accumulation=2,
    safety_factor=0.3,
    precision="bf16",
    gradient_checkpointing=["layers.0"],
    offload=True,
    compile="max-autotune",
    lr=1e-300,
    weight_decay=0.0,
    schedule="wsd",
    warmup=0.1,
    clip=None,
    seed=2**63 - 1,
    save=ResolvedSave(every=Every(unit="seconds", count=0.1), keep=9),
    validate=ResolvedValidate(data="v", every=Every(unit="epochs", count=0.5), mode="max"),
    evaluate=ResolvedEvaluate(data=["t"], after="each_stage", command=("y",)),
    log_every=Every(unit="steps", count=5.0),
    on_nan="skip",
    loader=ResolvedLoader(workers=2, pin=True, context="spawn"),
    buckets=Buckets(kind="cost", cost="nodes+edges", budget=3),
    order="score",
    gpus=2,
    chooses_gpus=True,
    init_from="previous",
    strict=False,
    exact=False,
    allocator="x",
    expect_wall_s=1.5,
    expect_peak_bytes=60,
    export={"to": ["m.pt"]},
)
"""Another value in each field."""
FIELDS = sorted(ResolvedStage.__struct_fields__)


def test_an_experiment_survives_json_exactly():
    assert [key for key in FIELDS if getattr(OTHER, key) == getattr(BASE, key)] == []
    experiment = ResolvedExperiment(name="e", stages=(BASE, OTHER))
    plain = to_plain(experiment)
    again = experiment_from_plain(json.loads(json.dumps(plain)))
    assert again == experiment
    assert json.dumps(to_plain(again)) == json.dumps(plain)
    assert fingerprint(again) == fingerprint(experiment)
    assert differences(plain, to_plain(again)) == []
    assert stage_from_plain(json.loads(json.dumps(to_plain(OTHER)))) == OTHER


@pytest.mark.parametrize("field", FIELDS)
def test_every_change_is_a_difference_and_fingerprints_differ_unless_it_is_harmless(field):
    before = ResolvedExperiment(name="e", stages=(BASE,))
    stage = replace(BASE, **{field: getattr(OTHER, field)})
    after = ResolvedExperiment(name="e", stages=(stage,))
    found = differences(to_plain(before), to_plain(after))
    assert found
    is_same = fingerprint(before) == fingerprint(after)
    assert is_same is all(difference.harmless for difference in found)


CHANGES: list[tuple[dict[str, Any], str, object, object, bool]] = [
    ({"lr": 0.5}, "lr", 1e-3, 0.5, False),
    ({"length": Length(unit="epochs", count=2)}, "epochs", 1, 2, False),
    ({"params": {"d": 2}}, "params.d", 1, 2, False),
    ({"params": {"d": 1, "n": None}}, "params.n", None, None, False),
    ({"params": {"d": 1, "n": {}}}, "params.n", None, {}, False),
    ({"save": ResolvedSave(keep=9)}, "save.keep", 3, 9, True),
    (
        {"save": ResolvedSave(every=Every(unit="seconds", count=600.0))},
        "save.every",
        "auto",
        "10m",
        True,
    ),
    ({"expect_wall_s": 60.0}, "expect.wall", None, 60.0, True),
    ({"evaluate": ResolvedEvaluate(reserve_s=90.0)}, "evaluate.reserve", 60.0, 90.0, True),
    (
        {"evaluate": ResolvedEvaluate(reserve_s=60.0, split="x")},
        "evaluate.split",
        "test",
        "x",
        False,
    ),
    ({"export": "onnx"}, "export", None, "onnx", True),
]


@pytest.mark.parametrize(("change", "key", "old", "new", "harmless"), CHANGES)
def test_a_change_is_named_as_people_write_it(change, key, old, new, harmless):
    before = ResolvedExperiment(name="e", stages=(BASE,))
    after = ResolvedExperiment(name="e", stages=(replace(BASE, **change),))
    assert differences(to_plain(before), to_plain(after)) == [
        Difference(key=f"stages.a.1.{key}", old=old, new=new, harmless=harmless)
    ]
    assert (fingerprint(before) == fingerprint(after)) is harmless


def test_stages_that_come_or_go_are_one_difference():
    one, two = ResolvedStage(name="one"), ResolvedStage(name="two")
    before = to_plain(ResolvedExperiment(name="e", stages=(one,)))
    after = to_plain(ResolvedExperiment(name="e", stages=(two, one)))
    assert differences(before, after) == [
        Difference(key="stages", old=["one"], new=["two", "one"], harmless=False)
    ]


def test_cluster_sinks_and_price_may_change():
    old = {"sinks": None, "cluster": to_plain(ResolvedCluster())}
    new = {"sinks": ["x"], "cluster": to_plain(ResolvedCluster(price_per_gpu_hour=2.0))}
    found = differences(old, new)
    assert [d.key for d in found] == ["sinks", "cluster.price_per_gpu_hour"]
    assert all(d.harmless for d in found)


@pytest.mark.parametrize(
    ("text", "unit", "count", "label"),
    [
        ("auto", "auto", 0.0, "auto"),
        ("500 steps", "steps", 500.0, "500 steps"),
        ("1step", "steps", 1.0, "1 step"),
        ("1 epoch", "epochs", 1.0, "1 epoch"),
        ("10m", "seconds", 600.0, "10m"),
        ("1h1m1s", "seconds", 3661.0, "3661.0s"),
    ],
)
def test_every_reads_what_people_write(text, unit, count, label):
    every = parse_every(text)
    assert (every.unit, every.count, every.label()) == (unit, count, label)
    assert parse_every(label) == every


@pytest.mark.parametrize(
    ("written", "inside", "outside", "label"),
    [
        (512, [512], [511, 513], "512"),
        ([1024, 512], [512, 1024], [700], "512,1024"),
        ("512..2048", [512, 700, 2048], [511, 2049], "512..2048"),
    ],
)
def test_sizes_contain_what_they_say(written, inside, outside, label):
    sizes = parse_sizes(written)
    assert all(sizes.contains(n) for n in inside)
    assert not any(sizes.contains(n) for n in outside)
    assert sizes.label() == label


@pytest.mark.parametrize("read", [parse_every, parse_sizes])
@pytest.mark.parametrize("text", ["", "x", "1..", "-1", None, [], "9" * 5000 + "h"])
def test_nonsense_is_a_usage_error(read, text):
    with pytest.raises(UsageError):
        read(text)


def test_loading_a_spec_imports_nothing_heavy():
    heavy = {"torch", "numpy", "rich", "click"}
    code = f"import sys, tasuki.spec.load; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
