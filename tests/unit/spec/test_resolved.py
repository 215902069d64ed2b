"""Resolved values survive JSON, have a fingerprint, and can be compared key by key."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

COUNTS = st.integers(1, 2**53)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
EVERY = (
    st.just(Every(unit="auto", count=0.0))
    | st.builds(
        Every, unit=st.sampled_from(["steps", "epochs"]), count=st.integers(1, 10**15).map(float)
    )
    | st.builds(Every, unit=st.just("seconds"), count=st.floats(1e-3, 1e9))
)
DATA = st.none() | st.text(min_size=1) | st.lists(st.text(min_size=1), min_size=1)
STAGES = st.builds(
    ResolvedStage,
    name=NAMES,
    recipe=st.none() | st.just("a.b:C"),
    command=st.none() | st.lists(st.text(), min_size=1).map(tuple),
    params=st.dictionaries(st.text(max_size=5), PLAIN, max_size=3),
    data=DATA,
    size=st.none()
    | st.builds(Sizes, values=st.lists(COUNTS, min_size=1).map(tuple))
    | st.builds(Sizes, low=COUNTS, high=COUNTS),
    length=st.builds(Length, unit=st.sampled_from(["epochs", "steps", "samples"]), count=COUNTS),
    effective_batch=st.none() | COUNTS,
    micro_batch=COUNTS | st.just("auto"),
    compile=st.booleans() | st.text(),
    lr=FLOATS,
    warmup=st.none() | COUNTS | FLOATS,
    clip=st.none() | FLOATS,
    seed=st.integers(0, 2**63 - 1),
    save=st.builds(ResolvedSave, every=EVERY, keep=COUNTS),
    validate=st.none() | st.builds(ResolvedValidate, data=DATA, every=EVERY),
    evaluate=st.none() | st.builds(ResolvedEvaluate, data=DATA, reserve_s=st.none() | FLOATS),
    loader=st.builds(ResolvedLoader, workers=COUNTS | st.just("auto"), pin=st.booleans()),
    buckets=st.sampled_from(
        [
            Buckets(),
            Buckets(kind="exact"),
            Buckets(kind="auto", count=6, power=2),
            Buckets(kind="bounds", uppers=(512, 1024)),
            Buckets(kind="cost", cost="nodes+edges", budget=3),
        ]
    ),
    expect_wall_s=st.none() | FLOATS,
    export=st.none() | st.text() | st.lists(st.text()),
)
EXPERIMENTS = st.builds(
    ResolvedExperiment,
    name=NAMES,
    stages=st.lists(STAGES, min_size=1, max_size=2, unique_by=lambda s: s.name).map(tuple),
)


@settings(max_examples=50, deadline=None)
@given(experiment=EXPERIMENTS)
def test_an_experiment_survives_json_exactly(experiment: ResolvedExperiment) -> None:
    plain = to_plain(experiment)
    again = experiment_from_plain(json.loads(json.dumps(plain)))
    assert again == experiment
    assert json.dumps(to_plain(again)) == json.dumps(plain)
    assert fingerprint(again) == fingerprint(experiment)
    assert differences(plain, to_plain(again)) == []
    stage = experiment.stages[0]
    assert stage_from_plain(json.loads(json.dumps(to_plain(stage)))) == stage


@settings(max_examples=60, deadline=None)
@given(old=STAGES, other=STAGES, keys=st.sets(st.sampled_from(ResolvedStage.__struct_fields__)))
def test_fingerprints_differ_exactly_when_a_difference_is_not_harmless(
    old: ResolvedStage, other: ResolvedStage, keys: set[str]
) -> None:
    before = ResolvedExperiment(name="e", stages=(old,))
    new = replace(old, **{key: getattr(other, key) for key in keys})
    after = ResolvedExperiment(name="e", stages=(new,))
    found = differences(to_plain(before), to_plain(after))
    assert (fingerprint(before) != fingerprint(after)) == any(not d.harmless for d in found)
    assert {d.key.removeprefix(f"stages.{old.name}.") for d in found if d.key != "stages"} or (
        to_plain(old) == to_plain(new) or old.name != new.name
    )


BASE = ResolvedStage(name="a.1", evaluate=ResolvedEvaluate(reserve_s=60.0), params={"d": 1})
CHANGES: list[tuple[dict[str, Any], str, object, object, bool]] = [
    ({"lr": 0.5}, "lr", 1e-3, 0.5, False),
    ({"length": Length(unit="epochs", count=2)}, "epochs", 1, 2, False),
    ({"size": Sizes(low=1, high=9)}, "size", None, "1..9", False),
    ({"params": {"d": 2}}, "params.d", 1, 2, False),
    ({"params": {"d": 1, "n": None}}, "params.n", None, None, False),
    ({"log_every": Every(unit="steps", count=5)}, "log_every", "10 steps", "5 steps", False),
    ({"save": ResolvedSave(keep=9)}, "save.keep", 3, 9, True),
    (
        {"save": ResolvedSave(every=Every(unit="seconds", count=600.0))},
        "save.every",
        "auto",
        "10m",
        True,
    ),
    ({"loader": ResolvedLoader(workers=2)}, "loader.workers", "auto", 2, True),
    ({"expect_wall_s": 60.0}, "expect.wall", None, 60.0, True),
    ({"expect_peak_bytes": 60}, "expect.peak", None, 60, True),
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
def test_a_change_is_named_as_people_write_it(
    change: dict[str, Any], key: str, old: object, new: object, harmless: bool
) -> None:
    before = ResolvedExperiment(name="e", stages=(BASE,))
    after = ResolvedExperiment(name="e", stages=(replace(BASE, **change),))
    assert differences(to_plain(before), to_plain(after)) == [
        Difference(key=f"stages.a.1.{key}", old=old, new=new, harmless=harmless)
    ]
    assert (fingerprint(before) == fingerprint(after)) is harmless


def test_stages_that_come_or_go_are_one_difference() -> None:
    one, two = ResolvedStage(name="one"), ResolvedStage(name="two")
    before = to_plain(ResolvedExperiment(name="e", stages=(one,)))
    after = to_plain(ResolvedExperiment(name="e", stages=(two, one)))
    assert differences(before, after) == [
        Difference(key="stages", old=["one"], new=["two", "one"], harmless=False)
    ]


def test_cluster_sinks_and_price_may_change() -> None:
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
def test_every_reads_what_people_write(text: str, unit: str, count: float, label: str) -> None:
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
def test_sizes_contain_what_they_say(
    written: object, inside: list[int], outside: list[int], label: str
) -> None:
    sizes = parse_sizes(written)
    assert all(sizes.contains(n) for n in inside)
    assert not any(sizes.contains(n) for n in outside)
    assert sizes.label() == label


@pytest.mark.parametrize("read", [parse_every, parse_sizes])
@pytest.mark.parametrize("text", ["", "x", "1..", "-1", None, [], "9" * 5000 + "h"])
def test_nonsense_is_a_usage_error(read: Callable[[object], object], text: object) -> None:
    with pytest.raises(UsageError):
        read(text)


def test_resolved_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ResolvedStage(name="a").lr = 3.0  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError):
        stage_from_plain({"name": 3})


def test_loading_a_spec_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, tasuki.spec.load; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
